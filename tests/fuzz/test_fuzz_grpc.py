"""Hostile calls over gRPC: a few hundred here, a hundred thousand in `test_fuzz_soak.py`."""

import asyncio
import threading
from collections.abc import Iterator
from random import Random

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.fuzzed_teacher import valid_requests
from support.hostile_calls import HostileCaller
from support.served import served_over_grpc


@pytest.fixture(scope="module")
def target(fuzzed_teacher) -> Iterator[str]:
    """A service in a loop of its own: Hypothesis calls it from plain functions."""
    started, stop = threading.Event(), threading.Event()
    address = []

    async def serve() -> None:
        async with served_over_grpc(fuzzed_teacher.service) as target:
            address.append(target)
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait(30)
    yield address[0]
    stop.set()
    thread.join(30)


@pytest.fixture(scope="module")
def caller(target, student_profile, student_registration) -> Iterator[HostileCaller]:
    with grpc.insecure_channel(target) as channel:
        caller = HostileCaller(channel, valid_requests(student_profile, student_registration), student_registration)
        caller.register()
        yield caller


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**63))
def test_no_call_is_answered_with_a_fault_of_the_service(caller, seed):
    # A seed: were every choice Hypothesis' own, it would try few kinds of call, each many times.
    caller.call(Random(seed))


def test_the_calls_reached_what_they_were_meant_to_reach(caller):
    """Run after the hostile ones: many kinds of refusal, and answers too, or they tested nothing."""
    codes = {outcome.split(": ")[1] for outcome in caller.outcomes}
    assert {"ok", "invalid_request", "tokens_do_not_spell_response", "unknown_student"} <= codes
    assert len(codes) >= 8


def test_the_service_still_scores(caller, target, student_profile, student_registration):
    caller.register()
    with grpc.insecure_channel(target) as channel:
        score = channel.unary_stream("/tokbridge.v1.Teacher/Score")
        for request in valid_requests(student_profile, student_registration):
            assert list(score(request.SerializeToString(), timeout=60))
