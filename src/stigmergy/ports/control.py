"""The control port: who answers what operators ask, one line in and lines out; what they mean is not its business."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from stigmergy.core.errors import StigmergyError


class Handler(Protocol):
    """Who answers."""

    async def answer(self, line: bytes) -> Iterator[bytes] | AsyncIterator[bytes]:
        """The lines of the answer, each with its end; an empty one means: nothing yet. Raises nothing.

        Whoever has to wait for lines gives them as they come.
        """
        ...

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a request that could not be taken."""
        ...
