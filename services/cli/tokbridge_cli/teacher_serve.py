"""`tokbridge teacher serve MODEL`: one teacher model behind gRPC and HTTP."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.observability.log_format import LogFormat, configure_logging
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
    max_requests: Annotated[int, typer.Option(help="Requests held at once; more are refused.")] = 1024,
    max_tokens_in_flight: Annotated[int, typer.Option(help="Teacher tokens of the requests held.")] = 4 << 20,
    max_result_bytes: Annotated[int, typer.Option(help="Rows held for callers who read slowly.")] = 2 << 30,
    read_timeout_s: Annotated[float, typer.Option(help="Seconds that rows wait for a caller who takes none.")] = 300.0,
    max_top_k: Annotated[int, typer.Option(help="Cells a row that a client may ask for.")] = _LIMITS.max_top_k,
    default_top_k: Annotated[int, typer.Option(help="Cells a row by default.")] = _LIMITS.default_top_k,
    default_mass: Annotated[float, typer.Option(help="Mass to cover by default.")] = _LIMITS.default_mass,
    max_students: Annotated[int, typer.Option(help="Students kept at once.")] = _LIMITS.max_students,
    shutdown_grace_s: Annotated[float, typer.Option(help="Seconds that running requests get after SIGTERM.")] = 30.0,
    api_keys_file: Annotated[Path | None, typer.Option(help="Who may call: one NAME:SHARE:KEY a line.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM certificate chain, for both protocols.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the certificate.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="PEM authorities: clients need a certificate.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run Python code of the model's repository.")] = False,
    cache_dir: Annotated[Path | None, typer.Option(help="Folder that keeps compiled routing tables.")] = None,
    otlp_endpoint: Annotated[str | None, typer.Option(help="Collector of traces (OTLP over gRPC).")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; logs go to standard error.")] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="One JSON object a line, or text.")] = LogFormat.TEXT,
) -> None:
    """Serve one teacher model over gRPC and HTTP; prints one line on standard output when it is ready."""
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise InvalidConfigError(f"{log_level!r} is not a log level.", field="log_level")
    configure_logging(log_level, log_format)
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
            max_tokens_in_flight=max_tokens_in_flight,
            max_result_bytes=max_result_bytes,
            read_timeout_s=read_timeout_s,
            shutdown_grace_s=shutdown_grace_s,
            api_keys_file=api_keys_file,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            trust_remote_code=trust_remote_code,
            otlp_endpoint=otlp_endpoint,
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
