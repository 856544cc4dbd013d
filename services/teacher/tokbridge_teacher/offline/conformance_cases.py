"""Files of cases with known answers, in the two formats of the vectors (`tests/vectors/README.md`).

A plain file is a list of cases, each with its own vocabularies, routing `greedy`. A paired file is a list of pairs,
each with a student tokenizer and its cases, routing `bpe`. Reads files; computes nothing.

Axes: M teacher tokens, N student ids, V teacher vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InvalidDataError, InvalidVocabularyError
from tokbridge.modes import Spanning
from tokbridge.targets import RowCase
from tokbridge.vocabulary import ByteVocabulary

JsonObject = dict[str, Any]
ROW_FIELDS: dict[Spanning, str] = {Spanning.REALIZED: "rows", Spanning.LOOKAHEAD: "rows_lookahead"}


@dataclass(frozen=True)
class ExpectedRow:
    """The right answer of one row."""

    case: RowCase
    target: Mapping[int, float]
    residual: float
    is_whitespace: bool


@dataclass(frozen=True, eq=False)
class Case:
    """One response with its teacher distributions and its right rows."""

    name: str
    teacher_ids: NDArray[np.int32]
    """[M]."""
    student_ids: NDArray[np.int32]
    """[N]."""
    log_probs: NDArray[np.float32]
    """[M + 1, V], ln q."""
    teacher_stop_ids: frozenset[int]
    stop_id: int | None
    turn_end_id: int
    rows: Mapping[Spanning, Sequence[ExpectedRow]]


@dataclass(frozen=True, eq=False)
class CasePair:
    """Two vocabularies and the cases between them."""

    teacher: ByteVocabulary
    student: ByteVocabulary
    student_tokenizer: str | None
    """A `tokenizer.json`; None: the cases are of routing `greedy`."""
    cases: Sequence[Case]


def read_cases(path: Path) -> list[CasePair]:
    """All pairs and cases of a file.

    Raises:
        InvalidDataError: the file is not in one of the two formats.
    """
    try:
        return [_read_pair(str(number), entry) for number, entry in enumerate(json.loads(path.read_text()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, InvalidVocabularyError) as error:
        raise InvalidDataError(f"{path.name} is not a file of cases: {type(error).__name__}: {error}") from error


def _read_pair(name: str, entry: JsonObject) -> CasePair:
    teacher, student = _vocabulary(entry["teacher_vocab"]), _vocabulary(entry["student_vocab"])
    if "cases" not in entry:
        return CasePair(teacher, student, None, [_read_case(name, entry, teacher.size)])
    cases = [_read_case(f"{name}.{number}", case, teacher.size) for number, case in enumerate(entry["cases"])]
    return CasePair(teacher, student, json.dumps(entry["student_tokenizer"]), cases)


def _read_case(name: str, case: JsonObject, teacher_size: int) -> Case:
    return Case(
        name,
        teacher_ids=np.asarray(case["teacher_ids"], np.int32),
        student_ids=np.asarray(case["student_ids"], np.int32),
        log_probs=_log_probs(case["q"], teacher_size),
        teacher_stop_ids=frozenset(case["teacher_stop"]),
        stop_id=case["s_star"] if case["emits_stop"] else None,
        turn_end_id=case["s_star"],
        rows={spanning: [_read_row(row) for row in case[field]] for spanning, field in ROW_FIELDS.items()},
    )


def _read_row(row: JsonObject) -> ExpectedRow:
    target = {int(token): float(probability) for token, probability in row["target"].items()}
    return ExpectedRow(RowCase[row["case"].upper()], target, float(row["residual"]), bool(row["whitespace"]))


def _vocabulary(tokens: Sequence[str | None]) -> ByteVocabulary:
    return ByteVocabulary(tuple(None if token is None else bytes.fromhex(token) for token in tokens))


def _log_probs(q: Sequence[Any], size: int) -> NDArray[np.float32]:
    """ln q: float32 [positions, V], from full lists or from {id: probability}."""
    dense = np.zeros((len(q), size))
    for position, distribution in enumerate(q):
        items = distribution.items() if isinstance(distribution, dict) else enumerate(distribution)
        for token, probability in items:
            dense[position, int(token)] = probability
    with np.errstate(divide="ignore"):  # ln 0 = −inf is meant
        return np.log(dense).astype(np.float32)
