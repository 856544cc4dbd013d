"""`tokbridge teacher serve MODEL`: one teacher model behind gRPC and HTTP."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.serve import serve
from tokbridge_teacher.settings import RequestLimits, ServeSettings

_LIMITS = RequestLimits()


def run(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF folder or a hub id.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 takes a free one.")] = 8080,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")] = 50051,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of prompt and response.")] = None,
    chunk_rows: Annotated[int, typer.Option(help="Rows of one LM-head call: bounds the memory of logits.")] = 256,
    piece_tokens: Annotated[int, typer.Option(help="Tokens of one forward pass: bounds activations.")] = 2048,
    batch_tokens: Annotated[int, typer.Option(help="Tokens that run together: bounds keys and values.")] = 8192,
    max_requests: Annotated[int, typer.Option(help="Requests waiting or running; more are refused.")] = 1024,
    max_top_k: Annotated[int, typer.Option(help="Cells a row that a client may ask for.")] = _LIMITS.max_top_k,
    default_top_k: Annotated[int, typer.Option(help="Cells a row by default.")] = _LIMITS.default_top_k,
    default_mass: Annotated[float, typer.Option(help="Mass to cover by default.")] = _LIMITS.default_mass,
    max_students: Annotated[int, typer.Option(help="Students kept at once.")] = _LIMITS.max_students,
    shutdown_grace_s: Annotated[float, typer.Option(help="Seconds that running requests get after SIGTERM.")] = 30.0,
    cache_dir: Annotated[Path | None, typer.Option(help="Folder that keeps compiled routing tables.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; logs go to standard error.")] = "info",
) -> None:
    """Serve one teacher model over gRPC and HTTP; prints one line on standard output when it is ready."""
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise InvalidConfigError(f"{log_level!r} is not a log level.", field="log_level")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    limits = {
        "max_top_k": max_top_k,
        "default_top_k": default_top_k,
        "default_mass": default_mass,
        "max_students": max_students,
    }
    serve(
        _checked(
            model=model,
            host=host,
            port=port,
            grpc_port=grpc_port,
            dtype=dtype,
            device=device,
            max_model_len=max_model_len,
            chunk_rows=chunk_rows,
            piece_tokens=piece_tokens,
            batch_tokens=batch_tokens,
            max_requests=max_requests,
            shutdown_grace_s=shutdown_grace_s,
            cache_dir=cache_dir,
            limits=limits,
        )
    )


def _checked(**values: object) -> ServeSettings:
    try:
        return ServeSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "settings"
        raise InvalidConfigError(f"{field}: {first['msg']}", field=field) from error
