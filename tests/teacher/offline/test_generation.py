import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokbridge.errors import InvalidDataError
from tokbridge_cli.teacher_generate import run
from tokbridge_teacher.offline.generation import read_prompts

PROMPTS = [{"prompt": "one"}, {"messages": [{"role": "user", "content": "two"}]}, {"prompt": "three"}]
OPTIONS = {
    "samples": 2,
    "max_tokens": 9,
    "temperature": 1.0,
    "top_p": 1.0,
    "seed": 3,
    "batch_size": 4,
    "limit": 2,
    "dtype": "auto",
    "device": "cpu",
}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, PROMPTS)))
    return path


def written(folder, prompts, out, **changes):
    run(str(folder), prompts, out, **{**OPTIONS, **changes})
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_responses_are_written_in_order(teacher_folder, prompts, tmp_path):
    lines = written(teacher_folder, prompts, tmp_path / "out.jsonl")
    assert [line["messages"][0]["content"] for line in lines] == ["one", "one", "two", "two"]
    assert {line["model"] for line in lines} == {str(teacher_folder)}
    assert {line["finish"] for line in lines} <= {"stop", "length"}
    assert all("<|im_end|>" not in line["response"] for line in lines)


def test_the_seed_decides(teacher_folder, prompts, tmp_path):
    first, again, other = (
        written(teacher_folder, prompts, tmp_path / f"{n}.jsonl", seed=seed) for n, seed in enumerate((3, 3, 4))
    )
    assert first == again
    assert first != other


def test_a_batch_writes_what_single_responses_would(teacher_folder, prompts, tmp_path):
    """Without sampling: padding on the left changes nothing."""
    together = written(teacher_folder, prompts, tmp_path / "a.jsonl", temperature=0.0, samples=1, limit=3)
    alone = written(teacher_folder, prompts, tmp_path / "b.jsonl", temperature=0.0, samples=1, limit=3, batch_size=1)
    assert together == alone


def test_prompts_from_parquet(tmp_path):
    path = tmp_path / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": None, "prompt": None, **row} for row in PROMPTS]), path)
    contents = [conversation[0]["content"] for conversation in read_prompts(path, None)]
    assert contents == ["one", "two", "three"]


@pytest.mark.parametrize("text", ['{"question": "x"}', "not json", "[1]"])
def test_a_row_that_is_no_prompt_is_named(text, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + text)
    with pytest.raises(InvalidDataError) as invalid:
        read_prompts(path, None)
    assert invalid.value.details["row"] == 1


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InvalidDataError):
        read_prompts(tmp_path / "none.jsonl", None)
