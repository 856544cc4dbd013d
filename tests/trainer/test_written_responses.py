"""The warm start: teacher-written responses in the student's own tokens."""

import json

import pytest

from support.training import make_config
from tokbridge.errors import InvalidDataError
from tokbridge_trainer.written_responses import load_warm_start

MESSAGES = [{"role": "user", "content": "hello"}]


def load(tmp_path, student_folder, student_text, rows, **values):
    path = tmp_path / "written.jsonl"
    path.write_text("".join(json.dumps({"messages": MESSAGES, **row}) + "\n" for row in rows))
    config = make_config(student_folder, warm_start={"steps": 2, "responses": [str(path)]}, **values)
    return load_warm_start(config, student_text)


def test_responses_are_cut_into_the_students_tokens(tmp_path, student_folder, student_text):
    text = "she sells <|end_turn|> é"
    rows = [{"response": text, "finish": "stop"}, {"response": text, "finish": "length"}]
    loaded = load(tmp_path, student_folder, student_text, rows, max_response_tokens=60)
    stopped, cut = loaded.responses
    assert stopped.response == text.encode()
    student_text.profile.vocabulary.check_spells(stopped.token_ids, text.encode())
    assert (student_text.profile.vocabulary.lengths[stopped.token_ids] > 0).all()
    assert len(stopped.token_ids) < len(text.encode())
    assert (stopped.stop_id, cut.stop_id) == (student_text.profile.turn_end_id, None)


def test_long_responses_are_cut_at_a_token_boundary(tmp_path, student_folder, student_text):
    rows = [{"response": "é" * 50, "finish": "stop"}]
    loaded = load(tmp_path, student_folder, student_text, rows, max_response_tokens=5)
    (written,) = loaded.responses
    assert len(written.token_ids) == 5
    assert written.stop_id is None
    student_text.profile.vocabulary.check_spells(written.token_ids, written.response)


def test_unusable_rows_are_counted_by_reason(tmp_path, student_folder, student_text):
    rows = [
        {"response": "fine", "finish": "stop"},
        {"response": "", "finish": "length"},
        {"response": "x", "finish": "stop", "messages": [{"role": "user", "content": "long " * 200}]},
    ]
    loaded = load(tmp_path, student_folder, student_text, rows)
    assert len(loaded.responses) == 1
    assert loaded.skipped == {"empty": 1, "overlong": 1}
    with pytest.raises(InvalidDataError, match="no response of"):
        load(tmp_path, student_folder, student_text, rows[1:])


def test_an_empty_response_that_stopped_is_one_stop_row(tmp_path, student_folder, student_text):
    (written,) = load(tmp_path, student_folder, student_text, [{"response": "", "finish": "stop"}]).responses
    assert (len(written.token_ids), written.stop_id) == (0, student_text.profile.turn_end_id)


def test_rows_without_a_response_are_refused(tmp_path, student_folder, student_text):
    with pytest.raises(InvalidDataError, match="response"):
        load(tmp_path, student_folder, student_text, [{"finish": "stop"}])


def test_rows_that_the_template_refuses_are_named(tmp_path, student_folder, student_text):
    rows = [{"response": "x"}, {"response": "x", "messages": [{"role": "user", "content": "x"}], "tools": 5}]
    with pytest.raises(InvalidDataError) as error:
        load(tmp_path, student_folder, student_text, rows)
    assert error.value.details["row"] == 1


def test_samples_go_through_all_responses_before_any_comes_again(tmp_path, student_folder, student_text):
    rows = [{"response": str(i), "finish": "stop"} for i in range(6)]
    loaded = load(tmp_path, student_folder, student_text, rows)
    samples = [sample for step in range(3) for sample in loaded.samples(step, 4)]
    assert sorted(sample.response for sample in samples[:6]) == [str(i).encode() for i in range(6)]
    assert len({sample.key for sample in samples}) == 12
    assert {sample.policy_version for sample in samples} == {-1}


def test_no_warm_start_is_none(student_folder, student_text):
    assert load_warm_start(make_config(student_folder), student_text) is None
