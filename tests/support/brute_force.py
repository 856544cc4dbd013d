"""The slow twin of the target builder: rows straight from the formulas, by enumerating both vocabularies.

No trie, no sorting, no cache, no arrays. φ is a parameter; `greedy_phi` is the paper's. Distributions are lists of
floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Phi = Callable[[bytes], int | None]
Settled = Callable[[bytes], bool]


@dataclass
class TwinRow:
    """One row as it should be, before truncation unless `truncated_row` made it."""

    case: str
    cells: dict[int, float] = field(default_factory=dict)
    unmapped: float = 0.0
    control: float = 0.0
    truncated: float = 0.0
    emitted: float | None = None
    unresolved: float = 0.0
    """Mass on teacher tokens whose bytes (after r) some student token strictly extends."""


@dataclass
class TwinProblem:
    """One response with everything that its rows depend on."""

    teacher: Sequence[bytes | None]
    student: Sequence[bytes | None]
    teacher_ids: Sequence[int]
    """Of the content after its first `given_bytes` bytes."""
    student_ids: Sequence[int]
    q: Sequence[Sequence[float]]
    stop_set: frozenset[int]
    stop_id: int | None
    turn_end_id: int
    given_bytes: int
    phi: Phi
    settled: Settled
    emitted_only: bool
    """Chain candidates: the emitted token alone (routing `bpe`)."""
    max_tokens: float
    """Teacher tokens in a looked-ahead string at most."""


def canonical(vocabulary: Sequence[bytes | None], string: bytes) -> int | None:
    """The lowest id of a byte string."""
    return next((i for i, token in enumerate(vocabulary) if token == string), None)


def greedy_phi(student: Sequence[bytes | None]) -> Phi:
    """φ(s): the longest student token that is a prefix of s (A.2)."""

    def phi(string: bytes) -> int | None:
        prefixes = [token for token in student if token is not None and string.startswith(token)]
        return canonical(student, max(prefixes, key=len)) if prefixes else None

    return phi


def no_longer_token(student: Sequence[bytes | None]) -> Settled:
    """The oracle's stop rule of lookahead under `greedy`."""
    return lambda a: not any(u is not None and len(u) > len(a) and u.startswith(a) for u in student)


def rows(problem: TwinProblem, spanning: str) -> list[TwinRow]:
    """All rows of a response, untruncated."""
    content_rows = [_row(problem, index, spanning) for index in range(len(problem.student_ids))]
    return content_rows + ([] if problem.stop_id is None else [_stop_row(problem, problem.stop_id)])


def truncated_row(row: TwinRow, emitted_id: int, top_k: int, mass: float) -> TwinRow:
    """The row after truncation (spec §6)."""
    if row.case not in ("aligned", "interior", "spanning"):
        return row
    kept: dict[int, float] = {}
    for cell, probability in sorted(row.cells.items(), key=lambda item: -item[1]):
        if probability > 0 and len(kept) < top_k and (mass >= 1 or sum(kept.values()) < mass):
            kept[cell] = probability
    kept[emitted_id] = row.cells.get(emitted_id, 0.0)
    dropped = sum(row.cells.values()) - sum(kept.values())
    return TwinRow(row.case, kept, row.unmapped, row.control, dropped, row.emitted)


def _stop_row(problem: TwinProblem, stop_id: int) -> TwinRow:
    b = sum(problem.q[-1][w] for w in problem.stop_set)
    return TwinRow("stop", {stop_id: b}, control=1 - b, emitted=b)


def _row(problem: TwinProblem, index: int, spanning: str) -> TwinRow:
    emitted_id = problem.student_ids[index]
    emitted = problem.student[emitted_id]
    start = sum(len(problem.student[i] or b"") for i in problem.student_ids[:index]) - problem.given_bytes
    if emitted is None:
        return TwinRow("control")
    if start < 0:
        return TwinRow("given")
    cuts = _cuts(problem)
    j = max(k for k in range(len(problem.teacher_ids)) if cuts[k] <= start)
    end = start + len(emitted)
    r = _scored(problem)[cuts[j] : start]
    case = ("interior" if r else "aligned") if end <= cuts[j + 1] else "spanning"
    if case == "spanning" and r and end not in cuts and spanning == "realized":
        return TwinRow("excluded")
    conditional = _conditional(problem, j, r)
    if conditional is None:
        return TwinRow("excluded")
    row = _base(problem, conditional, r)
    row.case = case
    if spanning == "lookahead":
        _look_ahead(problem, row, j, r, conditional)
    elif case == "spanning":
        _chain(problem, row, j, start, emitted, conditional)
    return _on_emitted_id(problem, row, emitted_id, emitted)


def _scored(problem: TwinProblem) -> bytes:
    return b"".join(problem.teacher[i] or b"" for i in problem.teacher_ids)


def _cuts(problem: TwinProblem) -> list[int]:
    lengths = [len(problem.teacher[i] or b"") for i in problem.teacher_ids]
    return [sum(lengths[:k]) for k in range(len(lengths) + 1)]


def _conditional(problem: TwinProblem, j: int, r: bytes) -> dict[int, float] | None:
    """q_j given r: all of it if r is empty, else the content tokens that start with r; None if they have no mass."""
    if not r:
        return dict(enumerate(problem.q[j]))
    compatible = {
        w: problem.q[j][w] for w, token in enumerate(problem.teacher) if token is not None and token.startswith(r)
    }
    total = sum(compatible.values())
    return {w: mass / total for w, mass in compatible.items()} if total > 0 else None


def _base(problem: TwinProblem, conditional: dict[int, float], r: bytes) -> TwinRow:
    """(A.4) and (A.6)."""
    row = TwinRow("")
    for w, mass in conditional.items():
        token = problem.teacher[w]
        if w in problem.stop_set:
            _add(row, problem.stop_id if problem.stop_id is not None else problem.turn_end_id, mass)
        elif token is None:
            row.control += mass
        else:
            rest = token[len(r) :]
            _add(row, problem.phi(rest) if rest else None, mass)
            row.unresolved += mass * (not no_longer_token(problem.student)(rest))
    return row


def _add(row: TwinRow, cell: int | None, mass: float) -> None:
    if cell is None:
        row.unmapped += mass
    else:
        row.cells[cell] = row.cells.get(cell, 0.0) + mass


def _chain(
    problem: TwinProblem, row: TwinRow, j: int, start: int, emitted: bytes, conditional: dict[int, float]
) -> None:
    """(A.5), (A.6): candidates gain telescoped masses, the head cell loses that of the shortest."""
    cuts, scored = _cuts(problem), _scored(problem)
    candidates = {
        token
        for token in problem.student
        if token is not None and start + len(token) > cuts[j + 1] and scored[start:].startswith(token)
    }
    ordered = sorted({emitted} if problem.emitted_only else candidates, key=len)
    masses = [_chain_mass(problem, j, start + len(u), conditional) for u in ordered]
    for u, mass, following in zip(ordered, masses, [*masses[1:], 0.0], strict=True):
        _add(row, canonical(problem.student, u), mass - following)
    _add(row, problem.phi(scored[start : cuts[j + 1]]), -masses[0])


def _chain_mass(problem: TwinProblem, j: int, end: int, conditional: dict[int, float]) -> float:
    """c(u) of the candidate that ends at byte `end`."""
    cuts, scored = _cuts(problem), _scored(problem)
    k = max(position for position in range(len(problem.teacher_ids)) if cuts[position] < end)
    between = math.prod(problem.q[position][problem.teacher_ids[position]] for position in range(j + 1, k))
    if end == cuts[k + 1]:
        last = problem.q[k][problem.teacher_ids[k]]
    else:
        begun = scored[cuts[k] : end]
        last = sum(problem.q[k][w] for w, token in enumerate(problem.teacher) if token and token.startswith(begun))
    return conditional[problem.teacher_ids[j]] * between * last


def _look_ahead(problem: TwinProblem, row: TwinRow, j: int, r: bytes, conditional: dict[int, float]) -> None:
    """§5b: resolve the realized branch with the distributions that follow it."""
    realized = problem.teacher_ids[j]
    a, m, position, tokens = (problem.teacher[realized] or b"")[len(r) :], conditional[realized], j + 1, 1
    while not problem.settled(a) and tokens < problem.max_tokens:
        for w, token in enumerate(problem.teacher):
            if token is not None:
                _add(row, problem.phi(a), -m * problem.q[position][w])
                _add(row, problem.phi(a + token), m * problem.q[position][w])
        if position == len(problem.teacher_ids):
            return
        realized = problem.teacher_ids[position]
        a, m = a + (problem.teacher[realized] or b""), m * problem.q[position][realized]
        position, tokens = position + 1, tokens + 1


def _on_emitted_id(problem: TwinProblem, row: TwinRow, emitted_id: int, emitted: bytes) -> TwinRow:
    """The mass of the emitted bytes stands on the emitted id (spec §2, duplicates)."""
    twin = canonical(problem.student, emitted)
    mass = row.cells.pop(twin, 0.0) if twin is not None else 0.0
    row.cells[emitted_id] = mass
    row.emitted = mass
    return row
