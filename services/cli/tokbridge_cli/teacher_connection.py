"""Options that commands share which call a running teacher: what to show it, which student to be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field

from tokbridge.client import ClientCredentials, TeacherClient
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.vocabulary import ByteVocabulary

Urls = Annotated[
    list[str],
    typer.Argument(metavar="URL...", help="gRPC port of a teacher: host:port, grpc://… or grpcs://… (TLS)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and no table.")]


class TeacherConnection(BaseModel):
    """How to reach a teacher, and as which student."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    student: str | None = None
    """Tokenizer of the student: folder or hub id; else one of single bytes."""
    connect_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that the teacher may take to answer at all."""
    api_key_file: Path | None = None
    """File that holds the API key."""
    api_key_env: str | None = None
    """Variable that holds the API key."""
    tls_ca: Path | None = None
    """PEM authorities that vouch for the teacher."""
    tls_certificate: Path | None = None
    """PEM certificate of the client."""
    tls_key: Path | None = None
    """PEM key of that certificate."""

    def open_client(self, urls: list[str]) -> TeacherClient:
        """A client that is not connected yet.

        Raises:
            InvalidConfigError: an address or the credentials are wrong.
        """
        credentials = ClientCredentials.from_files(
            ca=self.tls_ca,
            certificate=self.tls_certificate,
            key=self.tls_key,
            api_key_file=self.api_key_file,
            api_key_env=self.api_key_env,
        )
        return TeacherClient(urls, connect_timeout_s=self.connect_timeout_s, credentials=credentials)

    def load_student(self) -> StudentRegistration:
        """A student with the tokenizer, or one whose tokens are the 256 bytes and a stop.

        Raises:
            InvalidVocabularyError: the tokenizer cannot be used.
        """
        if self.student is not None:
            return StudentRegistration.from_profile(load_tokenizer(self.student))
        stop_id = 256
        vocabulary = ByteVocabulary((*(bytes([value]) for value in range(256)), None))
        return StudentRegistration("single-bytes", vocabulary, frozenset({stop_id}), stop_id, None)
