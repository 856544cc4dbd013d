"""What a fuzzed service is called with where a call is in order."""

from __future__ import annotations

from typing import Any

from support.requests_for import request_for
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge.v1 import teacher_pb2

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def valid_requests(profile: TokenizerProfile, registration: StudentRegistration) -> list[teacher_pb2.ScoreRequest]:
    """Requests with every field set, and short ones in every mode."""
    conversation = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "2", "tool_call_id": "call00000", "name": "add"},
    ]
    everything = request_for(
        profile,
        "she sells",
        messages=conversation,
        tools=[TOOL],
        template_arguments={"enable_thinking": True},
        student_tail="<think>\n",
        top_k=5,
        mass=0.9,
    )
    modes = [(Routing.GREEDY, Spanning.REALIZED), (Routing.BPE, Spanning.REALIZED), (Routing.BPE, Spanning.LOOKAHEAD)]
    short = [request_for(profile, "the cat", routing=routing, spanning=spanning) for routing, spanning in modes]
    cut = request_for(profile, "forty-two", stop_id=None)
    return [request.to_proto(registration.student_id) for request in (everything, *short, cut)]


def valid_bodies(profile: TokenizerProfile) -> tuple[dict[str, Any], dict[str, Any]]:
    """JSON bodies of a registration, and of a score request that still lacks its `student_id`."""
    request = request_for(profile, "she sells")
    student = {
        "name": "by hand",
        "tokenizer_json": profile.files.tokenizer_json,
        "stop_ids": sorted(profile.stop_ids),
        "head_size": profile.vocabulary.size,
    }
    score = {
        "student_id": "",
        "messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
        "response": request.response.decode(),
        "token_ids": request.token_ids.tolist(),
        "stop_id": request.stop_id,
        "tools": [TOOL],
        "template_arguments": {"enable_thinking": True},
        "student_tail": "",
        "routing": "greedy",
        "spanning": "realized",
        "top_k": 5,
        "mass": 0.9,
    }
    return student, score
