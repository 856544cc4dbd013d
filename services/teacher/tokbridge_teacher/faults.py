"""Turns unexpected faults into one typed error at the border of the service; causes stay in the log."""

from __future__ import annotations

import logging
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tokbridge.errors import InternalError, TokbridgeError
from tokbridge.library_faults import is_panic
from tokbridge.requests import REQUEST_ID_PATTERN

_log = logging.getLogger(__name__)


@contextmanager
def internal_faults(request_id: str) -> Iterator[None]:
    """Let typed errors through; log anything else under the request's id and raise `InternalError` in its place."""
    try:
        yield
    except TokbridgeError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise  # cancellation, and what ends the process
        _log.error("request %s failed\n%s", request_id, places_of(error))
        raise InternalError(f"The service failed; its log holds the cause under {request_id}.") from error


def places_of(error: BaseException) -> str:
    """A traceback with types and places, causes included, but no messages: they may quote a conversation."""
    parts: list[str] = []
    fault: BaseException | None = error
    while fault is not None:
        parts += [
            f"{type(fault).__module__}.{type(fault).__qualname__} at\n",
            *traceback.format_tb(fault.__traceback__),
        ]
        fault = fault.__cause__ or fault.__context__
    return "".join(parts).rstrip()


def valid_request_id(request_id: str) -> str:
    """The caller's request id if it is well-formed, else a new one."""
    return request_id if REQUEST_ID_PATTERN.fullmatch(request_id) else uuid.uuid4().hex
