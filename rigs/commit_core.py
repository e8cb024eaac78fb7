"""The shard inside the search of the commit protocol: the code that ships, made anew for each state that is looked at.

What a step makes of an input follows from the commits on disk, the one on its way, the open draft and the epoch, and
from nothing else. So each is worked out once, by replaying those commits as a restart would, and remembered. Whatever
was lived is compared with what its log folds into. `commit_model` has the world around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.effects import ACTUATORS, Effects, Events, Tell, shard_sink
from stigmergy.agents.messages import Action, Command, Event, spec_of
from stigmergy.shard.commit import digest_commit, open_commit
from stigmergy.shard.inputs import Accepted, Ask, Delivery, EffectSettled, Input
from stigmergy.shard.outbox import Pending
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import ShardState, plan_agents

NOW_NS = 100_000_000_000
SOURCE = "sensor"
WORKER = "Worker/a"
OTHER = "Worker/b"
COMMAND_ID = "c1"


class Measured(Event):
    """What the source has, by its number; each asks for one action."""

    number: int


class Noted(Event):
    """What one worker tells the other."""

    number: int


class Began(Event):
    """The command was accepted."""


class Begin(Command):
    """Refused once the first measurement is there: so its answer depends on the order of things, and must stay."""


class Do(Action):
    """What the receiver carries out."""

    number: int


class Worker(Agent):
    """Acts on what it measures."""

    numbers: tuple[int, ...] = ()
    noted: tuple[int, ...] = ()

    @decide
    def begin(self, command: Begin) -> Events:
        """Says when it is too late."""
        if self.numbers:
            reject("too late")
        yield Began()

    @evolve
    def measured(self, event: Measured) -> None:
        """Keeps it."""
        self.numbers = (*self.numbers, event.number)

    @evolve
    def was_told(self, event: Noted) -> None:
        """Keeps it."""
        self.noted = (*self.noted, event.number)

    @react
    def act(self, event: Measured) -> Effects:
        """One action for each."""
        yield Do(number=event.number)


class Telling(Worker, kind="Worker"):
    """Tells its neighbour, too."""

    @react
    def act(self, event: Measured) -> Effects:
        """One action and one tell for each."""
        yield Do(number=event.number)
        yield Tell(to=OTHER, message=Noted(number=event.number))


InputName = tuple[str, int, int]
"""What came, and from which number to which."""


class Order(NamedTuple):
    """An effect that was released: its place in the outbox and in the log, and what it is for."""

    sequence: int
    position: int
    at: int
    number: int


class Place(NamedTuple):
    """All that a shard follows from."""

    disk: tuple[int, ...]
    """The numbers, in the core's own list, of the commits that are durable."""
    flight: int
    """Of the one on its way to the disk; 0: none is."""
    draft: tuple[InputName, ...]
    """What has changed the open draft."""
    epoch: int


class Taken(NamedTuple):
    """What a step made of an input."""

    draft: tuple[InputName, ...]
    to_write: bool
    untaken: bool
    repeats: tuple[tuple[int, str], ...]


class Written(NamedTuple):
    """A sealed commit."""

    number: int
    answers: tuple[str, ...]
    orders: tuple[Order, ...]
    tells: tuple[Order, ...]
    fault: str


class Facts(NamedTuple):
    """What a log says."""

    numbers: tuple[int, ...] = ()
    noted: tuple[int, ...] = ()
    answers: tuple[str, ...] = ()
    owed: tuple[tuple[int, int, int], ...] = ()


class Core:
    """Steps and seals the shard, and reads its log."""

    def __init__(self, *, tells: bool) -> None:
        self._plans = plan_agents([Telling if tells else Worker])
        self._bodies: list[bytes] = [b""]
        self._numbers: dict[bytes, int] = {b"": 0}
        self._facts: dict[tuple[int, ...], Facts] = {(): Facts()}
        self._taken: dict[tuple[Place, InputName], Taken] = {}
        self._written: dict[Place, Written] = {}
        self._drafts: dict[tuple[Any, ...], tuple[InputName, ...]] = {}
        self.written: dict[int, Written] = {}
        """What the commit of a number does once it is durable."""

    def take(self, place: Place, name: InputName) -> Taken:
        """Steps one input: a function of the commits, the open draft and the epoch alone, so it is done once."""
        taken = self._taken.get((place, name))
        if taken is None:
            shard = self._open(place)
            stepped = shard.step([self._input(name, place.epoch)], NOW_NS)
            repeats = tuple((position, _said(verdict)) for _, verdict, position in stepped.repeats)
            sealed = shard.seal()
            body = b"" if sealed is None else sealed.sealed.body
            # Two ways to the same draft are one: the way that was gone first stands for both.
            around = (place.disk, place.flight, place.epoch)
            self._drafts.setdefault((around, self._body_of(place)), place.draft)
            draft = self._drafts.setdefault((around, body), () if sealed is None else (*place.draft, name))
            taken = Taken(draft, stepped.wait_ns is not None, bool(stepped.untaken), repeats)
            self._taken[place, name] = taken
        return taken

    def seal(self, place: Place) -> Written:
        """Closes the draft, and compares what was lived with what the log now folds into."""
        written = self._written.get(place)
        if written is None:
            shard = self._open(place)
            ready = shard.seal()
            if ready is None:
                raise AssertionError("a draft that holds something seals into nothing")
            number = self._number(ready.sealed.body)
            replayed = self.replayed((*place.disk, number))
            same = digest_of_state(replayed) == digest_of_state(shard.state)
            fault = "" if same else "what was lived is not what the log folds into"
            answers = tuple(_said(verdict) for _, verdict in ready.verdicts)
            orders, tells = orders_of(ready.owed, ACTUATORS), orders_of(ready.owed, shard_sink(0))
            written = self._written[place] = self.written[number] = Written(number, answers, orders, tells, fault)
        return written

    def _open(self, place: Place) -> Shard:
        """The shard as it is at this moment."""
        shard = Shard(self.replayed((*place.disk, place.flight) if place.flight else place.disk))
        shard.epoch = place.epoch
        for name in place.draft:
            shard.step([self._input(name, place.epoch)], NOW_NS)
        return shard

    def _body_of(self, place: Place) -> bytes:
        ready = self._open(place).seal()
        return b"" if ready is None else ready.sealed.body

    def replayed(self, disk: tuple[int, ...]) -> ShardState:
        """What a restart makes of these commits."""
        state = ShardState(0, self._plans)
        for number in disk:
            body = self._bodies[number]
            apply(state, open_commit(body), digest_commit(body))
        return state

    def _input(self, name: InputName, epoch: int) -> Input:
        match name:
            case ("measured", first, last):
                items = [(WORKER, encode(Measured(number=number))) for number in range(first, last + 1)]
                return Delivery(SOURCE, items, sequence=first, epoch=1)
            case ("asked", _, _):
                return Ask(WORKER, COMMAND_ID, encode(Begin()))
            case ("settled", sequence, _):
                return EffectSettled(ACTUATORS, sequence)
            case ("told", sequence, number):
                return Delivery(shard_sink(0), [(OTHER, encode(Noted(number=number)))], sequence=sequence, epoch=epoch)
            case _:
                raise AssertionError(name)

    def _number(self, body: bytes) -> int:
        number = self._numbers.setdefault(body, len(self._bodies))
        if number == len(self._bodies):
            self._bodies.append(body)
        return number

    def read(self, disk: tuple[int, ...]) -> Facts:
        """What these commits say."""
        facts = self._facts.get(disk)
        if facts is None:
            before, commit = self.read(disk[:-1]), open_commit(self._bodies[disk[-1]])
            measured, noted = spec_of(Measured).tag, spec_of(Noted).tag
            events = [(tag_of(body), body) for _, body in commit.events]
            owed = [
                (commit.position, index, msgspec.msgpack.decode(one.body)["number"])
                for index, one in enumerate(commit.owed)
                if one.sink == ACTUATORS
            ]
            facts = self._facts[disk] = Facts(
                numbers=before.numbers
                + tuple(msgspec.msgpack.decode(b)["number"] for tag, b in events if tag == measured),
                noted=before.noted + tuple(msgspec.msgpack.decode(b)["number"] for tag, b in events if tag == noted),
                answers=before.answers + tuple(answer.refused or "accepted" for answer in commit.answers),
                owed=before.owed + tuple(owed),
            )
        return facts


def _said(verdict: Any) -> str:
    return "accepted" if isinstance(verdict, Accepted) else str(verdict.reason)


def orders_of(owed: Sequence[Pending], sink: str) -> tuple[Order, ...]:
    """The effects for one sink, in order."""
    return tuple(
        Order(pending.sequence, pending.position, pending.index, _number_in(pending.body))
        for pending in owed
        if pending.sink == sink
    )


def _number_in(body: bytes) -> int:
    said = msgspec.msgpack.decode(body)
    return int(said["number"] if isinstance(said, dict) else msgspec.msgpack.decode(said[1])["number"])
