import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.random_rows import random_rows
from tokbridge.errors import InvalidDataError
from tokbridge.targets import RowCase, RowFlag, TargetRows
from tokbridge_trainer.target_tensors import TargetTensors

seeds = st.integers(0, 2**32 - 1)


def responses_of(seed: int) -> list[TargetRows]:
    rng = np.random.default_rng(seed)
    return [random_rows(rng, int(n), first_row=int(n) % 3) for n in rng.integers(0, 20, size=3)]


def is_whitespace_content(rows: TargetRows, i: int) -> bool:
    case = RowCase(rows.cases[i])
    return case.has_target and case is not RowCase.STOP and bool(rows.flags[i] & RowFlag.WHITESPACE)


@settings(max_examples=40)
@given(seed=seeds)
def test_rows_with_a_target_keep_their_cells_and_places(seed: int) -> None:
    responses = responses_of(seed)
    targets = TargetTensors.from_rows(responses)
    expected = [
        (r, i) for r, rows in enumerate(responses) for i in range(rows.num_rows) if RowCase(rows.cases[i]).has_target
    ]
    assert targets.num_rows == len(expected)
    for row, (r, i) in enumerate(expected):
        rows = responses[r]
        ours, theirs = (slice(int(o[k]), int(o[k + 1])) for o, k in ((targets.row_offsets, row), (rows.row_offsets, i)))
        assert targets.cell_ids[ours].tolist() == rows.cell_ids[theirs].tolist()
        assert targets.cell_log_probs[ours].tolist() == rows.cell_log_probs[theirs].tolist()
        assert (int(targets.response_index[row]), int(targets.row_index[row])) == (r, i + rows.first_row)
        assert int(targets.cases[row]) == rows.cases[i]
        assert bool(targets.is_stop[row]) == (rows.cases[i] == RowCase.STOP)
        assert float(targets.emitted_log_probs[row]) == rows.emitted_log_prob[i]
        mass = float(targets.cell_log_probs[ours].double().exp().sum() + targets.residual_log_mass[row].double().exp())
        assert mass == pytest.approx(1.0, abs=2e-6)


@settings(max_examples=40)
@given(seed=seeds, rule=st.sampled_from(["drop", "keep", "random"]))
def test_whitespace_rule_and_its_counts(seed: int, rule: str) -> None:
    responses = responses_of(seed)
    generators = [np.random.default_rng([seed, r]) for r in range(len(responses))]
    targets = TargetTensors.from_rows(responses, whitespace=rule, generators=generators)
    left_out_by_rule = 0
    for r, rows in enumerate(responses):
        weights = {
            int(i) - rows.first_row: float(w)
            for i, w, of in zip(targets.row_index, targets.weights, targets.response_index, strict=True)
            if of == r
        }
        dropped = {i for i, weight in weights.items() if weight == 0.0}
        whitespace = {i for i in weights if is_whitespace_content(rows, i)}
        others = {i for i in weights if i not in whitespace and rows.cases[i] != RowCase.STOP}
        if rule == "random":
            assert dropped <= others
            assert len(dropped) == min(len(whitespace), len(others))
        else:
            assert dropped == (whitespace if rule == "drop" else set())
        left_out_by_rule += len(dropped)
    reason = "random" if rule == "random" else "whitespace"
    cases = [RowCase(case) for rows in responses for case in rows.cases]
    expected = {case.name.lower(): cases.count(case) for case in RowCase if not case.has_target} | {
        reason: left_out_by_rule
    }
    assert dict(targets.left_out) == {name: count for name, count in expected.items() if count}
    assert int((targets.weights > 0).sum()) + sum(targets.left_out.values()) == len(cases)


def test_random_rule_follows_its_generators() -> None:
    rows = random_rows(np.random.default_rng(0), 60)
    rows = [replace(rows, flags=np.where(np.arange(60) % 10 == 0, RowFlag.WHITESPACE, 0).astype(np.uint8))]
    first, again, other = (
        TargetTensors.from_rows(rows, whitespace="random", generators=[np.random.default_rng(s)]) for s in (1, 1, 2)
    )
    assert torch.equal(first.weights, again.weights)
    assert not torch.equal(first.weights, other.weights)
    with pytest.raises(InvalidDataError):
        TargetTensors.from_rows(rows, whitespace="random")


def test_no_responses_and_empty_responses() -> None:
    for responses in ([], [TargetRows.empty()], [TargetRows.empty(), TargetRows.empty(4)]):
        targets = TargetTensors.from_rows(responses)
        assert targets.num_rows == 0
        assert targets.row_offsets.tolist() == [0]
        assert targets.cell_ids.dtype == torch.int64
        assert targets.left_out == {}


def test_nothing_left_over_is_minus_infinity() -> None:
    rows = random_rows(np.random.default_rng(3), 200)
    targets = TargetTensors.from_rows([rows])
    assert (targets.residual_log_mass == -math.inf).tolist() == (rows.residual[rows.has_target()] == 0).tolist()


def test_the_predictor_of_a_row_stands_one_token_before_it() -> None:
    responses = responses_of(5)
    targets = TargetTensors.from_rows([replace(rows, first_row=0) for rows in responses])
    width, first_columns = 40, [7, 1, 19]
    index = targets.predictor_index(first_columns, width)
    places = [(int(i) // width, int(i) % width) for i in index]
    assert places == [
        (int(response), first_columns[int(response)] + int(row) - 1)
        for response, row in zip(targets.response_index, targets.row_index, strict=True)
    ]
    assert len(places) > 10
