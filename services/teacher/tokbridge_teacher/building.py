"""Builds a service from its settings: tokenizer, model, self-tests, queue. No socket is opened here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tokbridge.modes import Routing
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.backends.base import Backend, SelfTestReport
from tokbridge_teacher.backends.huggingface import BackendLimits, HuggingFaceBackend
from tokbridge_teacher.backends.model_loading import context_length, load_model
from tokbridge_teacher.metrics import ServiceMetrics
from tokbridge_teacher.readiness import check_whole_path
from tokbridge_teacher.scheduling import Scheduler, SchedulerLimits
from tokbridge_teacher.service import TeacherService
from tokbridge_teacher.settings import ServeSettings
from tokbridge_teacher.students import StudentRegistry, pair_compiler


@dataclass(frozen=True)
class BuiltService:
    """A service that passed its self-tests, and what it owns."""

    service: TeacherService
    scheduler: Scheduler
    executor: ThreadPoolExecutor
    self_test: SelfTestReport
    repeat_error: float
    """Largest difference between two scorings of one response."""

    def stop(self, grace_s: float) -> None:
        """Finish what was admitted, within `grace_s` seconds."""
        self.service.ready = False
        self.scheduler.stop(grace_s)

    def close(self) -> None:
        """End the threads. Only when no request is left: rows that are computed are still assembled in them."""
        self.executor.shutdown(wait=False, cancel_futures=True)


def build_service(settings: ServeSettings) -> BuiltService:
    """Load and check everything; the service is ready when this returns.

    Raises:
        InvalidConfigError, InvalidVocabularyError: the model or its tokenizer cannot be used.
        SelfTestFailedError: the model or the target path does not compute what it should.
    """
    backend = load_backend(settings)
    self_test = backend.self_test()
    profile = load_tokenizer(settings.model, backend.describe().head_size)
    return build_checked_service(settings, backend, profile, self_test)


def load_backend(settings: ServeSettings) -> HuggingFaceBackend:
    """The embedded backend with its model."""
    model = load_model(settings.model, dtype=settings.dtype, device=settings.device)
    return HuggingFaceBackend(
        model,
        name=settings.model,
        context_length=context_length(model, settings.max_model_len),
        limits=BackendLimits(
            chunk_rows=settings.chunk_rows, piece_tokens=settings.piece_tokens, batch_tokens=settings.batch_tokens
        ),
    )


def build_checked_service(
    settings: ServeSettings, backend: Backend, profile: TokenizerProfile, self_test: SelfTestReport
) -> BuiltService:
    """A service over any backend, after the check of the whole path."""
    device = backend.describe().device
    compile_tables = pair_compiler(profile.vocabulary, settings.cache_dir)
    own_tables = compile_tables(StudentRegistration.from_profile(profile), Routing.GREEDY)
    repeat_error = check_whole_path(backend, profile, own_tables)
    scheduler = Scheduler(
        backend,
        SchedulerLimits(
            max_requests=settings.max_requests,
            max_tokens_in_flight=settings.max_tokens_in_flight,
            batch_tokens=settings.batch_tokens,
        ),
    )
    metrics = ServiceMetrics()
    metrics.watch_scheduler(scheduler.state, lambda: scheduler.compute_seconds)
    executor = ThreadPoolExecutor(settings.prepare_threads, thread_name_prefix="tokbridge-prepare")
    service = TeacherService(
        profile=profile,
        backend=backend,
        scheduler=scheduler,
        students=StudentRegistry(compile_tables, device=device, max_students=settings.limits.max_students),
        limits=settings.limits,
        max_tokens_in_flight=settings.max_tokens_in_flight,
        executor=executor,
        metrics=metrics,
    )
    scheduler.start()
    service.ready = True
    return BuiltService(service, scheduler, executor, self_test, repeat_error)
