"""The W3C trace context of the caller, for gRPC metadata; nothing without OpenTelemetry or outside a span."""

from __future__ import annotations

from functools import cache
from types import ModuleType


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """`traceparent` and what else the configured propagator adds, for the span that is current now."""
    propagate = _propagate()
    if propagate is None:
        return ()
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple((key.lower(), value) for key, value in carrier.items())  # gRPC wants lower-case keys


@cache
def _propagate() -> ModuleType | None:
    try:
        from opentelemetry import propagate  # an optional extra
    except ModuleNotFoundError:
        return None
    return propagate
