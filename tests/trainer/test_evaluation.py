"""Evaluation against the model's own logits and loops over bytes."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from support.random_rows import random_rows
from support.training import make_config, make_sample, random_scored, score
from tokbridge.targets import RowCase, TargetRows
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.evaluation.agreement import (
    END_OF_TURN,
    next_symbols,
    student_top_symbols,
    teacher_top_symbols,
)
from tokbridge_trainer.evaluation.bits_per_byte import bits_per_byte, gap_closed
from tokbridge_trainer.evaluation.runner import Evaluator
from tokbridge_trainer.evaluation.student import evaluate_student, rollout_metrics, written_metrics
from tokbridge_trainer.evaluation.student_reading import StudentReader, StudentReading
from tokbridge_trainer.head import HeadForm
from tokbridge_trainer.packed_attention import allow_packing
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.sources import Work
from tokbridge_trainer.student_module import Forward, StudentModule
from tokbridge_trainer.written_responses import WrittenSet

FEW = (b"a", b"ab", b"b", b" a", None, None, b"\xff\x00", b" ")
VOCABULARY = ByteVocabulary((*FEW, *(bytes([97 + i % 5, 32, i]) for i in range(42))))
STOP_ID, OTHER_CONTROL_ID = 4, 5


def brute_force_masses(cells: list[tuple[int, float]]) -> dict[int, float]:
    masses: dict[int, float] = defaultdict(float)
    for token_id, probability in cells:
        token = VOCABULARY.token_bytes[token_id]
        if token is not None:
            masses[token[0]] += probability
        elif token_id == STOP_ID:
            masses[END_OF_TURN] += probability
    return masses


def is_largest(symbol: int, masses: dict[int, float]) -> bool:
    """Whether a symbol has the largest mass; ties may go either way."""
    return masses.get(symbol, 0.0) >= max(masses.values(), default=0.0) - 1e-6


def test_bits_per_byte_of_a_fair_coin():
    assert bits_per_byte(8 * math.log(0.5), 4) == pytest.approx(2.0)


def test_gap_closed_runs_from_nothing_to_all():
    assert gap_closed(1.2, 1.2, 0.9) == 0.0
    assert gap_closed(1.2, 0.9, 0.9) == pytest.approx(1.0)
    assert gap_closed(1.2, 1.3, 0.9) < 0


def test_symbols_are_first_bytes():
    assert next_symbols(ByteVocabulary(FEW), {STOP_ID}).tolist() == [97, 97, 98, 32, 256, 257, 255, 32]


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1))
def test_teacher_symbols_match_a_loop_over_cells(seed: int):
    rows = random_rows(np.random.default_rng(seed), 20, vocabulary_size=VOCABULARY.size)
    top = teacher_top_symbols(rows, next_symbols(VOCABULARY, {STOP_ID}))
    for i, symbol in enumerate(top.tolist()):
        case = RowCase(rows.cases[i])
        if case is RowCase.STOP or not case.has_target:
            assert symbol == -1
            continue
        cells = slice(rows.row_offsets[i], rows.row_offsets[i + 1])
        pairs = zip(rows.cell_ids[cells].tolist(), np.exp(rows.cell_log_probs[cells]).tolist(), strict=True)
        assert is_largest(symbol, brute_force_masses(list(pairs)))


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1))
def test_student_symbols_match_a_loop_over_tokens(seed: int):
    generator = torch.Generator().manual_seed(seed)
    log_probs_RV = (3 * torch.randn(6, VOCABULARY.size, generator=generator)).log_softmax(-1)
    top = student_top_symbols(log_probs_RV, torch.from_numpy(next_symbols(VOCABULARY, {STOP_ID})))
    for symbol, row in zip(top.tolist(), log_probs_RV.exp().tolist(), strict=True):
        assert is_largest(symbol, brute_force_masses(list(enumerate(row))))


def test_a_byte_can_win_though_no_token_of_it_does():
    log_probs = torch.tensor([[0.3, 0.3, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0]]).log()
    symbols_V = torch.from_numpy(next_symbols(ByteVocabulary(FEW), {STOP_ID}))
    assert student_top_symbols(log_probs, symbols_V).item() == ord("a")


@pytest.fixture(scope="module")
def student_model(student_folder):
    model = AutoModelForCausalLM.from_pretrained(student_folder, dtype=torch.float32).train()
    allow_packing(model)
    return model


def make_reader(model, symbols_V, *, packed=False):
    return StudentReader(StudentModule(model), Forward(torch.float32, HeadForm(1.0, None), packed), symbols_V)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 4096])
def test_reading_is_the_models_own_log_probs(student_model, student_text, micro_batch_tokens: int, packed: bool):
    vocabulary, stop_ids = student_text.profile.vocabulary, student_text.profile.stop_ids
    symbols_V = next_symbols(vocabulary, stop_ids)
    rng = np.random.default_rng(0)
    stop_id = student_text.profile.turn_end_id
    samples = [random_scored(rng, vocabulary.size, SampleKey(0, i, 0), stop_id=stop_id).sample for i in range(5)]
    samples.append(make_sample([3, 4], [], stop_id))
    reader = make_reader(student_model, symbols_V, packed=packed)
    for sample, reading in zip(samples, reader.read(samples, micro_batch_tokens), strict=True):
        emitted = [*sample.token_ids.tolist(), *([sample.stop_id] if sample.stop_id is not None else [])]
        ids = torch.tensor([[*sample.prompt.token_ids.tolist(), *sample.token_ids.tolist()]])
        first = len(sample.prompt.token_ids) - 1
        with torch.no_grad():
            log_probs = student_model(ids).logits[0, first : first + len(emitted)].log_softmax(-1)
        expected = [log_probs[i, token_id].item() for i, token_id in enumerate(emitted)]
        np.testing.assert_allclose(reading.log_probs, expected, atol=2e-5)
        np.testing.assert_array_equal(
            reading.top_symbols, student_top_symbols(log_probs, torch.from_numpy(symbols_V)).numpy()
        )
    assert student_model.training


def aligned_row(token_id: int) -> dict[str, np.ndarray]:
    """All mass of one aligned row on one token."""
    zeros = np.zeros(1, np.float32)
    return {
        "cases": np.array([RowCase.ALIGNED], np.uint8),
        "flags": np.zeros(1, np.uint8),
        "row_offsets": np.array([0, 1]),
        "cell_ids": np.array([token_id], np.int32),
        "cell_log_probs": zeros,
        "residual_unmapped": zeros,
        "residual_control": zeros,
        "residual_truncated": zeros,
        "emitted_log_prob": zeros,
    }


def test_written_metrics_by_hand():
    symbols_V = next_symbols(VOCABULARY, {STOP_ID})
    rows = TargetRows.concatenate([TargetRows(first_row=i, **aligned_row(token)) for i, token in enumerate((0, 2))])
    scored = score(make_sample([0], [1, 2]), rows, content_log_prob=-math.log(4), scored_bytes=2)
    reading = StudentReading(np.log(np.array([0.5, 0.125], np.float32)), np.array([ord("a"), ord("x")]))
    metrics = written_metrics([reading], [scored], symbols_V)
    assert metrics["written/student_bits_per_byte"] == pytest.approx(2.0)
    assert metrics["written/teacher_bits_per_byte"] == pytest.approx(1.0)
    assert metrics["written/top1_agreement"] == 0.5
    assert "written/student_stop_log_prob" not in metrics


def test_the_stop_token_is_no_content():
    symbols_V = next_symbols(VOCABULARY, {STOP_ID})
    stopped = score(make_sample([0], [1], STOP_ID), TargetRows(first_row=0, **aligned_row(0)), scored_bytes=1)
    rows = TargetRows.concatenate([stopped.rows, TargetRows(first_row=1, **aligned_row(STOP_ID))])
    reading = StudentReading(np.log(np.array([0.5, 0.25], np.float32)), np.array([97, END_OF_TURN]))
    metrics = written_metrics([reading], [score(stopped.sample, rows, scored_bytes=1)], symbols_V)
    assert metrics["written/student_bits_per_byte"] == pytest.approx(1.0)
    assert metrics["written/student_stop_log_prob"] == pytest.approx(math.log(0.25))


def test_rollout_metrics_by_hand():
    stopped = score(make_sample([0], [1, 2], STOP_ID), TargetRows.empty(), content_log_prob=-3 * math.log(2))
    cut = score(make_sample([0], [1]), TargetRows.empty(), content_log_prob=-6 * math.log(2))
    metrics = rollout_metrics([stopped, cut])
    assert metrics["rollouts/stop_rate"] == 0.5
    assert metrics["rollouts/tokens"] == 2.0
    assert metrics["rollouts/teacher_bits_per_byte"] == pytest.approx(3.0)


def test_nothing_to_evaluate_gives_no_metrics(student_model, student_text):
    symbols_V = next_symbols(student_text.profile.vocabulary, student_text.profile.stop_ids)
    assert evaluate_student(make_reader(student_model, symbols_V), symbols_V, [], [], 64) == {}


def test_responses_without_content_have_no_bits_per_byte():
    only_stop = score(make_sample([0], [], STOP_ID), TargetRows(first_row=0, **aligned_row(STOP_ID)), scored_bytes=0)
    assert "rollouts/teacher_bits_per_byte" not in rollout_metrics([only_stop])
    assert written_metrics([], [], next_symbols(VOCABULARY, {STOP_ID})) == {}


class CountingSupply:
    """Hands out an order's number as its batch."""

    def __init__(self) -> None:
        self.orders = 0

    def order(self, step: int, work: Work) -> None:
        self.orders += 1

    def collect(self, step: int) -> tuple[int, None, None]:
        return self.orders, None, None


@pytest.mark.parametrize(("teachers", "asked"), [({}, 1), ({"teacher": None, "teachers_file": "teachers.yaml"}, 2)])
def test_teachers_that_may_change_are_asked_about_the_written_text_each_time(teachers, asked: int):
    supply = CountingSupply()
    evaluator = Evaluator(make_config(**teachers), None, supply, None, WrittenSet([], {}, 0))
    for _ in range(2):
        evaluator._written_text()
    assert supply.orders == asked
