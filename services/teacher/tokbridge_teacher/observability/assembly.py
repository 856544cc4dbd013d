"""Puts the observer of a service together: its gauges read what the service is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokbridge import __version__
from tokbridge_teacher.admission import Admission, Cost
from tokbridge_teacher.backends.base import BackendDescription
from tokbridge_teacher.backends.device_memory import device_memory
from tokbridge_teacher.fair_pool import FairPool
from tokbridge_teacher.observability import catalogue
from tokbridge_teacher.observability.catalogue import Metric
from tokbridge_teacher.observability.metrics import Read, ServiceMetrics
from tokbridge_teacher.scheduling import Scheduler, SchedulerState
from tokbridge_teacher.students import StudentRegistry


def new_metrics(backend: BackendDescription) -> ServiceMetrics:
    """Metrics that know their model and its device."""
    metrics = ServiceMetrics(backend.model)
    metrics.describe_build(version=__version__, backend=backend.backend, dtype=backend.dtype, device=backend.device)
    metrics.watch_device(device_memory(backend.process_device))
    return metrics


def watch_service(
    metrics: ServiceMetrics,
    *,
    scheduler: Scheduler,
    preparers: FairPool,
    admission: Admission,
    students: StudentRegistry,
    ready: Callable[[], bool],
) -> None:
    """Read the service's containers at every scrape, and whether it is `ready`."""
    metrics.watch({catalogue.STUDENTS: lambda: len(students), catalogue.PREPARE_WAITING: lambda: preparers.waiting})
    metrics.watch({catalogue.READY: ready})
    metrics.watch(_scheduler_gauges(scheduler.state))
    metrics.watch(_admission_gauges(admission.held))


def _scheduler_gauges(state: Callable[[], SchedulerState]) -> Mapping[Metric, Read]:
    return {
        catalogue.QUEUE_REQUESTS: lambda: state().queued_requests,
        catalogue.QUEUE_TOKENS: lambda: state().queued_tokens,
        catalogue.RUNNING_REQUESTS: lambda: state().running_requests,
        catalogue.RUNNING_TOKENS: lambda: state().running_tokens,
    }


def _admission_gauges(held: Callable[[], Cost]) -> Mapping[Metric, Read]:
    return {
        catalogue.ADMITTED_REQUESTS: lambda: held().requests,
        catalogue.ADMITTED_TOKENS: lambda: held().tokens,
        catalogue.ADMITTED_RESULT_BYTES: lambda: held().result_bytes,
    }
