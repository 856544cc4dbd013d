"""`tokbridge teacher serve` with keys and certificates; and what is left of its processes when it is gone."""

import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from support.api_keys import KEY_FILE, LARGE_KEY, bearer
from support.certificates import Authority
from support.requests_for import request_for
from support.teacher_process import running_teacher, start_teacher
from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge.client import StudentRegistration, TeacherClient
from tokbridge.client.credentials import ClientCredentials
from tokbridge.tokenizer_profile import load_tokenizer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secrets")
    servers, clients = Authority("servers"), Authority("clients")
    for name, pair in (("server", servers.issue("localhost", "127.0.0.1")), ("client", clients.issue("client"))):
        (folder / f"{name}.crt").write_bytes(pair.certificate)
        (folder / f"{name}.key").write_bytes(pair.key)
    (folder / "servers.pem").write_bytes(servers.certificate)
    (folder / "clients.pem").write_bytes(clients.certificate)
    (folder / "keys").write_text(KEY_FILE)
    return folder


def options(files: Path) -> list[str]:
    return [
        f"--api-keys-file={files / 'keys'}",
        f"--tls-certificate={files / 'server.crt'}",
        f"--tls-key={files / 'server.key'}",
        f"--tls-client-ca={files / 'clients.pem'}",
    ]


async def test_keys_and_certificates_of_the_command_line_hold_on_both_ports(folder, files, tmp_path):
    student = load_tokenizer(save_tiny_model(TINY_STUDENT, tmp_path / "student"))
    credentials = ClientCredentials(
        ca=(files / "servers.pem").read_bytes(),
        certificate=(files / "client.crt").read_bytes(),
        key=(files / "client.key").read_bytes(),
        api_key=LARGE_KEY,
    )
    trusted = ssl.create_default_context(cafile=str(files / "servers.pem"))
    with running_teacher(folder, tmp_path / "log", *options(files)) as teacher:
        async with TeacherClient(teacher.grpc, credentials=credentials, max_divergence=None) as client:
            await client.connect(StudentRegistration.from_profile(student))
            assert (await client.score(request_for(student))).rows.num_rows
        assert teacher.http.startswith("https://")
        with httpx.Client(verify=trusted) as http, pytest.raises(httpx.TransportError):
            http.get(f"{teacher.http}/readyz")
        trusted.load_cert_chain(files / "client.crt", files / "client.key")
        with httpx.Client(verify=trusted) as http:
            assert http.get(f"{teacher.http}/metrics").status_code == 401
            assert http.get(f"{teacher.http}/metrics", headers=dict(bearer(LARGE_KEY))).status_code == 200
    assert LARGE_KEY not in (tmp_path / "log").read_text()


def test_a_key_file_that_cannot_be_used_stops_the_start_with_one_line(folder, tmp_path):
    command = [sys.executable, "-m", "tokbridge_cli.main", "teacher", "serve", str(folder)]
    command += [f"--api-keys-file={tmp_path / 'missing'}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "invalid_config: cannot read" in ended.stderr
    assert "Traceback" not in ended.stderr


def children(pid: int) -> list[int]:
    """Processes that a process has started, by any of its threads."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_no_process_outlives_the_service(end, folder, tmp_path):
    teacher = start_teacher(folder, tmp_path / "log")
    workers = children(teacher.process.pid)
    assert workers
    getattr(teacher, end)()
    for _ in range(1000):
        if not any(map(runs, workers)):
            break
        time.sleep(0.01)
    assert not any(map(runs, workers))
