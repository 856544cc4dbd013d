"""What a run shows to its teacher, read from the places that the configuration names.

The driver reads them once, so files and variables need not exist on the node where the feed runs; those of a
`teachers_file` are read with it, where the feed runs.
"""

from __future__ import annotations

from pathlib import Path

from tokbridge.client.credentials import ClientCredentials
from tokbridge.client.target import parse_targets
from tokbridge_trainer.config_teachers import TeacherService


def load_credentials(teacher: TeacherService, folder: Path = Path()) -> ClientCredentials:
    """Certificates and API key; relative paths start at `folder`.

    Raises:
        InvalidConfigError: a file or a variable is missing.
    """
    tls, api_key_file = teacher.tls, teacher.api_key_file
    ca, certificate, key, api_key_file = (
        None if path is None else folder / path for path in (tls.ca, tls.certificate, tls.key, api_key_file)
    )
    return ClientCredentials.from_files(
        ca=ca, certificate=certificate, key=key, api_key_file=api_key_file, api_key_env=teacher.api_key_env
    )


def exposed_addresses(teacher: TeacherService, credentials: ClientCredentials) -> list[str]:
    """Where the API key would go over a network in the clear.

    Raises:
        InvalidConfigError: an address is wrong, or certificates do not fit its scheme.
    """
    return credentials.exposed(parse_targets(teacher.urls))
