"""Time to mix the rows of several teachers, as a share of the time to decode those rows from the wire.

Both are done for the same rows, in turns; the median of the ratios is shown. Rows as in `wire.py`; half of a teacher's
cells are those of the first one.

    python benchmarks/mixture.py [--rows 27648] [--teachers 2] [--top-k 48] [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from wire import VOCABULARY_SIZE, make_rows

from tokbridge.mixture import mix_rows
from tokbridge.targets import TargetRows
from tokbridge.wire import checksum, decode_rows, encode_rows


def teachers_rows(num_teachers: int, num_rows: int, top_k: int) -> list[TargetRows]:
    """Rows of one response by several teachers; ids are unique within a row."""
    rows = make_rows(num_rows, top_k, mass=1.0)
    ids = np.random.default_rng(1).integers(VOCABULARY_SIZE // (2 * top_k), size=(num_teachers, num_rows, top_k))
    ids = ids * 2 * top_k + 2 * np.arange(top_k)
    ids[1:, :, ::2] = ids[0, :, ::2]
    ids[1:, :, 1::2] += 1
    return [replace(rows, cell_ids=of_teacher.reshape(-1).astype(np.int32)) for of_teacher in ids]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=27_648)
    parser.add_argument("--teachers", type=int, default=2)
    parser.add_argument("--top-k", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    parts = teachers_rows(arguments.teachers, arguments.rows, arguments.top_k)
    messages = [encode_rows(rows) for rows in parts]

    def decode() -> None:
        for message in messages:
            checksum(message)
            decode_rows(message, vocabulary_size=VOCABULARY_SIZE)

    def mix() -> TargetRows:
        return mix_rows(parts, [1.0] * len(parts)).rows

    mixture = mix()  # warms up, too
    times = [(seconds_of(mix), seconds_of(decode)) for _ in range(arguments.rounds)]
    cells = sum(len(rows.cell_ids) for rows in parts)
    seconds = statistics.median(mixing for mixing, _ in times)
    ratio = statistics.median(mixing / decoding for mixing, decoding in times)
    print(f"{arguments.teachers} teachers, {arguments.rows} rows, {cells} cells to {len(mixture.cell_ids)}")
    print(f"mixing {seconds:.3f} s, {seconds / cells * 1e9:.0f} ns a cell; {ratio:.2f} × the time to decode the rows")
    print(f"mass of a row off by at most {np.abs(mixture.row_mass() - 1).max():.1e}")


def seconds_of(work: Callable[[], Any]) -> float:
    """Of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
