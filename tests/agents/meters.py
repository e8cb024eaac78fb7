"""A compiled agent that does something of everything, and what is needed to send records to it. Not a test."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.columns import Formatted, OwnName, Table, Text, read_actions
from stigmergy.agents.effects import Effects, Events, Publish, Tell, WakeMe, Woken
from stigmergy.agents.messages import Action, Command, Event, Message, transient, within
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import Supervise, WhenStale
from stigmergy.shard.commit import Commit, digest_commit, open_commit
from stigmergy.shard.inputs import ColumnDelivery, EnrollAgents
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import Limits, ShardState
from tests.agents.plain_table import PlainEngine, compiled
from tests.shard.shards import Probe


class Mode(enum.Enum):
    CALM = "calm"
    WILD = "wild"


class Measured(Event, keep=within(seconds=1)):
    level: Annotated[float, Meta(ge=0.0, le=1000.0)]
    mode: Mode = Mode.CALM


class Counted(Event):
    """Plain: evolved, and nothing more."""

    by: int
    ok: bool = False
    code: Annotated[bytes, Meta(min_length=4, max_length=4)] = b"\0\0\0\0"


class Glimpsed(Event, keep=transient):
    level: float


class Poked(Event):
    """Decided upon: what becomes of it, says the number."""

    how: int


class Moved(Event):
    by: int


class Noted(Event):
    """Only yielded."""

    by: int


class SetLimit(Command):
    limit: float


class LimitSet(Event):
    limit: float


class Silent(Event):
    """What the staleness rule of `Watched` waits for."""

    n: int = 0


class Alarm(Action):
    level: float
    mode: Mode
    text: str


class Beep(Action):
    count: int
    loud: bool
    code: Annotated[bytes, Meta(min_length=4, max_length=4)] = b"beep"


class Hush(Action):
    pad: str = ""


class Seen(Event):
    level: float


NOTHING, TWO, FAIL, LATE, ABROAD, FLOOD, REFUSE, NEVER, MANY, LARGE = range(10)


class Meter(Agent):
    level: float = 0.0
    total: int = 0
    mode: Mode = Mode.CALM
    limit: float = 100.0
    ok: bool = True
    code: Annotated[bytes, Meta(min_length=4, max_length=4)] = b"none"
    at: float = 0.0

    supervision = Supervise(stop_after=2, within_s=60)

    @evolve
    def measured(self, event: Measured) -> None:
        self.level = event.level
        self.mode = event.mode
        self.at = self.now

    @react
    def on_measured(self, event: Measured) -> Effects:
        if self.level > self.limit:
            yield Alarm(level=self.level, mode=self.mode, text=f"{self.id} at {self.level:.1f} in {self.address}")
        if self.level > 500:
            yield Tell(to="Board/main", message=Seen(level=self.level))
        if self.level > 900:
            yield WakeMe(name="check", after_s=10)

    @evolve
    def counted(self, event: Counted) -> None:
        if event.by == 13:
            raise ValueError("thirteen")
        self.total += event.by
        self.ok = event.ok
        self.code = event.code

    @react
    def glimpsed(self, event: Glimpsed) -> Effects:
        if event.level > 0:
            yield Beep(count=int(event.level), loud=True)
        if event.level > 100:
            yield Publish(topic="glimpses", event=event)

    @decide
    def poked(self, event: Poked) -> Events:
        match event.how:
            case 0:
                return
            case 1:
                yield Moved(by=1)
                yield Moved(by=2)
            case 2:
                yield Moved(by=1)
                raise RuntimeError("poked")
            case 6:
                reject("an event cannot be refused")
            case 8:
                for number in range(100):
                    yield Noted(by=number)
            case _:
                yield Moved(by=event.how)

    @evolve
    def moved(self, event: Moved) -> None:
        self.total += event.by

    @react
    def on_moved(self, event: Moved) -> Effects:
        match event.by:
            case 3:
                yield Beep(count=1, loud=False)
                raise RuntimeError("late")
            case 4:
                yield Tell(to="Nobody/x", message=Seen(level=1.0))
                yield Tell(to=f"Board/{self.id} +", message=Seen(level=1.0))
                yield Beep(count=2, loud=False)
            case 5:
                while True:
                    yield Hush(pad="x" * 1_000)
            case 7:
                yield WakeMe(name="check", after_s=float("nan"))
            case 9:
                yield Hush(pad="x" * 50_000)
            case _:
                return

    @decide
    def set_limit(self, command: SetLimit) -> Events:
        if command.limit < 0:
            reject(f"a limit of {command.limit}")
        if command.limit == 0.5:
            raise ZeroDivisionError("half")
        yield LimitSet(limit=command.limit)

    @evolve
    def limit_set(self, event: LimitSet) -> None:
        self.limit = event.limit

    @react
    def woken(self, event: Woken) -> Effects:
        yield Publish(topic="checks", event=event)


class Watched(Agent):
    """A compiled agent with a staleness rule."""

    n: int = 0
    stale = WhenStale(Silent, after_s=1.0, then=Hush())

    @decide
    def heard(self, event: Silent) -> Events:
        if event.n >= 0:
            yield event

    @evolve
    def silent(self, event: Silent) -> None:
        self.n += 1

    @evolve
    def counted(self, event: Counted) -> None:
        self.n += event.by


class Board(Agent):
    """An interpreted agent that meters talk to."""

    levels: tuple[float, ...] = ()

    @evolve
    def seen(self, event: Seen) -> None:
        self.levels = (*self.levels[-4:], event.level)

    @react
    def on_seen(self, event: Seen) -> Effects:
        if event.level > 800:
            yield Tell(to="Meter/a", message=Counted(by=1_000))


ALARM_TEXT = Text([OwnName(), " at ", Formatted(0, "f8", ".1f"), " in ", OwnName(with_kind=True)])


def meter_engine() -> PlainEngine:
    return PlainEngine(
        Meter, actions=(Alarm, Beep), yielded=(Noted,), texts={(Alarm, "text"): ALARM_TEXT}, timers=("check",)
    )


def meter_plans() -> dict[str, AgentPlan]:
    return {"Meter": compiled(meter_engine()), "Watched": compiled(PlainEngine(Watched))}


class Meters(Probe):
    """A shard with meters and a board. Beeps and alarms go to batched hands."""

    def __init__(
        self,
        *names: str,
        batched: Sequence[str] = ("Beep@1", "Alarm@1"),
        limits: Limits | None = None,
        plans: Mapping[str, AgentPlan] | None = None,
    ) -> None:
        super().__init__(Board, limits=limits, plans=meter_plans() if plans is None else plans)
        self.batched = batched
        self.prepare(self.state)
        if names:
            self.take(EnrollAgents("Meter", list(names)))

    def prepare(self, state: ShardState) -> None:
        if "Meter" in state.tables:
            state.tables["Meter"].batch(self.batched)

    def replayed_to(self, position: int) -> ShardState:
        """The state that the first so many commits lead to."""
        state = ShardState(0, self.plans, self.limits)
        for body in self.log[:position]:
            apply(state, open_commit(body), digest_commit(body))
        return state

    def restart(self) -> None:
        """The node dies with its open draft, and goes on from its log."""
        state = self.replayed()
        self.prepare(state)
        self.shard = Shard(state)

    @property
    def table(self) -> Table:
        return self.state.tables["Meter"]

    def meter(self, name: str) -> Any:
        """A meter as it is ahead of the disk."""
        return self.table.agent(self.table.find(name), ahead=True)

    def record(self, name: str | int, message: Message) -> bytes:
        number = self.table.find(name) if isinstance(name, str) else name
        assert number >= 0
        return self.table.record_of(number, message)

    def batch(
        self, *items: tuple[str | int, Message], source: str = "radio", sequence: int = 0, **changed: Any
    ) -> ColumnDelivery:
        """A batch of records for the roster as it is."""
        records = b"".join(self.record(name, message) for name, message in items)
        return self.batch_of(records, source=source, sequence=sequence, **changed)

    def batch_of(self, records: bytes, **changed: Any) -> ColumnDelivery:
        known = self.table.check_of(self.table.generation)
        assert known is not None
        fields: dict[str, Any] = {
            "source": "radio",
            "kind": "Meter",
            "layout": self.table.layout_digest,
            "generation": self.table.generation,
            "check": known[1],
            "records": records,
            "count": len(records) // self.table.layout.record_bytes,
        }
        return ColumnDelivery(**{**fields, **changed})

    def actions(self, commit: Commit) -> list[tuple[str, int, str]]:
        """The batched actions of a commit: agent, cause, tag."""
        made = []
        for run in commit.columns:
            if run.actions_count:
                templates = self.state.directory.templates_of(run.templates)
                made += list(read_actions(run.actions, templates, self.table.name))
        return [(self.table.name(one.agent), one.cause, one.tag) for one in made]
