"""The wire form of rows, against a reference that decodes row by row in float64."""

import math
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.random_rows import random_rows
from tokbridge.errors import CorruptStreamError, LimitExceededError
from tokbridge.targets import RowCase, TargetRows, offsets_of
from tokbridge.v1 import teacher_pb2
from tokbridge.wire import checksum, decode_rows, encode_rows

EXACT = ["cases", "flags", "row_offsets", "cell_ids", "residual_unmapped", "residual_control", "residual_truncated"]


def one_row(log_probs, residual=0.0, case=RowCase.ALIGNED) -> TargetRows:
    zero = np.zeros(1, np.float32)
    return TargetRows(
        first_row=0,
        cases=np.array([case], np.uint8),
        flags=np.zeros(1, np.uint8),
        row_offsets=offsets_of(np.array([len(log_probs)])),
        cell_ids=np.arange(len(log_probs), dtype=np.int32),
        cell_log_probs=np.array(log_probs, np.float32),
        residual_unmapped=zero,
        residual_control=np.array([residual], np.float32),
        residual_truncated=zero,
        emitted_log_prob=zero if case.has_target else np.full(1, np.nan, np.float32),
    )


def probability(cell: int, bits: int) -> float:
    code = cell % 2**bits
    return 0.0 if code == 2**bits - 1 else math.exp(-40 * (code / (2**bits - 2)) ** 2)


def cells_of(*pairs: tuple[int, int]) -> bytes:
    """Cells of ids and codes, for ids of 18 bits."""
    return b"".join(struct.pack("<I", token_id << 14 | code) for token_id, code in pairs)


def decoded_by_hand(message: teacher_pb2.Rows) -> list[tuple[list[int], list[float], float]]:
    """Ids, scaled probabilities and residual of every row, with struct and plain floats."""
    rows, cell = [], 0
    for i in range(len(message.cases)):
        (count,) = struct.unpack_from("<H", message.cell_counts, 2 * i)
        cells = struct.unpack_from(f"<{count}I", message.cells, 4 * cell)
        ids = [value >> (32 - message.cell_id_bits) for value in cells]
        probs = [probability(value, 32 - message.cell_id_bits) for value in cells]
        parts = (message.residual_unmapped, message.residual_control, message.residual_truncated)
        residual = sum(struct.unpack_from("<f", part, 4 * i)[0] for part in parts)
        total = sum(probs)
        scale = (1 - residual) / total if total > 1e-3 else 1.0  # below, the residual's own rounding would decide
        rows.append((ids, [p * scale for p in probs], residual))
        cell += count
    return rows


@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_decoding_equals_the_reference(seed, num_rows):
    rows = random_rows(np.random.default_rng(seed), num_rows, first_row=5)
    message = encode_rows(rows)
    decoded = decode_rows(message, vocabulary_size=1000)
    for i, (ids, probs, residual) in enumerate(decoded_by_hand(message)):
        cells = slice(decoded.row_offsets[i], decoded.row_offsets[i + 1])
        assert decoded.cell_ids[cells].tolist() == ids
        np.testing.assert_allclose(np.exp(decoded.cell_log_probs[cells].astype(float)), probs, atol=1e-6)
        assert decoded.residual[i] == pytest.approx(residual, abs=2e-7)


@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_a_round_trip_keeps_mass_and_all_but_the_rounding(seed, num_rows):
    rows = random_rows(np.random.default_rng(seed), num_rows, first_row=5)
    decoded = decode_rows(encode_rows(rows))
    assert decoded.first_row == 5
    for name in EXACT:
        np.testing.assert_array_equal(getattr(decoded, name), getattr(rows, name), err_msg=name)
    np.testing.assert_array_equal(decoded.emitted_log_prob, rows.emitted_log_prob)
    np.testing.assert_allclose(decoded.row_mass(), rows.has_target(), atol=1e-6)
    no_mass = np.isneginf(rows.cell_log_probs)
    np.testing.assert_array_equal(np.isneginf(decoded.cell_log_probs), no_mass)
    kept = rows.cell_log_probs[~no_mass].clip(-40.0)
    # Half a step is 4e-4 of the root; the scale then moves all cells of a row.
    assert (np.abs(decoded.cell_log_probs[~no_mass] - kept) <= 2e-3 * (1e-2 + np.sqrt(-kept))).all()


@given(st.integers(0, 2**32 - 1))
def test_rounding_costs_less_than_a_millionth_of_divergence(seed):
    rows = random_rows(np.random.default_rng(seed), 30)
    decoded = decode_rows(encode_rows(rows))
    exact = np.maximum(rows.cell_log_probs.astype(np.float64), -1e4)
    terms = np.exp(exact) * (exact - np.maximum(decoded.cell_log_probs, -1e4))
    for start, stop in zip(rows.row_offsets, rows.row_offsets[1:], strict=False):
        assert abs(terms[start:stop].sum()) < 1e-6


def test_a_confident_row_keeps_its_probability():
    """Float16 of the probability itself would be off by 2.5e-4 here."""
    confident = math.log1p(-1e-5)
    decoded = decode_rows(encode_rows(one_row([confident, math.log(1e-5)])))
    assert decoded.cell_log_probs[0] == pytest.approx(confident, rel=0.01)


@pytest.mark.parametrize(("log_mass", "kept"), [(-20.0, -20.0), (-27.6, -27.6), (-60.0, -40.0), (-700.0, -40.0)])
def test_a_tiny_stop_mass_survives_a_residual_that_rounds_to_one(log_mass, kept):
    decoded = decode_rows(encode_rows(one_row([log_mass], residual=1.0, case=RowCase.STOP)))
    assert decoded.cell_log_probs[0] == pytest.approx(kept, rel=1e-3)


def test_only_a_mass_of_zero_becomes_minus_infinity():
    message = encode_rows(one_row([0.0, -1e5, -np.inf]))
    assert message.cells == cells_of((0, 0), (1, 2**14 - 2), (2, 2**14 - 1))
    assert decode_rows(message).cell_log_probs[2] == -np.inf


@given(st.integers(0, 2**22 - 1), st.floats(-39.9, 0.0))
def test_ids_of_any_size_keep_to_their_bits(token_id, log_prob):
    rows = replace(one_row([log_prob], -math.expm1(log_prob)), cell_ids=np.array([token_id], np.int32))
    message = encode_rows(rows)
    decoded = decode_rows(message)
    assert message.cell_id_bits == max(18, token_id.bit_length())
    assert decoded.cell_ids.tolist() == [token_id]
    half_step = math.sqrt(40 * -log_prob) / (2 ** (32 - message.cell_id_bits) - 2)
    assert decoded.cell_log_probs[0] == pytest.approx(log_prob, abs=2 * half_step + 1e-4)  # and as much for the scale


def test_an_id_that_no_cell_holds_is_refused():
    rows = replace(one_row([0.0]), cell_ids=np.array([2**22], np.int32))
    with pytest.raises(LimitExceededError, match="4194304"):
        encode_rows(rows)


def test_a_log_probability_just_above_zero_is_rounding():
    assert decode_rows(encode_rows(one_row([1e-7]))).cell_log_probs[0] == 0.0


def test_size_is_twenty_bytes_a_row_and_four_a_cell():
    rows = random_rows(np.random.default_rng(3), 500)
    assert encode_rows(rows).ByteSize() <= 20 * 500 + 4 * len(rows.cell_ids) + 64


def test_decoding_copies_nothing_of_rows():
    decoded = decode_rows(encode_rows(random_rows(np.random.default_rng(4), 10)))
    for name in ("cases", "flags", "residual_control", "emitted_log_prob"):
        assert not getattr(decoded, name).flags.owndata, name


def test_more_cells_than_a_count_can_hold_are_refused():
    with pytest.raises(LimitExceededError, match="lower top_k"):
        encode_rows(one_row(np.full(2**16, -11.09)))


def test_the_checksum_is_over_all_fields_in_order_and_continues():
    first, second = (encode_rows(random_rows(np.random.default_rng(seed), 9)) for seed in (0, 1))
    fields = ["cases", "flags", "cell_counts", "cells"]
    fields += ["residual_unmapped", "residual_control", "residual_truncated", "emitted_log_prob"]
    joined = b"".join(getattr(message, name) for message in (first, second) for name in fields)
    assert checksum(second, checksum(first)) == zlib.crc32(joined)


def _f32(*values):
    return np.array(values, "<f4").tobytes()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flags", b""),
        ("cases", b"\x07"),
        ("cases", bytes([RowCase.EXCLUDED])),
        ("cases", bytes([RowCase.STOP])),
        ("cell_counts", b"\x03\x00"),
        ("cell_counts", b"\x02"),
        ("cells", b"\x00" * 7),
        ("cells", cells_of((0, 2156), (5, 2156))),
        ("cells", cells_of((0, 2590), (1, 2590))),
        ("cells", cells_of((0, 2**14 - 1), (1, 2**14 - 1))),
        ("cell_id_bits", 0),
        ("cell_id_bits", 17),
        ("cell_id_bits", 19),
        ("cell_id_bits", 23),
        ("residual_control", _f32(0.01)),
        ("residual_control", _f32(-0.1)),
        ("residual_control", _f32(np.nan)),
        ("residual_unmapped", _f32(np.inf)),
        ("emitted_log_prob", _f32(np.nan)),
        ("emitted_log_prob", b"\x00" * 8),
    ],
)
def test_inconsistent_rows_are_refused(field, value):
    message = encode_rows(one_row([math.log(0.5), math.log(0.5)]))
    decode_rows(message, vocabulary_size=5)
    setattr(message, field, value)
    with pytest.raises(CorruptStreamError):
        decode_rows(message, vocabulary_size=5)


@given(st.data())
def test_arbitrary_bytes_decode_or_are_refused(data):
    message = encode_rows(random_rows(np.random.default_rng(0), 30))
    name = data.draw(st.sampled_from([field.name for field, value in message.ListFields() if isinstance(value, bytes)]))
    payload = bytearray(getattr(message, name))
    for index in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=4)):
        payload[index] = data.draw(st.integers(0, 255))
    setattr(message, name, bytes(payload))
    try:
        rows = decode_rows(message)
    except CorruptStreamError:
        return
    np.testing.assert_allclose(rows.row_mass(), rows.has_target(), atol=2e-5)
