import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from support.api_keys import LARGE_KEY, bearer, two_callers
from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.client import TeacherClient
from tokbridge.client.credentials import ClientCredentials
from tokbridge.errors import UnauthenticatedError
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.callers import Caller
from tokbridge_teacher.protocols.authentication import Authenticator

WRONG = [
    (),
    (("authorization", ""),),
    (("authorization", LARGE_KEY),),
    (("authorization", f"Basic {LARGE_KEY}"),),
    *(bearer(key) for key in ("x", LARGE_KEY[:-1], LARGE_KEY + "x", "large", f"large:3:{LARGE_KEY}")),
]
DENIED_PATHS = ["/v1/teacher", "/v1/score", "/v1/students", "/metrics", "/docs", "/redoc", "/openapi.json", "/"]
DENIED_PATHS += [
    "/healthz/",
    "/healthz/../v1/teacher",
    "/no/such/path",
    "//healthz",
]


@pytest.fixture
def authenticator(built_teacher) -> Authenticator:
    return Authenticator(two_callers(), built_teacher.service.metrics)


def failures(service, protocol: str) -> float:
    samples = (sample for family in service.metrics.registry.collect() for sample in family.samples)
    name = "tokbridge_authentication_failures_total"
    return sum(sample.value for sample in samples if sample.name == name and sample.labels["protocol"] == protocol)


@pytest.mark.parametrize("path", DENIED_PATHS)
def test_http_denies_everything_but_health_without_a_key(path, built_teacher, authenticator):
    with served_over_http(built_teacher.service, authenticator=authenticator) as url, httpx.Client() as http:
        before = failures(built_teacher.service, "http")
        for headers in WRONG:
            for method in ("GET", "POST", "OPTIONS"):
                answer = http.request(method, url + path, headers=dict(headers))
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert answer.json()["code"] == "unauthenticated"
        assert failures(built_teacher.service, "http") == before + 3 * len(WRONG)
        for open_path in ("/healthz", "/readyz"):
            assert http.get(url + open_path).status_code == 200
        allowed = http.get(url + path, headers=dict(bearer(LARGE_KEY)))
        assert allowed.status_code != 401


def test_the_http_body_is_not_read_before_the_key(built_teacher, authenticator):
    with served_over_http(built_teacher.service, authenticator=authenticator) as url:
        answer = httpx.post(f"{url}/v1/score", content=b"x" * (1 << 23), timeout=20)
        assert answer.status_code == 401


@pytest.mark.parametrize("metadata", [*WRONG, bearer("")])
async def test_grpc_denies_everything_but_health_without_a_key(metadata, built_teacher, authenticator):
    service = built_teacher.service
    before = failures(service, "grpc")
    async with (
        served_over_grpc(service, authenticator=authenticator) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        stub = teacher_pb2_grpc.TeacherStub(channel)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        unknown = channel.unary_unary("/tokbridge.v1.Teacher/Nothing")
        calls = [
            stub.GetTeacher(teacher_pb2.GetTeacherRequest(), metadata=metadata),
            stub.RegisterStudent(iter([]), metadata=metadata),
            unknown(b"", metadata=metadata),
        ]
        # Streams of requests are empty: a client that is still writing when it is refused may see `INTERNAL`.
        streams = [
            stub.Score(teacher_pb2.ScoreRequest(), metadata=metadata),
            reflection.ServerReflectionInfo(iter([]), metadata=metadata),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as denied:
                await call
            assert denied.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError) as denied:
                async for _ in stream:
                    pass
            assert denied.value.code() is grpc.StatusCode.UNAUTHENTICATED
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="tokbridge.v1.Teacher"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert failures(service, "grpc") == before + 5


async def test_the_right_key_scores_over_grpc_as_its_caller(
    built_teacher, authenticator, student_profile, student_registration, monkeypatch
):
    callers = []
    admit = built_teacher.workers.admission.admit
    monkeypatch.setattr(
        built_teacher.workers.admission, "admit", lambda caller, cost: callers.append(caller) or admit(caller, cost)
    )
    async with served_over_grpc(built_teacher.service, authenticator=authenticator) as target:
        credentials = ClientCredentials(api_key=LARGE_KEY)
        async with TeacherClient(target, credentials=credentials) as client:
            await client.connect(student_registration)
            result = await client.score(request_for(student_profile))
        assert result.rows.num_rows
        with pytest.raises(UnauthenticatedError):
            async with TeacherClient(target, credentials=ClientCredentials(api_key="not-a-key")) as client:
                await client.connect(student_registration)
    assert set(callers) == {Caller("large", 3.0)}


def test_the_right_key_scores_over_http_as_its_caller(
    built_teacher, authenticator, student_profile, student_folder, monkeypatch
):
    callers = []
    for admission in (built_teacher.workers.admission, built_teacher.workers.registrations):
        admit = admission.admit
        monkeypatch.setattr(
            admission, "admit", lambda caller, cost, admit=admit: callers.append(caller) or admit(caller, cost)
        )
    request = request_for(student_profile)
    with (
        served_over_http(built_teacher.service, authenticator=authenticator) as url,
        httpx.Client(base_url=url, headers=dict(bearer(LARGE_KEY)), timeout=30) as http,
    ):
        student = http.post(
            "/v1/students",
            json={
                "name": "keyed",
                "tokenizer_json": (student_folder / "tokenizer.json").read_text(),
                "stop_ids": [student_profile.turn_end_id],
            },
        ).json()["student_id"]
        body = {
            "student_id": student,
            "messages": list(request.messages),
            "response": request.response.decode(),
            "token_ids": request.token_ids.tolist(),
        }
        for accept in ("application/json", "application/x-protobuf"):
            assert http.post("/v1/score", json=body, headers={"accept": accept}).status_code == 200
    assert callers == [Caller("large", 3.0)] * 3
