"""The metadata of each call: what the user gave, the API key, the request's id, the caller's trace."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tokbridge.client.tracing import trace_metadata

Metadata = Sequence[tuple[str, str]]

REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID_DETAIL = "request_id"
"""Detail of an error: under this id the service's log and traces have the call."""


def new_request_id() -> str:
    """An id for a call whose caller gave none."""
    return secrets.token_hex(8)


class CallMetadata:
    """Builds the metadata; has no `repr` of its own, since some of it is secret."""

    def __init__(self, base: Metadata) -> None:
        self._base = tuple(base)

    def of(self, request_id: str) -> tuple[tuple[str, str], ...]:
        """All metadata of one call, made in the caller's context."""
        return (*self._base, (REQUEST_ID_HEADER, request_id), *trace_metadata())
