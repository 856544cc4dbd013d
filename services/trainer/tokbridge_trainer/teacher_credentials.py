"""What a run shows to its teacher, read from the places that the configuration names.

The driver reads them once, so files and variables need not exist on the node where the feed runs.
"""

from __future__ import annotations

from tokbridge.client.credentials import ClientCredentials
from tokbridge.client.target import parse_targets
from tokbridge_trainer.config_sections import TeacherConfig


def load_credentials(teacher: TeacherConfig) -> ClientCredentials:
    """Certificates and API key.

    Raises:
        InvalidConfigError: a file or a variable is missing.
    """
    return ClientCredentials.from_files(
        ca=teacher.tls.ca,
        certificate=teacher.tls.certificate,
        key=teacher.tls.key,
        api_key_file=teacher.api_key_file,
        api_key_env=teacher.api_key_env,
    )


def exposed_addresses(teacher: TeacherConfig) -> list[str]:
    """Where the API key would go over a network in the clear; errors as
    `load_credentials`, and for certificates that do not fit a URL's scheme."""
    return load_credentials(teacher).exposed(parse_targets(teacher.urls))
