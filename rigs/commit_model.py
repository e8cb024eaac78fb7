"""The commit protocol, for `explore`: one shard, its journal, a source that repeats, a receiver with marks; all orders.

What decides is the code that ships: `Shard.step` and `seal`, marks, outbox, answers, and the replay after each crash.
The model is what is around it. The network delivers any stretch of what the source has, at any time, again and again,
or never; answers and acknowledgements are lost; a write may be kept or not when the power goes, and the power may go at
any moment; a device may have done what it could not confirm. The host's part is a handful of rules, each of which can
be broken on purpose (`Mistake`), because a search that finds nothing must be one that could have.

A state is small: the numbers of the commits on disk, which inputs are in the open draft, and what is under way. The
shard itself is made anew from them (`commit_core`), so that each state of it is also one that a replay has reached.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rigs.commit_core import Core, InputName, Order, Place, Taken, Written, orders_of
from stigmergy.agents.effects import ACTUATORS, shard_sink

FAULTS = ("power", "no answer")
"""How steps begin that are nobody's wish: without them everything must come to its end."""


class Mistake(enum.Enum):
    """Rules of the host that can be broken on purpose."""

    ACKNOWLEDGES_EARLY = "who sends is told before the write is over"
    ACKNOWLEDGES_REPEATS_AT_ONCE = "who repeats is told although the first is still on its way to the disk"
    ACKNOWLEDGES_UNTAKEN = "who sends too early is told all the same"
    RELEASES_EARLY = "effects leave when the write begins"
    ANSWERS_EARLY = "a command is answered when the write begins"
    REPEATS_ANSWERS_AT_ONCE = "a command asked again is answered although the first answer is not durable"
    BELIEVES_A_FAILED_SYNC = "a sync that failed is taken for one that has not"
    FORGETS_WHAT_IS_OWED = "a start does not release what is owed"
    SETTLES_WHAT_IS_NOT_DONE = "an effect is settled when it is begun"
    RECEIVER_WITHOUT_MARKS = "a receiver carries out whatever comes"


class Bounds(msgspec.Struct, frozen=True):
    """How large the search is: everything that may happen more than a few times has a bound here."""

    items: int = 2
    crashes: int = 1
    asks: bool = True
    tells: bool = False


class World(NamedTuple):
    """Everything at one moment."""

    disk: tuple[int, ...] = ()
    """The numbers, in the model's own list, of the commits that are durable."""
    flight: int = 0
    """Of the one on its way to the disk; 0: none is."""
    draft: tuple[InputName, ...] = ()
    """What has changed the open draft."""
    epoch: int = 1
    draft_tickets: int = 0
    """The highest number of which somebody waits to hear that it is durable, with the open draft."""
    flight_tickets: int = 0
    told: int = 0
    """Acknowledged, on its way to the source."""
    acknowledged: int = 0
    """As the source knows."""
    promised: tuple[tuple[int, str], ...] = ()
    """Answers to repetitions, and the position that must be durable to give them."""
    answer: str = ""
    """On its way to who has asked."""
    heard: tuple[str, ...] = ()
    orders: tuple[Order, ...] = ()
    """Released, to be carried out in order."""
    confirmed: tuple[int, ...] = ()
    """Carried out, and the shard has not heard of it."""
    tells: tuple[Order, ...] = ()
    done: tuple[tuple[int, int, int], ...] = ()
    """What the receiver has done: position and index are the key, then what for."""
    crashes: int = 0
    fault: str = ""
    """What the core itself did wrong on the way here."""

    @property
    def place(self) -> Place:
        """What the shard follows from."""
        return Place(self.disk, self.flight, self.draft, self.epoch)


class CommitModel:
    """The transition system."""

    def __init__(self, bounds: Bounds | None = None, mistake: Mistake | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._mistake = mistake
        self._core = Core(tells=self.bounds.tells)

    def initial(self) -> list[World]:
        """A node that has just started for the first time."""
        return [World()]

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that may happen next. What the core raises is wrong, whatever it is."""
        if world.fault:
            return
        try:
            yield from self._from_outside(world)
            yield from self._from_inside(world)
            yield from self._to_the_disk(world)
            yield from self._on_the_network(world)
            yield from self._to_the_receiver(world)
            yield from self._power(world)
        except Exception as error:
            yield "the core raises an error", world._replace(fault=f"{type(error).__name__}: {error}")

    def wrong(self, world: World) -> str | None:
        """What was promised and is not so."""
        if world.fault:
            return world.fault
        facts = self._core.read(world.disk)
        if facts.numbers != tuple(range(1, len(facts.numbers) + 1)):
            return f"the log has measurements {facts.numbers}: one is doubled, missing or out of order"
        if facts.noted != tuple(range(1, len(facts.noted) + 1)):
            return f"told was {facts.noted}: one is doubled, missing or out of order"
        if world.acknowledged > len(facts.numbers):
            return f"{world.acknowledged} measurements are acknowledged, {len(facts.numbers)} are in the log"
        if len(facts.answers) > 1 or any((answer,) != facts.answers for answer in world.heard):
            return f"answers heard: {world.heard}; in the log: {facts.answers}"
        for place in world.done:
            if place not in facts.owed:
                return f"action {place[2]} was carried out and is not in the log"
        numbers = [number for _, _, number in world.done]
        if sorted({*numbers}) != sorted(numbers):
            return f"carried out were {numbers}: one of them twice"
        return None

    def is_over(self, world: World) -> bool:
        """Whether everybody has what they wanted, and nothing is left to do."""
        bounds = self.bounds
        waits = world.flight or world.draft or world.orders or world.confirmed or world.tells or world.fault
        asked = not bounds.asks or world.heard
        noted = bounds.items if bounds.tells else 0
        if waits or not asked or world.acknowledged < bounds.items or len(world.done) < bounds.items:
            return False
        return len(self._core.read(world.disk).noted) == noted and self._core.replayed(world.disk).outbox.count == 0

    def is_fault(self, what: str) -> bool:
        """Whether a step of this name is nobody's wish."""
        return what.startswith(FAULTS)

    # ------------------------------------------------------------------ what may happen

    def _from_outside(self, world: World) -> Iterator[tuple[str, World]]:
        for first in range(1, self.bounds.items + 1):
            for last in range(first, self.bounds.items + 1):
                taken = self._core.take(world.place, ("measured", first, last))
                yield f"the network delivers {first} to {last}", self._deliver(world, taken, last)
        if self.bounds.asks:
            taken = self._core.take(world.place, ("asked", 0, 0))
            yield "the command is asked", self._give(world._replace(draft=taken.draft), taken.repeats)

    def _deliver(self, world: World, taken: Taken, last: int) -> World:
        """Where it left nothing to write, what came before is enough; who came too early waits in vain."""
        world = world._replace(draft=taken.draft)
        if taken.untaken and self._mistake is not Mistake.ACKNOWLEDGES_UNTAKEN:
            return world
        behind = world.flight and self._mistake is not Mistake.ACKNOWLEDGES_REPEATS_AT_ONCE
        if self._mistake is Mistake.ACKNOWLEDGES_EARLY or not (taken.to_write or behind):
            return world._replace(told=max(world.told, last))
        if taken.to_write:
            return world._replace(draft_tickets=max(world.draft_tickets, last))
        return world._replace(flight_tickets=max(world.flight_tickets, last))

    def _give(self, world: World, answers: tuple[tuple[int, str], ...] = ()) -> World:
        """Gives the answers that are durable, and remembers the others."""
        at_once = self._mistake is Mistake.REPEATS_ANSWERS_AT_ONCE
        promised = tuple(dict.fromkeys((*world.promised, *answers)))
        ready = [text for position, text in promised if at_once or position <= len(world.disk)]
        rest = tuple(one for one in promised if one[1] not in ready)
        return world._replace(promised=rest, answer=ready[-1] if ready else world.answer)

    def _from_inside(self, world: World) -> Iterator[tuple[str, World]]:
        for sequence in world.confirmed[:1]:
            taken = self._core.take(world.place, ("settled", sequence, 0))
            yield f"order {sequence} is settled", world._replace(draft=taken.draft, confirmed=world.confirmed[1:])
        for tell in world.tells[:1]:
            taken = self._core.take(world.place, ("told", tell.sequence, tell.number))
            yield f"tell {tell.number} arrives", world._replace(draft=taken.draft, tells=world.tells[1:])

    def _to_the_disk(self, world: World) -> Iterator[tuple[str, World]]:
        if world.flight:
            disk = (*world.disk, world.flight)
            durable = world._replace(disk=disk, flight=0, flight_tickets=0)
            yield "the write is over", self._tell(durable, self._core.written[world.flight], world.flight_tickets)
        elif world.draft:
            written = self._core.seal(world.place)
            begun = world._replace(
                flight=written.number,
                draft=(),
                flight_tickets=world.draft_tickets,
                draft_tickets=0,
                fault=written.fault,
            )
            if self._mistake is Mistake.RELEASES_EARLY:
                begun = begun._replace(orders=begun.orders + written.orders)
            if self._mistake is Mistake.ANSWERS_EARLY and written.answers:
                begun = begun._replace(answer=written.answers[-1])
            yield "a write begins", begun

    def _tell(self, world: World, written: Written, tickets: int) -> World:
        """It is durable: now, and not before, everybody is told and effects leave."""
        world = world._replace(told=max(world.told, tickets))
        if written.answers:
            world = world._replace(answer=written.answers[-1])
        if self._mistake is not Mistake.RELEASES_EARLY:
            world = world._replace(orders=world.orders + written.orders)
        return self._give(world._replace(tells=world.tells + written.tells))

    def _on_the_network(self, world: World) -> Iterator[tuple[str, World]]:
        if world.told > world.acknowledged:
            yield "the acknowledgement arrives", world._replace(acknowledged=world.told)
        if world.answer:
            heard = tuple(sorted({*world.heard, world.answer}))
            yield "the answer arrives", world._replace(heard=heard, answer="")

    def _to_the_receiver(self, world: World) -> Iterator[tuple[str, World]]:
        for order in world.orders[:1]:
            place = (order.position, order.at, order.number)
            known = place in world.done and self._mistake is not Mistake.RECEIVER_WITHOUT_MARKS
            acted = world if known else world._replace(done=tuple(sorted((*world.done, place))))
            over = world._replace(orders=world.orders[1:], confirmed=(*world.confirmed, order.sequence))
            if self._mistake is Mistake.SETTLES_WHAT_IS_NOT_DONE:
                yield f"order {order.sequence} is begun", over
            yield f"order {order.sequence} is carried out", over._replace(done=acted.done)
            if not known:
                yield f"no answer to order {order.sequence}, which was carried out", acted

    def _power(self, world: World) -> Iterator[tuple[str, World]]:
        if world.crashes == self.bounds.crashes:
            return
        if world.flight:
            yield "power lost, the write was kept", self._restart(world, (*world.disk, world.flight))
            if self._mistake is Mistake.BELIEVES_A_FAILED_SYNC:
                told = max(world.told, world.flight_tickets)
                yield "power lost after a sync that failed", self._restart(world._replace(told=told), world.disk)
        yield "power lost, and what was not written", self._restart(world, world.disk)

    def _restart(self, world: World, disk: tuple[int, ...]) -> World:
        """What was only in memory is gone; messages that were sent may still arrive."""
        state = self._core.replayed(disk)
        owed = [] if self._mistake is Mistake.FORGETS_WHAT_IS_OWED else list(state.outbox.owed())
        return World(
            disk=disk,
            epoch=state.epoch + 1,
            told=world.told,
            acknowledged=world.acknowledged,
            answer=world.answer,
            heard=world.heard,
            orders=orders_of(owed, ACTUATORS),
            tells=orders_of(owed, shard_sink(0)),
            done=world.done,
            crashes=world.crashes + 1,
        )
