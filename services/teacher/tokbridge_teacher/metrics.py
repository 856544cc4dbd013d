"""What a service counts, in the Prometheus text format; one registry for one service, nothing global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tokbridge.results import ScoreSummary
from tokbridge_teacher.scheduling import SchedulerState

_SECONDS_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class ServiceMetrics:
    """Counters of requests, rows, tokens and time."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tokbridge_score_requests",
            "Score requests by outcome: ok, cancelled or the error's code.",
            ["outcome"],
            registry=self.registry,
        )
        self._rows = Counter("tokbridge_rows", "Rows answered, by case.", ["case"], registry=self.registry)
        self._tokens = Counter(
            "tokbridge_teacher_tokens",
            "Teacher tokens of answered requests, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tokbridge_score_seconds",
            "Seconds of answered requests, by stage.",
            ["stage"],
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )

    def watch_scheduler(self, state: Callable[[], SchedulerState], compute_seconds: Callable[[], float]) -> None:
        """Read queue and worker at every scrape."""
        for name in ("queued_requests", "queued_tokens", "running_requests", "running_tokens"):
            gauge = Gauge(f"tokbridge_{name}", f"{name.replace('_', ' ').capitalize()} now.", registry=self.registry)
            gauge.set_function(lambda name=name: getattr(state(), name))
        gauge = Gauge("tokbridge_compute_seconds", "Seconds the worker has computed.", registry=self.registry)
        gauge.set_function(compute_seconds)

    def count_request(self, outcome: str) -> None:
        """One request came to its end."""
        self._requests.labels(outcome).inc()

    def count_answer(self, summary: ScoreSummary) -> None:
        """Facts of one answered request."""
        for case, rows in summary.cases.items():
            self._rows.labels(case).inc(rows)
        self._tokens.labels("prompt").inc(summary.prompt_tokens)
        self._tokens.labels("shared_prompt").inc(summary.shared_prompt_tokens)
        self._tokens.labels("content").inc(summary.content_tokens)
        for stage, seconds in asdict(summary.timings).items():
            self._seconds.labels(stage.removesuffix("_s")).observe(seconds)

    def render(self) -> bytes:
        """The page that `/metrics` serves."""
        return generate_latest(self.registry)
