"""The control service of a shard that can move to another worker: it answers only while its host may act.

A query is answered from our own memory, without asking anybody. That is right until our lease ends by our own clock,
because nobody else can have written before. So the guard is checked first, and again before each line of the answer.
By then the request may have been carried out. The two errors tell it apart: nothing was done, or it is not known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from stigmergy.base.errors import JournalUnknown, NotOwned
from stigmergy.control.protocol import Answer, Answers, AnyRequest, ControlHandler, refusal
from stigmergy.journal.ownership import Guard

LOST = "this worker has lost its lease, and another may own the shard; nothing was done, ask again"


class LeasedService:
    """A service in front of another."""

    def __init__(self, service: ControlHandler, guard: Guard) -> None:
        self._service = service
        self._guard = guard

    async def answer(self, request: AnyRequest) -> Answers:
        """The answers to this request, or that we must not answer."""
        if not self._guard():
            return iter((refusal(NotOwned(LOST)),))
        answers = await self._service.answer(request)
        return self._checked(answers) if isinstance(answers, Iterator) else _CheckedAsTheyCome(answers, self._guard)

    def _checked(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        for answer in answers:
            if not self._guard():
                yield _too_late()
                return
            yield answer


class _CheckedAsTheyCome:
    """Answers that take time; none of them after the lease."""

    def __init__(self, answers: AsyncIterator[Answer], guard: Guard) -> None:
        self._answers = answers
        self._guard = guard
        self._over = False

    def __aiter__(self) -> _CheckedAsTheyCome:
        return self

    async def __anext__(self) -> Answer:
        if self._over:
            raise StopAsyncIteration
        answer = await anext(self._answers)
        if not self._guard():
            self._over = True
            return _too_late()
        return answer


def _too_late() -> Answer:
    return refusal(
        JournalUnknown(
            "this worker has lost its lease while it answered, and another may own the shard; whether what was asked "
            "for is done the next owner knows: ask again, with the same command id"
        )
    )
