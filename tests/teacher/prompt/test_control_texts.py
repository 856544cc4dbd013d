"""The text of a control token is text wherever a caller writes it: in every role, in tools, in responses."""

import json

import pytest

from support.real_tokenizers import REAL_TOKENIZERS, real_content_tokenizer, real_profile
from support.requests_for import request_for
from support.served import served_over_grpc
from tokbridge.client import TeacherClient
from tokbridge.errors import TokbridgeError
from tokbridge_teacher.prompt.rendering import render_prompt

WITH_TEMPLATE = ["qwen-3.5", "qwen-3", "glm-z1-9b-0414", "minimax"]


def conversation(text: str) -> list[dict]:
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": text})}}
    return [
        {"role": "system", "content": f"s {text} s"},
        {"role": "user", "content": f"u {text} u"},
        {"role": "assistant", "content": f"a {text} a", "reasoning_content": f"r {text} r"},
        {"role": "user", "content": f"v {text} v"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": f"t {text} t", "tool_call_id": "call00000", "name": "f"},
        {"role": "user", "content": f"w {text} w"},
    ]


def tools(text: str) -> list[dict]:
    return [{"type": "function", "function": {"name": "f", "description": text, "parameters": {"type": "object"}}}]


def control_ids_of_prompt(profile, tokenizer, text: str) -> list[int]:
    prompt = render_prompt(profile, tokenizer, conversation(text), tools(text), None, "", b"x")
    control = set(profile.control_ids.values())
    return [i for i in prompt.token_ids.tolist() if i in control]


def test_all_named_tokenizers_exist():
    assert set(WITH_TEMPLATE) <= set(REAL_TOKENIZERS)


@pytest.mark.parametrize(
    "name", [WITH_TEMPLATE[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in WITH_TEMPLATE[1:])]
)
def test_no_control_text_of_a_conversation_becomes_a_control_token(name):
    profile, tokenizer = real_profile(name), real_content_tokenizer(name)
    neutral = control_ids_of_prompt(profile, tokenizer, "word")
    assert neutral
    # Thinking tags are the template's own business: it cuts an earlier answer at them.
    texts = [text for text in sorted(profile.control_ids) if "think" not in text]
    assert len(texts) >= 8
    for text in texts:
        assert control_ids_of_prompt(profile, tokenizer, text) == neutral, text


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_no_control_text_of_a_response_becomes_a_control_token(name):
    profile, tokenizer = real_profile(name), real_content_tokenizer(name)
    control = set(profile.control_ids.values())
    for text in profile.control_ids:
        content = f"a {text}{text} b".encode()
        ids = tokenizer.segment(content).ids.tolist()
        assert not control & set(ids), text
        assert profile.vocabulary.join(ids) == content


async def test_the_model_sees_no_control_token_that_a_caller_wrote(
    built_teacher, teacher_profile, student_profile, student_registration, monkeypatch
):
    """Through a socket, down to what is handed to the model."""
    jobs = []
    scheduler = built_teacher.workers.scheduler
    submit = scheduler.submit
    monkeypatch.setattr(scheduler, "submit", lambda job, *rest: jobs.append(job) or submit(job, *rest))
    control = set(teacher_profile.control_ids.values())
    foreign = [*teacher_profile.control_ids, *student_profile.control_ids]
    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        jobs.clear()
        for text in ["word", *foreign]:
            messages = [{"role": "system", "content": text}, {"role": "user", "content": f"a{text}b"}]
            await client.score(request_for(student_profile, f"she {text} sells", messages=messages))
    prompts = [[i for i in job.prompt_ids.tolist() if i in control] for job in jobs]
    assert prompts == [prompts[0]] * (1 + len(foreign))
    assert not any(control & set(job.plan.teacher_ids.tolist()) for job in jobs)


async def test_a_control_id_in_a_response_is_not_its_text(built_teacher, student_profile, student_registration):
    """The id of a control token spells nothing, so it cannot stand for the text."""
    text, i = next(iter(student_profile.control_ids.items()))
    request = request_for(student_profile, f"she {text} sells")
    ids = request.token_ids.tolist()
    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        with pytest.raises(TokbridgeError, match="spell"):
            await client.score(request_for(student_profile, request.response.decode(), token_ids=[*ids[:2], i]))
