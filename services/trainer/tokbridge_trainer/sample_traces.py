"""A span around the scoring of each sample, so that a trace leads from a training step into the teacher that served it.

Only where OpenTelemetry is configured by its standard variables; the client hands the context of the span on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokbridge import __version__
from tokbridge.errors import TokbridgeError
from tokbridge.trace_provider import open_provider
from tokbridge_trainer.samples import SampleKey

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVICE_NAME = "tokbridge-trainer"
SPAN_NAME = "tokbridge.sample"


class NoTraces:
    """Nobody listens."""

    @contextmanager
    def scoring(self, key: SampleKey) -> Iterator[None]:
        """Nothing."""
        yield

    def close(self) -> None:
        """Nothing."""


class SampleTracer:
    """Makes the spans."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace

        self._provider = provider
        self._tracer = provider.get_tracer("tokbridge.trainer", __version__)
        self._trace = trace

    @contextmanager
    def scoring(self, key: SampleKey) -> Iterator[None]:
        """The span is current within the block; of an error it holds the code, never the text."""
        attributes = {
            "tokbridge.step": key.step,
            "tokbridge.prompt_index": key.prompt_index,
            "tokbridge.sample_index": key.sample_index,
        }
        with self._tracer.start_as_current_span(
            SPAN_NAME,
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except TokbridgeError as error:
                span.set_status(self._trace.StatusCode.ERROR, error.code)
                raise

    def close(self) -> None:
        """Send what is left; takes seconds if the collector does not answer."""
        self._provider.shutdown()


def open_sample_traces(environ: Mapping[str, str] = os.environ) -> NoTraces | SampleTracer:
    """The traces that the environment asks for.

    Raises:
        InvalidConfigError: it asks for them, and the packages are not installed.
    """
    provider = open_provider(SERVICE_NAME, environ=environ)
    return NoTraces() if provider is None else SampleTracer(provider)
