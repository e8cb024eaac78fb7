"""A compiled table against one in plain Python, which runs the class's own handlers: call by call they say the same."""

from __future__ import annotations

import enum
from functools import cache
from typing import Annotated, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Publish,
    Tell,
    WakeMe,
    decide,
    evolve,
    react,
    reject,
    transient,
)
from stigmergy.agents.columns import (
    INPUT_BYTES_MAX,
    Formatted,
    Halt,
    OwnName,
    Stretch,
    Table,
    Text,
    read_actions,
    read_records,
)
from stigmergy.agents.messages import Message
from stigmergy.compiled.table import CompiledEngine, engine_of
from tests.agents.plain_table import PlainEngine


class Mood(enum.Enum):
    CALM = "calm"
    WILD = "wild"


class Measured(Event):
    level: Annotated[float, Meta(ge=0.0, le=1000.0)]
    mood: Mood = Mood.CALM


class Counted(Event):
    by: int
    code: Annotated[bytes, Meta(min_length=4, max_length=4)] = b"\0\0\0\0"


class Glimpsed(Event, keep=transient):
    level: float


class Poked(Event):
    how: int


class Moved(Event):
    by: int


class Noted(Event):
    by: int


class SetLimit(Command):
    limit: float


class LimitSet(Event):
    limit: float


class Alarm(Action):
    level: float
    mood: Mood
    text: str


class Beep(Action):
    count: int
    loud: bool


class Gauge(Agent):
    """Something of everything."""

    level: float = 0.0
    total: int = 0
    mood: Mood = Mood.CALM
    limit: float = 100.0
    code: Annotated[bytes, Meta(min_length=4, max_length=4)] = b"none"
    at: float = 0.0

    @evolve
    def measured(self, event: Measured) -> None:
        self.level = event.level
        self.mood = event.mood
        self.at = self.now

    @react
    def on_measured(self, event: Measured) -> Effects:
        if self.level > self.limit:
            yield Alarm(level=self.level, mood=self.mood, text=f"{self.id} at {self.level:.1f} in {self.address}")
        if self.level > 500.0:
            yield Tell(to="Board/main", message=Moved(by=self.total))

    @evolve
    def counted(self, event: Counted) -> None:
        self.total += event.by
        self.code = event.code

    @react
    def glimpsed(self, event: Glimpsed) -> Effects:
        if event.level > 0.0:
            yield Beep(count=int(event.level), loud=True)
        if event.level > 100.0:
            yield Publish(topic="glimpses", event=event)

    @decide
    def poked(self, event: Poked) -> Events:
        if event.how == 1:
            yield Moved(by=1)
            yield Moved(by=2)
        elif event.how > 1:
            yield Moved(by=event.how)
            yield Noted(by=event.how)

    @evolve
    def moved(self, event: Moved) -> None:
        self.total += event.by

    @react
    def on_moved(self, event: Moved) -> Effects:
        if event.by == 2:
            yield Beep(count=self.total, loud=False)
            yield WakeMe(name="check", after_s=10.0)

    @decide
    def set_limit(self, command: SetLimit) -> Events:
        if command.limit < 0.0:
            reject(f"{self.id}: a limit of {command.limit}")
        yield LimitSet(limit=command.limit)

    @evolve
    def limit_set(self, event: LimitSet) -> None:
        self.limit = event.limit


@cache
def engines() -> tuple[CompiledEngine, PlainEngine]:
    engine = engine_of(Gauge)
    engine.prepare(lambda _: None)
    text = Text([OwnName(), " at ", Formatted(0, "f8", ".1f"), " in ", OwnName(with_kind=True)])
    plain = PlainEngine(Gauge, actions=(Alarm, Beep), yielded=(Noted,), texts={(Alarm, "text"): text})
    return engine, plain


def told(table: Table, stretch: Stretch) -> dict[str, Any]:
    """What a step made, whatever the bytes of the table are."""
    return {
        "taken": stretch.taken,
        "kept": [(read.agent, read.body) for read in read_records(stretch.records, table.layout)],
        "count": stretch.count,
        "actions": [
            (read.agent, read.cause, read.tag, read.body)
            for read in read_actions(stretch.actions, table.templates, table.name)
        ],
        "others": stretch.others,
        "halt": stretch.halt,
        "error": None if stretch.halt is Halt.BAD_VALUE else repr(stretch.error),
    }


class Pair:
    """Both tables, asked the same."""

    def __init__(self, batched: list[str]) -> None:
        self.tables: list[Table] = [engine.table() for engine in engines()]
        self.batched = batched
        for table in self.tables:
            table.batch(batched)
        self.count = 0

    def enroll(self, count: int) -> None:
        for table in self.tables:
            table.enroll([f"G-{number}" for number in range(self.count, self.count + count)])
        self.count += count

    def step(self, messages: list[tuple[int, Message]], known: int, now_ns: int) -> None:
        if not self.count:
            return
        start = 0
        while start <= len(messages):
            said = []
            for table in self.tables:
                data = b"".join(table.record_of(number % (self.count + 1), message) for number, message in messages)
                stretch = table.step(data, start, min(known, self.count), 100 * INPUT_BYTES_MAX, now_ns)
                table.follow(stretch.records, now_ns)
                said.append(told(table, stretch))
            assert said[0] == said[1]
            start += said[0]["taken"] + 1

    def single(self, message: Message, now_ns: int, *, new: bool) -> None:
        if not new and not self.count:
            return
        said, enrolled = [], False
        for table in self.tables:
            name = f"G-{self.count}" if new else ""
            record = table.record_of(self.count if new else self.count - 1, message)
            stretch = table.step(record, 0, self.count, INPUT_BYTES_MAX, now_ns, newcomer=name)
            if new and (stretch.count or stretch.actions_count):
                table.enroll([name])
                enrolled = True
            if not new or enrolled:
                said.append(told(table, stretch))
                table.follow(stretch.records, now_ns)
            else:
                said.append({"others": stretch.others, "halt": stretch.halt, "error": repr(stretch.error)})
        assert said[0] == said[1]
        self.count += enrolled

    def reload(self, *, full: bool) -> None:
        """Both go on from what they wrote, the second time from an increment on top."""
        again: list[Table] = [engine.table() for engine in engines()]
        for old, new in zip(self.tables, again, strict=True):
            new.batch(self.batched)
            parts = list(old.begin_snapshot(full=True))
            if not full:
                old.enroll([f"G-{self.count}"])
                parts += list(old.begin_snapshot(full=False))
            for part in parts:
                new.load(part, new.layout)
            new.catch_up()
            assert new.digest() == old.digest()
        self.count += not full
        self.tables = again

    def check(self) -> None:
        first, second = self.tables
        assert len(first) == len(second) == self.count
        assert first.generation == second.generation
        assert first.check_of(first.generation) == second.check_of(second.generation)
        for number in range(self.count):
            for ahead in (False, True):
                assert first.agent(number, ahead=ahead) == second.agent(number, ahead=ahead)


NUMBERS = st.floats(-1.0, 1000.0)
EVENTS = st.one_of(
    st.builds(Measured, level=st.floats(0.0, 1000.0), mood=st.sampled_from(Mood)),
    st.builds(
        Counted, by=st.integers(-5, 5) | st.sampled_from([2**62, -(2**62)]), code=st.binary(min_size=4, max_size=4)
    ),
    st.builds(Glimpsed, level=NUMBERS),
    st.builds(Poked, how=st.integers(0, 4)),
    st.builds(Moved, by=st.integers(0, 3)),
    st.builds(Noted, by=st.integers(0, 3)),
    st.builds(LimitSet, limit=NUMBERS),
)
COMMANDS = st.builds(SetLimit, limit=NUMBERS)
CALLS = st.one_of(
    st.tuples(
        st.just("step"), st.lists(st.tuples(st.integers(0, 6), EVENTS | COMMANDS), max_size=12), st.integers(0, 8)
    ),
    st.tuples(st.just("single"), EVENTS | COMMANDS, st.booleans()),
    st.tuples(st.just("enroll"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("stop"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("reload"), st.just(0), st.booleans()),
)


@settings(max_examples=settings().max_examples // 3)
@given(st.lists(CALLS, max_size=12), st.sampled_from([[], ["Alarm@1"], ["Alarm@1", "Beep@1"]]))
def test_both_say_the_same(calls: list[tuple[str, Any, Any]], batched: list[str]) -> None:
    pair = Pair(batched)
    pair.enroll(2)
    for now_ns, (what, first, second) in enumerate(calls, start=1_700_000_000_000_000_000):
        match what:
            case "step":
                pair.step(first, second, now_ns)
            case "single":
                pair.single(first, now_ns, new=second)
            case "enroll":
                pair.enroll(first)
            case "stop":
                for table in pair.tables:
                    table.stop(first % pair.count, second)
            case _:
                pair.reload(full=second)
        pair.check()
