"""A stand-in of the Hugging Face hub on loopback: what its own client asks for to read a model and to push one.

Repositories are folders' files in memory. Every request is written down. It knows one token; gated repositories give
files to its bearer alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

TOKEN = "hf_" + "t" * 34
Files = Mapping[str, bytes]


@dataclass
class Repository:
    """Commits by their hash, and where branches and tags point."""

    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    visibility: str = "public"

    def commit(self, files: Files, ref: str = "main") -> str:
        """Add files to what `ref` points to; the hash is that of all the contents."""
        kept = self.commits.get(self.refs.get(ref, ""), {})
        contents = dict(kept) | dict(files)
        digest = hashlib.sha1(repr(sorted(contents.items())).encode()).hexdigest()
        self.commits[digest] = contents
        self.refs[ref] = digest
        return digest

    def resolve(self, revision: str) -> str | None:
        """The hash of a branch, a tag or a hash."""
        commit = self.refs.get(revision, revision)
        return commit if commit in self.commits else None


@dataclass
class StandInHub:
    """The repositories, and all that was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """`METHOD path`, in order."""
    large_objects: dict[str, bytes] = field(default_factory=dict)
    commits_answered_with: int = 200
    """Status of every push, to let them fail."""
    url: str = ""

    def add_folder(self, repo_id: str, folder: Path, *, gated: bool = False) -> str:
        """A repository of a folder's files; returns its commit."""
        repository = self.repositories.setdefault(repo_id, Repository(gated=gated))
        return repository.commit({path.name: path.read_bytes() for path in folder.iterdir()})

    def files(self, repo_id: str) -> Files:
        """What the main branch holds."""
        repository = self.repositories[repo_id]
        return repository.commits[repository.refs["main"]]

    def fetched(self) -> list[str]:
        """Names of the files that were read, sorted, once for each time."""
        reads = (request for request in self.requests if request.startswith("GET") and "/resolve/" in request)
        return sorted(request.rsplit("/", 1)[1] for request in reads)

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        """Environment of a process that takes this for the hub and keeps its cache in `home`."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": TOKEN,
            **variables,
        }


@contextmanager
def stand_in_hub() -> Iterator[StandInHub]:
    """Served in a thread for the length of the block."""
    hub = StandInHub()
    server = uvicorn.Server(uvicorn.Config(build_app(hub), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        _wait_until_started(server)
        hub.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield hub
    finally:
        server.should_exit = True
        thread.join(30)


def _wait_until_started(server: uvicorn.Server, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not server.started:
        if time.monotonic() > deadline:
            raise TimeoutError("the stand-in of the hub did not start")
        time.sleep(0.01)


def build_app(hub: StandInHub) -> FastAPI:
    """The routes of reading and of pushing."""
    app = FastAPI()

    @app.middleware("http")
    async def write_down(request: Request, call_next):
        hub.requests.append(f"{request.method} {request.url.path}")
        return await call_next(request)

    _add_reading(app, hub)
    _add_pushing(app, hub)
    return app


def _refusal(status: int, code: str) -> Response:
    return JSONResponse({"error": code}, status, headers={"X-Error-Code": code, "X-Error-Message": code})


def _has_token(request: Request) -> bool:
    return request.headers.get("authorization") == f"Bearer {TOKEN}"


def _found(hub: StandInHub, repo_id: str, revision: str) -> tuple[Repository, str] | Response:
    """The repository and the commit; or the hub's answer where there is none (that of a private one is the same)."""
    repository = hub.repositories.get(repo_id)
    if repository is None:
        return _refusal(401, "RepoNotFound")
    commit = repository.resolve(revision)
    return (repository, commit) if commit else _refusal(404, "RevisionNotFound")


def _add_reading(app: FastAPI, hub: StandInHub) -> None:
    @app.get("/api/models/{org}/{name}")
    @app.get("/api/models/{org}/{name}/revision/{revision}")
    def info(org: str, name: str, revision: str = "main"):
        found = _found(hub, f"{org}/{name}", revision)
        if isinstance(found, Response):
            return found
        return {"id": f"{org}/{name}", "sha": found[1], "siblings": [{"rfilename": f} for f in _files(found)]}

    @app.get("/api/models/{org}/{name}/tree/{revision}")
    def tree(org: str, name: str, revision: str):
        found = _found(hub, f"{org}/{name}", revision)
        if isinstance(found, Response):
            return found
        return [
            {"type": "file", "path": path, "size": len(content), "oid": _blob_id(content)}
            for path, content in _files(found).items()
        ]

    @app.api_route("/{org}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
    def resolve(request: Request, org: str, name: str, revision: str, path: str):
        found = _found(hub, f"{org}/{name}", revision)
        if isinstance(found, Response):
            return found
        if found[0].gated and not _has_token(request):
            return _refusal(401, "GatedRepo")
        content = _files(found).get(path)
        if content is None:
            return _refusal(404, "EntryNotFound")
        return Response(content, headers={"ETag": f'"{_blob_id(content)}"', "X-Repo-Commit": found[1]})


def _files(found: tuple[Repository, str]) -> Files:
    repository, commit = found
    return repository.commits[commit]


def _add_pushing(app: FastAPI, hub: StandInHub) -> None:
    @app.post("/api/repos/create")
    async def create(request: Request):
        if not _has_token(request):
            return JSONResponse({"error": "Invalid username or password."}, 401)
        body = await request.json()
        repo_id = f"{body['organization']}/{body['name']}"
        known = repo_id in hub.repositories
        if not known:
            hub.repositories[repo_id] = Repository(refs={"main": ""}, visibility=body.get("visibility", "public"))
        return JSONResponse({"url": f"{hub.url}/{repo_id}", "name": repo_id}, 409 if known else 200)

    @app.post("/api/models/{org}/{name}/preupload/{revision}")
    async def preupload(request: Request, org: str, name: str, revision: str):
        held = hub.repositories[f"{org}/{name}"]
        contents = held.commits.get(held.refs[revision], {})
        modes = {True: "lfs", False: "regular"}
        files = [
            {
                "path": file["path"],
                "uploadMode": modes[file["path"].endswith(".safetensors")],
                "shouldIgnore": False,
                "oid": _remote_id(file["path"], contents),
            }
            for file in (await request.json())["files"]
        ]
        return {"files": files}

    @app.post("/{org}/{name}.git/info/lfs/objects/batch")
    async def batch(request: Request, org: str, name: str):
        objects = [
            {**wanted, "actions": {"upload": {"href": f"{hub.url}/lfs/{wanted['oid']}"}}}
            for wanted in (await request.json())["objects"]
        ]
        return {"transfer": "basic", "objects": objects}

    @app.put("/lfs/{oid}")
    async def put_object(request: Request, oid: str):
        hub.large_objects[oid] = await request.body()
        return Response()

    @app.post("/api/models/{org}/{name}/commit/{revision}")
    async def commit(request: Request, org: str, name: str, revision: str):
        if hub.commits_answered_with != 200:
            return JSONResponse({"error": "no"}, hub.commits_answered_with)
        lines = [json.loads(line) for line in (await request.body()).splitlines()]
        digest = hub.repositories[f"{org}/{name}"].commit(dict(_pushed(hub, lines)), revision)
        return {"commitUrl": f"{hub.url}/{org}/{name}/commit/{digest}", "commitOid": digest, "success": True}


def _pushed(hub: StandInHub, lines: list[dict]) -> Iterator[tuple[str, bytes]]:
    """Path and content of every file in the body of a commit."""
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            yield value["path"], base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            yield value["path"], hub.large_objects[value["oid"]]


def _blob_id(content: bytes) -> str:
    """As git names a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _remote_id(path: str, contents: Files) -> str | None:
    """What the hub compares with the file that is about to be pushed: git's name, or the SHA-256 of a large one."""
    if path not in contents:
        return None
    return hashlib.sha256(contents[path]).hexdigest() if path.endswith(".safetensors") else _blob_id(contents[path])
