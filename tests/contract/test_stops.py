import pytest

from support.real_tokenizers import real_profile
from support.small_tokenizers import CHATML, chat_files
from tokbridge.errors import InvalidVocabularyError
from tokbridge.tokenizer_files import load_tokenizer_files
from tokbridge.tokenizer_profile import load_tokenizer, profile_from_files

IM_START, IM_END, END = 258, 259, 260


def profile_with_generation_config(name, tmp_path, eos_json):
    """The real tokenizer in a folder of its own, beside a `generation_config.json` as its model publishes it."""
    folder = tmp_path / name
    folder.mkdir()
    files = real_profile(name).files
    (folder / "tokenizer.json").write_text(files.tokenizer_json)
    (folder / "chat_template.jinja").write_text(files.chat_template)
    eos = files.tokenizer_config["eos_token"]
    (folder / "tokenizer_config.json").write_text(f'{{"eos_token": "{eos}"}}')
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {eos_json}}}')
    return load_tokenizer(folder)


def test_glm_z1_ends_in_the_next_turns_role(tmp_path):
    profile = profile_with_generation_config("glm-z1-9b-0414", tmp_path, "[151329, 151336, 151338]")
    assert profile.stop_ids == {151329, 151336, 151338}
    names = {profile.control_ids[text] for text in ("<|endoftext|>", "<|user|>", "<|observation|>")}
    assert names == profile.stop_ids
    assert profile.turn_end_id == 151329


def test_qwen35_ends_in_im_end_and_endoftext(tmp_path):
    profile = profile_with_generation_config("qwen-3.5", tmp_path, "[248046, 248044]")
    assert profile.stop_ids == {248046, 248044}
    assert profile.turn_end_id == profile.control_ids["<|im_end|>"] == 248046


@pytest.mark.parametrize(
    ("name", "stops", "turn_end"),
    [
        ("minimax", {"[e~["}, "[e~["),
        ("glm-4-9b-0414", {"<|user|>", "<|observation|>"}, "<|user|>"),
        ("llama2", {"</s>"}, "</s>"),
        pytest.param("llama3_1", {"<|eot_id|>"}, "<|eot_id|>", marks=pytest.mark.nightly),
        pytest.param("gemma3", {"<end_of_turn>"}, "<end_of_turn>", marks=pytest.mark.nightly),
        pytest.param("deepseek-r1", {"<｜end▁of▁sentence｜>"}, "<｜end▁of▁sentence｜>", marks=pytest.mark.nightly),
    ],
)
def test_real_templates_tell_what_ends_a_turn(name, stops, turn_end):
    profile = real_profile(name)
    assert profile.stop_ids == {profile.control_ids[text] for text in stops}
    assert profile.turn_end_id == profile.control_ids[turn_end]


def test_skipped_probes_are_reported():
    notes = real_profile("minimax").notes
    assert any("tool" in note and "no previous assistant message with a tool call" in note for note in notes)


def test_every_source_counts():
    files = chat_files(
        config={"eos_token_id": 1, "text_config": {"eos_token_id": [2]}}, generation_config={"eos_token_id": [END, 3]}
    )
    profile = profile_from_files(files)
    assert profile.stop_ids == {1, 2, 3, END, IM_END}
    assert all(profile.vocabulary.token_bytes[i] is None for i in profile.stop_ids)
    assert profile.turn_end_id == IM_END


def test_the_appended_token_goes_before_the_declared_eos():
    template = CHATML.replace("<|im_end|>", "<|end|>")
    profile = profile_from_files(chat_files(template))
    assert profile.turn_end_id == END
    assert profile.stop_ids == {IM_END, END}


def test_a_turn_with_a_tool_call_ends_behind_the_call():
    call = "<|im_start|>{{ m.tool_calls[0].function.arguments }}<|end|>"
    end = "{% if m.tool_calls %}" + call + "{% else %}<|im_end|>{% endif %}"
    profile = profile_from_files(chat_files(CHATML.replace("<|im_end|>", end)))
    assert profile.stop_ids == {IM_END, END}
    assert profile.turn_end_id == IM_END


def test_without_a_template_the_declared_tokens_are_all():
    profile = profile_from_files(chat_files(None))
    assert profile.stop_ids == {IM_END}
    assert profile.notes == ("no chat template: stop tokens are the declared ones",)


def test_no_stop_token_at_all_is_an_error():
    files = chat_files("{% for m in messages %}{{ m.content }}{% endfor %}")
    files.tokenizer_config.clear()
    with pytest.raises(InvalidVocabularyError, match="eos_token"):
        profile_from_files(files)


def test_a_templates_refusal_is_a_note():
    template = "{% if messages | length > 2 %}{{ raise_exception('two at most') }}{% endif %}" + CHATML
    profile = profile_from_files(chat_files(template))
    assert profile.stop_ids == {IM_END}
    assert [note for note in profile.notes if "two at most" in note]


def test_files_of_a_folder_and_its_template(tmp_path):
    files = chat_files()
    (tmp_path / "tokenizer.json").write_text(files.tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]}'
    )
    assert load_tokenizer_files(tmp_path).chat_template == "b"
    (tmp_path / "chat_template.jinja").write_text("c")
    assert load_tokenizer_files(str(tmp_path)).chat_template == "c"
    assert load_tokenizer_files(tmp_path).config == {}
