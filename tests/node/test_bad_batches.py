"""Bad input for compiled agents, from the door to the log: refused or repaired, counted, explained; the good is kept.

docs/compiled.md has the table that says what becomes of what. In virtual time, on the simulated disk in segments.
"""

from __future__ import annotations

import asyncio
import math
import re
import struct
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, structs

from stigmergy import Agent, Event, Fleet, Settings, evolve
from stigmergy.base.errors import Malformed, NotOwned, Overloaded, PeerError, StaleMapping, TooLarge
from stigmergy.control.live import Live
from stigmergy.node.column_roster import Roster
from stigmergy.shard.batches import (
    BATCH_BYTES_MAX,
    BATCH_FORMAT,
    HEADER_BYTES_MAX,
    BatchHeader,
    ColumnBatch,
    open_batch,
    pack_batch,
)
from stigmergy.shard.homes import shard_of
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.agents.plain_table import PlainEngine, compiled

SHARDS = 2
NAMES = [f"d-{number}" for number in range(8)]


class Drained(Event):
    percent: Annotated[float, Meta(ge=0.0, le=100.0)]
    number: int = 0


class Charged(Event):
    number: int = 0


class Tank(Agent):
    percent: float = 100.0
    count: int = 0
    total: int = 0

    @evolve
    def drained(self, event: Drained) -> None:
        self.percent = event.percent
        self.count += 1
        self.total += event.number

    @evolve
    def charged(self, event: Charged) -> None:
        self.total += 10 // event.number
        self.count += 1


def declare() -> Fleet:
    fleet = Fleet("tanks", agents=[Tank], shards=SHARDS)
    fleet.plans["Tank"] = compiled(PlainEngine(Tank))
    return fleet


def play(main: Callable[[Live, Sender], Awaitable[None]], **changed: Any) -> None:
    """Plays a scene. The node must be alive in the end, and its log must fold into what was in memory."""
    world = Run(1)
    fleet = declare()
    node = SimNode(world, lambda _: fleet, settings=Settings(**changed), in_segments=True)

    async def scene() -> None:
        live = await node.start()
        await main(live, Sender(await live.enroll("Tank", NAMES)))
        assert live.failure is None
        await node.stop()

    world.run(scene())
    assert not node.logbook.findings


class Sender:
    """Makes batches for shard 0, good ones unless something is changed."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.agents = [place.number for place in roster.places if place.shard == 0] or [0]
        self.names = [name for name, place in zip(roster.names, roster.places, strict=True) if place.shard == 0]
        self.next = 1

    def record(self, number: int, percent: float = 50.0, *, agent: int | None = None, form: int = 0) -> bytes:
        data = bytearray(self.roster.layout.record_bytes)
        data[:4] = (self.agents[0] if agent is None else agent).to_bytes(4, "little")
        data[4:6] = form.to_bytes(2, "little")
        if form == 0:
            struct.pack_into("<dq", data, 8, percent, number)
        else:
            struct.pack_into("<q", data, 8, number)
        return bytes(data)

    def batch(self, *records: bytes, **changed: Any) -> bytes:
        here = self.roster.shards[0]
        header = BatchHeader(
            format=BATCH_FORMAT,
            source="radio",
            incarnation=0,
            epoch=0,
            sequence=self.next,
            lost=0,
            shard=0,
            kind="Tank",
            layout=here.layout,
            generation=here.generation,
            check=here.check,
            count=len(records),
        )
        return pack_batch(structs.replace(header, **changed), b"".join(records))

    def good(self, *numbers: int) -> bytes:
        data = self.batch(*(self.record(number) for number in numbers))
        self.next += len(numbers)
        return data

    def first(self, live: Live) -> Any:
        return live.query(f"Tank/{self.names[0]}")


def counted(live: Live, name: str) -> int:
    return live.standing().counters[name]


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str, str]] = [
    ("a layout that is not ours", {"layout": bytes(16)}, StaleMapping, "request the roster again", "stale_mappings"),
    ("a generation to come", {"generation": 9}, StaleMapping, "generation 9 of another roster", "stale_mappings"),
    ("names of another roster", {"check": bytes(8)}, StaleMapping, "would change other agents", "stale_mappings"),
    ("a kind that is not compiled", {"kind": "Nobody"}, StaleMapping, "there are Tank", "stale_mappings"),
    ("a shard that there is not", {"shard": 2}, Malformed, "there are 2", "malformed"),
    ("more than there are", {"count": 3}, Malformed, "as many as the header says", "malformed"),
    ("fewer than there are", {"count": 1}, Malformed, "as many as the header says", "malformed"),
    ("so many that nobody has", {"count": 1 << 62}, Malformed, "below 2\\*\\*63|as many as", "malformed"),
    ("a negative number", {"generation": -1}, Malformed, "from 0 and below", "malformed"),
    ("another format", {"format": 7}, Malformed, "update this node", "malformed"),
    ("no source", {"source": ""}, Malformed, "needs a source", "malformed"),
    ("no records", {"count": 0}, Malformed, "send at least one", "malformed"),
    ("an old epoch", {"epoch": 0}, PeerError, "epoch", "stale_epochs"),
    ("somebody else's name", {"source": "shard/0"}, PeerError, "choose another", "refused"),
]


@pytest.mark.parametrize("case", REFUSED, ids=[case[0] for case in REFUSED])
def test_a_batch_that_is_refused_takes_nothing_with_it(case: tuple[str, dict[str, Any], Any, str, str]) -> None:
    """It is counted and explained; what came before and comes after with the same numbers is taken."""
    _, changed, error, why, counter = case

    async def main(live: Live, sender: Sender) -> None:
        old = 3 if counter == "stale_epochs" else 0
        await live.deliver(sender.batch(sender.record(1), epoch=old))
        sender.next = 2
        before = counted(live, counter)
        # Side by side with good ones, so that they are in one step.
        ahead = asyncio.ensure_future(live.deliver(sender.batch(sender.record(2), epoch=old)))
        sender.next = 3
        bad = sender.batch(sender.record(100), sender.record(200), **changed)
        with pytest.raises(error, match=why):
            await live.deliver(bad)
        await ahead
        assert counted(live, counter) == before + 1
        await live.deliver(sender.batch(sender.record(3), sender.record(4), epoch=old))
        tank = sender.first(live)
        assert (tank.count, tank.total) == (4, 10)
        assert live.dead_letters() == []

    play(main)


BAD_RECORDS: list[tuple[str, Callable[[Sender], bytes], str]] = [
    ("NaN where it may not be", lambda sender: sender.record(9, math.nan), "percent"),
    ("above its bound", lambda sender: sender.record(9, 100.5), "percent"),
    ("an agent that the roster has not", lambda sender: sender.record(9, agent=77), "enrol it and send this again"),
    ("a form that there is not", lambda sender: sender.record(9, form=40), "no form"),
    ("a spare byte in use", lambda sender: sender.record(9)[:6] + b"\1" + sender.record(9)[7:], "spare|outside"),
    ("a handler that fails", lambda sender: sender.record(0, form=1), "ZeroDivisionError"),
]


@pytest.mark.parametrize("case", BAD_RECORDS, ids=[case[0] for case in BAD_RECORDS])
def test_a_bad_record_is_a_dead_letter_and_its_neighbours_are_taken(
    case: tuple[str, Callable[[Sender], bytes], str],
) -> None:
    _, bad, why = case

    async def main(live: Live, sender: Sender) -> None:
        await live.deliver(sender.batch(sender.record(1), bad(sender), sender.record(2)))
        tank = sender.first(live)
        assert (tank.count, tank.total) == (2, 3)
        assert counted(live, "failed") == 1
        (letter,) = live.dead_letters()
        assert letter.source == "radio"
        assert re.search(why, letter.error), letter.error
        # The mark is behind it: it is not taken again, and what follows is.
        await live.deliver(sender.batch(sender.record(1), bad(sender), sender.record(2)))
        assert counted(live, "duplicates") == 3
        await live.deliver(sender.batch(sender.record(4), sequence=4))
        assert sender.first(live).total == 7

    play(main)


def test_what_comes_twice_is_taken_once_and_what_overlaps_from_where_it_is_new() -> None:
    async def main(live: Live, sender: Sender) -> None:
        first = sender.batch(*(sender.record(number) for number in (1, 2, 4)))
        await live.deliver(first)
        await live.deliver(first)
        await live.deliver(sender.batch(*(sender.record(number) for number in (4, 8)), sequence=3))
        assert sender.first(live).total == 15
        assert counted(live, "duplicates") == 4

    play(main)


def test_what_comes_early_waits_and_a_gap_is_declared_in_the_log() -> None:
    async def main(live: Live, sender: Sender) -> None:
        early = asyncio.ensure_future(live.deliver(sender.batch(sender.record(4), sequence=3)))
        await asyncio.sleep(0.5)
        assert not early.done()
        assert (counted(live, "early"), sender.first(live).total) == (1, 0)
        await live.deliver(sender.batch(sender.record(1), sender.record(2)))
        await early
        assert sender.first(live).total == 7
        # Of this gap nothing comes: after its time it is given up, counted, and said in the log.
        late = asyncio.ensure_future(live.deliver(sender.batch(sender.record(8), sequence=9)))
        await asyncio.sleep(3.0)
        await late
        assert sender.first(live).total == 15
        assert (counted(live, "gaps"), counted(live, "skipped")) == (1, 5)
        await live.deliver(sender.batch(sender.record(100), sequence=5))
        assert sender.first(live).total == 15

    play(main, gap_wait_s=2.0)


def test_what_waits_for_a_gap_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.shard.gaps.EARLY_BYTES_MAX", 1_000)

    async def main(live: Live, sender: Sender) -> None:
        early = [sender.batch(*[sender.record(1)] * 10, sequence=100 * place) for place in range(1, 20)]
        waiting = [asyncio.ensure_future(live.deliver(data)) for data in early]
        await asyncio.sleep(0.5)
        refused = [one for one in waiting if one.done()]
        assert 0 < len(waiting) - len(refused) <= 3
        assert all(isinstance(one.exception(), Overloaded) for one in refused)
        for one in waiting:
            one.cancel()

    play(main)


def cuts(data: bytes) -> list[bytes]:
    return [data[:length] for length in (0, 3, 4, 7, 8, 20, 60, len(data) - 30, len(data) - 1)]


def test_a_batch_that_is_cut_short_or_too_long() -> None:
    async def main(live: Live, sender: Sender) -> None:
        whole = sender.batch(sender.record(1), sender.record(2))
        for data in [*cuts(whole), whole + b"\0", whole + whole]:
            with pytest.raises(PeerError):
                await live.deliver(data)
        with pytest.raises(TooLarge, match="send fewer records in one"):
            await live.deliver(whole + bytes(BATCH_BYTES_MAX))
        assert counted(live, "malformed") == len(cuts(whole)) + 3
        await live.deliver(whole)
        assert sender.first(live).total == 3

    play(main)


@cache
def a_good_batch() -> bytes:
    made: list[bytes] = []

    async def main(live: Live, sender: Sender) -> None:
        made.append(sender.batch(sender.record(1), sender.record(2), sender.record(3)))

    play(main)
    return made[0]


@given(data=st.binary(max_size=300), magic=st.booleans())
def test_random_bytes_are_opened_or_refused(data: bytes, magic: bool) -> None:
    whole = b"STGB" + data if magic else data
    try:
        batch = open_batch(whole)
    except PeerError:
        return
    assert isinstance(batch, ColumnBatch)
    assert len(batch.records) <= len(whole)


@given(
    places=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6), length=st.integers(0)
)
def test_a_damaged_header_is_opened_or_refused(places: list[tuple[int, int]], length: int) -> None:
    data = bytearray(a_good_batch())
    for place, value in places:
        data[place % len(data)] = value
    said, header = "", None
    try:
        header = open_batch(bytes(data[: length % (2 * len(data))])).header
    except PeerError as error:
        said = str(error)
    assert len(said) < 2 * HEADER_BYTES_MAX
    assert header is None or (0 < len(header.source) <= 200 and header.count > 0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200).map(lambda data: b"STGB" + data),
            st.tuples(st.integers(0, 400), st.integers(0, 255)),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_a_node_lives_through_anything_and_takes_the_good(bad: list[Any]) -> None:
    """Damaged copies of good batches in between: another source, so that the good one's numbers stay its own."""

    async def main(live: Live, sender: Sender) -> None:
        waiting = []
        for number, what in enumerate(bad):
            data = sender.batch(sender.record(1_000), sender.record(2_000), source="noise", sequence=1 + 2 * number)
            if isinstance(what, bytes):
                data = what
            else:
                place, value = what
                data = data[: place % len(data)] + bytes([value]) + data[place % len(data) + 1 :]
            waiting.append(asyncio.ensure_future(live.deliver(data)))
            waiting.append(asyncio.ensure_future(live.deliver(sender.good(1))))
        await asyncio.sleep(3.0)
        for noise, good in zip(waiting[::2], waiting[1::2], strict=True):
            assert not noise.done() or isinstance(noise.exception(), PeerError | type(None))
            assert good.done()
            assert good.exception() is None
        for one in waiting:
            one.cancel()
        assert live.host.shards[0].state.marks.consumed("radio", 0) == len(bad)

    play(main, gap_wait_s=1.0)


def test_a_process_takes_batches_for_its_own_shards_and_says_who_has_the_others() -> None:
    world = Run(1)
    node = SimNode(world, lambda _: declare(), in_segments=True, part=(1, 1))
    here = [name for name in NAMES if shard_of(f"Tank/{name}", SHARDS) == 1]

    async def scene() -> None:
        live = await node.start()
        sender = Sender(await live.enroll("Tank", here))
        mine = sender.roster.shards[1]
        fields = {"generation": mine.generation, "check": mine.check}
        record = sender.record(5, agent=sender.roster.places[0].number)
        await live.deliver(sender.batch(record, shard=1, **fields))
        assert live.query(f"Tank/{here[0]}").total == 5
        with pytest.raises(NotOwned, match="process 1 of 2 has shard 0"):
            await live.deliver(sender.batch(record, shard=0, **fields))
        assert counted(live, "refused") == 1
        await node.stop()

    world.run(scene())
    assert not node.logbook.findings
