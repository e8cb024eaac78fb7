"""A host that acts only while its worker is a member: afterwards somebody else may own its shard.

A worker that was stopped for a while, or cut off, learns late that its shards are with others. So its host asks before
each turn, before it tells anybody what became durable, and before each order: by the worker's own clock, which needs
nobody. When the answer is no it is over, without effects and without safe actions: those are the next owner's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stigmergy.core.errors import JournalConflict, NotOwned
from stigmergy.runtime.committer import Flight
from stigmergy.runtime.declaration import Declaration
from stigmergy.runtime.equipment import Hand
from stigmergy.runtime.host import Host

MayAct = Callable[[], bool]
"""Whether we are a member at this very moment."""


class LeasedHost(Host):
    """A host of one shard. Give it `guarded(…)` as its declaration, so that its hands ask too."""

    may_act: MayAct = staticmethod(lambda: True)

    def retire(self, error: Exception) -> None:
        """Ends at once: nothing more is written, released or told to anybody but those who wait for answers."""
        if self.failure is None:
            self.effector.halt()
            self.block_hands.halt()
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

    def _written(self, flight: Flight) -> None:
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
    return declaration.with_hands(lambda hand: _guarded(hand, may_act))


def _guarded(hand: Hand, may_act: MayAct) -> Hand:
    def check() -> None:
        if not may_act():
            raise NotOwned("this worker has lost its lease; the next owner of the shard carries it out")

    if inspect.iscoroutinefunction(hand):

        async def begin(order: Any) -> Any:
            check()
            return await hand(order)

        return begin

    def call(order: Any) -> Any:
        check()
        return hand(order)

    return call
