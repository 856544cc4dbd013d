"""`tokbridge teacher serve MODEL`: one teacher model behind gRPC and HTTP."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer

from tokbridge.errors import InvalidConfigError
from tokbridge_cli.extras import require
from tokbridge_cli.settings_options import settings_of, with_options_of
from tokbridge_teacher.observability.log_format import LogFormat, configure_logging
from tokbridge_teacher.serve import serve
from tokbridge_teacher.settings import ServeSettings


@with_options_of(ServeSettings)
def run(
    *,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; logs go to standard error.")] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="One JSON object a line, or text.")] = LogFormat.TEXT,
    **values: Any,
) -> None:
    """Serve one teacher model over gRPC and HTTP; prints one line on standard output when it is ready."""
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise InvalidConfigError(f"{log_level!r} is not a log level.", field="log_level")
    configure_logging(log_level, log_format)
    if values["backend"] == "vllm":
        require("vllm", command="teacher serve --backend vllm", extra="vllm")
    serve(settings_of(ServeSettings, values))
