"""Builds a service from its settings: tokenizer, model, self-tests, queue. No socket is opened here."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tokbridge.jinja_rendering import Renderer
from tokbridge.modes import Routing
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.admission import Admission, AdmissionLimits, Cost
from tokbridge_teacher.backends.base import Backend, SelfTestReport
from tokbridge_teacher.backends.huggingface import BackendLimits, HuggingFaceBackend
from tokbridge_teacher.backends.model_loading import context_length, load_model
from tokbridge_teacher.backends.vllm.engine_config import VllmSettings
from tokbridge_teacher.backends.vllm.environment import prepare_environment
from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions
from tokbridge_teacher.fair_pool import FairPool
from tokbridge_teacher.model_health import ModelHealth, ModelState
from tokbridge_teacher.observability.assembly import new_metrics, watch_service
from tokbridge_teacher.observability.metrics import ServiceMetrics
from tokbridge_teacher.observability.observer import RequestObserver
from tokbridge_teacher.observability.tracing import open_tracer
from tokbridge_teacher.prompt.render_processes import RenderBounds, RenderProcesses
from tokbridge_teacher.prompt.rendered_texts import RenderedTexts
from tokbridge_teacher.readiness import SelfTestResponse, check_whole_path
from tokbridge_teacher.scheduling import PassReport, Scheduler, SchedulerLimits
from tokbridge_teacher.service import TeacherService
from tokbridge_teacher.settings import ServeSettings
from tokbridge_teacher.students import StudentRegistry, pair_compiler
from tokbridge_teacher.workers import ServiceBounds, Workers

_ENGINE_PASSES = 8
"""Passes under way at once in each lane where the backend batches across passes and bounds its memory itself."""
_PROMPT_GROWTH = 16
"""What a template may make of a conversation; templates add a line a message."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuiltService:
    """A service that passed its self-tests, and what it owns."""

    service: TeacherService
    workers: Workers
    backend: Backend
    self_test: SelfTestReport
    repeat_error: float
    """Largest difference between two scorings of one response."""
    renderers: RenderProcesses
    health: ModelHealth
    self_test_response: SelfTestResponse

    @property
    def scheduler(self) -> Scheduler:
        """The queue in front of the model."""
        return self.workers.scheduler

    def stop(self, grace_s: float) -> None:
        """Take no more requests; those prepared may finish within `grace_s` seconds, then what is left fails."""
        self.service.serving = False
        self.workers.scheduler.stop(grace_s)

    def close(self) -> None:
        """End threads and backend. Only when no request is left: rows that are computed are still assembled in them."""
        self.service.observer.close()
        self.workers.preparers.close()
        self.workers.registrars.close()
        self.renderers.close()
        self.workers.assemblers.shutdown(wait=False, cancel_futures=True)
        self.backend.close()


def build_service(settings: ServeSettings) -> BuiltService:
    """Load and check everything; the service is ready when this returns.

    Raises:
        InvalidConfigError, InvalidVocabularyError: the model or its tokenizer cannot be used.
        SelfTestFailedError: the model or the target path does not compute what it should.
    """
    with ExitStack() as undo:
        backend = load_backend(settings)
        undo.callback(backend.close)
        self_test = backend.self_test()
        profile = load_tokenizer(settings.model, backend.describe().head_size)
        built = build_checked_service(settings, backend, profile, self_test)
        undo.pop_all()
        return built


def load_backend(settings: ServeSettings) -> Backend:
    """The backend with its model.

    Raises:
        InvalidConfigError: there is no such model, or the backend cannot run it.
    """
    return _load_vllm(settings) if settings.backend == "vllm" else _load_huggingface(settings)


def _load_huggingface(settings: ServeSettings) -> HuggingFaceBackend:
    model = load_model(
        settings.model,
        dtype=settings.dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
    )
    return HuggingFaceBackend(
        model,
        name=settings.model,
        context_length=context_length(model, settings.max_model_len),
        limits=BackendLimits(
            chunk_rows=settings.chunk_rows, piece_tokens=settings.piece_tokens, batch_tokens=settings.batch_tokens
        ),
    )


def _load_vllm(settings: ServeSettings) -> Backend:
    prepare_environment()
    from tokbridge_teacher.backends.vllm.loading import load_vllm  # vLLM is an extra

    return load_vllm(
        VllmSettings(
            model=settings.model,
            worker=WorkerOptions(
                chunk_rows=settings.chunk_rows,
                max_chunk_bytes=settings.max_chunk_bytes,
                max_student_size=settings.limits.max_vocabulary_size,
                max_cells=settings.limits.max_top_k + 1,
            ),
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            step_tokens=settings.piece_tokens,
            tensor_parallel_size=settings.tensor_parallel_size,
            memory_fraction=settings.gpu_memory_utilization,
            eager=settings.enforce_eager,
            trust_remote_code=settings.trust_remote_code,
        )
    )


def build_checked_service(
    settings: ServeSettings, backend: Backend, profile: TokenizerProfile, self_test: SelfTestReport
) -> BuiltService:
    """A service over any backend, after the check of the whole path."""
    device = backend.describe().process_device
    metrics = new_metrics(backend.describe())
    compile_tables = pair_compiler(profile.vocabulary, settings.cache_dir, settings.max_cache_bytes)
    own_tables = compile_tables(StudentRegistration.from_profile(profile), Routing.GREEDY)
    response = SelfTestResponse.planned(profile, own_tables, device)
    repeat_error = check_whole_path(backend, response)
    health = ModelHealth(settings.max_failed_passes, _log_state)
    workers = _workers(settings, backend, metrics, health)
    renderers = RenderProcesses(settings.prepare_threads, _render_bounds(settings))
    students = StudentRegistry(compile_tables, device=device, max_students=settings.limits.max_students)
    service = TeacherService(
        profile=_rendered_by(RenderedTexts(renderers), profile),
        backend=backend,
        students=students,
        limits=settings.limits,
        bounds=ServiceBounds(
            max_tokens_in_flight=settings.max_tokens_in_flight,
            max_chunk_bytes=settings.max_chunk_bytes,
            read_timeout_s=settings.read_timeout_s,
        ),
        workers=workers,
        observer=RequestObserver(metrics, open_tracer(backend.describe().model, settings.otlp_endpoint)),
        health=health,
    )
    watch_service(
        metrics,
        scheduler=workers.scheduler,
        preparers=workers.preparers,
        admission=workers.admission,
        students=students,
        ready=lambda: service.ready,
    )
    workers.scheduler.start()
    service.serving = True
    return BuiltService(service, workers, backend, self_test, repeat_error, renderers, health, response)


def _render_bounds(settings: ServeSettings) -> RenderBounds:
    return RenderBounds(
        settings.render_timeout_s, settings.max_render_bytes, _PROMPT_GROWTH * settings.limits.max_conversation_bytes
    )


def _rendered_by(renderer: Renderer, profile: TokenizerProfile) -> TokenizerProfile:
    if profile.template is None:
        return profile
    return replace(profile, template=replace(profile.template, renderer=renderer))


def _log_state(state: ModelState) -> None:
    if state is ModelState.COMPUTES:
        _log.warning("the model computes again; requests are taken")
    else:
        _log.error("the model %s; no request is taken", "is lost" if state is ModelState.LOST else "fails")


def _workers(settings: ServeSettings, backend: Backend, metrics: ServiceMetrics, health: ModelHealth) -> Workers:
    def report(ended: PassReport) -> None:
        health.pass_ended(failed=ended.fault is not None)
        metrics.count_pass(ended)

    passes = 1 if backend.describe().in_process else _ENGINE_PASSES
    limits = SchedulerLimits(batch_tokens=settings.batch_tokens, passes=passes)
    held = Cost(settings.max_requests, settings.max_tokens_in_flight, settings.max_result_bytes)
    registered = Cost(settings.max_registrations, settings.max_registrations)
    return Workers(
        scheduler=Scheduler(backend, limits, report=report, lost=health.lost),
        preparers=FairPool(settings.prepare_threads, "prepare"),
        registrars=FairPool(1, "register"),
        assemblers=ThreadPoolExecutor(settings.prepare_threads, thread_name_prefix="tokbridge-assemble"),
        admission=Admission(AdmissionLimits(held)),
        registrations=Admission(AdmissionLimits(registered)),
    )
