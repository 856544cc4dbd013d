"""Random small problems for the target builder, and its answers to them in chunks of any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from support.brute_force import TwinProblem, canonical, greedy_phi, no_longer_token
from tokbridge.targets import TargetRows
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.pair_tables import PairTables, compile_pair
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

ALPHABET = b"ab \t\xe2\xff"
WEIGHTS = [0.45, 0.25, 0.15, 0.05, 0.05, 0.05]


class OddEncoder:
    """Stands in for a student's encoder: emits the longest token of odd length, and refuses strings that hold 0xff.

    What it gives differs from greedy, and whether a string is settled depends on its length alone.
    """

    fingerprint = "odd"

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        self._tokens = vocabulary.token_bytes

    def first_token(self, string: bytes) -> int:
        odd = [token for token in self._tokens if token and len(token) % 2 and string.startswith(token)]
        best = canonical(self._tokens, max(odd, key=len)) if odd and b"\xff" not in string else None
        return -1 if best is None else best

    def is_settled(self, string: bytes) -> bool:
        return len(string) >= 4

    def first_tokens(self, strings: Sequence[bytes]) -> np.ndarray:
        return np.array([self.first_token(string) for string in strings], np.int32)

    def first_tokens_settled(self, strings: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        return self.first_tokens(strings), np.array([self.is_settled(string) for string in strings], bool)


def random_problem(seed: int, routing: str) -> TwinProblem:
    """A response over two random vocabularies, with duplicates, unmapped heads, zeros, control tokens, given bytes."""
    rng = np.random.default_rng(seed)
    teacher = _random_vocabulary(rng, every_byte=True)
    student = _random_vocabulary(rng, every_byte=bool(rng.random() < 0.5))
    student_content = [i for i, token in enumerate(student) if token is not None]
    control = student.index(None)
    student_ids = [int(rng.choice(student_content)) for _ in range(rng.integers(0, 9))]
    student_ids += [control] * int(rng.random() < 0.2)
    content = b"".join(student[i] or b"" for i in student_ids)
    given = int(rng.integers(0, len(content) + 1)) if rng.random() < 0.3 else 0
    teacher_ids = _random_segmentation(rng, teacher, content[given:])
    stops = [i for i, token in enumerate(teacher) if token is None][: int(rng.integers(1, 3))]
    stop_id = len(student) - 1 if rng.random() < 0.6 or not student_ids else None
    encoder = OddEncoder(ByteVocabulary(tuple(student)))
    is_bpe = routing == "bpe"
    return TwinProblem(
        teacher=teacher,
        student=student,
        teacher_ids=teacher_ids,
        student_ids=student_ids,
        q=[_random_distribution(rng, len(teacher)) for _ in range(len(teacher_ids) + 1)],
        stop_set=frozenset(stops),
        stop_id=stop_id,
        turn_end_id=len(student) - 1,
        given_bytes=given,
        phi=odd_phi(student, encoder) if is_bpe else greedy_phi(student),
        settled=encoder.is_settled if is_bpe else no_longer_token(student),
        emitted_only=is_bpe,
        max_tokens=4 if is_bpe else float("inf"),
    )


def odd_phi(student: Sequence[bytes | None], encoder: OddEncoder):
    """φ of routing `bpe` with that encoder: greedy where it gives nothing."""
    greedy = greedy_phi(student)
    return lambda string: greedy(string) if encoder.first_token(string) < 0 else encoder.first_token(string)


def problem_tables(problem: TwinProblem, routing: str) -> PairTables:
    """Compiled tables of a problem's pair."""
    teacher, student = ByteVocabulary(tuple(problem.teacher)), ByteVocabulary(tuple(problem.student))
    return compile_pair(teacher, student, routing, student_encoder=OddEncoder(student), cache_folder=None)


def problem_plan(problem: TwinProblem, tables: PairTables, options: ScoringOptions):
    """The plan of a problem."""
    lengths = tables.teacher.lengths[np.asarray(problem.teacher_ids, int)]
    boundaries = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = np.asarray(problem.teacher_ids, np.int32)
    return build_plan(
        tables,
        Segmentation(ids, boundaries, np.zeros(len(ids), bool)),
        np.asarray(problem.student_ids, np.int32),
        tables.student.content_of(problem.student_ids),
        teacher_stop_ids=problem.stop_set,
        stop_id=problem.stop_id,
        turn_end_id=problem.turn_end_id,
        given_bytes=problem.given_bytes,
        options=options,
        oracle=True,
    )


def built_rows(
    problem: TwinProblem, tables: PairTables, options: ScoringOptions, cuts: Sequence[int] = ()
) -> TargetRows:
    """The builder's rows, with the device pass cut into chunks at the positions `cuts`."""
    plan = problem_plan(problem, tables, options)
    with np.errstate(divide="ignore"):
        logits = torch.as_tensor(np.log(np.asarray(problem.q)).astype(np.float32))
    assembler, device_tables = RowAssembler(plan, tables), tables.on_device("cpu")
    edges = sorted({0, plan.num_positions, *(cut % (plan.num_positions + 1) for cut in cuts)})
    parts = []
    for start, stop in pairwise(edges):
        result = marginalize(logits[start:stop].clone(), plan.slice(start, stop), device_tables)
        parts.append(assembler.add(result))
    assembler.finish()
    return TargetRows.concatenate(parts)


def _random_vocabulary(rng: np.random.Generator, *, every_byte: bool) -> list[bytes | None]:
    singles = [bytes([byte]) for byte in ALPHABET if every_byte or rng.random() < 0.6]
    lengths = rng.integers(1, 5, rng.integers(4, 16))
    longer = [rng.choice(list(ALPHABET), length, p=WEIGHTS).astype(np.uint8).tobytes() for length in lengths]
    tokens: list[bytes | None] = [*singles, *longer]
    rng.shuffle(cast(Any, tokens))  # numpy shuffles lists, too; its types do not say so
    return [*tokens, *[None] * int(rng.integers(2, 4))]


def _random_segmentation(rng: np.random.Generator, vocabulary: Sequence[bytes | None], content: bytes) -> list[int]:
    """Any tokens that spell the content, long ones more often, so that student tokens end inside them."""
    ids: list[int] = []
    while content:
        fitting = [i for i, token in enumerate(vocabulary) if token is not None and content.startswith(token)]
        longest = max(fitting, key=lambda i: len(vocabulary[i] or b""))
        ids.append(longest if rng.random() < 0.7 else int(rng.choice(fitting)))
        content = content[len(vocabulary[ids[-1]] or b"") :]
    return ids


def _random_distribution(rng: np.random.Generator, size: int) -> list[float]:
    weights = np.exp(rng.normal(0, 3, size)) * (rng.random(size) > 0.15)
    weights[rng.integers(size)] += 1e-3
    return (weights / weights.sum()).tolist()
