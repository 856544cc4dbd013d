"""The shipped vectors, both formats and both spanning modes, and the paper's worked examples."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.offline.conformance import check_file
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

VECTORS = Path(__file__).parents[2] / "vectors"


@pytest.mark.parametrize(("name", "count"), [("random_small", 160), ("bpe_small", 64)])
def test_every_vector_within_the_tolerance(name, count):
    results = list(check_file(VECTORS / f"{name}.json"))
    assert len(results) == count
    assert [result for result in results if not result.passed] == []


def score(teacher, student, teacher_ids, student_ids, q):
    """Rows of a response without a stop, as {student bytes: probability} each."""
    teacher, student = ByteVocabulary(teacher), ByteVocabulary(student)
    tables = compile_pair(teacher, student, "greedy", student_encoder=None, cache_folder=None)
    content = teacher.content_of(teacher_ids)
    plan = build_plan(
        tables,
        Segmentation(
            np.array(teacher_ids, np.int32),
            np.concatenate([[0], np.cumsum(teacher.lengths[teacher_ids], dtype=np.int64)]),
            np.zeros(len(teacher_ids), bool),
        ),
        np.array(student_ids, np.int32),
        content,
        teacher_stop_ids=[teacher.size - 1],
        stop_id=None,
        turn_end_id=student.size - 1,
        given_bytes=0,
        options=ScoringOptions("greedy", "realized", 100, 1.0),
    )
    with np.errstate(divide="ignore"):
        logits = torch.as_tensor(np.log(np.array(q, np.float32)))
    assembler = RowAssembler(plan, tables)
    rows = assembler.add(marginalize(logits, plan.slice(0, plan.num_positions), tables.on_device("cpu")))
    named = zip(rows.cell_ids.tolist(), np.exp(rows.cell_log_probs).tolist(), strict=True)
    cells = [(student.token_bytes[cell], probability) for cell, probability in named]
    return [dict(cells[a:b]) for a, b in zip(rows.row_offsets, rows.row_offsets[1:], strict=False)]


def test_table_d3():
    teacher, student = (b"at", b"ate", b"a", b"bit", None), (b"a", b"at", b"ate", b"bit", None)
    q = [[0.5, 0.2, 0.2, 0.1, 0.0], [0, 0, 0, 0, 1.0]]
    (row,) = score(teacher, student, [0], [1], q)
    assert row == pytest.approx({b"at": 0.5, b"a": 0.2, b"ate": 0.2, b"bit": 0.1}, abs=1e-6)


def test_spanning_example_of_the_paper():
    teacher, student = (b"</", b"think", b">", b"x", None), (b"</think>", b"</", b"x", None)
    q = [[0.7, 0, 0, 0.3, 0], [0, 0.9, 0, 0.1, 0], [0, 0, 0.95, 0.05, 0], [0, 0, 0, 0, 1.0]]
    (row,) = score(teacher, student, [0, 1, 2], [0], q)
    assert row == pytest.approx({b"</think>": 0.5985, b"x": 0.3, b"</": 0.7 - 0.5985}, abs=1e-6)


def test_a_student_with_the_teachers_vocabulary_gets_the_teachers_distributions():
    rng = np.random.default_rng(0)
    vocabulary = (b"a", b"b", b"ab", b"ba", None)
    q = rng.dirichlet(np.ones(5), 4)
    rows = score(vocabulary, vocabulary, [2, 0, 3], [2, 0, 3], q)
    for row, distribution in zip(rows, q, strict=False):
        named = dict(zip(vocabulary, distribution.tolist(), strict=True))
        assert row == pytest.approx(named, abs=1e-6)
