"""Turns unexpected faults into one typed error at the border of the service; causes stay in the log."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tokbridge.errors import InternalError, TokbridgeError
from tokbridge.requests import REQUEST_ID_PATTERN

_log = logging.getLogger(__name__)


@contextmanager
def internal_faults(request_id: str) -> Iterator[None]:
    """Let typed errors through; log anything else under the request's id and raise `InternalError` in its place."""
    try:
        yield
    except TokbridgeError:
        raise
    except Exception as error:
        _log.exception("request %s failed", request_id)
        raise InternalError(f"The service failed; its log holds the cause under {request_id}.") from error


def valid_request_id(request_id: str) -> str:
    """The caller's request id if it is well-formed, else a new one."""
    return request_id if REQUEST_ID_PATTERN.fullmatch(request_id) else uuid.uuid4().hex
