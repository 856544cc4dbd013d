"""Two real services with different tokenizers and one student: mixed rows, the step that learns from them, outages."""

import asyncio
from contextlib import AsyncExitStack

import numpy as np
import pytest
from tokenizers import Tokenizer

from support.dense_mixture import dense_rows, mixed_by_hand
from support.served import served_over_grpc
from support.stand_in_teacher import teacher_list
from support.tiny_models import OTHER_TEACHER, TINY_TEACHER, save_tiny_model
from support.training import make_config
from tokbridge.client import StudentRegistration, TeacherClient
from tokbridge.errors import DeadlineExceededError
from tokbridge.requests import ScoreRequest
from tokbridge_teacher.building import build_service
from tokbridge_teacher.settings import ServeSettings
from tokbridge_trainer.feed import Feed
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.samples import Sample, SampleKey, StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.teachers import panel
from tokbridge_trainer.teachers.member import StudentSide

RESPONSES = (
    "the answer is forty-two, because 12 + 30 is 42.",
    "she sells sea shells 東京",
    "def add(a, b):\n    return a",
)


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    """Services by name, not yet behind sockets."""
    built = {}
    for name, recipe in (("a", TINY_TEACHER), ("b", OTHER_TEACHER)):
        folder = save_tiny_model(recipe, tmp_path_factory.mktemp(name))
        built[name] = (folder, build_service(ServeSettings(model=str(folder), chunk_rows=8)))
    yield {name: (folder, service.service) for name, (folder, service) in built.items()}
    for _, service in built.values():
        service.stop(grace_s=5)


@pytest.fixture
async def teachers(services):
    """Both behind sockets: their addresses, and a way to stop and start them."""
    async with AsyncExitStack() as stack:
        found = {name: Served(service) for name, (_, service) in services.items()}
        for served in found.values():
            stack.push_async_callback(served.stop)
            await served.start()
        yield found


class Served:
    """A service whose server can be stopped, and started again in its place."""

    def __init__(self, service):
        self.service = service
        self.address = "127.0.0.1:0"
        self.stack = AsyncExitStack()

    async def start(self):
        port = int(self.address.rsplit(":", 1)[1])
        self.address = await self.stack.enter_async_context(served_over_grpc(self.service, port=port))

    async def stop(self):
        await self.stack.aclose()


def samples_of(student_text, step=0):
    """Finished responses in the student's own tokens."""
    profile = student_text.profile
    prompt = student_text.prompt(0, [{"role": "user", "content": "What is the answer?"}], None)
    return [
        Sample(
            SampleKey(step, 0, i),
            prompt,
            0,
            student_text.content_ids(text.encode()),
            text.encode(),
            profile.turn_end_id,
        )
        for i, text in enumerate(RESPONSES)
    ]


async def connected(teachers, student_text, members, **others):
    named = {name: {"urls": [teachers[name].address], "mass": 1.0, "timeout_s": 60} | m for name, m in members.items()}
    feed = Feed(teacher_list(named, **others), StudentSide(StudentRegistration.from_profile(student_text.profile), {}))
    await feed.connect()
    return feed


async def score_step(feed, samples):
    for sample in samples:
        await feed.submit(sample)
    return await asyncio.wait_for(feed.collect(samples[0].key.step, len(samples)), 60)


async def alone(served, student_text, samples):
    """Rows of one teacher by its own client, one response after the other."""
    async with TeacherClient(served.address) as client:
        await client.connect(StudentRegistration.from_profile(student_text.profile))
        requests = [
            ScoreRequest(
                messages=sample.prompt.messages,
                response=sample.response,
                token_ids=sample.token_ids,
                stop_id=sample.stop_id,
                mass=1.0,
            )
            for sample in samples
        ]
        return [(await client.score(request)).rows for request in requests]


async def test_teachers_of_different_tokenizers_mix_on_the_students_vocabulary(services, teachers, student_text):
    vocabularies = [Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() for folder, _ in services.values()]
    assert vocabularies[0] != vocabularies[1]
    feed = await connected(teachers, student_text, {"a": {"weight": 2.0}, "b": {}})
    report, batch = await score_step(feed, samples_of(student_text))
    await feed.close()
    size = student_text.profile.vocabulary.size
    by_teacher = [await alone(served, student_text, samples_of(student_text)) for served in teachers.values()]
    for scored, *answers in zip(batch.scored, *by_teacher, strict=True):
        parts = [dense_rows(rows, size) for rows in answers]
        expected = mixed_by_hand(parts, [[weight] * scored.rows.num_rows for weight in (2.0, 1.0)])
        for actual, wanted in zip(dense_rows(scored.rows, size), expected, strict=True):
            assert actual.has_target == wanted.has_target
            # Alone and together, rows differ in the last bits, and cells travel as float16.
            np.testing.assert_allclose(actual.masses, wanted.masses, atol=1e-3)
            np.testing.assert_allclose(actual.residuals, wanted.residuals, atol=1e-5)
            np.testing.assert_allclose(actual.emitted, wanted.emitted, rtol=1e-3, atol=1e-9)
        np.testing.assert_allclose(scored.rows.row_mass(), scored.rows.has_target(), atol=1e-6)
    assert report.metrics["mixture/rows"] == sum(scored.rows.has_target().sum() for scored in batch.scored)
    for name in "ab":
        assert report.metrics[f"teachers/{name}/tokens"] == batch.num_response_tokens
    assert report.metrics["teachers/a/vocabulary"] != report.metrics["teachers/b/vocabulary"]


async def test_a_step_learns_from_mixed_rows_as_from_any(teachers, student_text, student_folder):
    feed = await connected(teachers, student_text, {"a": {"weight": 2.0}, "b": {}})
    _, batch = await score_step(feed, samples_of(student_text))
    await feed.close()
    config = make_config(student_folder)
    metrics = Learner(config, student_text, None, 0).train_step(batch, StepPlan(0, "on_policy", 0, 0.5, 1e-3)).metrics
    assert metrics["loss"] > 0
    assert metrics["teachers/a/loss"] + metrics["teachers/b/loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert metrics["teachers/a/loss"] > metrics["teachers/b/loss"] > 0
    again = Learner(config, student_text, None, 0).train_step(
        StepBatch([type(s)(s.sample, s.result) for s in batch.scored]), StepPlan(0, "on_policy", 0, 0.5, 1e-3)
    )
    assert again.metrics["loss"] == metrics["loss"]


@pytest.mark.parametrize("fallback", ["others", "skip", "raise"])
async def test_a_teacher_that_is_lost_in_the_run(teachers, student_text, fallback):
    feed = await connected(teachers, student_text, {"a": {"on_failure": fallback, "timeout_s": 0.7}, "b": {}})
    _, before = await score_step(feed, samples_of(student_text))
    assert [[*scored.shares] for scored in before.scored] == [["a", "b"]] * len(RESPONSES)
    await teachers["a"].stop()
    if fallback == "raise":
        with pytest.raises(DeadlineExceededError):
            await score_step(feed, samples_of(student_text, 1))
    else:
        report, batch = await score_step(feed, samples_of(student_text, 1))
        assert [[*scored.shares] for scored in batch.scored] == [["b"]] * len(RESPONSES) * (fallback == "others")
        counted = {"others": "left_to_others", "skip": "skipped"}[fallback]
        assert report.metrics[f"teachers/a/{counted}"] == len(RESPONSES)
        assert report.metrics["teachers/a/failures"] == len(RESPONSES)
        assert batch.drops.total() == (0 if fallback == "others" else len(RESPONSES))
    await feed.close()


async def test_who_waits_goes_on_when_the_teacher_is_back(teachers, student_text, monkeypatch):
    monkeypatch.setattr(panel, "ASK_AGAIN_AFTER_S", 0.05)
    feed = await connected(teachers, student_text, {"a": {"on_failure": "wait", "timeout_s": 0.7}, "b": {}})
    await teachers["a"].stop()
    step = asyncio.create_task(score_step(feed, samples_of(student_text)))
    await asyncio.sleep(1.5)
    assert not step.done()
    await teachers["a"].start()
    report, batch = await step
    assert [[*scored.shares] for scored in batch.scored] == [["a", "b"]] * len(RESPONSES)
    assert report.metrics["teachers/a/asked_again"] >= len(RESPONSES)
    assert report.metrics["teachers/b/requests"] == len(RESPONSES)
    await feed.close()
