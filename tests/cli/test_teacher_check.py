"""`tokbridge teacher check` on a real server, and each of its checks on what it must not let pass."""

import json
from dataclasses import replace

import numpy as np
import pytest

from support.api_keys import LARGE_KEY, two_callers
from support.served_in_thread import served_in_thread
from tokbridge.client import TeacherClient
from tokbridge.client.probe import probe_request
from tokbridge.errors import InvalidConfigError
from tokbridge.results import Timings
from tokbridge.v1 import teacher_pb2
from tokbridge_cli.checks.answers import Answer, check_determinism, check_overhead, check_rows
from tokbridge_cli.checks.description import check_limits, check_routing, check_stop_tokens, check_template
from tokbridge_cli.checks.result import Status
from tokbridge_cli.teacher_connection import TeacherConnection
from tokbridge_teacher.protocols.authentication import Authenticator


def by_name(result) -> dict[str, dict]:
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


@pytest.mark.parametrize("tokenizer", [False, True], ids=["single bytes", "a tokenizer"])
def test_a_good_teacher_passes(tokenizer, call, teacher_address, cli_student_folder, cli_teacher):
    options = ["--student", str(cli_student_folder)] if tokenizer else []
    result = call("teacher", "check", teacher_address, "--json", *options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ok"] is True
    checks = by_name(result)
    assert {check["status"] for name, check in checks.items() if name != "notes"} == {"ok"}, checks
    teacher = cli_teacher.service.describe()
    assert checks["handshake"]["facts"]["instance_id"] == teacher.instance_id
    assert checks["limits"]["facts"]["context_length"] == 600
    assert checks["stop tokens"]["message"] == ", ".join(map(str, sorted(teacher.stop_ids)))
    assert ("routing bpe" in checks) == tokenizer
    assert sum(checks["rows"]["facts"]["cases"].values()) > 10


def test_the_list_for_people_says_what_fails(call, teacher_address):
    result = call("teacher", "check", teacher_address, "--tokens", "601")
    assert result.exit_code == 1
    assert "failed: limits" in result.stdout
    assert "601" in result.stdout


def test_no_teacher_is_a_failed_handshake(call, unused_tcp_port):
    result = call("teacher", "check", f"127.0.0.1:{unused_tcp_port}", "--json", "--connect-timeout-s", "0.5")
    assert result.exit_code == 1
    assert by_name(result)["handshake"]["facts"]["code"] == "teacher_unavailable"


def test_a_key_is_shown_and_its_lack_is_found(call, cli_teacher, tmp_path, monkeypatch):
    authenticator = Authenticator(two_callers(), cli_teacher.service.metrics)
    key_file = tmp_path / "key"
    key_file.write_text(LARGE_KEY + "\n")
    monkeypatch.setenv("SOME_KEY", LARGE_KEY)
    with served_in_thread(cli_teacher.service, authenticator=authenticator) as address:
        for options in (["--api-key-file", str(key_file)], ["--api-key-env", "SOME_KEY"]):
            assert call("teacher", "check", address, *options).exit_code == 0
        refused = call("teacher", "check", address, "--json", "--connect-timeout-s", "2")
    assert refused.exit_code == 1
    assert by_name(refused)["handshake"]["facts"]["code"] == "unauthenticated"
    assert LARGE_KEY not in refused.output


def test_an_http_address_is_a_wrong_configuration(call):
    assert isinstance(call("teacher", "check", "http://127.0.0.1:8080").exception, InvalidConfigError)


@pytest.fixture
async def answered(teacher_address):
    """A client's teacher, the request of the check, and its answer."""
    student = TeacherConnection().load_student()
    async with TeacherClient(teacher_address, max_divergence=None) as client:
        teacher = await client.connect(student)
        request = probe_request(student, teacher, "")
        return teacher, request, await client.score(request)


async def test_a_teacher_that_cannot_serve_a_trainer_fails(answered):
    teacher, _, _ = answered
    assert check_template(teacher).status is Status.OK
    assert check_template(replace(teacher, chat_template_hash="")).status is Status.FAILED
    assert check_stop_tokens(replace(teacher, stop_ids=frozenset())).status is Status.FAILED
    assert check_limits(teacher, 600).status is Status.OK
    assert check_limits(teacher, 601).status is Status.FAILED
    assert (
        check_limits(replace(teacher, limits=replace(teacher.limits, max_tokens_in_flight=10)), 11).status == "failed"
    )


def test_a_pair_that_has_little_in_common_is_a_warning():
    near = teacher_pb2.RoutingStatistics(routing=1, teacher_content_tokens=100, identical=90, unmapped=5)
    far = teacher_pb2.RoutingStatistics(routing=1, teacher_content_tokens=100, identical=10, unmapped=6)
    assert (check_routing(near).status, check_routing(far).status) == (Status.OK, Status.WARNING)


async def test_rows_that_are_no_distributions_fail(answered):
    _, request, result = answered
    assert check_rows(request, result).status is Status.OK
    rows = result.rows
    lost = replace(rows, cell_log_probs=rows.cell_log_probs - 0.1)
    broken = replace(rows, cell_log_probs=np.full_like(rows.cell_log_probs, np.nan))
    above = replace(rows, emitted_log_prob=np.full_like(rows.emitted_log_prob, 0.5))
    short = rows.slice(0, rows.num_rows - 1)
    for wrong in (lost, broken, above, short):
        assert check_rows(request, replace(result, rows=wrong)).status is Status.FAILED


async def test_a_teacher_that_says_one_thing_and_then_another_fails(answered):
    _, _, result = answered
    rows = result.rows
    rounding = replace(result, rows=replace(rows, emitted_log_prob=rows.emitted_log_prob * np.float32(1 + 1e-6)))
    other = replace(result, rows=replace(rows, cell_log_probs=np.roll(rows.cell_log_probs, 1)))
    assert check_determinism([result, result, result]).status is Status.OK
    assert check_determinism([result, result, rounding]).status is Status.WARNING
    assert check_determinism([result, result, other]).status is Status.FAILED


async def test_time_that_nobody_accounts_for_is_a_warning(answered):
    _, _, result = answered
    timed = replace(result, timings=Timings(total_s=2.0))
    assert check_overhead([Answer(timed, 2.5)] * 3).status is Status.OK
    assert check_overhead([Answer(timed, 3.5)] * 3).status is Status.WARNING
    assert check_overhead([Answer(timed, 3.5), Answer(timed, 2.1), Answer(timed, 2.1)]).status is Status.OK
