"""Tests snapshots of tables: full and incremental ones, damaged parts, other versions of a class, the one NaN."""

import math
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workload import BatteryMeasured, OrderAcknowledged
from stigmergy.agents.codec import encode
from stigmergy.agents.columns import Column, Layout
from stigmergy.base.errors import FoldMismatch, JournalCorrupt
from stigmergy.compiled import storage as holding
from stigmergy.compiled import storage as parts
from stigmergy.compiled.storage import NamesPart, RowsPart, read_part
from stigmergy.compiled.table import CompiledEngine, CompiledTable
from tests.compiled.conftest import _engine
from tests.compiled.meter import Meter, WasReset

ROOM = 1 << 20
FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "formats" / "table-1.txt"


def loaded(engine: CompiledEngine, *snapshots: list[bytes]) -> CompiledTable:
    table = engine.table()
    for snapshot in snapshots:
        for part in snapshot:
            table.load(part, table.layout)
    return table


def order(table: CompiledTable, number: int, value: int) -> None:
    record = table.record_of(number, OrderAcknowledged(order=value))
    assert table.step(record, 0, len(table), ROOM, 0).taken == 1


def check_same(table: CompiledTable, other: CompiledTable) -> None:
    assert other.digest() == table.digest()
    assert (len(other), other.generation) == (len(table), table.generation)
    assert other.check_of(other.generation) == table.check_of(table.generation)
    for number in range(0, len(table), 97):
        assert other.agent(number, ahead=True) == table.agent(number, ahead=True)
        assert other.find(table.name(number)) == number


def many(engine: CompiledEngine, count: int, seed: int = 1) -> CompiledTable:
    """A table with much in it, by way of records."""
    from bench.records import records

    table = engine.table()
    table.enroll([f"D-{number}" for number in range(count)])
    table.fold(records(seed, count * 3, drones=count).tobytes(), table.layout, 0)
    return table


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "ROWS_BYTES", 40 * 100)
    monkeypatch.setattr(holding, "NAMES_BYTES", 300)


def test_a_full_one_has_everything(drones: CompiledEngine, small_parts: None) -> None:
    table = many(drones, 1000)
    table.enroll(["late"])
    snapshot = list(table.begin_snapshot(full=True))
    assert len(snapshot) > 20
    again = loaded(drones, snapshot)
    check_same(table, again)
    assert again.agent(7).order == 0
    again.catch_up()
    assert again.agent(7) == table.agent(7, ahead=True)


def test_of_nothing_there_is_nothing(drones: CompiledEngine) -> None:
    table = drones.table()
    assert list(table.begin_snapshot(full=True)) == list(table.begin_snapshot(full=False)) == []
    table.enroll([])
    (part,) = table.begin_snapshot(full=False)
    again = loaded(drones, [part])
    check_same(table, again)
    assert again.generation == 1


def test_it_fixes_the_rows_as_they_are(drones: CompiledEngine) -> None:
    table = many(drones, 2000)
    digest = table.digest()
    taking = table.begin_snapshot(full=True)
    order(table, 3, 77)
    table.enroll(["late"])
    snapshot = list(taking)
    assert loaded(drones, snapshot).digest() == digest
    again = loaded(drones, snapshot, list(table.begin_snapshot(full=False)))
    check_same(table, again)


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("order"), st.integers(0, 2000), st.integers(0, 2**40)),
        st.tuples(st.just("enroll"), st.integers(0, 700), st.just(0)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@given(CHANGES, st.integers(0, 1500))
def test_full_and_incremental_ones_make_the_table(changes: list[tuple[str, int, int]], count: int) -> None:
    engine = _engine("drone")
    table = many(engine, count) if count else engine.table()
    snapshots = [list(table.begin_snapshot(full=True))]
    for what, number, value in [*changes, ("snapshot", 0, 0)]:
        match what:
            case "order" if len(table):
                order(table, number % len(table), value)
            case "enroll":
                table.enroll([f"E-{len(table) + more}" for more in range(number)])
            case "snapshot":
                snapshots.append(list(table.begin_snapshot(full=False)))
            case _:
                pass
    check_same(table, loaded(engine, *snapshots))
    # And from there on: what comes back goes on with incremental ones.
    again = loaded(engine, *snapshots)
    again.enroll(["last"])
    order(again, len(table), 5)
    check_same(again, loaded(engine, *snapshots, list(again.begin_snapshot(full=False))))


def test_an_incremental_one_has_only_what_changed(drones: CompiledEngine) -> None:
    table = many(drones, 5000)
    list(table.begin_snapshot(full=True))
    assert list(table.begin_snapshot(full=False)) == []
    order(table, 600, 1)
    order(table, 4999, 1)
    table.image(1_000)  # as a shard does when it seals a commit of so many events, before anything begins
    (part,) = (read_part(part) for part in table.begin_snapshot(full=False))
    assert isinstance(part, RowsPart)
    assert part.runs == [(512, 256), (4864, 136)]
    table.enroll(["late"])
    names, rows = (read_part(part) for part in table.begin_snapshot(full=False))
    assert isinstance(names, NamesPart)
    assert isinstance(rows, RowsPart)
    assert (names.first, names.count, rows.runs) == (5000, 1, [(4864, 137)])


def test_after_loading_only_what_changed_since_is_written(drones: CompiledEngine) -> None:
    table = many(drones, 3000)
    again = loaded(drones, list(table.begin_snapshot(full=True)))
    assert list(again.begin_snapshot(full=False)) == []


def test_measured_values_take_little_more_room_than_they_must(drones: CompiledEngine) -> None:
    size = sum(len(part) for part in many(drones, 20_000).begin_snapshot(full=True))
    assert size < 20_000 * 40 * 0.85


# ---- what was written once


def golden(engine: CompiledEngine) -> CompiledTable:
    table = engine.table()
    table.enroll(["one", "two", "three"])
    table.enroll(["four"])
    table.fold(b"".join(table.record_of(number, WasReset(to=number * 1000)) for number in (1, 3)), table.layout, 0)
    return table


def test_reads_what_it_wrote_in_the_first_version(meters: CompiledEngine) -> None:
    """Compressed bytes may be others with another zlib; what is in them may not."""
    written = dict(line.split() for line in FIXTURE.read_text(encoding="ascii").splitlines())
    again = loaded(meters, [bytes.fromhex(written["names"]), bytes.fromhex(written["rows"])])
    table = golden(meters)
    check_same(table, again)
    assert again.digest().hex() == written["digest"]
    assert table.layout_digest.hex() == written["layout"]
    assert [again.agent(number, ahead=True).total for number in range(4)] == [0, 1000, 0, 3000]


# ---- one NaN


def test_there_is_one_nan(drones: CompiledEngine) -> None:
    table, other = many(drones, 600), many(drones, 600)
    strange = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_1234))[0]
    record = bytearray(table.record_of(599, BatteryMeasured(percent=math.nan)))
    other.fold(bytes(record), other.layout, 0)
    record[8:16] = struct.pack("<d", strange)
    table.fold(bytes(record), table.layout, 0)
    assert table.digest() == other.digest()
    assert list(table.begin_snapshot(full=True)) == list(other.begin_snapshot(full=True))
    zero, minus = many(drones, 600), many(drones, 600)
    zero.fold(zero.record_of(0, BatteryMeasured(percent=0.0)), zero.layout, 0)
    minus.fold(zero.record_of(0, BatteryMeasured(percent=-0.0)), zero.layout, 0)
    assert zero.digest() != minus.digest()


# ---- parts that are not what they should be


def changed(part: bytes, **fields: Any) -> bytes:
    return encode(msgspec.structs.replace(read_part(part), **fields))


def test_nonsense_is_refused_and_writes_nowhere(drones: CompiledEngine) -> None:
    table = many(drones, 300)
    names, rows = table.begin_snapshot(full=True)
    read = read_part(rows)
    assert isinstance(read, RowsPart)
    squeezed_count = read.noisy.count(0)
    bad_rows = [
        b"",
        rows[:-1],
        b"\x00" + rows,
        changed(rows, format=9),
        changed(rows, runs=[(1, 300)]),
        changed(rows, runs=[(-1, 300)]),
        changed(rows, runs=[(0, 0), (0, 300)]),
        changed(rows, runs=[(0, 299)]),
        changed(rows, runs=[(0, 300), (0, 300)]),
        changed(rows, columns=bytes(16)),
        changed(rows, noisy=b"\x02" * 40),
        changed(rows, noisy=b"\x01" * 40),
        changed(rows, noisy=b""),
        changed(rows, plain=read.plain[1:]),
        changed(rows, squeezed=read.squeezed[:-1]),
        changed(rows, squeezed=read.squeezed + b"x"),
        changed(rows, squeezed=b"x"),
        changed(rows, squeezed=zlib.compress(bytes(squeezed_count * 300 + 1))),
    ]
    for bad in bad_rows:
        again = loaded(drones, [names])
        fresh = again.digest()
        with pytest.raises(JournalCorrupt):
            again.load(bad, again.layout)
        assert again.digest() == fresh
    with pytest.raises(JournalCorrupt, match="agents that are not there"):
        loaded(drones, [rows])


def test_names_that_do_not_fit_are_refused(drones: CompiledEngine) -> None:
    table = drones.table()
    table.enroll(["a", "b"])
    table.enroll(["c"])
    names, _ = table.begin_snapshot(full=True)
    pack = zlib.compress
    bad_names = [
        changed(names, first=1),
        changed(names, generation=1),
        changed(names, count=2),
        changed(names, names=pack(b"a\0b\0c")),
        changed(names, names=pack(b"a\0b\0a\0")),
        changed(names, names=pack(b"a\0b\0\xff\0")),
        changed(names, counts=pack(struct.pack("<II", 3, 2))),
        changed(names, counts=pack(struct.pack("<II", 2, 4))),
        changed(names, counts=pack(struct.pack("<I", 3))),
        changed(names, checks=bytes(15)),
    ]
    for bad in bad_names:
        with pytest.raises(JournalCorrupt):
            loaded(drones, [bad]).catch_up()
    table.enroll(["d"])
    later, _ = table.begin_snapshot(full=False)
    with pytest.raises(JournalCorrupt, match="agents from number 3 on, and 4 are there"):
        loaded(drones, [names, later, later])


def test_a_full_one_replaces_all_that_is_there(drones: CompiledEngine) -> None:
    table, other = many(drones, 1000), many(drones, 2000)
    other.stop(3, True)
    for part in table.begin_snapshot(full=True):
        other.load(part, table.layout)
    check_same(table, other)
    assert other.find("D-1500") == -1
    order(other, 3, 1)


@given(st.data())
def test_a_damaged_part_never_does_more_than_be_refused(data: st.DataObject) -> None:
    """The digest of a snapshot would tell; what is here must not depend on it to stay within its rows."""
    engine = _engine("meter")
    table = engine.table()
    table.enroll([f"D-{number}" for number in range(300)])
    table.fold(b"".join(table.record_of(n, WasReset(to=n)) for n in range(300)), table.layout, 0)
    names, rows = table.begin_snapshot(full=True)
    which = data.draw(st.sampled_from([names, rows]))
    damaged = bytearray(which)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    again = engine.table() if which is names else loaded(engine, [names])
    try:
        again.load(bytes(damaged), again.layout)
    except (JournalCorrupt, FoldMismatch):
        return
    assert len(again) in (0, 300)
    for number in range(len(again)):
        again.agent(number, ahead=True)


def test_values_that_there_are_not_are_refused(meters: CompiledEngine) -> None:
    table = meters.table()
    table.enroll(["a"])
    names, rows = table.begin_snapshot(full=True)
    for offset, value in ((8, 2), (9, 1), (10, 2)):
        row = bytearray(meters.program.first_row)
        row[offset] = value
        again = loaded(meters, [names])
        bad = changed(rows, squeezed=zlib.compress(np.frombuffer(row, np.uint8).tobytes()))
        with pytest.raises(JournalCorrupt, match="values of"):
            again.load(bad, again.layout)


# ---- other versions of the class

OLD = Layout(1, "Meter", 16, [], 8, [Column("dozens", "i8", 0)])


def old_rows(dozens: list[int], version: int = 1) -> bytes:
    columns = parts.Columns(OLD)
    rows = np.array(dozens, "<i8").view(np.uint8)
    return parts.rows_part(columns, (version, parts.columns_digest(OLD), bytes(16)), [(0, len(dozens))], rows)


def test_an_older_version_is_carried_over(meters: CompiledEngine) -> None:
    table = meters.table()
    table.enroll(["one", "two"])
    names, *_ = table.begin_snapshot(full=True)
    again = loaded(meters, [names])
    again.load(old_rows([1, 3]), OLD)
    assert again.agent(0, ahead=True) == Meter(id="one", total=12, code=b"one ")
    assert again.agent(1, ahead=True) == Meter(id="two", total=36, code=b"two ")


def test_what_cannot_be_carried_over_is_said(meters: CompiledEngine) -> None:
    table = meters.table()
    table.enroll(["one"])
    names, rows = table.begin_snapshot(full=True)
    again = loaded(meters, [names])
    for body, layout, said in (
        (old_rows([-1]), OLD, "upcast_state from version 1 raises ValueError: less than nothing"),
        (old_rows([10**18]), OLD, "no place in a row"),
        (old_rows([1], version=7), OLD, "was version 7 in the snapshot and is version 2"),
        (old_rows([1], version=2), OLD, "raise version= and write upcast_state"),
        (changed(rows, start=bytes(16)), again.layout, "raise version= and write upcast_state"),
    ):
        with pytest.raises(FoldMismatch, match=said):
            again.load(body, layout)
    with pytest.raises(JournalCorrupt, match="another layout than it says"):
        again.load(old_rows([1]), again.layout)
