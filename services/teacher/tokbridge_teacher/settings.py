"""Settings of a teacher service, checked before anything is loaded. Imports neither torch nor a web server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RequestLimits(BaseModel):
    """What one caller may ask for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_top_k: int = Field(default=1024, ge=1, le=65535)
    default_top_k: int = Field(default=48, ge=1)
    default_mass: float = Field(default=0.995, gt=0, le=1)
    """With `default_top_k`, the least error within 160 bytes a row (`benchmarks/wire_size.py`)."""
    max_response_bytes: int = Field(default=4 << 20, ge=1)
    max_conversation_bytes: int = Field(default=4 << 20, ge=1)
    """Messages, tools and template arguments, as UTF-8."""
    max_vocabulary_size: int = Field(default=1 << 20, ge=1)
    max_vocabulary_bytes: int = Field(default=64 << 20, ge=1)
    """Everything a student's registration holds, unpacked."""
    max_students: int = Field(default=16, ge=1)
    """Students kept at once; the one not used for longest makes room."""
    max_message_bytes: int = Field(default=32 << 20, ge=1 << 16)
    """Of a gRPC message or of an HTTP body."""

    @model_validator(mode="after")
    def _default_within_limit(self) -> RequestLimits:
        if self.default_top_k > self.max_top_k:
            raise ValueError("default_top_k is larger than max_top_k")
        return self


class ServeSettings(BaseModel):
    """Everything `tokbridge teacher serve` takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """HTTP; 0 takes a free port."""
    grpc_port: int = Field(default=50051, ge=0, le=65535)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    max_model_len: int | None = Field(default=None, ge=2)
    chunk_rows: int = Field(default=256, ge=1)
    """Rows of one call of the LM head; bounds the memory that logits take."""
    piece_tokens: int = Field(default=2048, ge=1)
    """Tokens of one forward pass; bounds the memory that activations take."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens that run together; bounds the memory of keys and values."""
    max_requests: int = Field(default=1024, ge=1)
    max_tokens_in_flight: int = Field(default=4 << 20, ge=1)
    prepare_threads: int = Field(default=2, ge=1)
    """Threads for rendering, segmentation and plans."""
    shutdown_grace_s: float = Field(default=30.0, gt=0)
    cache_dir: Path | None = None
    """Folder for compiled routing tables; none: not kept."""
    limits: RequestLimits = RequestLimits()
