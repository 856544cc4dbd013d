"""Several stand-in teachers behind one feed: who is asked, what is mixed, what becomes of failures."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from support.stand_in_teacher import StandIn, make_feed, sample_of, teacher_list
from support.training import make_sample, score
from tokbridge.errors import (
    ContextLengthExceededError,
    DeadlineExceededError,
    OverloadedError,
    TeacherUnavailableError,
    UnroutedPromptError,
)
from tokbridge.mixture import mix_rows
from tokbridge.truncation import truncate_rows
from tokbridge_trainer.samples import EVALUATION_STEP
from tokbridge_trainer.teachers import panel
from tokbridge_trainer.teachers.mixing import mixed_result

REFUSED = ContextLengthExceededError("too long")
AWAY = TeacherUnavailableError("nobody answers")
BY_SUBJECT = [
    {"column": "subject", "equals": "maths", "to": ["a"]},
    {"column": "subject", "equals": "code", "to": ["b"]},
]


def routed(step, prompt_index, **columns):
    sample = sample_of(step, prompt_index)
    return replace(sample, prompt=replace(sample.prompt, columns=columns))


def long_sample():
    """Rows of every case."""
    return make_sample([1, 2], list(range(30)), None)


async def run_step(members, clients, samples, **others):
    feed = await make_feed(teacher_list(members, **others), clients)
    for sample in samples:
        await feed.submit(sample)
    report, batch = await asyncio.wait_for(feed.collect(0, len(samples)), 10)
    await feed.close()
    return report.metrics, batch


def two(**a):
    return {"a": a, "b": {}}


async def test_each_prompt_goes_to_its_own_teacher():
    a, b = StandIn(name="A"), StandIn(name="B", seed=1)
    samples = [routed(0, 0, subject="maths"), routed(0, 1, subject="code"), routed(0, 2, subject="code")]
    metrics, batch = await run_step(two(), {"a": a, "b": b}, samples, routes=BY_SUBJECT)
    assert [r.request_id for r in a.requests] == ["step0-prompt0-sample0"]
    assert sorted(r.request_id for r in b.requests) == ["step0-prompt1-sample0", "step0-prompt2-sample0"]
    assert [[*scored.shares] for scored in batch.scored] == [["a"], ["b"], ["b"]]
    assert (metrics["teachers/a/requests"], metrics["teachers/b/requests"]) == (1, 2)
    assert (metrics["teachers/a/model"], metrics["teachers/b/model"]) == ("A", "B")
    assert (metrics["teachers/a/tokens"], metrics["teachers/b/tokens"]) == (3, 6)
    assert "mixture/rows" not in metrics


async def test_each_teacher_is_asked_as_its_own_section_says():
    a, b = StandIn(), StandIn()
    own = {"top_k": 7, "mass": 0.5, "routing": "bpe", "spanning": "lookahead", "chat_template_kwargs": {"tone": "dry"}}
    await run_step(two(**own), {"a": a, "b": b}, [long_sample()])
    asked = [client.requests[0] for client in (a, b)]
    assert [(r.top_k, r.mass, r.routing, r.spanning) for r in asked] == [
        (7, 0.5, "bpe", "lookahead"),
        (0, 0.0, "greedy", "realized"),
    ]
    assert [r.template_arguments for r in asked] == [{"tone": "dry"}, {"enable_thinking": True}]


async def test_one_teachers_rows_are_learned_from_as_they_came():
    a = StandIn()
    _, batch = await run_step({"a": {}}, {"a": a}, [long_sample()], top_k=1)
    assert len(batch.scored[0].rows.cell_ids) > 30
    for name, array in vars(a.answer(a.requests[0]).rows).items():
        np.testing.assert_array_equal(getattr(batch.scored[0].rows, name), array)


async def test_teachers_that_score_the_same_response_are_mixed_by_weight():
    a, b = StandIn(), StandIn(seed=1)
    metrics, batch = await run_step(two(weight=3.0), {"a": a, "b": b}, [long_sample()])
    answers = [client.answer(client.requests[0]).rows for client in (a, b)]
    expected = mix_rows(answers, [3.0, 1.0])
    for name, array in vars(expected.rows).items():
        np.testing.assert_array_equal(getattr(batch.scored[0].rows, name), array)
    for name, share in zip("ab", expected.shares_TR, strict=True):
        np.testing.assert_allclose(batch.scored[0].shares[name], share, rtol=1e-6)
    assert metrics["mixture/rows"] == expected.rows.has_target().sum()
    assert metrics["mixture/partial_rows"] == expected.num_partial > 0
    emitted = answers[0].emitted_log_prob[np.isfinite(answers[0].emitted_log_prob)]
    assert metrics["teachers/a/emitted_log_prob"] == pytest.approx(emitted.mean())


@pytest.mark.parametrize("limit", [{"top_k": 2}, {"mass": 0.5}], ids=str)
async def test_mixed_rows_may_be_truncated(limit):
    a, b = StandIn(), StandIn(seed=1)
    _, batch = await run_step(two(), {"a": a, "b": b}, [long_sample()], **limit)
    mixed = mix_rows([client.answer(client.requests[0]).rows for client in (a, b)], [1.0, 1.0]).rows
    expected = truncate_rows(mixed, np.arange(30), **limit)
    assert len(expected.cell_ids) < len(mixed.cell_ids)
    np.testing.assert_array_equal(batch.scored[0].rows.cell_ids, expected.cell_ids)


async def test_an_outcome_that_ends_the_run():
    with pytest.raises(DeadlineExceededError):
        await run_step(two(), {"a": StandIn({"*": DeadlineExceededError("late")}), "b": StandIn()}, [sample_of(0, 0)])


async def test_skip_leaves_the_response_out_and_says_whose_fault_it_was():
    a = StandIn({"step0-prompt1-sample0": REFUSED})
    metrics, batch = await run_step(
        two(on_failure="skip"), {"a": a, "b": StandIn()}, [sample_of(0, 0), sample_of(0, 1)]
    )
    assert [scored.sample.key.prompt_index for scored in batch.scored] == [0]
    assert batch.drops == {"context_length_exceeded": 1}
    assert metrics["teachers/a/skipped"] == metrics["teachers/a/failures"] == 1
    assert metrics["teachers/a/failures/context_length_exceeded"] == 1
    assert metrics["teachers/b/skipped"] == metrics["teachers/a/left_to_others"] == 0


async def test_others_go_on_without_the_one_that_failed():
    a, b = StandIn({"*": AWAY}), StandIn(seed=1)
    metrics, batch = await run_step(two(on_failure="others"), {"a": a, "b": b}, [sample_of(0, 0)])
    np.testing.assert_array_equal(batch.scored[0].rows.cell_ids, b.answer(b.requests[0]).rows.cell_ids)
    assert [*batch.scored[0].shares] == ["b"]
    assert metrics["teachers/a/left_to_others"] == 1
    assert metrics["teachers/a/scored"] == metrics["teachers/a/skipped"] == 0


async def test_a_response_that_no_teacher_scored_is_left_out_once():
    members = {name: {"on_failure": "others"} for name in "ab"}
    clients = {"a": StandIn({"*": AWAY}), "b": StandIn({"*": REFUSED})}
    metrics, batch = await run_step(members, clients, [sample_of(0, 0)])
    assert batch.scored == []
    assert batch.drops.total() == 1
    assert (metrics["teachers/a/skipped"], metrics["teachers/b/skipped"]) == (1, 1)


async def test_one_that_may_be_missed_is_not_to_blame_for_what_another_leaves_out():
    members = {"a": {"on_failure": "others"}, "b": {"on_failure": "skip"}, "c": {}}
    clients = {"a": StandIn({"*": AWAY}), "b": StandIn({"*": REFUSED}), "c": StandIn()}
    metrics, batch = await run_step(members, clients, [sample_of(0, 0)])
    assert batch.drops == {"context_length_exceeded": 1}
    assert (metrics["teachers/a/skipped"], metrics["teachers/a/left_to_others"]) == (0, 0)
    assert metrics["teachers/b/skipped"] == 1


async def test_wait_asks_again_for_as_long_as_it_takes(monkeypatch):
    monkeypatch.setattr(panel, "ASK_AGAIN_AFTER_S", 0.001)
    outage = [AWAY, DeadlineExceededError("late"), OverloadedError("full")]
    metrics, batch = await run_step(
        two(on_failure="wait"), {"a": StandIn({"*": outage}), "b": StandIn()}, [sample_of(0, 0)]
    )
    assert [*batch.scored[0].shares] == ["a", "b"]
    assert metrics["teachers/a/asked_again"] == metrics["teachers/a/failures"] == 3
    assert (metrics["teachers/a/requests"], metrics["teachers/b/requests"]) == (4, 1)


async def test_wait_does_not_wait_for_what_is_refused_for_good():
    with pytest.raises(ContextLengthExceededError):
        await run_step(two(on_failure="wait"), {"a": StandIn({"*": REFUSED}), "b": StandIn()}, [sample_of(0, 0)])


async def test_what_ends_the_run_does_not_wait_for_a_teacher_that_is_away():
    members = {"a": {"on_failure": "wait"}, "b": {}}
    with pytest.raises(ContextLengthExceededError):
        await run_step(members, {"a": StandIn({"*": AWAY}), "b": StandIn({"*": REFUSED})}, [sample_of(0, 0)])


async def test_what_is_left_out_does_not_wait_for_a_teacher_that_is_away():
    members = {"a": {"on_failure": "wait"}, "b": {"on_failure": "skip"}}
    clients = {"a": StandIn({"*": AWAY}), "b": StandIn({"*": REFUSED})}
    metrics, batch = await run_step(members, clients, [sample_of(0, 0)])
    assert batch.drops == {"context_length_exceeded": 1}
    assert (metrics["teachers/a/asked_again"], metrics["teachers/b/skipped"]) == (0, 1)


async def test_each_teacher_has_its_own_limit():
    a, b = StandIn(), StandIn()
    for client in (a, b):
        client.gate.clear()
    feed = await make_feed(teacher_list(two(max_in_flight=2)), {"a": a, "b": b})
    for prompt_index in range(5):
        await feed.submit(sample_of(0, prompt_index))
    await asyncio.sleep(0.02)
    for client in (a, b):
        client.gate.set()
    await asyncio.wait_for(feed.collect(0, 5), 10)
    assert (a.most_waiting, b.most_waiting) == (2, 5)


async def test_a_teacher_that_hangs_holds_up_its_own_prompts_only():
    a, b = StandIn(), StandIn()
    a.gate.clear()
    feed = await make_feed(teacher_list(two(), routes=BY_SUBJECT), {"a": a, "b": b})
    await feed.submit(routed(0, 0, subject="maths"))
    await feed.submit(routed(1, 1, subject="code"))
    _, batch = await asyncio.wait_for(feed.collect(1, 1), 10)
    assert len(batch.scored) == 1
    await feed.close()


async def test_prompts_of_no_teacher_are_left_out_and_counted_or_end_the_run():
    samples = [routed(0, 0, subject="maths"), routed(0, 1, subject="poetry")]
    clients = {"a": StandIn(), "b": StandIn()}
    _, batch = await run_step(two(), clients, samples, routes=BY_SUBJECT, unrouted="skip")
    assert batch.drops == {"unrouted_prompt": 1}
    with pytest.raises(UnroutedPromptError):
        await run_step(two(), clients, samples, routes=BY_SUBJECT)


async def test_evaluations_take_no_events_away_from_steps():
    feed = await make_feed(teacher_list({"a": {}}), {"a": StandIn()})
    for step in (EVALUATION_STEP, 0):
        await feed.submit(sample_of(step, 0))
    evaluation, _ = await feed.collect(EVALUATION_STEP, 1)
    step, _ = await feed.collect(0, 1)
    assert "teachers/changes" not in evaluation.metrics
    assert step.metrics["teachers/changes"] == 0
    assert step.metrics["teachers/listed"] == 1


def test_summaries_are_added_up_and_bits_per_byte_averaged():
    rows = StandIn().answer(make_request()).rows
    sample = make_sample([1], [1, 2, 3], None)
    facts = [
        {"content_log_prob": -6.0, "scored_bytes": 3, "seam": "none", "notes": ("x",), "retries": {"overloaded": 1}},
        {
            "content_log_prob": -2.0,
            "scored_bytes": 2,
            "seam": "given",
            "notes": ("x", "y"),
            "retries": {"overloaded": 2},
        },
    ]
    masses = [{"unresolved_mass": 2.0, "lookahead_tail": 0.0}, {"unresolved_mass": 1.0, "lookahead_tail": 0.4}]
    results = [
        score(sample, rows, stop_log_prob=-1.0, **fact, **mass).result for fact, mass in zip(facts, masses, strict=True)
    ]
    mixed = mixed_result(results, [3.0, 1.0], rows)
    assert mixed.content_log_prob / mixed.scored_bytes == pytest.approx((3 * -2.0 + 1 * -1.0) / 4)
    assert (mixed.seam, mixed.notes, mixed.retries) == ("given+none", ("x", "y"), {"overloaded": 3})
    assert mixed.stop_log_prob == pytest.approx(-1.0)
    assert sum(mixed.cases.values()) == 3
    assert mixed.attempts == 2
    assert (mixed.unresolved_mass, mixed.lookahead_tail) == pytest.approx((1.75, 0.1))


def test_a_teacher_that_scored_no_bytes_has_no_part_in_bits_per_byte():
    rows = StandIn().answer(make_request()).rows
    sample = make_sample([1], [1, 2, 3], None)
    facts = [{"content_log_prob": -6.0, "scored_bytes": 3}, {"content_log_prob": 0.0, "scored_bytes": 0}]
    results = [score(sample, rows, **fact).result for fact in facts]
    mixed = mixed_result(results, [1.0, 3.0], rows)
    assert (mixed.content_log_prob, mixed.scored_bytes) == (pytest.approx(-6.0), 3)
    assert mixed_result(results[1:], [1.0], rows).content_log_prob == 0.0


def make_request():
    sample = sample_of(0, 0)
    return type("Request", (), {"token_ids": sample.token_ids, "stop_id": None, "num_rows": 3})
