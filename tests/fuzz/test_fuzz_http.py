"""The HTTP API by schemathesis from its own OpenAPI, and valid bodies with one part broken."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.fuzzed_teacher import valid_bodies
from support.hostile_http import HostileHttpCaller
from support.served import served_over_http

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="package")
def url(fuzzed_teacher) -> Iterator[str]:
    with served_over_http(fuzzed_teacher.service) as url:
        yield url


@pytest.fixture(scope="package")
def openapi(url):
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


OPERATIONS = [
    ("GET", "/v1/teacher"),
    ("POST", "/v1/students"),
    ("POST", "/v1/score"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]


def test_every_operation_is_fuzzed(openapi):
    described = {(method.upper(), path) for path, methods in openapi.raw_schema["paths"].items() for method in methods}
    assert described == set(OPERATIONS)


ASKED = [(mode, method, path) for mode in GenerationMode for method, path in OPERATIONS]
# An operation without parameters cannot be asked wrongly.
ASKED = [asked for asked in ASKED if asked[:2] != (GenerationMode.NEGATIVE, "GET")]


@pytest.mark.parametrize(("mode", "method", "path"), ASKED)
def test_what_the_description_allows_and_what_it_does_not_are_answered_as_it_says(mode, method, path, openapi):
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(openapi[path][method].as_strategy(generation_mode=mode))
    def answer(case):
        case.call_and_validate(checks=CHECKS)

    answer()


@pytest.fixture(scope="package")
def caller(url, student_profile) -> Iterator[HostileHttpCaller]:
    student, score = valid_bodies(student_profile)
    with httpx.Client(base_url=url, timeout=60) as http:
        score["student_id"] = http.post("/v1/students", json=student).json()["student_id"]
        yield HostileHttpCaller(http, score, student)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_body_is_answered_with_a_fault_of_the_service(caller, random):
    caller.call(random)


def test_the_bodies_reached_what_they_were_meant_to_reach(caller):
    statuses = {outcome.split(": ")[1] for outcome in caller.outcomes}
    assert {"200", "400", "404", "405", "415"} <= statuses
