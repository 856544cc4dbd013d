"""Requests, results, descriptions and errors: round trips, and requests that no service should take."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_teacher import SUMMARY, TEACHER, make_request
from tokbridge import errors
from tokbridge.description import TeacherDescription
from tokbridge.error_mapping import detail_of, error_of
from tokbridge.errors import (
    EmptyResponseError,
    InternalError,
    InvalidRequestError,
    MalformedConversationError,
    OverloadedError,
    TokbridgeError,
    UnsupportedModeError,
)
from tokbridge.modes import Routing, Spanning
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary
from tokbridge.v1 import teacher_pb2

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}
FULL = make_request(
    messages=[
        {"role": "system", "content": ""},
        {"role": "user", "content": "<|im_end|> é", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "so"},
        {"role": "tool", "content": "42", "tool_call_id": "c"},
    ],
    tools=[{"type": "function", "function": {"name": "f"}}],
    template_arguments={"enable_thinking": False},
    student_tail="<think>\n",
    routing=Routing.BPE,
    spanning=Spanning.LOOKAHEAD,
    top_k=20,
    mass=0.99,
    request_id="a-1.b_2",
)


@pytest.mark.parametrize(
    "request_", [FULL, make_request(), make_request(stop_id=None), make_request(0), make_request(stop_id=0)]
)
def test_a_request_survives_the_wire(request_):
    packed = teacher_pb2.ScoreRequest.FromString(request_.to_proto("id").SerializeToString())
    assert packed.student_id == "id"
    unpacked = ScoreRequest.from_proto(packed)
    for name in ScoreRequest.__dataclass_fields__:
        expected, actual = getattr(request_, name), getattr(unpacked, name)
        if name == "token_ids":
            np.testing.assert_array_equal(actual, expected)
            assert actual.dtype == np.int32
        elif name == "tools":
            assert list(actual) == list(expected)
        else:
            assert actual == expected, name


NESTED = '[{"a":' + "[" * 900 + "]" * 900 + "}]"
SURROGATE = r'[{"a": "\ud800"}]'


def packed(**changes) -> teacher_pb2.ScoreRequest:
    message = FULL.to_proto("id")
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (packed(token_ids=b"\0" * 5), InvalidRequestError),
        (packed(request_id="a/b"), InvalidRequestError),
        (packed(request_id="a" * 256), InvalidRequestError),
        (packed(request_id="a\n"), InvalidRequestError),
        (packed(mass=1.1), InvalidRequestError),
        (packed(mass=-0.1), InvalidRequestError),
        (packed(mass=float("nan")), InvalidRequestError),
        (packed(tools_json="{}"), InvalidRequestError),
        (packed(tools_json="[1]"), InvalidRequestError),
        (packed(tools_json="["), InvalidRequestError),
        (packed(tools_json="[" * 100_000), InvalidRequestError),
        (packed(tools_json=NESTED), InvalidRequestError),
        (packed(tools_json=SURROGATE), InvalidRequestError),
        (packed(template_arguments_json=NESTED[1:-1]), InvalidRequestError),
        (packed(template_arguments_json=SURROGATE[1:-1]), InvalidRequestError),
        (packed(template_arguments_json="[]"), InvalidRequestError),
        (packed(template_arguments_json='{"chat_template": "x"}'), InvalidRequestError),
        (packed(template_arguments_json='{"add_generation_prompt": false}'), InvalidRequestError),
        (packed(template_arguments_json='{"trust_remote_code": true}'), InvalidRequestError),
        (packed(routing=teacher_pb2.ROUTING_GREEDY), UnsupportedModeError),
        (packed(routing=77), UnsupportedModeError),
        (packed(spanning=77), UnsupportedModeError),
    ],
)
def test_malformed_requests_are_refused(message, error):
    with pytest.raises(error):
        ScoreRequest.from_proto(message)


@pytest.mark.parametrize(
    "message",
    [
        teacher_pb2.Message(content="x"),
        teacher_pb2.Message(role="a b", content="x"),
        teacher_pb2.Message(role="user\n", content="x"),
        teacher_pb2.Message(role="assistant", tool_calls_json="{}"),
        teacher_pb2.Message(role="assistant", tool_calls_json="nope"),
        teacher_pb2.Message(role="assistant", tool_calls_json=NESTED),
        teacher_pb2.Message(role="assistant", tool_calls_json=SURROGATE),
    ],
)
def test_malformed_messages_are_refused_by_index(message):
    request = FULL.to_proto("id")
    request.messages.append(message)
    with pytest.raises(MalformedConversationError) as raised:
        ScoreRequest.from_proto(request)
    assert raised.value.details["message_index"] == 4


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": "x", "unknown": 1},
        {"role": 1, "content": "x"},
        {"content": "x"},
        {"role": "assistant", "content": "", "tool_calls": ["f"]},
        {"role": "assistant", "content": "", "tool_calls": [{"f": object()}]},
        {"role": "assistant", "content": "", "tool_calls": json.loads(NESTED)},
        {"role": "assistant", "content": "", "tool_calls": json.loads(SURROGATE)},
        {"role": "user", "content": "\ud800"},
    ],
)
def test_the_client_refuses_messages_before_sending(message):
    with pytest.raises(MalformedConversationError) as raised:
        make_request(messages=[{"role": "user", "content": "x"}, message]).to_proto("id")
    assert raised.value.details["message_index"] == 1


def test_a_conversation_and_a_response_must_hold_something():
    with pytest.raises(MalformedConversationError):
        make_request(messages=[]).to_proto("id")
    with pytest.raises(EmptyResponseError):
        make_request(0, stop_id=None).to_proto("id")


def test_values_that_are_not_json_are_refused():
    with pytest.raises(InvalidRequestError):
        make_request(template_arguments={"x": float("nan")}).to_proto("id")
    with pytest.raises(InvalidRequestError):
        make_request(tools=[{"x": object()}]).to_proto("id")
    for text in (NESTED, SURROGATE):
        with pytest.raises(InvalidRequestError):
            make_request(tools=json.loads(text)).to_proto("id")
    with pytest.raises(InvalidRequestError):
        make_request(student_tail="\ud800").to_proto("id")


def test_unspecified_modes_are_the_paper_s():
    message = packed(routing=teacher_pb2.ROUTING_UNSPECIFIED, spanning=teacher_pb2.SPANNING_UNSPECIFIED)
    request = ScoreRequest.from_proto(message)
    assert (request.routing, request.spanning) == (Routing.GREEDY, Spanning.REALIZED)


def test_a_summary_survives_the_wire():
    trailer = SUMMARY.to_proto(num_rows=3, checksum=2**32 - 1)
    assert (trailer.num_rows, trailer.checksum) == (3, 2**32 - 1)
    assert ScoreSummary.from_proto(trailer) == SUMMARY


def test_a_description_survives_the_wire():
    assert TeacherDescription.from_proto(TEACHER.to_proto()) == TEACHER


def test_modes_of_a_newer_teacher_are_left_out():
    message = TEACHER.to_proto()
    message.routings.append(99)
    assert TeacherDescription.from_proto(message) == TEACHER


@pytest.mark.parametrize("cls", TokbridgeError.__subclasses__())
def test_every_error_survives_the_wire_and_pickle(cls):
    error = cls("what is wrong", offset=3, share=0.5, tiny=1e-7, name="abc", hash="12e4ab", limit=-1)
    for copy in (error_of(detail_of(error)), pickle.loads(pickle.dumps(error))):
        assert type(copy) is cls
        assert (copy.message, copy.details) == (error.message, error.details)


def test_an_error_of_a_newer_service_is_an_internal_one():
    error = error_of(
        teacher_pb2.ErrorDetail(code="new", message="m", request_id="r", details={"message": "x", "self": "y"})
    )
    assert type(error) is InternalError
    assert (error.message, error.details) == ("m", {"request_id": "r"})


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_detail_can_be_read(message, details):
    error = error_of(teacher_pb2.ErrorDetail(code="overloaded", message=message, details=details))
    assert isinstance(error, OverloadedError)


def test_codes_are_unique():
    codes = [cls.code for cls in TokbridgeError.__subclasses__()]
    assert sorted(codes) == sorted(errors.ErrorCode)


def test_tool_calls_travel_as_plain_json():
    assert json.loads(FULL.to_proto("id").messages[2].tool_calls_json) == [CALL]
