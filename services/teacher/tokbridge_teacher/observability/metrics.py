"""Counts for Prometheus. One registry for one service, nothing global; gauges read the containers themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from tokbridge.results import ScoreSummary
from tokbridge.targets import RowCase, TargetRows
from tokbridge_teacher.cancellations import CancelReason
from tokbridge_teacher.observability import catalogue
from tokbridge_teacher.observability.calls import PROTOCOLS
from tokbridge_teacher.observability.catalogue import CATALOGUE, Metric, MetricType
from tokbridge_teacher.observability.outcomes import FAULTS, OK, End, Outcome, PassFault, pass_fault
from tokbridge_teacher.scheduling import PassReport

Read = Callable[[], float]
Child = TypeVar("Child", Counter, Gauge, Histogram)

_RESIDUALS = ("unmapped", "control", "truncated")


class ServiceMetrics:
    """The metrics of the catalogue and of the process, for one model."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._model_name = model_name
        self._collectors = {metric.name: _collector(metric, self.registry) for metric in CATALOGUE}
        self._begin_at_zero()

    def count_request(self, end: End, caller: str) -> None:
        """One score request came to its end."""
        self._add(catalogue.REQUESTS, 1, end.outcome, end.reason)
        self._add(catalogue.CALLER_REQUESTS, 1, caller, end.outcome)
        if end.outcome is Outcome.REFUSED:
            self.count_refusal(end.reason)
        if end.outcome is Outcome.CANCELLED:
            self._add(catalogue.CANCELLATIONS, 1, end.reason)

    def count_registration(self, end: End) -> None:
        """One registration came to its end."""
        self._add(catalogue.REGISTRATIONS, 1, end.outcome, end.reason)
        if end.outcome is Outcome.REFUSED:
            self.count_refusal(end.reason)

    def count_refusal(self, reason: str) -> None:
        """One call was turned away; requests and registrations are counted here by themselves."""
        self._add(catalogue.REFUSALS, 1, reason)

    def count_refused_caller(self, protocol: str) -> None:
        """One call had no valid key."""
        self._add(catalogue.AUTHENTICATION_FAILURES, 1, protocol)

    def count_rows(self, rows: TargetRows) -> None:
        """Rows were released."""
        for case, number in enumerate(np.bincount(rows.cases).tolist()):
            if number:
                self._add(catalogue.ROWS, number, RowCase(case).name.lower())
        for kind in _RESIDUALS:
            mass = getattr(rows, f"residual_{kind}").sum(dtype=np.float64)
            self._add(catalogue.RESIDUAL_MASS, float(mass), kind)

    def count_answer(self, summary: ScoreSummary, caller: str, seconds: float) -> None:
        """One response was scored to its end."""
        self.observe(catalogue.REQUEST_SECONDS, seconds)
        self._add(catalogue.CALLER_TOKENS, summary.prompt_tokens + summary.content_tokens, caller)
        for kind in ("prompt", "shared_prompt", "content"):
            self._add(catalogue.TEACHER_TOKENS, getattr(summary, f"{kind}_tokens"), kind)

    def count_encoding(self, seconds: float, num_bytes: int) -> None:
        """One response was put into its wire form, whole or as far as it came."""
        self.observe(catalogue.ENCODE_SECONDS, seconds)
        self._add(catalogue.WIRE_BYTES, num_bytes)

    def count_pass(self, report: PassReport) -> None:
        """The model ended a pass."""
        self.observe(catalogue.BATCH_TOKENS, report.num_tokens)
        self.observe(catalogue.DEVICE_PASS_SECONDS, report.seconds)
        if report.fault is not None:
            self._add(catalogue.FAILED_PASSES, 1, pass_fault(report.fault))

    def observe(self, metric: Metric, value: float) -> None:
        """One observation of a histogram."""
        self._child(Histogram, metric).observe(value)

    def watch(self, gauges: Mapping[Metric, Read]) -> None:
        """Read gauges without further labels at every scrape."""
        for metric, read in gauges.items():
            self._child(Gauge, metric).set_function(read)

    def watch_device(self, kinds: Mapping[str, Read]) -> None:
        """Read the device's memory at every scrape; nothing to read on a CPU."""
        for kind, read in kinds.items():
            self._child(Gauge, catalogue.DEVICE_MEMORY, kind).set_function(read)

    def describe_build(self, *, version: str, backend: str, dtype: str, device: str) -> None:
        """What runs here."""
        self._child(Gauge, catalogue.BUILD_INFO, version, backend, dtype, device).set(1)

    def render(self) -> bytes:
        """The page that `/metrics` serves."""
        return generate_latest(self.registry)

    def _child(self, kind: type[Child], metric: Metric, *labels: str) -> Child:
        child = self._collectors[metric.name].labels(self._model_name, *labels)
        assert isinstance(child, kind), f"{metric.name} is no {kind.__name__}"
        return child

    def _add(self, metric: Metric, amount: float, *labels: str) -> None:
        self._child(Counter, metric, *labels).inc(amount)

    def _begin_at_zero(self) -> None:
        """A series whose first sample is above 0 has no rate: show those whose labels are known."""
        for metric in CATALOGUE:
            if not metric.labels and metric.type is not MetricType.GAUGE:
                self._collectors[metric.name].labels(self._model_name)
        self._add(catalogue.REQUESTS, 0, OK.outcome, OK.reason)
        for code in FAULTS:
            self._add(catalogue.REQUESTS, 0, Outcome.FAILED, code.value)
        self._add(catalogue.REGISTRATIONS, 0, OK.outcome, OK.reason)
        for metric, values in (
            (catalogue.CANCELLATIONS, [reason.value for reason in CancelReason]),
            (catalogue.REFUSALS, ["overloaded", "shutting_down"]),
            (catalogue.AUTHENTICATION_FAILURES, PROTOCOLS),
            (catalogue.FAILED_PASSES, [fault.value for fault in PassFault]),
            (catalogue.ROWS, [case.name.lower() for case in RowCase]),
            (catalogue.RESIDUAL_MASS, _RESIDUALS),
            (catalogue.TEACHER_TOKENS, ["prompt", "shared_prompt", "content"]),
        ):
            for value in values:
                self._add(metric, 0, value)


def _collector(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    labels = ["model_name", *metric.labels]
    if metric.type is MetricType.HISTOGRAM:
        return Histogram(metric.name, metric.help, labels, registry=registry, buckets=metric.buckets)
    kind = Counter if metric.type is MetricType.COUNTER else Gauge
    return kind(metric.name, metric.help, labels, registry=registry)
