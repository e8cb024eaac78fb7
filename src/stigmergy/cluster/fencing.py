"""The control service of a shard that can move to another worker: it answers only while its host may act.

A query is answered from our own memory, without asking anybody. That is right until our lease ends by our own clock,
because nobody else can have written before. So the guard is checked first, and again before each line of the answer.
By then the request may have been carried out. The two errors tell it apart: nothing was done, or it is not known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from stigmergy.base.errors import JournalUnknown, NotOwned, StigmergyError
from stigmergy.control.protocol import RequestHandler, write_error
from stigmergy.journal.ownership import Guard

LOST = "this worker has lost its lease, and another may own the shard; nothing was done, ask again"


class LeasedService:
    """A service in front of another."""

    def __init__(self, service: RequestHandler, guard: Guard) -> None:
        self._service = service
        self._guard = guard

    async def answer(self, line: bytes) -> Iterator[bytes] | AsyncIterator[bytes]:
        """The lines that answer this one, or that we must not."""
        if not self._guard():
            return iter((write_error(NotOwned(LOST)),))
        lines = await self._service.answer(line)
        return self._checked(lines) if isinstance(lines, Iterator) else _CheckedAsTheyCome(lines, self._guard)

    def _checked(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            if not self._guard():
                yield _too_late()
                return
            yield line

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a client whose request could not even be taken."""
        return self._service.refuse(error)


class _CheckedAsTheyCome:
    """Lines that take time; none of them after the lease."""

    def __init__(self, lines: AsyncIterator[bytes], guard: Guard) -> None:
        self._lines = lines
        self._guard = guard
        self._over = False

    def __aiter__(self) -> _CheckedAsTheyCome:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        line = await anext(self._lines)
        if not self._guard():
            self._over = True
            return _too_late()
        return line


def _too_late() -> bytes:
    return write_error(
        JournalUnknown(
            "this worker has lost its lease while it answered, and another may own the shard; whether what was asked "
            "for is done the next owner knows: ask again, with the same command id"
        )
    )
