"""What the student is made of on the disk and on its way: head, weights, templates."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from support.tiny_models import TINY_SCALED, TINY_SOFTCAPPED, save_tiny_model
from support.training import make_config
from tokbridge.errors import (
    IncompleteWeightsError,
    InvalidConfigError,
    SelfTestFailedError,
    TokenizerMismatchError,
    UnsupportedTemplateError,
)
from tokbridge.requests import split_at_stop
from tokbridge_trainer.head import HeadForm, find_head_form
from tokbridge_trainer.rollout.weight_check import check_whole
from tokbridge_trainer.student import add_adapters, choose_device, load_base
from tokbridge_trainer.student_text import load_student_text, write_tokenizer_files
from tokbridge_trainer.weights import apply_weights, snapshot_weights

CPU = torch.device("cpu")


def load(folder):
    return load_base(make_config(folder), str(folder), torch.float32, CPU)


def test_the_form_of_the_head_is_read_off_the_model(tmp_path, student_folder):
    assert find_head_form(load(student_folder)) == HeadForm(1.0, None)
    softcapped = load(save_tiny_model(TINY_SOFTCAPPED, tmp_path / "softcapped"))
    assert find_head_form(softcapped) == HeadForm(1.0, softcapped.config.final_logit_softcapping)
    scaled = load(save_tiny_model(TINY_SCALED, tmp_path / "scaled"))
    assert find_head_form(scaled) == HeadForm(pytest.approx(1 / scaled.config.logits_scaling, rel=1e-6), None)


def test_logits_that_do_not_follow_from_the_head_are_refused(student_folder):
    model = load(student_folder)
    model.lm_head.register_forward_hook(lambda module, inputs, output: output)
    forward = model.forward
    model.forward = lambda **inputs: _shifted(forward(**inputs))
    with pytest.raises(SelfTestFailedError, match="cannot be trained"):
        find_head_form(model)


def _shifted(output):
    output.logits = output.logits.roll(1, dims=-1)
    return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_as_they_were_sent(student_folder, dtype):
    sent, received = load(student_folder), load(student_folder)
    with torch.no_grad():
        for parameter in sent.parameters():
            parameter.add_(0.1)
    snapshot = snapshot_weights(sent, 3, dtype)
    for array in snapshot.arrays.values():
        array.flags.writeable = False  # as Ray's object store hands them out
    apply_weights(received, snapshot)
    for name, parameter in received.named_parameters():
        torch.testing.assert_close(parameter, sent.get_parameter(name).to(dtype).float(), rtol=0, atol=0)


def test_weights_of_another_model_are_refused(student_folder, tmp_path):
    other = load(save_tiny_model(TINY_SOFTCAPPED, tmp_path / "other"))
    expected = snapshot_weights(load(student_folder), 0, torch.float32).shapes
    with pytest.raises(IncompleteWeightsError, match="another shape"):
        check_whole(snapshot_weights(other, 0, torch.float32), expected)


def test_a_missing_student_is_a_typed_error(tmp_path):
    with pytest.raises(InvalidConfigError, match="neither a folder nor a hub id"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("device", ["gpu", "cuda"])
def test_a_device_that_is_not_there_is_a_typed_error(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidConfigError, match="device"):
        choose_device(device)


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="the package is there")
def test_an_attention_whose_package_is_missing_is_a_typed_error(student_folder):
    config = make_config(student_folder, student={"model": str(student_folder), "attention": "flash_attention_2"})
    with pytest.raises(InvalidConfigError, match="Flash"):
        load_base(config, str(student_folder), torch.float32, CPU)


def test_adapters_on_modules_that_are_not_there_are_a_typed_error(student_folder):
    with pytest.raises(InvalidConfigError, match="nope"):
        add_adapters(load(student_folder), make_config(student_folder, lora={"target_modules": ["nope"]}))


def test_another_chat_template_replaces_the_students_and_is_kept(student_folder, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}<|turn|>{% if add_generation_prompt %}<think>\n{% endif %}")
    text = load_student_text(
        make_config(student_folder, student={"model": str(student_folder), "chat_template": template})
    )
    prompt = text.prompt(0, [{"role": "user", "content": "hello"}], None)
    assert prompt.student_tail == "<think>\n"
    assert text.profile.vocabulary.content_of(prompt.token_ids) == b"hello<think>\n"
    write_tokenizer_files(text.profile, tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == template.read_text()


def test_a_configured_tail_overrides_the_template(student_folder):
    student = {"model": str(student_folder), "generation_prompt_tail": "<think>"}
    text = load_student_text(make_config(student_folder, student=student))
    assert text.prompt(0, [{"role": "user", "content": "hello"}], None).student_tail == "<think>"


def test_a_student_without_a_template_is_refused(student_folder, tmp_path):
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        (tmp_path / name).write_text((student_folder / name).read_text())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UnsupportedTemplateError, match=r"student\.chat_template"):
        load_student_text(make_config(tmp_path))


def test_a_template_that_is_not_text_is_refused(student_folder, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_bytes(b"\xff\xfe")
    config = make_config(student_folder, student={"model": str(student_folder), "chat_template": str(template)})
    with pytest.raises(InvalidConfigError, match="UTF-8"):
        load_student_text(config)


def test_a_student_whose_class_cuts_text_otherwise_is_refused(student_folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text((student_folder / "tokenizer.json").read_text())
    # Without a tokenizer_config.json transformers goes by this name and rebuilds the tokenizer, normalizer included.
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(TokenizerMismatchError, match="model_type"):
        load_student_text(make_config(tmp_path))


def test_generated_ids_end_at_the_first_stop_token():
    ids, stop_id = split_at_stop(np.array([4, 5, 9, 6, 9]), frozenset({8, 9}))
    assert (ids.tolist(), stop_id) == ([4, 5], 9)
    ids, stop_id = split_at_stop(np.array([4, 5]), frozenset({9}))
    assert (ids.tolist(), stop_id) == ([4, 5], None)
