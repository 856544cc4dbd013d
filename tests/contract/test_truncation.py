"""Truncation of rows, against a loop over cells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.random_rows import random_rows
from tokbridge.errors import InvalidDataError
from tokbridge.truncation import truncate_rows

limits = st.tuples(st.sampled_from([0, 1, 2, 5, 1000]), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]))


def some_emitted_ids(rng, rows):
    """One of each row's own cells, a number that is none where it has no cells."""
    bounds = zip(rows.row_offsets, rows.row_offsets[1:], strict=False)
    return np.array([rows.cell_ids[rng.integers(a, b)] if b > a else 999 for a, b in bounds], np.int32)


def kept_by_hand(rows, i, emitted_id, top_k, mass):
    """Cells of row i: the first top_k, until they cover the mass; the emitted one always."""
    kept, covered = [], 0.0
    for rank, cell in enumerate(range(rows.row_offsets[i], rows.row_offsets[i + 1])):
        wanted = (not top_k or rank < top_k) and (mass in (0.0, 1.0) or covered < mass)
        if wanted or rows.cell_ids[cell] == emitted_id:
            kept.append((int(rows.cell_ids[cell]), float(rows.cell_log_probs[cell])))
        covered += np.exp(np.float64(rows.cell_log_probs[cell]))
    return kept


@given(st.integers(0, 2**32 - 1), limits)
def test_the_largest_cells_and_the_emitted_one_stay_and_no_mass_is_lost(seed, limit):
    rng = np.random.default_rng(seed)
    rows, (top_k, mass) = random_rows(rng, 20, vocabulary_size=60), limit
    emitted_ids = some_emitted_ids(rng, rows)
    cut = truncate_rows(rows, emitted_ids, top_k=top_k, mass=mass)
    for i in range(rows.num_rows):
        a, b = cut.row_offsets[i], cut.row_offsets[i + 1]
        cells = list(zip(cut.cell_ids[a:b].tolist(), cut.cell_log_probs[a:b].tolist(), strict=True))
        assert cells == kept_by_hand(rows, i, emitted_ids[i], top_k, mass)
    np.testing.assert_allclose(cut.row_mass(), rows.row_mass(), atol=1e-6)
    for name in ("cases", "flags", "emitted_log_prob", "residual_unmapped", "residual_control"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(rows, name))


def test_without_limits_nothing_changes():
    rows = random_rows(np.random.default_rng(0), 20)
    cut = truncate_rows(rows, np.zeros(20, np.int32))
    for name, array in vars(rows).items():
        np.testing.assert_array_equal(getattr(cut, name), array)


def test_every_row_needs_its_emitted_token():
    with pytest.raises(InvalidDataError):
        truncate_rows(random_rows(np.random.default_rng(0), 3), np.zeros(2, np.int32))
