"""A host that acts only while its worker is a member: afterwards another worker may own its shard.

A worker that was paused or cut off learns late that its shards moved. So its host checks before each turn, before it
reports what became durable, and before each order: by the worker's own clock, without asking anybody. If the answer is
no, it stops without effects and without safe actions: those are the next owner's.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from stigmergy.base.errors import JournalConflict, JournalUnknown, NotOwned, StigmergyError
from stigmergy.control.protocol import RequestHandler, write_error
from stigmergy.devices.equipment import ActuatorFunction
from stigmergy.node.committer import GroupInFlight
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host

MayAct = Callable[[], bool]
"""Whether we are a member at this very moment."""


class LeasedHost(Host):
    """A host of one shard. Give it `guarded(…)` as its declaration, so that its hands ask too."""

    may_act: MayAct = staticmethod(lambda: True)

    def retire(self, error: Exception) -> None:
        """Ends at once: nothing more is written, released or told to anybody but those who wait for answers."""
        if self.failure is None:
            self.effector.halt()
            self.batched_actuators.halt()
            self._halt(error)

    def fail(self, error: Exception) -> None:
        """Fails as any host does, unless the shard is somebody else's by now: then it only ends."""
        if isinstance(error, JournalConflict) or not self.may_act():
            self.retire(error)
        else:
            super().fail(error)

    def check_owned(self) -> None:
        """Raises NotOwned if somebody else may own the shard by now: what we know of it may be old."""
        if not self.may_act():
            raise NotOwned("this worker has lost its lease, and another may own the shard; nothing was done, ask again")

    def _turn(self) -> None:
        if not self._is_over():
            super()._turn()

    def _written(self, flight: GroupInFlight) -> None:
        if self._is_over():
            # It is durable, and the next owner knows of it: whoever asks again hears the same answer.
            for ticket in flight.tickets:
                ticket.fail(self.failure or NotOwned("the shard is another worker's; ask again"))
        else:
            super()._written(flight)

    def _is_over(self) -> bool:
        if self.failure is None and not self.may_act():
            self.retire(
                NotOwned(
                    "this worker has lost its lease, and its shards go to others; what was under way may be kept: ask "
                    "again, with the same command id"
                )
            )
        return self.failure is not None


def guarded(declaration: Declaration, may_act: MayAct) -> Declaration:
    """The same fleet with hands that carry nothing out once somebody else may do it."""
    return declaration.with_actuators(lambda actuator: _guarded(actuator, may_act))


def _guarded(actuator: ActuatorFunction, may_act: MayAct) -> ActuatorFunction:
    def check() -> None:
        if not may_act():
            raise NotOwned("this worker has lost its lease; the next owner of the shard carries it out")

    if inspect.iscoroutinefunction(actuator):

        async def begin(order: Any) -> Any:
            check()
            return await actuator(order)

        return begin

    def call(order: Any) -> Any:
        check()
        return actuator(order)

    return call


# The control server of a shard that can move: it answers only while its worker is a member.
#
# A query is answered from our own memory. That is right while nobody else can have written: until our lease ends by our
# own clock. So the lease is checked before, and again before each line of the answer. The request may be done by then,
# so two errors are distinguished: nothing was done, or it is unknown.


class LeasedService:
    """A desk in front of a desk."""

    def __init__(self, service: RequestHandler, host: LeasedHost) -> None:
        self._service = service
        self._host = host

    async def answer(self, line: bytes) -> Iterator[bytes] | AsyncIterator[bytes]:
        """The lines that answer this one, or that we must not."""
        try:
            self._host.check_owned()
        except NotOwned as error:
            return iter((write_error(error),))
        lines = await self._service.answer(line)
        return self._checked(lines) if isinstance(lines, Iterator) else _CheckedAsTheyCome(lines, self._host)

    def _checked(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            if not self._host.may_act():
                yield _too_late()
                return
            yield line

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a client whose request could not even be taken."""
        return self._service.refuse(error)


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
