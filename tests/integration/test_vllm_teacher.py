"""`tokbridge teacher serve --backend vllm` as users start it, beside the same model on transformers."""

import asyncio

import numpy as np
import psutil
import pytest

from support.requests_for import request_for
from support.rows_alike import compare_rows
from support.teacher_process import running_teacher
from support.tiny_models import TINY_STUDENT, save_tiny_model
from support.vllm_bench import CPU_ENVIRONMENT
from support.vllm_models import save_vllm_model
from tokbridge.client import StudentRegistration, TeacherClient
from tokbridge.tokenizer_profile import load_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.integration]

START_S = 600.0
RESPONSES = [f"number {n} " * n for n in range(1, 60, 7)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_vllm_model("qwen3", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return load_tokenizer(save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("student")))


async def scored(teacher, student):
    """Rows of all responses, sent at once."""
    async with TeacherClient(teacher.grpc, max_divergence=None) as client:
        await client.connect(StudentRegistration.from_profile(student))
        requests = [request_for(student, response) for response in RESPONSES]
        return await asyncio.gather(*(client.score(request) for request in requests))


async def test_a_client_gets_the_rows_of_transformers_over_the_socket(model, student, tmp_path):
    options = ("--backend", "vllm", "--enforce-eager", "--dtype", "float32", "--piece-tokens", "64")
    log = tmp_path / "vllm.log"
    with running_teacher(model, log, *options, env=CPU_ENVIRONMENT, timeout_s=START_S) as teacher:
        assert teacher.facts["self_test"]["disabled_paths"] == []
        results = await scored(teacher, student)
        again = await scored(teacher, student)
        children = psutil.Process(teacher.process.pid).children(recursive=True)
        assert teacher.terminate(60) == 0
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    with running_teacher(model, tmp_path / "transformers.log", "--dtype", "float32") as teacher:
        expected = await scored(teacher, student)
    for wanted, first, second in zip(expected, results, again, strict=True):
        compare_rows(wanted.rows, first.rows)
        compare_rows(wanted.rows, second.rows)
        assert first.content_log_prob == pytest.approx(wanted.content_log_prob, abs=1e-3)
    assert all(np.isfinite(result.rows.emitted_log_prob[-1]) for result in results)
