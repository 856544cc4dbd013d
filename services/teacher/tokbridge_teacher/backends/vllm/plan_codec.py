"""A device plan and a pair's tables as bytes: what a worker must be told of a response and of a student."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from tokbridge_teacher.backends.vllm.array_codec import (
    Arrays,
    indices,
    join_ragged,
    pack_arrays,
    split_ragged,
    unpack_arrays,
)
from tokbridge_teacher.routing.device_tables import TableArrays
from tokbridge_teacher.routing.interior_routes import InteriorRoutes
from tokbridge_teacher.targets.device_plan import DevicePlan, PrefixQueries, RowGroup

_INDEX_ARRAYS = ("teacher_ids", "interior_realized", "stop_ids", "control_ids")
_GROUPS = ("base", "interior")


def encode_plan(plan: DevicePlan) -> bytes:
    """A plan; every φ_r that it uses is in it once."""
    arrays: Arrays = {name: getattr(plan, name) for name in _INDEX_ARRAYS}
    for group in _GROUPS:
        arrays |= {f"{group}.{field.name}": getattr(getattr(plan, group), field.name) for field in fields(RowGroup)}
    arrays |= {f"queries.{field.name}": getattr(plan.queries, field.name) for field in fields(PrefixQueries)}
    arrays |= _encode_routes(plan.interior_routes)
    arrays["counts"] = np.array([plan.num_cells, plan.num_top_tokens])
    return pack_arrays(arrays)


def decode_plan(data: bytes) -> DevicePlan:
    """The plan of `encode_plan`."""
    arrays = unpack_arrays(data)
    num_cells, num_top_tokens = arrays["counts"].tolist()
    base, interior = (
        RowGroup(**{field.name: indices(arrays[f"{group}.{field.name}"]) for field in fields(RowGroup)})
        for group in _GROUPS
    )
    queries = PrefixQueries(**{field.name: indices(arrays[f"queries.{field.name}"]) for field in fields(PrefixQueries)})
    return DevicePlan(
        **{name: indices(arrays[name]) for name in _INDEX_ARRAYS},
        base=base,
        interior=interior,
        interior_routes=_decode_routes(arrays),
        queries=queries,
        num_cells=num_cells,
        num_top_tokens=num_top_tokens,
    )


def encode_tables(tables: TableArrays) -> bytes:
    """Tables of a pair."""
    size = np.array([tables.student_size])
    return pack_arrays(
        {
            "phi": tables.phi,
            "extended": tables.extended,
            "teacher_ids_by_rank": tables.teacher_ids_by_rank,
            "byteless_ids": tables.byteless_ids,
            "student_size": size,
        }
    )


def decode_tables(data: bytes) -> TableArrays:
    """The tables of `encode_tables`."""
    arrays = unpack_arrays(data)
    return TableArrays(
        phi=arrays["phi"].astype(np.int32),
        extended=arrays["extended"].astype(np.bool_),
        teacher_ids_by_rank=arrays["teacher_ids_by_rank"].astype(np.int32),
        byteless_ids=indices(arrays["byteless_ids"]),
        student_size=int(arrays["student_size"][0]),
    )


def _encode_routes(routes: tuple[InteriorRoutes, ...]) -> Arrays:
    """φ_r of every row: which of the different ones it is, and those joined."""
    different = {one.prefix: one for one in routes}
    place = {prefix: number for number, prefix in enumerate(different)}
    prefixes, prefix_lengths = join_ragged([np.frombuffer(prefix, np.uint8) for prefix in different], np.uint8)
    cells, cell_counts = join_ragged([one.cells for one in different.values()], np.int32)
    slots, _ = join_ragged([one.slots for one in different.values()], np.int64)
    extended, _ = join_ragged([one.extended for one in different.values()], np.bool_)
    return {
        "routes.of_row": np.array([place[one.prefix] for one in routes], np.int64),
        "routes.prefixes": prefixes,
        "routes.prefix_lengths": prefix_lengths,
        "routes.ranks": np.array([(one.low, one.high) for one in different.values()], np.int64).reshape(-1, 2),
        "routes.cells": cells,
        "routes.cell_counts": cell_counts,
        "routes.slots": slots,
        "routes.extended": extended,
    }


def _decode_routes(arrays: Arrays) -> tuple[InteriorRoutes, ...]:
    ranks = indices(arrays["routes.ranks"])
    sizes = ranks[:, 1] - ranks[:, 0]
    columns = zip(
        split_ragged(arrays["routes.prefixes"], arrays["routes.prefix_lengths"]),
        ranks.tolist(),
        split_ragged(arrays["routes.cells"], arrays["routes.cell_counts"]),
        split_ragged(arrays["routes.slots"], sizes),
        split_ragged(arrays["routes.extended"], sizes),
        strict=True,
    )
    different = [
        InteriorRoutes(prefix.tobytes(), low, high, cells.astype(np.int32), indices(slots), extended.astype(np.bool_))
        for prefix, (low, high), cells, slots, extended in columns
    ]
    return tuple(different[number] for number in arrays["routes.of_row"].tolist())
