"""The control service of a shard that can move to another worker: it answers only while its host may act.

A query is answered from our own memory, without asking anybody. That is right until our lease ends by our own clock,
because nobody else can have written before. So the guard is checked first, and again before each line of the answer.
By then the request may have been carried out. The two errors tell it apart: nothing was done, or it is not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from stigmergy.base.errors import JournalUnknown, NotOwned
from stigmergy.control.protocol import Answer, AnyRequest, ControlHandler, refusal
from stigmergy.journal.port import Guard

LOST = "this worker has lost its lease, and another may own the shard; nothing was done, ask again"
LATE = (
    "this worker has lost its lease while it answered, and another may own the shard; whether what was asked for is "
    "done the next owner knows: ask again, with the same command id"
)


class LeasedService:
    """A service in front of another."""

    def __init__(self, service: ControlHandler, guard: Guard) -> None:
        self._service = service
        self._guard = guard

    async def answer(self, request: AnyRequest) -> Iterator[Answer]:
        """The answers to this request, or that we must not answer."""
        if not self._guard():
            return iter((refusal(NotOwned(LOST)),))
        return self._checked(await self._service.answer(request))

    def _checked(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        for answer in answers:
            if not self._guard():
                yield refusal(JournalUnknown(LATE))
                return
            yield answer
