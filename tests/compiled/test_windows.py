"""Windows of compiled agents: the same entries and answers as interpreted, kept in rows, never by halves."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from proofs.engines_both import NAMES, Compiled, Input, compare, machine_code, outcomes_of, plain_python
from stigmergy import Agent, Command, Event
from stigmergy.agents.codec import canonical_bytes, encode
from stigmergy.agents.columns import Halt
from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.windows import Window, window_of
from stigmergy.base.errors import DefinitionError, FoldMismatch, JournalCorrupt
from stigmergy.compiled.program import Program
from stigmergy.compiled.reader import read_agent
from stigmergy.compiled.storage import Columns, RowCodec, RowsPart, read_part
from stigmergy.compiled.table import CompiledTable
from tests.compiled.running import module_of, run
from tests.compiled.window_agents import Calibrate, Gauge, Heard, Sampled, Sensor, Weather

NOW_NS = 1_000 * SECOND_NS
ROOM = 1 << 20


def random_inputs(seed: int, count: int) -> list[Input]:
    """Inputs with times that go back and forth, are too old, too far ahead, or none at all."""
    random, now_ns = Random(seed), NOW_NS
    made: list[Input] = []
    for _ in range(count):
        now_ns += random.choice((0, 0, 1, SECOND_NS // 10, SECOND_NS, 2 * SECOND_NS, 7 * SECOND_NS))
        made.append((random.choice(NAMES), _random_message(random, now_ns / SECOND_NS), now_ns))
    return made


def _random_message(random: Random, now: float) -> Command | Event:
    if random.random() < 0.1:
        return Calibrate(steps=random.randrange(6), ppm=random.choice((1.0, math.nan, -1e308)))
    if random.random() < 0.2:
        second = random.choice((int(now), int(now) - random.randrange(90), int(now) + 200, int(now) + 500))
        return Heard(second=random.choice((second, second, second, -1, 0, 4_611_686_018, 4_611_686_019, 2**63 - 1)))
    strange = (0.0, -0.5e-9, -1e-9, -1.0, math.nan, math.inf, -math.inf, 1e12, 4_611_686_018.4, 5e9)
    usual = (now, now - 1, now - 8 * random.random(), now + 15 * random.random(), now + 5 * random.random())
    return Sampled(
        ppm=random.choice((1.5, -2.25, 1e308, math.nan, math.inf, -0.0, 0.0, random.random())),
        count=random.choice((0, 1, -5, 2**62, 2**62 - 1, -(2**63), 7)),
        level=random.choice((0, 1, 77, 255)),
        on=random.random() < 0.4,
        weather=random.choice(list(Weather)),
        tag=random.randbytes(12),
        at_s=random.choice(strange) if random.random() < 0.1 else random.choice(usual),
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(1, 4))])
def test_both_engines_have_the_same_windows(seed: int) -> None:
    tried = compare(Sensor, random_inputs(seed, 250), plain_python)
    assert tried.events > 150
    assert tried.effects > 20
    assert {"ValueError", "OverflowError"} <= tried.faults.keys()


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_both_engines_have_the_same_windows_as_machine_code() -> None:
    inputs = [one for one in random_inputs(99, 1_500) if isinstance(one[1], Sampled)]
    tried = compare(Gauge, inputs, machine_code)
    assert tried.inputs > 1_000
    assert {"ValueError", "OverflowError"} <= tried.faults.keys()


def both(*inputs: Command | Event, at: Sequence[int] = ()) -> list[Any]:
    """The agent after each of these inputs, in both engines, a second after each other or at these seconds."""
    seconds = at or range(len(inputs))
    told = [("one", one, NOW_NS + second * SECOND_NS) for one, second in zip(inputs, seconds, strict=True)]
    return [Carried(outcome) for outcome in outcomes_of(Sensor, told, plain_python)]


class Carried:
    """An outcome with its agent as an object."""

    def __init__(self, outcome: Any) -> None:
        self.failed = outcome.failed
        self.agent: Sensor = _restore(outcome.state)


def _restore(state: bytes) -> Sensor:
    return msgspec.msgpack.decode(state, type=Sensor)


def test_the_last_so_many_and_those_of_the_last_seconds() -> None:
    *_, last = both(*(Sampled(ppm=float(n), at_s=1000.0 + n) for n in range(8)), at=(0, 1, 2, 3, 4, 5, 6, 20))
    assert [one.ppm for one in last.agent.recent.values] == [5.0, 6.0, 7.0]
    assert [one.ppm for one in last.agent.near.values] == [7.0]
    assert [one.ppm for one in last.agent.timed.values] == [4.0, 5.0, 6.0, 7.0]
    assert (last.agent.near.dropped, last.agent.timed.dropped) == (3, 4)
    assert last.agent.mean == 6.0 + 5.5


def test_times_of_events_go_back_and_forth() -> None:
    told = [Sampled(ppm=at, at_s=at) for at in (1000.0, 998.0, 1003.5, 999.0, 1002.0, 1200.0, 900.0)]
    states = both(*told, at=(0,) * len(told))
    assert [[one.ppm for one in state.agent.timed.values] for state in states] == [
        [1000.0],
        [1000.0, 998.0],
        [1000.0, 1003.5],
        [1000.0, 1003.5, 999.0],
        [1000.0, 1003.5, 999.0, 1002.0],
        [1000.0, 1003.5, 999.0, 1002.0],
        [1000.0, 1003.5, 999.0, 1002.0],
    ]
    assert states[-1].agent.timed.ahead == 1


@pytest.mark.parametrize(
    ("at_s", "says"),
    [
        (math.nan, "ValueError: cannot convert float NaN to integer"),
        (math.inf, "OverflowError: cannot convert float infinity to integer"),
        (-1.5, "ValueError: Sampled.at_s is -1.5: no seconds since 1970"),
        (4e18, "ValueError: Sampled.at_s is 4e+18: no seconds since 1970"),
    ],
)
def test_an_event_without_a_time_fails_and_leaves_no_trace(at_s: float, says: str) -> None:
    before, failed, after = both(Sampled(1.0, at_s=999.0), Sampled(2.0, at_s=at_s), Sampled(3.0, at_s=999.0))
    assert failed.failed.startswith(says)
    assert failed.agent == before.agent
    assert [one.ppm for one in after.agent.recent.values] == [1.0, 3.0]


def test_a_whole_second_that_is_none() -> None:
    (failed,) = both(Heard(second=4_611_686_019))
    assert failed.failed.startswith("ValueError: Heard.second is 4611686019: no seconds since 1970")


def test_what_fails_later_leaves_no_trace_either() -> None:
    large = Sampled(1.0, count=2**62, level=77, at_s=999.0)
    before, failed = both(Sampled(1.0, count=2**62, at_s=999.0), large)
    assert failed.failed.startswith("OverflowError: an int outside of -2^63 to 2^63 - 1")
    assert failed.agent == before.agent


# ---- asking empty ones


def test_an_empty_window_that_is_asked_is_a_fault(tmp_path: Path) -> None:
    written = module_of(
        tmp_path,
        """
class Told(Event):
    x: float
class Kept(Event):
    x: float
class Asks(Agent):
    recent: Window[Kept] = Window.last(3)
    x: float = 0.0
    @evolve
    def told(self, event: Told) -> None:
        self.x = self.recent.newest("x")
""",
    )
    ran = run(read_agent(written.Asks), written.Told(x=1.0))
    assert (ran.halt, ran.line > 0) == (Halt.FAULT, True)
    with pytest.raises(ValueError, match=r"newest\('x'\) of an empty window") as raised:
        Window.last(3).newest("x")
    assert str(ran.error) == str(raised.value)
    tried = compare(
        written.Asks, [("one", written.Told(x=1.0), NOW_NS), ("one", written.Kept(2.0), NOW_NS)] * 2, plain_python
    )
    assert tried.faults == {"ValueError": 1}


# ---- what does not compile


REFUSED = [
    ("self.x = self.recent.median('x')", "not asked for that", "mean"),
    ("self.x = self.recent.mean('y')", "Told has no such field", "name one of them"),
    ("self.x = self.recent.mean(event.x)", "Told has no such field", "name one of them"),
    ("self.x = self.recent.mean('x', closed=True)", "other arguments", "mean"),
    ("self.x = self.recent.mean('x', 0.0, 1.0)", "other arguments", "mean"),
    ("self.x = self.recent.mean()", "other arguments", "mean"),
    ("self.x = self.recent.mean('x', field='x')", "other arguments", "mean"),
    ("self.x = self.recent.mean('x', 0)", "int, and else it is float", "0.0"),
    ("self.x = self.recent.mean('x', self.y)", "no such field or constant", "declare"),
    ("self.x = self.recent.mean('on')", "the mean of bool", "oldest and newest"),
    ("self.x = self.recent", "a window itself is no number", "len(self.w)"),
    ("self.x = self.recent.span", "a window itself is no number", "len(self.w)"),
    ("if self.recent:\n            self.x = 1.0", "a window itself is no number", "len(self.w)"),
    ("self.recent = self.recent", "filled by the framework", "take it out"),
    ("for event in self.recent.values:\n            self.x = 1.0", "a name of their own", "for one in"),
    ("for one in self.recent.closed_values:\n            self.x = 1.0", "a name of their own", "for one in"),
    ("for one in self.recent:\n            self.x = 1.0", "no range of constants", "range(8)"),
    ("for one in self.long.values:\n            self.x = 1.0", "up to 300 entries", "at most 256"),
    ("for one in self.recent.values:\n            self.x = one", "has no value yet", "first"),
    ("for one in self.recent.values:\n            self.x = one.y", "Told has no field y", "one of its fields"),
    ("self.x = float(len(self.x))", "nothing here has a length", "constant"),
]


@pytest.mark.parametrize(("line", "reason", "remedy"), REFUSED, ids=[case[0][:50] for case in REFUSED])
def test_it_is_refused(tmp_path: Path, line: str, reason: str, remedy: str) -> None:
    written = module_of(
        tmp_path,
        f"""
class Told(Event):
    x: float
    on: bool = False
class Holder(Agent):
    recent: Window[Told] = Window.last(3)
    long: Window[Told] = Window.last(300)
    x: float = 0.0
    @evolve
    def told(self, event: Told) -> None:
        {line}
""",
    )
    with pytest.raises(DefinitionError) as raised:
        read_agent(written.Holder)
    assert reason in str(raised.value)
    assert remedy in str(raised.value)


def test_a_field_without_a_fixed_width_is_found_once(tmp_path: Path) -> None:
    written = module_of(
        tmp_path,
        """
class Told(Event):
    at: str
class Holder(Agent):
    recent: Window[Told] = Window.sliding(seconds=3, by="at", count_max=3)
    count: int = 0
    @evolve
    def told(self, event: Told) -> None:
        self.count = self.recent.newest("at")
""",
    )
    with pytest.raises(DefinitionError) as raised:
        read_agent(written.Holder)
    assert len(str(raised.value).splitlines()) == 1
    assert "Told.at: a text has no fixed width" in str(raised.value)


# ---- rows, snapshots, other versions


def table_of(cls: type[Agent] = Sensor) -> CompiledTable:
    program = read_agent(cls)
    return CompiledTable(program, plain_python(program), RowCodec(program))


def fill(table: CompiledTable, inputs: Sequence[Input]) -> None:
    for name, message, now_ns in inputs:
        table.step(table.record_of(table.find(name), message), 0, len(table), ROOM, now_ns)


def test_a_snapshot_has_the_windows_and_goes_on_from_them() -> None:
    inputs = random_inputs(5, 300)
    table, other = table_of(), table_of()
    table.enroll(NAMES)
    fill(table, inputs[:150])
    for part in table.begin_snapshot(full=True):
        other.load(part, other.layout)
    assert other.digest() == table.digest()
    rows = [one._holding.ahead.one(0) for one in (table, other)]
    assert rows[0] != rows[1], "a ring in a snapshot begins in its first slot"
    fill(table, inputs[150:])
    fill(other, inputs[150:])
    assert other.digest() == table.digest()
    for number in range(len(NAMES)):
        assert canonical_bytes(other.agent(number, ahead=True)) == canonical_bytes(table.agent(number, ahead=True))


def test_equal_windows_have_equal_digests_whatever_lies_between_their_entries() -> None:
    table, other = table_of(), table_of()
    for one in (table, other):
        one.enroll(NAMES)
        fill(one, random_inputs(3, 80))
    for _ in range(3):
        fill(other, [("one", Sampled(1.0, at_s=-1.0), 2 * NOW_NS)])
    assert other._holding.ahead.one(0) != table._holding.ahead.one(0)
    assert other.digest() == table.digest()


def damaged(program: Program, what: str) -> bytes:
    """The first row, with something in it that cannot be."""
    row = bytearray(program.first_row)
    column = next(one for one in program.layout.columns if one.name == "recent")
    match what:
        case "count":
            struct.pack_into("<I", row, column.offset, 4)
        case "first":
            struct.pack_into("<I", row, column.offset + 4, 1000)
        case "weather":
            weather = next(one for one in window_of(column).columns if one.name == "weather")
            struct.pack_into("<H", row, column.offset + 32 + weather.offset, 2)
        case "on":
            on = next(one for one in window_of(column).columns if one.name == "on")
            row[column.offset + 32 + on.offset] = 2
        case _:
            raise AssertionError(what)
    return bytes(row)


@pytest.mark.parametrize("what", ["count", "first", "weather", "on"])
def test_rows_with_windows_that_cannot_be_are_refused(what: str) -> None:
    program = read_agent(Sensor)
    columns = Columns(program.layout)
    good = np.frombuffer(program.first_row * 3, np.uint8)
    columns.check(good)
    bad = np.frombuffer(program.first_row + damaged(program, what) + program.first_row, np.uint8)
    with pytest.raises(JournalCorrupt, match="entries"):
        columns.check(bad)


VERSION = """
class Told(Event):
    x: float
class Watch(Agent{version}):
    recent: Window[Told] = Window.last({count})
    x: float = 0.0
    @evolve
    def told(self, event: Told) -> None:
        self.x = self.recent.total("x")
{upcast}
"""
UPCAST = """
    @classmethod
    def upcast_state(cls, version: int, state: dict) -> Watch:
        made = cls(id=state["id"], x=state["x"])
        for at, told in state["recent"]["entries"]:
            made.recent = made.recent.add(at, Told(x=told["x"]))
        return {made}
"""


def versions(folder: Path, made: str) -> tuple[CompiledTable, list[bytes], CompiledTable]:
    old = module_of(folder, VERSION.format(version="", count=3, upcast=""))
    new = module_of(folder, VERSION.format(version=", version=2", count=5, upcast=UPCAST.format(made=made)))
    table, other = table_of(old.Watch), table_of(new.Watch)
    table.enroll(["one"])
    fill(table, [("one", old.Told(x=float(x)), NOW_NS + x) for x in range(5)])
    return table, list(table.begin_snapshot(full=True)), other


def test_a_window_is_carried_over_to_another_version(tmp_path: Path) -> None:
    table, parts, other = versions(tmp_path, "made")
    for part in parts:
        other.load(part, table.layout)
    carried = other.agent(0, ahead=True)
    assert [one.x for one in carried.recent.values] == [2.0, 3.0, 4.0]
    assert (carried.recent.span, carried.recent.seen_ns, carried.x) == (5, NOW_NS + 4, 9.0)


def test_a_window_that_is_not_the_one_of_the_class_is_not(tmp_path: Path) -> None:
    table, parts, other = versions(tmp_path, "cls(id='one', recent=Window.last(3))")
    *names, rows = parts
    for part in names:
        other.load(part, table.layout)
    with pytest.raises(FoldMismatch, match=r"recent: not the window that the class declares"):
        other.load(rows, table.layout)


def test_the_layout_tells_where_windows_lie() -> None:
    table = table_of()
    table.enroll(NAMES)
    (rows,) = (part for part in map(read_part, table.begin_snapshot(full=True)) if isinstance(part, RowsPart))
    assert sum(count for _, count in rows.runs) == len(NAMES)
    assert [column.name for column in table.layout.columns if column.code.startswith("W")] == [
        *("recent", "near", "timed"),
        *("heard", "one"),
    ]
    assert len(encode(table.layout)) < 4096


def test_a_fault_in_a_fold_says_which(tmp_path: Path) -> None:
    program = read_agent(Sensor)
    compiled = Compiled(program, plain_python(program), None)  # type: ignore[arg-type]
    record = compiled.table.record_of(0, Sampled(1.0, at_s=-2.0))
    with pytest.raises(FoldMismatch, match=r"Sampled.at_s is -2.0: no seconds since 1970"):
        compiled.table.fold(record, program.layout, NOW_NS)
