"""Tests tables: what steps and folds make of rows, kept records, actions and effects; rooms, halts and newcomers."""

import struct
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workload import BatteryMeasured, Descend, Drone, Land, OrderAcknowledged, Positioned
from stigmergy.agents.agent import Rejection
from stigmergy.agents.codec import encode
from stigmergy.agents.columns import (
    INPUT_BYTES_MAX,
    OTHER_BYTES,
    Column,
    Engine,
    Form,
    Halt,
    Layout,
    Stretch,
    Table,
    read_actions,
)
from stigmergy.agents.messages import Action, Event, Message, spec_of
from stigmergy.base.errors import Bug, FoldMismatch, JournalCorrupt, Malformed, TooLarge
from stigmergy.compiled.program import Making
from stigmergy.compiled.storage import RowCodec
from stigmergy.compiled.table import CompiledEngine, CompiledTable
from tests.compiled import meter
from tests.compiled.meter import Alarm, Answer, Counted, Meter, Mode, Pinged, Reset, WasReset

ROOM = 432 * 1024
HUGE = 2**63 - 1


def with_agents(engine: CompiledEngine, count: int, *batched: type[Action]) -> CompiledTable:
    table = engine.table()
    table.enroll([f"D-{number}" for number in range(count)])
    table.batch([spec_of(action).tag for action in batched])
    return table


def records_of(table: CompiledTable, messages: Iterable[tuple[int, Message]]) -> bytes:
    return b"".join(table.record_of(agent, message) for agent, message in messages)


def step(table: CompiledTable, records: bytes, room_bytes: int = ROOM, start: int = 0) -> Stretch:
    return table.step(records, start, len(table), room_bytes, 0)


def actions_of(table: CompiledTable, stretch: Stretch) -> list[tuple[int, int, bytes]]:
    return [
        (action.cause, action.agent, action.body)
        for action in read_actions(stretch.actions, table.templates, table.name)
    ]


def test_is_what_the_core_asks_for(drones: CompiledEngine) -> None:
    engine: Engine = drones
    table: Table = engine.table()
    assert table.layout is engine.layout
    assert table.layout_digest == engine.layout.digest()
    assert table.templates_digest == table.templates.digest()
    assert (len(table), table.generation, table.wait_ns, table.find("D-0")) == (0, 0, 0, -1)
    with pytest.raises(Bug, match="not prepared"):
        CompiledEngine(drones.program).table()


# ---- what steps make


def test_takes_a_batch_and_returns_it_as_it_came(drones: CompiledEngine) -> None:
    table = with_agents(drones, 3, Descend)
    records = records_of(
        table,
        [
            (2, Positioned(north_m=1.0, east_m=2.0, altitude_m=101.0)),
            (0, BatteryMeasured(percent=14.0)),
            (2, OrderAcknowledged(order=7)),
        ],
    )
    stretch = step(table, records)
    assert (stretch.taken, stretch.count, stretch.halt, stretch.error) == (3, 3, Halt.END, None)
    assert stretch.records is records
    assert actions_of(table, stretch) == [(0, 2, msgspec.msgpack.encode(Descend(altitude_m=100.0)))]
    assert stretch.others == [(1, 0, Land(reason="battery"))]
    there = Drone(id="D-2", north_m=1.0, east_m=2.0, altitude_m=101.0, order=7)
    assert table.agent(2, ahead=True) == there
    assert table.agent(2) == Drone(id="D-2")
    table.follow(records, 0)
    assert table.agent(2) == there
    assert table.agent(0) == Drone(id="D-0", battery_percent=14.0)


def test_takes_memory_of_others_and_parts_of_a_batch_too(drones: CompiledEngine) -> None:
    table = with_agents(drones, 1)
    records = records_of(table, [(0, OrderAcknowledged(order=number)) for number in range(4)])
    assert step(table, records, start=1).records == records[32:]
    for view in (memoryview(records), memoryview(bytearray(b"odd" + records))[3:]):
        stretch = table.step(view, 0, 1, ROOM, 0)
        assert (stretch.taken, stretch.records) == (4, records)
    nothing = step(table, records, start=4)
    assert nothing == step(table, b"") == Stretch(taken=0, records=b"", count=0)
    assert table.agent(0, ahead=True).order == 3


EVENTS = st.one_of(
    st.builds(Counted, amount=st.integers(-3, 3) | st.integers(-(2**62), 2**62)),
    st.builds(Pinged, mode=st.sampled_from(Mode)),
    st.builds(WasReset, to=st.integers(-5, 2000)),
)


class Model:
    """Meters as plain objects, their handlers called one by one."""

    def __init__(self, count: int) -> None:
        self.agents = [Meter(id=f"D-{number}") for number in range(count)]
        self.kept: list[tuple[int, Event]] = []
        self.effects: list[tuple[int, int, Action]] = []

    def take(self, number: int, event: Event) -> bool:
        agent = self.agents[number]
        cause = -1
        match event:
            case Counted(amount=0):
                return True
            case Counted():
                if not -(2**63) <= agent.total + event.amount < 2**63:
                    return False
                agent.counted(event)
                cause = len(self.kept)
                self.kept.append((number, event))
                made = list(agent.warn(event))
            case Pinged():
                made = list(agent.pinged(event))
            case WasReset():
                agent.was_reset(event)
                self.kept.append((number, event))
                made = []
            case _:
                raise AssertionError(event)
        self.effects += [(cause, number, effect) for effect in made if isinstance(effect, Action)]
        return True


@given(st.lists(st.tuples(st.integers(0, 4), EVENTS), max_size=60), st.integers(1, 4000), st.booleans())
def test_does_what_the_class_does(events: list[tuple[int, Event]], room_bytes: int, batched: bool) -> None:
    from tests.compiled.conftest import _engine

    table = with_agents(_engine("meter"), 5, *([Alarm] if batched else []))
    model = Model(5)
    data = records_of(table, events)
    start, faults, kept = 0, 0, b""
    effects: list[tuple[int, int, Action]] = []
    while start < len(events):
        base = len(kept) // 16
        stretch = step(table, data, room_bytes, start)
        assert stretch.taken or stretch.halt is Halt.FAULT
        for number, event in events[start : start + stretch.taken]:
            assert model.take(number, event)
        kept += stretch.records
        others = [(place, agent, effect) for place, agent, effect in stretch.others if isinstance(effect, Action)]
        decoded = [
            (cause, agent, msgspec.msgpack.decode(body, type=Alarm))
            for cause, agent, body in actions_of(table, stretch)
        ]
        assert len(decoded) == stretch.actions_count
        assert not batched or all(isinstance(effect, Answer) for _, _, effect in others)
        effects += [(place if place < 0 else place + base, agent, effect) for place, agent, effect in decoded + others]
        start += stretch.taken
        if stretch.halt is Halt.FAULT:
            assert isinstance(stretch.error, OverflowError)
            assert not model.take(*events[start])
            faults, start = faults + 1, start + 1
    assert kept == records_of(table, model.kept)
    assert sorted(effects, key=repr) == sorted(model.effects, key=repr)
    assert [table.agent(number, ahead=True) for number in range(5)] == model.agents
    table.follow(kept, 0)
    assert [table.agent(number) for number in range(5)] == model.agents
    again = with_agents(_engine("meter"), 5)
    again.fold(kept, table.layout, 0)
    assert again.digest() == table.digest()


def used_bytes(stretch: Stretch) -> int:
    """As the core counts it."""
    others = sum(len(encode(effect)) + OTHER_BYTES for _, _, effect in stretch.others)
    return len(stretch.records) + len(stretch.actions) + others


def test_what_it_makes_keeps_to_its_room(drones: CompiledEngine, meters: CompiledEngine) -> None:
    table = with_agents(drones, 10, Descend, Land)
    high = Positioned(north_m=0.0, east_m=0.0, altitude_m=200.0)
    loud = records_of(table, [(number % 10, high) for number in range(2000)])
    quiet = records_of(table, [(number % 10, OrderAcknowledged(order=1)) for number in range(2000)])
    for records, each in ((loud, 32 + 16), (quiet, 32)):
        for room_bytes in (5_000, 20_000, 33_333):
            stretch = step(table, records, room_bytes)
            assert stretch.halt is Halt.FULL
            assert used_bytes(stretch) == stretch.taken * each
            assert room_bytes - 48 - each < used_bytes(stretch) <= room_bytes
            assert [cause for cause, _, _ in actions_of(table, stretch)] == list(range(stretch.actions_count))
    meter_table = with_agents(meters, 1, Alarm, Answer)
    counted = records_of(meter_table, [(0, Counted(amount=2000))] * 500)
    stretch = step(meter_table, counted, 4096)
    assert stretch.halt is Halt.FULL
    assert 4096 - 100 < used_bytes(stretch) <= 4096


def test_effects_that_are_no_batched_actions_keep_to_it_too(drones: CompiledEngine) -> None:
    table = with_agents(drones, 10, Descend)
    batch: list[tuple[int, Event]] = [(number % 10, OrderAcknowledged(order=1)) for number in range(3000)]
    batch[::3] = [(number, BatteryMeasured(percent=1.0)) for number, _ in batch[::3]]
    records = records_of(table, batch)
    for room_bytes in (INPUT_BYTES_MAX, INPUT_BYTES_MAX + 9_999, 3 * INPUT_BYTES_MAX):
        stretch = step(table, records, room_bytes)
        assert stretch.halt is Halt.FULL
        assert room_bytes - INPUT_BYTES_MAX - 500 < used_bytes(stretch) <= room_bytes
        expected = [(place, place % 10, Land(reason="battery")) for place in range(0, stretch.taken, 3)]
        assert stretch.others == expected
    whole = step(table, records, 100 * INPUT_BYTES_MAX)
    assert (whole.taken, whole.halt, len(whole.others)) == (3000, Halt.END, 1000)


@pytest.mark.parametrize("room_bytes", [-5, 0, 1, 40])
def test_a_record_alone_always_finds_room(drones: CompiledEngine, room_bytes: int) -> None:
    record_and_more = [(0, BatteryMeasured(percent=1.0)), (0, OrderAcknowledged(order=2))]
    none: tuple[type[Action], ...] = ()
    for batched in (none, (Descend, Land)):
        table = with_agents(drones, 1, *batched)
        records = records_of(table, record_and_more)
        stretch = step(table, records, room_bytes)
        assert (stretch.taken, stretch.halt) == (1, Halt.FULL)
        assert len(stretch.others) + stretch.actions_count == 1
        assert step(table, records, room_bytes, start=1).halt is Halt.END


def picky_table(drones: CompiledEngine, agents: list[str], refused: int, action_max: int = 1) -> CompiledTable:
    """Its effects can be made, but for those of one agent, and say the names of the others."""

    def make(slots: bytes, agent: int, name_of: Callable[[int], str]) -> Land:
        if agent == refused:
            raise ValueError("not that one")
        return Land(reason=name_of(agent))

    made = Making(Land, make)
    program = msgspec.structs.replace(drones.program, makings=[made, made], action_max=action_max)
    assert drones.built is not None
    table = CompiledTable(program, drones.built, RowCodec(program))
    table.enroll(agents)
    return table


@pytest.mark.parametrize("refused", [0, 1, 70, 299])
def test_an_effect_that_cannot_be_made_is_a_fault_of_its_record(drones: CompiledEngine, refused: int) -> None:
    """Nothing of that record remains, everything of those before it does."""
    table = picky_table(drones, [f"D-{number}" for number in range(300)], refused)
    events: list[tuple[int, Event]] = []
    for number in range(300):
        events.append((number, Positioned(north_m=1.0, east_m=1.0, altitude_m=1.0)))
        events.append((number, BatteryMeasured(percent=number / 100)))
        events.append((0, OrderAcknowledged(order=number)))
    records = records_of(table, events)
    stretch = step(table, records)
    taken = 3 * refused + 1
    assert (stretch.taken, stretch.halt, str(stretch.error)) == (taken, Halt.FAULT, "not that one")
    assert stretch.records == records[: taken * 32]
    assert stretch.others == [(3 * n + 1, n, Land(reason=f"D-{n}")) for n in range(refused)]
    model = with_agents(drones, 300)
    model.fold(stretch.records, model.layout, 0)
    assert table.digest() == model.digest()
    assert step(table, records, start=taken + 1).halt is Halt.END


def test_effects_of_several_records_may_be_large_together(drones: CompiledEngine) -> None:
    """Each of them is fine, all of them are too much for one call of the compiled code."""
    names = [str(number) * (INPUT_BYTES_MAX // 3) for number in range(4)]
    table = picky_table(drones, names, 3)
    low = records_of(table, [(number % 3, BatteryMeasured(percent=1.0)) for number in range(30)])
    stretch = step(table, low, 9 * INPUT_BYTES_MAX)
    assert stretch.halt is Halt.FULL
    assert stretch.taken == 24
    assert 8 * INPUT_BYTES_MAX < used_bytes(stretch) <= 9 * INPUT_BYTES_MAX
    assert [(place, agent) for place, agent, _ in stretch.others] == [(number, number % 3) for number in range(24)]
    for last, halt, error in (
        (table.record_of(3, BatteryMeasured(percent=1.0)), Halt.FAULT, ValueError),
        (low[:31] + b"\x01", Halt.BAD_VALUE, Malformed),
    ):
        stretch = step(table, low[: 5 * 32] + last + low, 9 * INPUT_BYTES_MAX)
        assert (stretch.taken, stretch.halt, type(stretch.error)) == (5, halt, error)


def test_effects_that_are_too_large_are_a_fault(drones: CompiledEngine) -> None:
    for room_bytes in (INPUT_BYTES_MAX, 20 * INPUT_BYTES_MAX):
        table = picky_table(drones, ["x" * INPUT_BYTES_MAX, "y"], 3)
        low = BatteryMeasured(percent=1.0)
        stretch = step(table, records_of(table, [(1, low), (1, low), (0, low), (1, low)]), room_bytes)
        if room_bytes == INPUT_BYTES_MAX:
            assert (stretch.taken, stretch.halt) == (1, Halt.FULL)
            continue
        assert (stretch.taken, stretch.halt, len(stretch.others)) == (2, Halt.FAULT, 2)
        assert isinstance(stretch.error, TooLarge)
        assert table.agent(0, ahead=True).battery_percent == 100.0


# ---- what halts a stretch


def test_halts_at_what_cannot_be_taken_and_goes_on_behind_it(drones: CompiledEngine) -> None:
    table = with_agents(drones, 3)
    good = table.record_of(0, OrderAcknowledged(order=1))
    table.stop(2, True)
    bad = {
        Halt.UNKNOWN_AGENT: table.record_of(3, OrderAcknowledged(order=1)),
        Halt.UNKNOWN_FORM: good[:4] + b"\x03" + good[5:],
        Halt.STOPPED: table.record_of(2, OrderAcknowledged(order=1)),
        Halt.BAD_VALUE: good[:-1] + b"\x01",
    }
    digest = table.digest()
    for halt, record in bad.items():
        assert step(table, record).halt is halt
        assert table.digest() == digest
        stretch = step(table, good + record + good)
        assert (stretch.taken, stretch.records, stretch.halt) == (1, good, halt)
        assert (stretch.error is not None) == (halt is Halt.BAD_VALUE)
        assert step(table, good + record + good, start=2).halt is Halt.END
        digest = table.digest()
    assert isinstance(step(table, bad[Halt.BAD_VALUE]).error, Malformed)
    table.stop(2, False)
    assert step(table, bad[Halt.STOPPED]).halt is Halt.END
    # Who sent the batch knew of two agents only.
    assert table.step(bad[Halt.STOPPED], 0, 2, ROOM, 0).halt is Halt.UNKNOWN_AGENT


def test_a_fault_leaves_the_agent_as_it_was(meters: CompiledEngine) -> None:
    table = with_agents(meters, 2)
    much = table.record_of(1, Counted(amount=HUGE))
    assert step(table, much).halt is Halt.END
    before = table.digest()
    stretch = step(table, much)
    assert (stretch.taken, stretch.count, stretch.halt) == (0, 0, Halt.FAULT)
    assert repr(stretch.error) == "OverflowError('D-1 has counted too much')"
    assert table.digest() == before


def test_commands_are_taken_alone(meters: CompiledEngine) -> None:
    table = with_agents(meters, 2)
    reset = table.record_of(1, Reset(to=5))
    assert step(table, reset * 2).halt is Halt.UNKNOWN_FORM
    stretch = step(table, reset)
    assert (stretch.taken, stretch.count, stretch.halt) == (1, 2, Halt.END)
    assert stretch.records == table.record_of(1, WasReset(to=5)) * 2
    refused = step(table, table.record_of(1, Reset(to=-5)))
    assert (refused.taken, refused.halt) == (0, Halt.REFUSED)
    assert isinstance(refused.error, Rejection)
    assert refused.error.reason == "D-1 cannot begin at -5"
    assert table.agent(1, ahead=True) == Meter(id="D-1", total=5, mode=Mode.SEEN)


def test_refuses_what_only_a_bug_asks_for(drones: CompiledEngine) -> None:
    table = with_agents(drones, 1)
    record = table.record_of(0, OrderAcknowledged(order=1))
    for arguments in ((record[:-1], 0, 1), (record, 2, 1), (record, -1, 1), (record, 0, 2), (record, 0, -1)):
        with pytest.raises(Bug):
            table.step(*arguments, ROOM, 0)
    for number in (-1, 1):
        with pytest.raises(Bug):
            table.agent(number)
        with pytest.raises(Bug):
            table.stop(number, True)
    with pytest.raises(Bug, match="enrolled already"):
        table.enroll(["D-0"])
    assert len(table) == 1


# ---- newcomers


def test_a_newcomers_row_is_kept_if_it_is_enrolled(meters: CompiledEngine) -> None:
    table = with_agents(meters, 1)
    record = table.record_of(1, Counted(amount=3))
    assert step(table, record).halt is Halt.UNKNOWN_AGENT
    stretch = table.step(record, 0, 1, ROOM, 0, newcomer="new")
    assert (stretch.taken, stretch.records) == (1, record)
    table.enroll(["new"])
    assert table.agent(1, ahead=True) == Meter(id="new", total=3, level=3.0)
    assert table.agent(1) == Meter(id="new")
    table.follow(stretch.records, 0)
    assert table.agent(1) == table.agent(1, ahead=True)


def test_a_newcomers_row_is_forgotten_if_it_is_not(meters: CompiledEngine) -> None:
    table = with_agents(meters, 1)
    table.step(table.record_of(1, Counted(amount=3)), 0, 1, ROOM, 0, newcomer="N-0")
    refused = table.step(table.record_of(1, Reset(to=-1)), 0, 1, ROOM, 0, newcomer="N-1")
    assert isinstance(refused.error, Rejection)
    assert refused.error.reason == "N-1 cannot begin at -1"
    table.enroll(["other", "another"])
    assert [table.agent(number, ahead=True) for number in (1, 2)] == [Meter(id="other"), Meter(id="another")]
    answered = table.step(table.record_of(3, Pinged(mode=Mode.SEEN)), 0, 3, ROOM, 0, newcomer="N-2")
    assert answered.others == [(-1, 3, Answer(text="N-2: 00000"))]
    with pytest.raises(Bug, match="a newcomer behind 1 agents"):
        table.step(table.record_of(1, Counted(amount=3)), 0, 1, ROOM, 0, newcomer="N-3")


# ---- records of messages


def test_a_message_that_has_no_place_in_a_record_is_refused(meters: CompiledEngine) -> None:
    table = with_agents(meters, 1)
    assert table.record_of(0, Pinged(mode=Mode.SEEN)) == struct.pack("<IHHHxxxxxx", 0, 1, 0, 1)
    for message in (Land(reason="x"), Counted(amount=2**63), Counted(amount="3"), Pinged(mode="x")):  # type: ignore[arg-type]
        with pytest.raises(Malformed):
            table.record_of(0, message)


# ---- growth


def test_grows_with_its_agents(drones: CompiledEngine) -> None:
    table = drones.table()
    model: list[int] = []
    stopped: list[int] = []
    for count in (2, 254, 1, 767, 1, 3000, 20_000):
        table.enroll([f"D-{number}" for number in range(len(model), len(model) + count)])
        model += [0] * count
        stopped.append(len(model) - 1)
        table.stop(stopped[-1], True)
        some = [number for number in (0, len(model) // 2, len(model) - 2) if number not in stopped]
        events = {number: number + count for number in some}
        data = records_of(table, [(number, OrderAcknowledged(order=order)) for number, order in events.items()])
        assert step(table, data).halt is Halt.END
        model = [events.get(number, order) for number, order in enumerate(model)]
    assert [table.agent(number, ahead=True).order for number in range(len(table))] == model
    for number in stopped:
        assert step(table, table.record_of(number, OrderAcknowledged(order=0))).halt is Halt.STOPPED


def test_grows_also_while_somebody_holds_on_to_its_rows(meters: CompiledEngine) -> None:
    """As whoever keeps an exception with all that its frames point to."""
    table = with_agents(meters, 1000)
    step(table, table.record_of(7, Counted(amount=5)))
    held = table._holding.ahead.data[:24]
    table.enroll([f"E-{number}" for number in range(5000)])
    assert table.agent(7, ahead=True).total == 5
    assert step(table, table.record_of(5999, Counted(amount=6))).taken == 1
    assert table.agent(5999, ahead=True).total == 6
    assert held.tobytes() == meters.program.first_row


# ---- folding what other versions wrote


def test_folds_records_of_a_layout_that_had_fewer_forms(meters: CompiledEngine) -> None:
    table = with_agents(meters, 1)
    older = msgspec.structs.replace(table.layout, forms=table.layout.forms[:1])
    table.fold(table.record_of(0, Counted(amount=5)), older, 0)
    assert table.agent(0, ahead=True).total == 5


def test_folds_records_of_another_layout_through_messages(meters: CompiledEngine) -> None:
    table = with_agents(meters, 2)
    forms = [
        Form("Gone@1", []),
        Form(spec_of(WasReset).tag, [Column("to", "i4", 12)]),
        Form(spec_of(Counted).tag, [Column("amount", "i2", 8)]),
    ]
    older = Layout(1, "Meter", 24, forms, 8, [])
    records = [
        struct.pack("<IHHqq", 0, 0, 0, 0, 0),
        struct.pack("<IHHIiq", 1, 1, 0, 0, 70_000, 0),
        struct.pack("<IHHhhiq", 1, 2, 0, -7, 0, 0, 0),
    ]
    table.fold(b"".join(records), older, 0)
    assert table.agent(1, ahead=True) == Meter(id="D-1", total=69_993, mode=Mode.SEEN, level=69_993.0)
    assert table.agent(0, ahead=True) == Meter(id="D-0")
    text = msgspec.structs.replace(older, forms=[Form(spec_of(Counted).tag, [Column("amount", "S8", 8)])])
    with pytest.raises(FoldMismatch, match="write an upcaster"):
        table.fold(struct.pack("<IHHqq", 1, 0, 0, 0, 0), text, 0)


def test_says_what_cannot_be_folded(meters: CompiledEngine) -> None:
    table = with_agents(meters, 1)
    table.fold(b"", table.layout, 0)
    much = table.record_of(0, Counted(amount=HUGE))
    with pytest.raises(FoldMismatch, match=r"event 1 of a run \(D-0 has counted too much\)"):
        table.fold(much * 2, table.layout, 0)
    unknown = table.record_of(1, Counted(amount=1))
    with pytest.raises(FoldMismatch, match="not enrolled"):
        table.fold(unknown, table.layout, 0)
    with pytest.raises(FoldMismatch, match="not enrolled"):
        table.follow(unknown, 0)
    for records in (much[:-1], much[:4] + b"\x09" + much[5:]):
        with pytest.raises(JournalCorrupt):
            table.fold(records, table.layout, 0)
        with pytest.raises(JournalCorrupt):
            table.follow(records, 0)


def test_catches_up_after_a_replay(meters: CompiledEngine) -> None:
    table = with_agents(meters, 2)
    table.fold(table.record_of(1, Counted(amount=5)), meter.LAYOUT, 0)
    assert table.agent(1).total == 0
    table.catch_up()
    assert table.agent(1).total == 5
