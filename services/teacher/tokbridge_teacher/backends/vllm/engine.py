"""One vLLM engine with an event loop in a thread of its own; safe to be used from other threads.

The engine batches whatever it is given at any time, and drops a response whose future is cancelled. Knows tokens and
bytes, not what they mean.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from vllm import AsyncEngineArgs, AsyncLLMEngine, PoolingParams
from vllm.exceptions import VLLMError
from vllm.platforms import current_platform
from vllm.v1.engine.exceptions import EngineDeadError

from tokbridge_teacher.backends.vllm.engine_types import EngineFacts, EngineStoppedError, ResponseRefusedError
from tokbridge_teacher.backends.vllm.plugin import ARCHITECTURE_VARIABLE
from tokbridge_teacher.backends.vllm.target_pooler import TASK

Result = TypeVar("Result")

_STOP_S = 30.0
_LOOK_S = 1.0


class Engine:
    """A `TeacherEngine`; ready when the constructor returns."""

    def __init__(self, arguments: Mapping[str, Any], architecture: str) -> None:
        """Start it with arguments of `AsyncEngineArgs`; what vLLM raises goes through."""
        os.environ[ARCHITECTURE_VARIABLE] = architecture
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tokbridge-vllm", daemon=True)
        self._thread.start()
        self._started: AsyncLLMEngine | None = None
        try:
            self._started = self._run(_start(arguments)).result()
        except BaseException:
            self._end_loop()
            raise

    @property
    def facts(self) -> EngineFacts:
        """Facts about the model."""
        config = self._engine.model_config
        return EngineFacts(config.max_model_len, str(config.dtype).removeprefix("torch."), current_platform.device_type)

    @property
    def alive(self) -> bool:
        """Whether its processes still run."""
        return self._started is not None and not self._started.errored

    def submit(
        self, token_ids: NDArray[np.integer], extra: Mapping[str, Any], *, read_cache: bool
    ) -> Future[memoryview]:
        """As `TeacherEngine.submit`."""
        params = PoolingParams(task=TASK, skip_reading_prefix_cache=not read_cache, extra_kwargs=dict(extra))
        return self._run(self._encode(token_ids.tolist(), params, f"tokbridge-{next(self._numbers)}"))

    def call_workers(self, method: str, *arguments: object) -> list[Any]:
        """As `TeacherEngine.call_workers`."""
        call = self._run(_translated(self._engine.collective_rpc(method, args=arguments)))
        while not wait([call], _LOOK_S).done:
            if not self.alive:  # vLLM leaves a call open for ever whose engine dies under it
                call.cancel()
                raise EngineStoppedError
        return call.result()

    def close(self) -> None:
        """End the processes and the thread, if they have not ended."""
        if self._started is not None:
            self._run(_shut_down(self._started)).result()
            self._started = None  # vLLM shuts down once more as it is collected: not at the interpreter's end
            self._end_loop()

    @property
    def _engine(self) -> AsyncLLMEngine:
        if self._started is None:
            raise EngineStoppedError
        return self._started

    async def _encode(self, token_ids: Sequence[int], params: PoolingParams, request_id: str) -> memoryview:
        async def last_output() -> memoryview:
            async for output in self._engine.encode({"prompt_token_ids": token_ids}, params, request_id):
                if output.finished:
                    return output.outputs.data.numpy().data
            raise EngineDeadError

        return await _translated(last_output())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)


async def _start(arguments: Mapping[str, Any]) -> AsyncLLMEngine:
    return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**arguments))


async def _shut_down(engine: AsyncLLMEngine) -> None:
    engine.shutdown()


async def _translated(work: Coroutine[Any, Any, Result]) -> Result:
    """`work`, with vLLM's errors put into ours."""
    try:
        return await work
    except EngineDeadError as error:
        raise EngineStoppedError from error
    except VLLMError as error:
        raise ResponseRefusedError(str(error)) from error
