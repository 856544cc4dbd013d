"""Backend on vLLM: see `Backend` for the contract, and the package for how a response travels.

vLLM batches, chunks, caches and preempts as it sees fit; every response in flight is with it, those of several calls of
`steps` together. Rows of a response come when its last token is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait

from tokbridge.errors import InternalError, OverloadedError, SelfTestFailedError, TokbridgeError
from tokbridge_teacher.backends.base import (
    BackendDescription,
    BackendLostError,
    ScoreJob,
    SelfTestReport,
    Steps,
    run_to_end,
)
from tokbridge_teacher.backends.vllm.engine_types import EngineStoppedError, ResponseRefusedError, TeacherEngine
from tokbridge_teacher.backends.vllm.largest_pass import largest_tables
from tokbridge_teacher.backends.vllm.plan_codec import encode_tables
from tokbridge_teacher.backends.vllm.response_run import ResponseRun, Scored
from tokbridge_teacher.backends.vllm.self_test import PREFIX_CACHE, TOLERANCES, check_engine
from tokbridge_teacher.backends.vllm.table_ledger import TableLedger
from tokbridge_teacher.routing.device_tables import DeviceTables

_log = logging.getLogger(__name__)

_STEP_S = 0.02
"""How long a step waits for a response to be ready: what a cancellation, or another pass's step, waits for it."""
_RESTART_S = 60.0
"""When to come back after the engine has stopped."""


class VllmBackend:
    """Scores responses with a vLLM engine, which it starts, and starts again should it stop.

    Args:
        start: starts an engine and returns once it is ready.
        model: name of the model, as shown to clients.
    """

    def __init__(self, start: Callable[[], TeacherEngine], model: str) -> None:
        self._start = start
        self._model = model
        self.engine = start()
        """Another one after a restart."""
        self._facts = self.engine.facts
        self._ledger = TableLedger()
        self._read_cache = True
        self._head_size = 0

    def describe(self) -> BackendDescription:
        """Facts about the model; the size of its head only after the self-test."""
        return BackendDescription(
            backend="vllm",
            model=self._model,
            head_size=self._head_size,
            context_length=self._facts.context_length,
            dtype=self._facts.dtype,
            device=self._facts.device,
            in_process=False,
            repeat_tolerance=TOLERANCES[self._facts.dtype],
        )

    def self_test(self) -> SelfTestReport:
        """Compare the device pass with the model's own log-probs, and scoring together or from the cache with alone."""
        try:
            self._head_size, report = check_engine(self.engine, self._facts.dtype, self._own_tables)
        except EngineStoppedError as error:
            raise SelfTestFailedError("vLLM stopped during the self-test; its log says why.") from error
        self._read_cache = PREFIX_CACHE not in report.disabled_paths
        return report

    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        """Hand every job to the engine at once, then wait for them; a step waits a few hundredths of a second."""
        live = [job for job in jobs if not job.cancelled()]
        runs: dict[ScoreJob, ResponseRun] = {}
        try:
            runs |= self._begin(live)
            while runs:
                wait([run.future for run in runs.values()], timeout=_STEP_S, return_when=FIRST_COMPLETED)
                for job in [job for job, run in runs.items() if _over(job, run)]:
                    del runs[job]
                if runs:
                    yield
        except EngineStoppedError as error:
            raise OverloadedError(
                "The model's engine stopped; it is started again.", retry_after_s=_RESTART_S
            ) from error
        finally:
            for run in runs.values():
                run.cancel()

    def score(self, jobs: Sequence[ScoreJob]) -> None:
        """All steps at once."""
        run_to_end(self.steps(jobs))

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _begin(self, jobs: Sequence[ScoreJob]) -> dict[ScoreJob, ResponseRun]:
        if not self.engine.alive:
            self._restart()
        self._send_tables([job.tables for job in jobs])
        return {job: self._run(job) for job in jobs}

    def _run(self, job: ScoreJob) -> ResponseRun:
        def send_again() -> None:
            self._ledger.forget(job.tables)
            self._send_tables([job.tables])

        return ResponseRun(
            self.engine,
            job.prompt_ids,
            job.plan.device_plan,
            self._ledger.key_of(job.tables),
            send_again,
            max_chunk_rows=job.max_chunk_rows,
            read_cache=self._read_cache,
        )

    def _send_tables(self, wanted: Sequence[DeviceTables]) -> None:
        if unused := self._ledger.unused():
            self.engine.call_workers("tokbridge_drop_tables", unused)
        for key, tables in self._ledger.unsent(wanted).items():
            self.engine.call_workers("tokbridge_put_tables", key, encode_tables(tables.arrays))

    def _own_tables(self, size: int) -> str:
        """Tables of a teacher that is its own student; kept as long as the backend."""
        self._self_tables = DeviceTables(largest_tables(size, size), "cpu")
        self._send_tables([self._self_tables])
        return self._ledger.key_of(self._self_tables)

    def _restart(self) -> None:
        _log.error("the engine has stopped; starting it again")
        self.engine.close()
        try:
            self.engine = self._start()
        except (RuntimeError, ValueError, TimeoutError) as error:
            raise BackendLostError("vLLM does not start again; the service ends, to be started anew.") from error
        self._ledger.forget_all()


def _over(job: ScoreJob, run: ResponseRun) -> bool:
    """Whether nothing more is to be done for a job: nobody waits for it, it is answered, or it has failed."""
    if job.cancelled():
        run.cancel()
        return True
    if not run.future.done():
        return False
    outcome = _outcome(run)
    if isinstance(outcome, TokbridgeError):
        job.fail(outcome)
    elif outcome is not None:
        for chunk in outcome.chunks:
            job.emit(chunk)
        job.finish(outcome.shared_prompt_tokens)
    return outcome is not None


def _outcome(run: ResponseRun) -> Scored | TokbridgeError | None:
    try:
        return run.take()
    except ResponseRefusedError:
        _log.exception("vLLM refused a response")
        return InternalError("The engine refused this response.")
