"""Hostile HTTP calls: valid bodies with one part broken, odd headers and methods; and what may come back."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import httpx

from support.broken_messages import TEXTS, broken_json, broken_tokenizer, flipped, noise

PATHS = ("/v1/score", "/v1/students", "/v1/teacher", "/healthz", "/readyz", "/openapi.json", "/", "/v1/../metrics")
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "X")
_HEADERS = (
    {"content-type": "application/x-protobuf"},
    {"content-type": "text/plain", "accept": "image/png"},
    {"accept": "application/x-protobuf"},
    {"content-encoding": "gzip"},
    {"x-request-id": "a b"},
    {"x-request-id": "r" * 300},
    {"traceparent": "00-zz"},
    {"content-type": "\xe9".encode("latin-1")},
)


class HostileHttpCaller:
    """Sends broken HTTP calls to one service, by a seed."""

    def __init__(self, http: httpx.Client, score: dict[str, Any], student: dict[str, Any]) -> None:
        """`score` and `student` are valid bodies."""
        self._http = http
        self._score = score
        self._student = student
        self.outcomes: Counter[str] = Counter()

    def call(self, random: Random) -> None:
        """One hostile call.

        Raises:
            AssertionError: what came back is the service's fault.
        """
        kinds = (self._broken_score, self._broken_student, self._flipped, self._anything)
        kind = random.choices(kinds, (65, 5, 15, 15))[0]
        self.outcomes[f"http{kind.__name__}: {kind(random)}"] += 1

    def _broken_score(self, random: Random) -> str:
        return self._send(random, "POST", "/v1/score", _dumps(broken_json(random, self._score)))

    def _broken_student(self, random: Random) -> str:
        body = self._student
        if random.random() < 0.5:
            body = {**body, "tokenizer_json": broken_tokenizer(random, body["tokenizer_json"])}
        else:
            body = broken_json(random, body)
        return self._send(random, "POST", "/v1/students", _dumps(body))

    def _flipped(self, random: Random) -> str:
        path, body = random.choice((("/v1/score", self._score), ("/v1/students", {**self._student, "name": "f"})))
        return self._send(random, "POST", path, flipped(random, _dumps(body)))

    def _anything(self, random: Random) -> str:
        text = random.choice(TEXTS).encode()
        return self._send(random, random.choice(METHODS), random.choice(PATHS), random.choice((noise(random), text)))

    def _send(self, random: Random, method: str, path: str, content: bytes) -> str:
        headers = random.choice(_HEADERS) if random.random() < 0.15 else {}
        answer = self._http.request(method, path, content=content, headers=headers)
        shown = f"{answer.status_code} {answer.content[:300]!r} for {method} {path} {headers} {content[:2000]!r}"
        assert answer.status_code < 500, shown
        if answer.status_code >= 400 and path.startswith("/v1/s") and method == "POST":
            assert set(answer.json()) == {"code", "message", "details", "retryable", "request_id"}, shown
        return str(answer.status_code)


def _dumps(value: object) -> bytes:
    """JSON as it comes, lone surrogates as escapes, NaN and all."""
    return json.dumps(value).encode()
