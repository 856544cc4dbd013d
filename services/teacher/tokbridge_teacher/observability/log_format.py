"""Log records as lines: JSON for machines, text for people; the fields of a call stand in both."""

from __future__ import annotations

import logging
from dataclasses import fields
from enum import StrEnum

from pythonjsonlogger.json import JsonFormatter

from tokbridge_teacher.observability.request_log import RequestLine

_FIELDS = tuple(field.name for field in fields(RequestLine))


class LogFormat(StrEnum):
    """What a log looks like."""

    JSON = "json"
    TEXT = "text"


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Send all records from `level` on to standard error, in the given form."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def formatter(log_format: LogFormat) -> logging.Formatter:
    """The formatter of a form."""
    if log_format is LogFormat.TEXT:
        return TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return JsonFormatter(
        ["levelname", "name", "message"], rename_fields={"levelname": "level", "name": "logger"}, timestamp="time"
    )


class TextFormatter(logging.Formatter):
    """The standard form, with the fields of a call as `name=value` behind the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        values = ((name, getattr(record, name, None)) for name in _FIELDS)
        shown = [f" {name}={value}" for name, value in values if value not in (None, "")]
        return super().formatMessage(record) + "".join(shown)
