"""Row 8 for compiled agents: replay from zero, and snapshot + tail, end in the very tables that were lived.

Random histories over an agent that is compiled for real, beside an interpreted one: batches in order, repeated, too
early and of rosters that are not ours; single messages and commands, faults, stops, letters, timers, enrolments, tells
in both directions, batched actions and how far they are confirmed; restarts, full and incremental snapshots taken in
portions while steps go on. After each seal the durable rows must have followed, too.

    python -m proofs.column_histories --histories 4000 [--seed N]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proofs.replay import HistoriesChecked, History, LivedShard
from proofs.report import Proof
from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Supervise,
    Tell,
    WakeMe,
    Window,
    Woken,
    decide,
    evolve,
    react,
    reject,
    transient,
    within,
)
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Message
from stigmergy.node.column_intake import catch_up, follow
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import ActionsConfirmed, Ask, ColumnDelivery, Delivery, EnrollAgents, Input
from stigmergy.shard.state import Limits, ShardState

HISTORIES, HISTORIES_QUICK = 4_000, 100
POOL = tuple(f"p-{number}" for number in range(12))
BATCHED = ("Beep@1",)
LIMITS = Limits(columns_bytes_max=256 * 1024)
"""Small, so that batches are divided among commits."""


class Fed(Event):
    number: int


class Levelled(Event, keep=within(seconds=1)):
    level: Annotated[float, Meta(ge=0.0, le=1000.0)]


class Glimpsed(Event, keep=transient):
    level: float


class Poked(Event):
    how: int


class Moved(Event):
    by: int


class SetLimit(Command):
    limit: float


class LimitSet(Event):
    limit: float


class Beep(Action):
    level: float


class Ring(Action):
    total: int


class Told(Event):
    level: float


class Sonde(Agent):
    """Does something of everything that a compiled agent can do."""

    total: int = 0
    level: float = 0.0
    limit: float = 500.0
    woken: int = 0
    at: float = 0.0
    levels: Window[Levelled] = Window.last(3)
    moves: Window[Moved] = Window.sliding(seconds=5, count_max=4)
    highs: Window[Levelled] = Window.sliding(seconds=200, by="level", count_max=3)

    supervision = Supervise(stop_after=3, within_s=60)

    @evolve
    def on_fed(self, event: Fed) -> None:
        self.total += 1000 // event.number

    @evolve
    def on_level(self, event: Levelled) -> None:
        self.level = event.level
        self.at = self.now + self.levels.mean("level") + float(len(self.highs))

    @react
    def beep(self, event: Levelled) -> Effects:
        if event.level > self.limit:
            yield Beep(level=event.level)
        if event.level > 800.0:
            yield Tell(to="Mast/main", message=Told(level=event.level))
        if event.level > 900.0:
            yield WakeMe(name="check", after_s=3.0)
        if event.level == 7.0:
            yield Ring(total=self.total)

    @react
    def glimpse(self, event: Glimpsed) -> Effects:
        yield Beep(level=event.level)

    @decide
    def poke(self, event: Poked) -> Events:
        if event.how == 1:
            yield Moved(by=1)
            yield Moved(by=2)
        elif event.how != 0:
            yield Moved(by=100 // (event.how - 2))

    @evolve
    def on_moved(self, event: Moved) -> None:
        self.total += event.by + self.moves.oldest("by")

    @decide
    def set_limit(self, command: SetLimit) -> Events:
        if command.limit < 0.0:
            reject(f"a limit of {command.limit}")
        yield LimitSet(limit=100.0 / command.limit)

    @evolve
    def on_limit(self, event: LimitSet) -> None:
        self.limit = event.limit

    @evolve
    def on_woken(self, event: Woken) -> None:
        self.woken += 1


class Mast(Agent):
    """An interpreted agent that sondes talk to, and that talks back."""

    levels: tuple[float, ...] = ()

    @evolve
    def on_told(self, event: Told) -> None:
        self.levels = (*self.levels[-3:], event.level)

    @react
    def answer(self, event: Told) -> Effects:
        if event.level > 950.0:
            yield Tell(to="Sonde/p-0", message=Fed(number=4))


def ready_sondes() -> Fleet:
    """The fleet, compiled."""
    fleet = Fleet("sondes", agents=[Sonde, Mast], compiled=[Sonde])
    fleet.prepare(lambda _: None)
    return fleet


class LivedTable(LivedShard):
    """A shard with a table: batched hands are set up, and durable rows follow."""

    def new_state(self, number: int) -> ShardState:
        state = super().new_state(number)
        state.tables["Sonde"].batch(BATCHED)
        return state

    def seal(self) -> Ready | None:
        ready = super().seal()
        if ready is not None:
            follow(self.shard.state, ready)
            table = self.shard.state.tables["Sonde"]
            for number in range(len(table)):
                ahead, durable = table.agent(number, ahead=True), table.agent(number)
                if repr(ahead) != repr(durable):
                    raise AssertionError(
                        f"position {ready.sealed.position}: {durable!r} is durable, {ahead!r} is ahead"
                    )
        return ready

    def restart(self, shards: int) -> None:
        super().restart(shards)
        catch_up(self.shard.state)


class ColumnHistory(History):
    """One random history of a shard with compiled agents."""

    draft_bytes_min = 1
    """A draft leaves records to the next as soon as one more input might not fit."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        super().__init__(number)
        self.shards = [LivedTable(0, 1, fleet.plans, LIMITS)]

    def _input(self, lived: LivedShard) -> Input:
        made = self.random.choices(
            (
                self.batch,
                self.large,
                self.enroll,
                self.messages,
                self.ask,
                self.confirm,
                History.settled,
                History.letter,
                History.resume,
                self.wrong,
            ),
            (12, 1, 2, 4, 3, 3, 2, 3, 3, 2),
        )[0]
        bound: Any = made if hasattr(made, "__self__") else made.__get__(self)
        result: Input = bound(lived)
        return result

    def address(self) -> str:
        """Some agent."""
        return f"Sonde/{self.random.choice(POOL)}" if self.random.random() < 0.9 else "Mast/main"

    def message(self, address: str) -> Message:
        """Some event."""
        if address.startswith("Mast"):
            return Told(level=float(self.random.choice((1, 960))))
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return Levelled(level=self.random.choice((0.0, 7.0, 100.0, 600.0, 850.0, 930.0, 1000.0)))
            case 3:
                return Glimpsed(level=self.random.choice((1.0, float("nan"))))
            case 4:
                return Poked(how=self.random.choice((0, 1, 2, 3, 5)))
            case 5:
                return LimitSet(limit=self.random.choice((1.0, 500.0, float("nan"))))
            case _:
                return Fed(number=self.random.choice((0, 1, 1, 3, 3, -7, -7, 10**12)))

    def body(self, address: str) -> bytes:
        """The bytes of some event."""
        return encode(self.message(address))

    def batch(self, lived: LivedShard, count: int = 0, **changed: Any) -> Input:
        """Records of a source, in sequence; now and then repeated, overlapping or too early."""
        table = lived.shard.state.tables["Sonde"]
        source = self.random.choice(("s1", "s2"))
        known = table.check_of(self.random.randint(0, table.generation))
        if known is None or not known[0]:
            return self.enroll(lived)
        generation = next(one for one in range(table.generation + 1) if table.check_of(one) == known)
        records = b"".join(
            table.record_of(self.random.randrange(known[0] + (self.random.random() < 0.02)), self.message("Sonde/"))
            for _ in range(self.random.randrange(1, 9))
        )
        # Most of many are plain: of stopped agents each would be a letter.
        going = [number for number in range(known[0]) if f"Sonde/{table.name(number)}" not in lived.shard.state.stopped]
        records += b"".join(table.record_of(number, Levelled(level=float(number))) for number in going) * count
        if self.random.random() < 0.05:
            place = self.random.randrange(len(records))
            records = records[:place] + self.random.randbytes(1) + records[place + 1 :]
        length = len(records) // table.layout.record_bytes
        first = self.sequences.get(source, 0) + 1
        sequence = {0: max(1, first - 3), 1: first + 2, 2: 0}.get(self.random.randrange(15), first)
        if sequence <= first:
            self.sequences[source] = max(first - 1, sequence + length - 1)
        fields: dict[str, Any] = {
            "source": source,
            "kind": "Sonde",
            "layout": table.layout_digest,
            "generation": generation,
            "check": known[1],
            "records": records,
            "count": length,
            "sequence": sequence,
        }
        return ColumnDelivery(**{**fields, **changed})

    def large(self, lived: LivedShard) -> Input:
        """A batch that one commit has no room for."""
        return self.batch(lived, self.random.choice((60, 1_500)))

    def wrong(self, lived: LivedShard) -> Input:
        """A batch that is not meant for this table."""
        kept = dict(self.sequences)
        made = self.batch(lived, **self.random.choice(({"layout": bytes(16)}, {"check": bytes(8)}, {"count": 99})))
        self.sequences = kept
        return made

    def enroll(self, lived: LivedShard) -> Input:
        """Some agents, of which some are there already."""
        return EnrollAgents("Sonde", self.random.sample(POOL, self.random.randrange(1, 5)))

    def messages(self, lived: LivedShard) -> Input:
        """Messages that come one by one."""
        addresses = [self.address() for _ in range(self.random.randrange(1, 4))]
        return Delivery("notes", [(address, self.body(address)) for address in addresses])

    def ask(self, lived: LivedShard) -> Input:
        """A command: taken, refused, or failing."""
        self.command_ids += self.random.random() < 0.8
        limit = self.random.choice((5.0, -1.0, 0.0))
        return Ask(f"Sonde/{self.random.choice(POOL)}", f"c{self.command_ids}", encode(SetLimit(limit=limit)))

    def confirm(self, lived: LivedShard) -> Input:
        """Batched actions are over, up to some number."""
        sent = lived.shard.state.blocks.next_sequence("Sonde")
        return ActionsConfirmed("Sonde", self.random.randrange(sent + 2))


def check_column_histories(count: int, seed: int, fleet: Fleet | None = None) -> HistoriesChecked:
    """Checks so many histories. Raises AssertionError with the number that repeats the first that goes wrong."""
    fleet = fleet or ready_sondes()
    began = time.perf_counter()
    commits = events = failures = snapshots = 0
    for number in range(seed, seed + count):
        history = ColumnHistory(number, fleet)
        try:
            history.run()
        except Exception as error:
            again = f"repeat it with check_column_histories(1, {number})"
            raise AssertionError(f"history {number}: {error}; {again}") from error
        for lived in history.shards:
            commits += len(lived.log)
            events += lived.shard.state.events_count
            failures += lived.failures
            snapshots += len(lived.stored)
    return HistoriesChecked(count, commits, events, failures, snapshots, time.perf_counter() - began)


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    checked = check_column_histories(HISTORIES_QUICK if quick else HISTORIES, seed=1)
    return Proof(
        name="column_histories",
        promise="replay from zero, and snapshot with tail, end in the very tables that were lived",
        cases=checked.histories,
        figures=msgspec.structs.asdict(checked),
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program."""
    parser = argparse.ArgumentParser(prog="python -m proofs.column_histories", description=__doc__)
    parser.add_argument("--histories", type=int, default=HISTORIES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    print(check_column_histories(options.histories, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
