"""Which policy version may be sampled from: a pure state machine.

There is none before the first weights have come, none while weights are being replaced, and none after a replacement
that broke off, until a whole one has been made. Who replaces what is the caller's matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokbridge.errors import IncompleteWeightsError


class PolicyGate:
    """Closed, or open at a version."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._attempted: int | None = None

    @property
    def version(self) -> int:
        """The version that what is sampled now comes from.

        Raises:
            IncompleteWeightsError: no weights have come, or the last update was not applied as a whole.
        """
        if self._version is not None:
            return self._version
        if self._attempted is None:
            raise IncompleteWeightsError("no sampling before the first weights")
        raise IncompleteWeightsError(
            f"the update to version {self._attempted} was not applied as a whole: no sampling before a whole one",
            version=self._attempted,
        )

    @contextmanager
    def replacing(self, version: int) -> Iterator[None]:
        """Closed within the block; open at `version` after it, unless it raises."""
        self._version, self._attempted = None, version
        yield
        self._version = version
