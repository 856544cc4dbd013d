"""From messages to prompt ids and from sampled ids to a request."""

import numpy as np
import pytest

from support.small_tokenizers import QWEN_LIKE, chat_files
from tokbridge.errors import UnsupportedTemplateError
from tokbridge.modes import Routing, Spanning
from tokbridge.student_tokenizer import StudentTokenizer
from tokbridge.tokenizer_profile import profile_from_files

MESSAGES = [{"role": "user", "content": "hello<|im_end|>"}]


def student(template: str | None = QWEN_LIKE, head_size: int | None = None, **options) -> StudentTokenizer:
    return StudentTokenizer(profile_from_files(chat_files(template), head_size), **options)


def ids_of(tokenizer: StudentTokenizer, text: bytes) -> list[int]:
    return [tokenizer.profile.vocabulary.ids_by_bytes[bytes([byte])] for byte in text]


def test_a_prompt_ends_in_the_generation_prompt_and_a_control_text_in_it_stays_text():
    tokenizer = student()
    ids = tokenizer.prompt_ids(MESSAGES)
    control = tokenizer.profile.control_ids
    think = tokenizer.profile.vocabulary.ids_by_bytes[b"<think>"]
    assert tokenizer.profile.vocabulary.content_of(ids).endswith(b"assistant\n<think>\n")
    assert think in ids
    assert (ids == control["<|im_end|>"]).sum() == 1  # the template's own
    assert (ids == control["<|im_start|>"]).sum() == 2


def test_a_request_holds_what_was_sampled_up_to_the_stop_token():
    tokenizer = student()
    (stop,) = (tokenizer.profile.control_ids["<|im_end|>"],)
    request = tokenizer.request(
        MESSAGES,
        [*ids_of(tokenizer, b"hi"), stop, stop, 0],
        tools=[{"type": "function"}],
        routing=Routing.BPE,
        spanning=Spanning.LOOKAHEAD,
        top_k=7,
        mass=0.5,
    )
    assert request.response == b"hi"
    assert request.token_ids.tolist() == ids_of(tokenizer, b"hi")
    assert request.token_ids.dtype == np.int32
    assert (request.stop_id, request.num_rows) == (stop, 3)
    assert request.student_tail == "<think>\n"
    assert (request.routing, request.spanning, request.top_k, request.mass) == ("bpe", "lookahead", 7, 0.5)
    assert list(request.tools) == [{"type": "function"}]


def test_a_cut_response_has_no_stop_token():
    tokenizer = student()
    assert tokenizer.request(MESSAGES, np.array(ids_of(tokenizer, b"hi"))).stop_id is None


def test_template_arguments_reach_prompt_tail_and_request():
    tokenizer = student(template_arguments={"enable_thinking": False})
    request = tokenizer.request(MESSAGES, ids_of(tokenizer, b"x"))
    assert request.template_arguments == {"enable_thinking": False}
    assert request.student_tail == "<think>\n\n</think>\n\n"
    assert tokenizer.profile.vocabulary.content_of(tokenizer.prompt_ids(MESSAGES)).endswith(b"</think>\n\n")
    assert student(generation_prompt_tail="<think>").tail(MESSAGES) == "<think>"


def test_what_must_not_be_sampled_is_byteless_and_ends_no_turn():
    tokenizer = student(head_size=300)
    control = tokenizer.profile.control_ids
    padded = range(tokenizer.profile.tokenizer_size, 300)
    assert set(tokenizer.forbidden_ids) == {control["<|im_start|>"], *padded} | (
        set(control.values()) - set(tokenizer.stop_ids)
    )
    assert not set(tokenizer.forbidden_ids) & set(tokenizer.stop_ids)


def test_a_student_without_template_is_refused():
    with pytest.raises(UnsupportedTemplateError):
        student(template=None).prompt_ids(MESSAGES)


def test_the_registration_is_made_once():
    tokenizer = student()
    assert tokenizer.registration is tokenizer.registration
    assert tokenizer.registration.stop_ids == set(tokenizer.stop_ids)
