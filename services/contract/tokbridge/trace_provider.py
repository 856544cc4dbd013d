"""OpenTelemetry as teacher and trainer set it up: spans go to a collector over OTLP/gRPC if one is named, else nowhere.

The packages are imported only then; without them there are no traces. Which spans there are is the caller's affair.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tokbridge.errors import InvalidConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The first one that is set holds."""
_TIMEOUT_VARIABLE = "OTEL_EXPORTER_OTLP_TIMEOUT"
_TIMEOUT_S = 2.0
"""Of one export, its retries included: a collector that does not answer does not hold up a process's end."""


def open_provider(
    service_name: str, endpoint: str | None = None, environ: Mapping[str, str] = os.environ
) -> TracerProvider | None:
    """A provider of tracers that sends to a collector; None unless an endpoint or a standard variable is given.

    Args:
        service_name: in every span, unless the standard variable says another.
        endpoint: of the collector.
        environ: where the standard variables stand.

    Raises:
        InvalidConfigError: traces are configured, and the packages are not installed.
    """
    endpoint = endpoint or next(filter(None, map(environ.get, _ENDPOINT_VARIABLES)), None)
    if endpoint is None or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            "traces need the packages of OpenTelemetry: pip install 'tokbridge[otel]'", field="otlp_endpoint"
        ) from error
    named = {} if "OTEL_SERVICE_NAME" in environ else {SERVICE_NAME: service_name}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    timeout_s = None if _TIMEOUT_VARIABLE in environ else _TIMEOUT_S
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)))
    return provider
