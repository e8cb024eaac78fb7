"""The control desk of a shard that can move: it answers only while its worker is a member.

A query is answered from our own memory, without asking anybody. That is right as long as nobody else can have written
meanwhile: until our lease ends by our own clock. So it is asked before, and once more before each line of the answer.
What was asked for may be done by then, so the two are told apart: nothing was done, or it is not known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from stigmergy.core.errors import JournalUnknown, NotOwned, StigmergyError
from stigmergy.ports.control import Handler
from stigmergy.runtime.cluster.leased_host import LeasedHost
from stigmergy.runtime.protocol import write_error


class LeasedDesk:
    """A desk in front of a desk."""

    def __init__(self, desk: Handler, host: LeasedHost) -> None:
        self._desk = desk
        self._host = host

    async def answer(self, line: bytes) -> Iterator[bytes] | AsyncIterator[bytes]:
        """The lines that answer this one, or that we must not."""
        try:
            self._host.check_owned()
        except NotOwned as error:
            return iter((write_error(error),))
        lines = await self._desk.answer(line)
        return self._checked(lines) if isinstance(lines, Iterator) else _CheckedAsTheyCome(lines, self._host)

    def _checked(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            if not self._host.may_act():
                yield _too_late()
                return
            yield line

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a client whose request could not even be taken."""
        return self._desk.refuse(error)


class _CheckedAsTheyCome:
    """Lines that take time; none of them after the lease."""

    def __init__(self, lines: AsyncIterator[bytes], host: LeasedHost) -> None:
        self._lines = lines
        self._host = host
        self._over = False

    def __aiter__(self) -> _CheckedAsTheyCome:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        line = await anext(self._lines)
        if not self._host.may_act():
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
