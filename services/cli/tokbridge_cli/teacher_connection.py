"""Options that commands share which call a running teacher: its address, what to show it, which student to be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokbridge.client import ClientCredentials, TeacherClient
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.vocabulary import ByteVocabulary

Urls = Annotated[
    list[str],
    typer.Argument(metavar="URL...", help="gRPC port of a teacher: host:port, grpc://… or grpcs://… (TLS)."),
]
StudentTokenizer = Annotated[
    str | None, typer.Option("--student", help="Tokenizer of the student: folder or hub id; else one of single bytes.")
]
ApiKeyFile = Annotated[Path | None, typer.Option(help="File that holds the API key.")]
ApiKeyEnv = Annotated[str | None, typer.Option(help="Variable that holds the API key.")]
CaFile = Annotated[Path | None, typer.Option("--tls-ca", help="PEM authorities that vouch for the teacher.")]
CertificateFile = Annotated[Path | None, typer.Option("--tls-certificate", help="PEM certificate of the client.")]
KeyFile = Annotated[Path | None, typer.Option("--tls-key", help="PEM key of that certificate.")]
ConnectTimeout = Annotated[float, typer.Option(min=0.1, help="Seconds that the teacher may take to answer at all.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and no table.")]


def open_client(urls: list[str], credentials: ClientCredentials, *, connect_timeout_s: float) -> TeacherClient:
    """A client that is not connected yet.

    Raises:
        InvalidConfigError: an address or the credentials are wrong.
    """
    return TeacherClient(urls, connect_timeout_s=connect_timeout_s, credentials=credentials)


def load_student(tokenizer: str | None) -> StudentRegistration:
    """A student with a tokenizer, or one whose tokens are the 256 bytes and a stop.

    Raises:
        InvalidVocabularyError: the tokenizer cannot be used.
    """
    if tokenizer is not None:
        return StudentRegistration.from_profile(load_tokenizer(tokenizer))
    stop_id = 256
    vocabulary = ByteVocabulary((*(bytes([value]) for value in range(256)), None))
    return StudentRegistration("single-bytes", vocabulary, frozenset({stop_id}), stop_id, None)
