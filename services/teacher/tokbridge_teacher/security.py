"""What a service lets in and how it is encrypted, read from its settings and checked before a model is loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from tokbridge_teacher.key_ring import KeyRing, open_key_ring
from tokbridge_teacher.settings import ServeSettings
from tokbridge_teacher.tls import ServerTls, exposures

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Security:
    """Keys and certificates; either may be missing."""

    keys: KeyRing | None
    tls: ServerTls | None


def open_security(settings: ServeSettings, environ: Mapping[str, str] = os.environ) -> Security:
    """Read keys and certificates, and warn of each that is missing on an address that others can reach.

    Raises:
        InvalidConfigError: they cannot be used; names the setting.
    """
    keys = open_key_ring(settings.api_keys_file, environ)
    tls = None
    if settings.tls_certificate is not None and settings.tls_key is not None:
        tls = ServerTls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        tls.context()
    for exposure in exposures(settings.host, has_keys=keys is not None, has_tls=tls is not None):
        _log.warning("SECURITY: %s", exposure)
    return Security(keys, tls)
