"""What a user sees of a package that an extra would bring: its name, and the pip command."""

from __future__ import annotations

import importlib.util


class MissingExtraError(Exception):
    """A command needs a third-party package that is not installed."""

    def __init__(self, command: str, package: str, extra: str) -> None:
        super().__init__(f"`tokbridge {command}` needs the package {package!r}: pip install 'tokbridge[{extra}]'")


def require(package: str, *, command: str, extra: str) -> None:
    """Check, without importing it, that a package is there.

    Raises:
        MissingExtraError: it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(command, package, extra)
