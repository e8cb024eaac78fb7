"""The control desk of a shard that can move: it answers only while its worker is a member.

A query is answered from our own memory, without asking anybody. That is right as long as nobody else can have written
meanwhile: until our lease ends by our own clock. So it is asked before, and once more when the answer is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from stigmergy.core.errors import NotOwned, StigmergyError
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
            lines = await self._desk.answer(line)
            self._host.check_owned()
        except NotOwned as error:
            return iter((write_error(error),))
        return lines

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a client whose request could not even be taken."""
        return self._desk.refuse(error)
