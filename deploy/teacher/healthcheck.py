"""Health check of the teacher's image: exit status 0 while the service is ready. Standard library only.

`TOKBRIDGE_HEALTH_URL` names another address than `http://127.0.0.1:8080/readyz`. It is the container's own loopback,
so a certificate is not verified: it is made out to another name.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

DEFAULT_URL = "http://127.0.0.1:8080/readyz"


def is_ready(url: str, timeout_s: float = 4.0) -> bool:
    """Whether the service answers 200."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=timeout_s) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if is_ready(os.environ.get("TOKBRIDGE_HEALTH_URL", DEFAULT_URL)) else 1)
