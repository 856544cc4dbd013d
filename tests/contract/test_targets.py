"""Ragged rows: mass, slices, joins, tensors."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.random_rows import random_rows
from tokbridge.targets import RowCase, TargetRows, row_sums

FIELDS = [name for name in TargetRows.__dataclass_fields__ if name != "first_row"]


def assert_equal(a: TargetRows, b: TargetRows) -> None:
    assert a.first_row == b.first_row
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@given(st.integers(0, 2**32 - 1), st.integers(0, 30))
def test_row_mass_equals_a_sum_row_by_row(seed, num_rows):
    rows = random_rows(np.random.default_rng(seed), num_rows)
    for i, mass in enumerate(rows.row_mass()):
        cells = rows.cell_log_probs[rows.row_offsets[i] : rows.row_offsets[i + 1]].astype(np.float64)
        parts = (rows.residual_unmapped, rows.residual_control, rows.residual_truncated)
        assert mass == pytest.approx(sum(np.exp(c) for c in cells) + sum(float(part[i]) for part in parts), abs=1e-7)
        assert mass == pytest.approx(1.0 if RowCase(rows.cases[i]).has_target else 0.0, abs=1e-6)


def test_rows_without_cells_sum_to_zero():
    sums = row_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 2, 2, 3, 3]))
    np.testing.assert_array_equal(sums, [0, 3, 0, 4, 0])


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.lists(st.integers(0, 30), max_size=4))
def test_concatenating_slices_gives_the_rows_back(seed, num_rows, cuts):
    rows = random_rows(np.random.default_rng(seed), num_rows, first_row=7)
    bounds = [0, *sorted(min(cut, num_rows) for cut in cuts), num_rows]
    parts = [rows.slice(start, stop) for start, stop in pairwise(bounds)]
    assert_equal(TargetRows.concatenate(parts), rows)


@pytest.mark.parametrize(("start", "stop"), [(3, 1), (10, 12), (5, 5), (-2, 100), (0, -1)])
def test_slice_clips_as_python_does(start, stop):
    rows = random_rows(np.random.default_rng(0), 5)
    assert rows.slice(start, stop).num_rows == len(range(5)[start:stop])


def test_parts_that_do_not_follow_one_another_are_refused():
    rows = random_rows(np.random.default_rng(0), 5)
    with pytest.raises(ValueError, match="do not follow"):
        TargetRows.concatenate([rows.slice(0, 2), rows.slice(3, 5)])


def test_nothing_joins_to_no_rows():
    assert TargetRows.concatenate([]).num_rows == 0
    assert_equal(TargetRows.concatenate([TargetRows.empty(3)]), TargetRows.empty(3))


def test_tensors_hold_the_same_values():
    torch = pytest.importorskip("torch")
    rows = random_rows(np.random.default_rng(1), 20)
    tensors = rows.to_torch()
    assert set(tensors) == {*FIELDS, "residual"}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), getattr(rows, name), err_msg=name)
    assert tensors["cell_log_probs"].dtype == torch.float32


def test_the_contract_imports_without_torch():
    modules = "tokbridge.client, tokbridge.wire, tokbridge.registration, tokbridge.results, tokbridge.error_mapping"
    code = f"import sys; sys.modules['torch'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
