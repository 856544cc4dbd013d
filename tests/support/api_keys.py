"""API keys for tests: two callers, and what each would show."""

from __future__ import annotations

from tokbridge_teacher.api_keys import ApiKeys

LARGE_KEY = "large-caller-key-0123456789"
SMALL_KEY = "small-caller-key-0123456789"
KEY_FILE = f"# who may call\nlarge:3:{LARGE_KEY}\n\nsmall:1:{SMALL_KEY}\n"


def two_callers() -> ApiKeys:
    """`large` with three shares, `small` with one."""
    return ApiKeys.parse(KEY_FILE, "test keys")


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """The header or metadata that shows a key."""
    return (("authorization", f"Bearer {key}"),)
