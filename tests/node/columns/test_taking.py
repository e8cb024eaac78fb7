"""Column batches in: each source's order in each shard, gaps, repetitions, overload, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from stigmergy import DROP_OLDEST, sample
from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.columns import NO_CHECK
from stigmergy.agents.messages import spec_of
from stigmergy.agents.supervision import InputsSkipped
from stigmergy.audit.listing import EntryFilter, list_log
from stigmergy.base.errors import (
    Malformed,
    NotRunning,
    Overloaded,
    SequenceGap,
    StaleEpoch,
    StaleMapping,
    UnknownKind,
)
from stigmergy.control.live import Live
from stigmergy.node.column_intake import ENROLLED_BYTES, GIVE_WAY_NAMES, GIVE_WAY_S, _durable_generation, _parts
from stigmergy.shard.batches import open_batch, pack_batch
from stigmergy.shard.inputs import EnrollAgents, SequencesSkipped
from stigmergy.sim.node import SimNode
from tests.agents.meters import Counted, Meter, Seen
from tests.node.columns.stage import Hand, Radio, declare, play, shards_of


def consumed(live: Live, source: str = "radio", shard: int = 0, incarnation: int = 1) -> int:
    return live.host.shards[shard].state.marks.consumed(source, incarnation)


def skipped(live: Live) -> list[tuple[str, int, int]]:
    """What the log says was skipped: why, from, to."""
    wanted = EntryFilter(type=spec_of(InputsSkipped).tag, first=1, limit=1_000)
    found: list[Any] = [entry.fields for entry in list_log(live.host.journal, wanted) if entry is not None]
    return [(one["because"].partition(":")[0], one["first"], one["last"]) for one in found]


def counted(*numbers: int) -> list[tuple[str, Any]]:
    return [("a", Counted(by=number)) for number in numbers]


def elsewhere(data: bytes, shard: int) -> bytes:
    """The same batch, sent to another shard."""
    batch = open_batch(data)
    return pack_batch(structs.replace(batch.header, shard=shard), batch.records)


def test_a_source_counts_for_each_shard_anew() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        names = [f"m-{number}" for number in range(40)]
        await live.enroll(Meter, names)
        homes = shards_of(live, names)
        assert len(homes) == 3
        radio = Radio(live)
        for shard, here in homes.items():
            for start in (0, 1):
                await radio.send(*((name, Counted(by=1)) for name in here[start:]), shard=shard)
        for shard, here in homes.items():
            assert consumed(live, shard=shard) == 2 * len(here) - 1
            assert [live.query(f"Meter/{name}").total for name in here] == [1] + [2] * (len(here) - 1)

    play(declare(Hand(), shards=3), scene)


def test_what_comes_early_waits_for_what_is_missing_and_order_is_kept() -> None:
    hand = Hand()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        batches = [radio.batch(*counted(number, number)) for number in (1, 2, 3, 4)]
        late = [live.host.columns.deliver(batches[number]) for number in (3, 1, 2)]
        await asyncio.sleep(1.0)
        assert not any(one.done() for one in late)
        assert consumed(live) == 0
        await live.deliver(batches[0])
        await asyncio.gather(*late)
        assert consumed(live) == 8
        assert live.query("Meter/a").total == 20
        assert live.host.columns.counters.early == 3
        assert live.host.columns.counters.gaps == 0

    play(declare(hand), scene)


def test_a_gap_that_nobody_fills_is_declared_in_the_log_after_its_time() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(*counted(1, 1))
        early = radio.send(*counted(5), sequence=10)
        later = radio.send(*counted(6))
        await asyncio.sleep(4.5)
        assert not early.done()
        await asyncio.gather(early, later)
        assert consumed(live) == 11
        assert skipped(live) == [("missing", 3, 9)]
        assert live.query("Meter/a").total == 13
        await live.deliver(radio.batch(*counted(100), sequence=4))
        assert live.query("Meter/a").total == 13, "what was given up does not come after all"

    play(declare(Hand()), scene, gap_wait_s=5.0)


def test_a_gap_that_its_sender_declares_is_not_waited_for() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(*counted(1))
        await radio.send(*counted(2), sequence=7, lost=5)
        assert consumed(live) == 7
        assert skipped(live) == [("lost", 2, 6)]

    play(declare(Hand()), scene)


def test_gaps_are_for_so_many_batches_and_no_more() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        waiting = [radio.send(*counted(1), sequence=number) for number in (10, 20, 30)]
        with pytest.raises(Overloaded, match="came early"):
            await radio.send(*counted(1), sequence=40)
        waiting.append(radio.send(*counted(1), sequence=20))  # a repetition needs no room
        await asyncio.gather(*waiting)
        assert live.query("Meter/a").total == 3

    play(declare(Hand()), scene, gap_deliveries_max=3)


def test_repetitions_are_taken_once_however_they_are_cut() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        first = radio.batch(*counted(1, 2, 3))
        await asyncio.gather(live.deliver(first), live.deliver(first))
        await live.deliver(radio.batch(*counted(3, 4), sequence=3))
        await live.deliver(first)
        assert live.query("Meter/a").total == 10
        assert consumed(live) == 4
        await node.kill()
        live = await node.start()
        radio.live = live
        await live.deliver(first)
        await live.deliver(radio.batch(*counted(4, 5), sequence=4))
        assert live.query("Meter/a").total == 15
        assert live.standing().counters["duplicates"] == 4

    play(declare(Hand()), scene)


def test_an_incarnation_counts_from_one_and_an_epoch_that_is_over_is_refused() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(*counted(1), epoch=3)
        with pytest.raises(StaleEpoch):
            await radio.send(*counted(2), epoch=2)
        await radio.send(*counted(4), sequence=2, epoch=3)
        await radio.send(*counted(8), sequence=1, incarnation=2)
        assert live.query("Meter/a").total == 13

    play(declare(Hand()), scene)


def test_a_refused_batch_leaves_no_gap_behind() -> None:
    """The one after it waits for the numbers it had, and both are taken when they come again."""

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        with pytest.raises(StaleMapping, match="request the roster again"):
            await radio.send(*counted(1), check=b"y" * 8)
        second = radio.send(*counted(2))
        await asyncio.sleep(0.1)
        assert not second.done()
        await live.deliver(radio.batch(*counted(1), sequence=1))
        await second
        assert consumed(live) == 2
        assert not skipped(live)

    play(declare(Hand()), scene)


def test_an_untaken_skip_is_forgotten_at_its_own_door_and_at_no_other() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        host = live.host
        names = [f"m-{number}" for number in range(40)]
        await live.enroll("Meter", names)
        homes = shards_of(live, names)
        radio = Radio(live)
        for shard in (0, 1):
            await radio.send((homes[shard][0], Counted(by=1)), shard=shard, epoch=5)
        await live.deliver(pack_envelope("boards", [("Board/x", Seen(level=1.0))], sequence=1, incarnation=1, epoch=5))

        def known() -> tuple[bool, bool, bool]:
            doors = host.columns._ingresses
            radio_at = [("radio", 1) in doors[shard] for shard in (0, 1)]
            return radio_at[0], radio_at[1], ("boards", 1) in host.ingress

        async def skip(shard: int, source: str) -> None:
            with pytest.raises(StaleEpoch):
                await host.intake.take(shard, SequencesSkipped(source, 1, 4, 9, "missing: test"))

        assert known() == (True, True, True)
        await skip(1, "radio")
        assert known() == (True, False, True)
        await skip(0, "boards")
        assert known() == (True, False, False)
        await skip(0, "radio")
        assert known() == (False, False, False)

    play(declare(Hand(), shards=2), scene)


@pytest.mark.parametrize("shard", [1, 7])
def test_a_shard_that_is_not_there_is_refused(shard: int) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        with pytest.raises(Malformed, match=rf"a column batch for shard {shard}; there are 1"):
            await live.deliver(elsewhere(Radio(live).batch(*counted(1)), shard))

    play(declare(Hand()), scene)


def test_a_batch_for_the_wrong_shard_of_ours_changes_nobody() -> None:
    """The roster of the other shard has another check value: nothing of it is taken."""

    async def scene(node: SimNode) -> None:
        live = await node.start()
        names = [f"m-{number}" for number in range(10)]
        await live.enroll("Meter", names)
        homes = shards_of(live, names)
        batch = Radio(live).batch((homes[0][0], Counted(by=1)), shard=0)
        with pytest.raises(StaleMapping):
            await live.deliver(elsewhere(batch, 1))
        assert not any(live.query(f"Meter/{name}").total for name in names)

    play(declare(Hand(), shards=2), scene)


def test_a_node_that_stops_takes_nothing_and_tells_who_waits() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        early = radio.send(*counted(1), sequence=5)
        await node.stop()
        with pytest.raises(NotRunning):
            await early
        with pytest.raises(NotRunning, match="nothing was taken"):
            await live.deliver(radio.batch(*counted(1)))
        with pytest.raises(NotRunning):
            await live.enroll("Meter", ["b"])

    play(declare(Hand()), scene)


# ---------------------------------------------------------------------- overload


async def flooded(node: SimNode, batches: int) -> tuple[Live, int, int]:
    """So many batches of 10 records at once; how many sends failed."""
    node.latency.after_s = 0.05
    live = await node.start()
    await live.enroll("Meter", ["a"])
    radio = Radio(live)
    sent: list[asyncio.Future[None]] = []
    for _ in range(batches):
        sent.append(radio.send(*counted(*[1] * 10)))
    done = await asyncio.gather(*sent, return_exceptions=True)
    return live, live.query("Meter/a").total, sum(isinstance(one, Overloaded) for one in done)


def test_a_blocking_source_waits_and_loses_nothing() -> None:
    async def scene(node: SimNode) -> None:
        live, total, refused = await flooded(node, 100)
        assert (total, refused) == (1_000, 0)
        assert live.standing().counters["blocked"] > 0
        assert consumed(live) == 1_000

    play(declare(Hand()), scene, telemetry_items_max=8, batch_events_max=4)


def test_a_blocking_source_is_told_when_there_is_no_room_to_wait_and_can_send_again() -> None:
    async def scene(node: SimNode) -> None:
        node.latency.after_s = 0.001
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        refused = 0

        async def send(batch: bytes) -> None:
            nonlocal refused
            for _ in range(100):
                try:
                    return await live.deliver(batch)
                except Overloaded:
                    refused += 1
                    await asyncio.sleep(0.1)

        await asyncio.gather(*[send(radio.batch(*counted(*[1] * 10))) for _ in range(1_500)])
        assert refused > 0
        assert live.query("Meter/a").total == consumed(live) == 15_000
        assert not skipped(live)

    play(declare(Hand()), scene, telemetry_items_max=8, batch_events_max=4)


@pytest.mark.parametrize("policy", ["oldest", "sample"])
def test_what_is_shed_is_counted_in_records_and_moves_the_mark(policy: str) -> None:
    async def scene(node: SimNode) -> None:
        live, total, refused = await flooded(node, 200)
        counters = live.standing().counters
        assert refused == 0
        assert counters["shed_items"] > 0
        assert total + counters["shed_items"] == 2_000
        assert consumed(live) == 2_000, "marks move past what was shed"
        assert sum(last - first + 1 for _, first, last in skipped(live)) == counters["shed_items"]
        assert all(why == "shed" for why, _, _ in skipped(live))
        assert (counters["sampled_items"] > 0) == (policy == "sample")
        radio = Radio(live)
        radio.next[0] = 2_001
        await radio.send(*counted(7))
        assert live.query("Meter/a").total == total + 7

    fleet = declare(Hand(), radio=DROP_OLDEST if policy == "oldest" else sample(4))
    play(fleet, scene, telemetry_items_max=8, batch_events_max=4)


# ---------------------------------------------------------------------- rosters


def test_a_roster_is_what_is_on_disk_and_numbers_stay() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        empty = live.roster("Meter")
        assert [(one.generation, one.check, one.agents) for one in empty.shards] == [(0, NO_CHECK, 0)] * 2
        roster = await live.enroll("Meter", ["a", "b", "a", "c"])
        assert roster.names == ["a", "b", "a", "c"]
        assert roster.places[0] == roster.places[2]
        again = await live.enroll("Meter", ["c", "d"])
        assert again.places[0] == roster.places[3]
        assert sum(one.agents for one in again.shards) == 4
        node.latency.after_s = 1.0
        later = asyncio.ensure_future(live.enroll("Meter", ["e"]))
        await asyncio.sleep(0.1)
        assert live.roster("Meter").shards == again.shards, "e is not durable yet"
        assert "Meter/e" not in live.agents("Meter")
        await later
        assert sum(one.agents for one in live.roster("Meter").shards) == 5
        assert "Meter/e" in live.agents("Meter")
        before = live.roster("Meter")
        await node.lose_power()
        live = await node.start()
        assert live.roster("Meter") == before

    play(declare(Hand(), shards=2), scene)


@pytest.mark.parametrize(
    ("kind", "names", "error"),
    [("Meter", "a", Malformed), ("Meter", [1], Malformed), ("Board", ["a"], UnknownKind), ("Bored", [], UnknownKind)],
)
def test_what_cannot_be_enrolled_is_said(kind: str, names: Any, error: type[Exception]) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        with pytest.raises(error):
            await live.enroll(kind, names)

    play(declare(Hand()), scene)


def test_many_names_are_enrolled_in_parts() -> None:
    names = [f"name-{number:06}" for number in range(5_000)]
    parts = _parts(names)
    assert [name for part in parts for name in part] == names
    assert all(sum(len(name) + 2 for name in part) <= ENROLLED_BYTES for part in parts)
    assert len(parts) == 4


def test_the_durable_enrolment_is_found_among_a_million() -> None:
    class Enrolments:
        """Each has one agent more; so many looks are allowed."""

        generation = 1_000_000
        looks = 0

        def check_of(self, generation: int) -> tuple[int, bytes] | None:
            self.looks += 1
            return generation, generation.to_bytes(8, "little")

    for enrolled in (0, 1, 499_999, 999_999, 1_000_000, 2_000_000):
        table: Any = Enrolments()
        want = min(enrolled, 1_000_000)
        assert _durable_generation(table, enrolled) == (want, want.to_bytes(8, "little") if want else NO_CHECK)
        assert table.looks <= 21


def test_enrolments_that_add_nobody_change_no_roster() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        roster = await live.enroll("Meter", ["a"])
        await live.host.intake.take(0, EnrollAgents("Meter", ["a"]))
        assert live.roster("Meter").shards == roster.shards

    play(declare(Hand()), scene)


def test_a_gap_error_of_the_shard_never_reaches_who_sends_in_order() -> None:
    """Two sources, each in order, one of them refused in between: no SequenceGap anywhere."""

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        one, two = Radio(live, "one"), Radio(live, "two")
        sent: list[asyncio.Future[None]] = []
        for number in range(30):
            sent.append(one.send(*counted(1), epoch=1))
            if number == 10:
                with pytest.raises(StaleEpoch):
                    await two.send(*counted(1), epoch=0)
                two.next[0] -= 1
            sent.append(two.send(*counted(1), epoch=1))
        found = await asyncio.gather(*sent, return_exceptions=True)
        assert not any(isinstance(error, SequenceGap) for error in found)
        assert found == [None] * 60
        assert live.query("Meter/a").total == 60

    play(declare(Hand()), scene)


def test_a_fleet_grows_while_batches_flow() -> None:
    """4,000 agents more, in many commits: what is sent meanwhile never waits for long, and is right."""

    async def scene(node: SimNode) -> None:
        node.latency.after_s, node.latency.jitter = 0.005, False
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        growing = asyncio.ensure_future(live.enroll("Meter", [f"new-{number:08}" for number in range(4_000)]))
        loop = asyncio.get_running_loop()
        longest, sent = 0.0, 0
        while not growing.done():
            began = loop.time()
            await radio.send(*counted(1, 1))
            longest, sent = max(longest, loop.time() - began), sent + 1
        roster = growing.result()
        assert len({(place.shard, place.number) for place in roster.places}) == 4_000
        assert sent > 5, "else nothing flowed meanwhile"
        assert longest < 0.05
        assert live.query("Meter/a").total == 2 * sent
        await radio.send(("new-00003999", Counted(by=9)))
        assert live.query("Meter/new-00003999").total == 9

    play(declare(Hand()), scene)


def test_a_long_list_of_names_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def scene(node: SimNode) -> None:
        live = await node.start()
        sleep = asyncio.sleep

        async def noted(delay_s: float) -> None:
            pauses.extend([delay_s] if delay_s == GIVE_WAY_S else [])
            await sleep(delay_s)

        monkeypatch.setattr(asyncio, "sleep", noted)
        await live.enroll("Meter", ["a", "b"])
        assert pauses == [], "a few names wait for nobody"
        await live.enroll("Meter", [f"n{number}" for number in range(4 * GIVE_WAY_NAMES)])
        assert pauses == [GIVE_WAY_S] * 6
        monkeypatch.undo()

    play(declare(Hand()), scene)


def test_what_follows_a_batch_that_found_no_room_waits_for_it_to_come_again() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        node.latency.after_s, node.latency.jitter = 0.5, False
        radio = Radio(live)
        sent: list[asyncio.Future[None]] = []
        refused = b""
        while not refused:
            batch = radio.batch(*counted(1))
            sent.append(live.host.columns.deliver(batch))
            if live.host.mailbox.counters.overloads:
                refused = batch
        with pytest.raises(Overloaded):
            await sent.pop()
        node.latency.after_s = 0.0
        await asyncio.gather(*sent)
        behind = radio.send(*counted(1))
        await asyncio.sleep(0.5)
        assert not behind.done(), "it is early, and no error"
        await live.deliver(refused)
        await behind
        assert live.query("Meter/a").total == len(sent) + 2 == consumed(live)

    play(declare(Hand()), scene, telemetry_items_max=4, batch_events_max=2)
