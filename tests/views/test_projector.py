"""Projectors in the simulator: every event once in the rows, whatever is killed, dropped, changed or restored."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stigmergy.agents.view import Key, Origin, View, project
from stigmergy.base.errors import ConfigError, JournalCorrupt, StoreUnavailable, ViewBehind, ViewChanged, ViewFailed
from stigmergy.control.live import Live
from stigmergy.control.metrics import NodeMetrics
from stigmergy.journal.file_errors import RESTORE
from stigmergy.node.declaration import Declaration
from stigmergy.node.feed import LogFeed
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.sim.disk import AfterFailedSync, Call, DiskFault, IoCall
from stigmergy.sim.node import SimNode
from stigmergy.sim.views import SimViewDisk, SimViewStore
from stigmergy.views import projector as projectors
from stigmergy.views.port import shard_name
from stigmergy.views.projector import Projector
from tests.agents import meters
from tests.node.columns import stage
from tests.node.rig import play
from tests.views.zones import VIEWS, Battery, Drone, Enter, Leave, Measured, ZoneEntered, ZoneLoad


def declare(views: Any = None, shards: int = 3) -> Declaration:
    return Declaration("zones", agents=[Drone], shards=shards, views=VIEWS if views is None else views)


async def fly(live: Live, chance: random.Random, count: int) -> None:
    """Some drones move about."""

    async def one() -> None:
        drone = f"Drone/D-{chance.randrange(9)}"
        what = chance.randrange(3)
        if what == 0:
            await live.send(drone, Enter(zone=chance.choice("ABCDE")))
        elif what == 1:
            await live.send(drone, Leave())
        else:
            await live.observe(drone, Measured(percent=float(chance.randrange(100))))

    await asyncio.gather(*(one() for _ in range(count)))


async def caught_up(live: Live) -> None:
    assert live.views is not None
    ends = {shard_name("zones", shard): at.position for shard, at in live.host.feed.positions().items()}
    for one in live.views.projectors.values():
        await one.wait_written(ends, 600.0)


def expected_load(live: Live) -> dict[str, int]:
    """By the agents themselves."""
    zones: dict[str, int] = {}
    for address in live.agents():
        if zone := live.query(address, Drone).zone:
            zones[zone] = zones.get(zone, 0) + 1
    return zones


async def load(live: Live) -> dict[str, int]:
    return {row.zone: row.active for row in await live.view(ZoneLoad).all()}


@pytest.mark.parametrize("in_memory", [False, True])
def test_rows_follow_the_log(in_memory: bool) -> None:
    async def main(node: SimNode) -> None:
        live, chance = await node.start(), random.Random(1)
        for _ in range(20):
            await fly(live, chance, 30)
        await caught_up(live)
        assert await load(live) == expected_load(live)
        for row in await live.view(Battery).all():
            assert row.percent == live.query(row.agent, Drone).battery
        for address in live.agents():
            await live.send(address, Enter(zone="F"))
        await caught_up(live)
        assert await load(live) == {"F": len(live.agents())}

    play(declare(), main, in_memory=in_memory)


@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_moment_every_event_is_in_the_rows_once(seed: int) -> None:
    """At each stop the simulator compares the rows with a fold of the whole log."""

    async def main(node: SimNode) -> None:
        chance = random.Random(seed)
        live = await node.start()
        for _ in range(12):
            flying = asyncio.ensure_future(fly(live, chance, 40))
            await asyncio.sleep(chance.choice((0.0, 0.001, 0.01, 0.3, 6.0)))
            how: Callable[[], Awaitable[None]] = chance.choice((node.kill, node.lose_power, node.stop))
            await how()
            await asyncio.gather(flying, return_exceptions=True)
            live = await node.start()
        await fly(live, chance, 10)
        await caught_up(live)
        assert await load(live) == expected_load(live)

    play(declare(), main, seed=seed)


def test_rows_that_do_not_fit_into_memory_are_read_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projectors, "ROWS_MAX", 2)

    async def main(node: SimNode) -> None:
        live, chance = await node.start(), random.Random(2)
        for _ in range(30):
            await fly(live, chance, 20)
            await caught_up(live)
        assert await load(live) == expected_load(live)

    play(declare(), main)


def test_a_caller_sees_its_own_writes() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        for number in range(50):
            address = f"Drone/D-{number % 7}"
            answer: Any = await live.send(address, Enter(zone=f"Z{number}"))
            row = await live.view(ZoneLoad).after_command(address, answer.position).get(f"Z{number}")
            assert row == ZoneLoad(zone=f"Z{number}", active=1)

    play(declare(), main)


def test_who_asks_for_what_is_not_there_yet_is_told_so() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await caught_up(live)
        end = live.host.durable_position(0)
        with pytest.raises(ViewBehind, match=rf"zones/0 is at {end} of {end + 5}\): it is behind; ask again"):
            await live.view(ZoneLoad).after({"zones/0": end + 5}, within_s=0.5).all()

    play(declare(), main)


DROPPING = Settings(
    snapshots=Snapshots(every_events=10, every_s=1e9, tail_ratio=0.0, share_max=1.0),
    retention=Retention(reserve_bytes=0, check_every_s=0.1, keep_s=0.001),
)
"""Everything goes that may go."""


def test_who_asks_while_the_view_is_opened_is_answered_although_nothing_follows() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Drone/D-1", Enter(zone="A"))
        await caught_up(live)
        assert live.views is not None
        one = live.views.projectors["ZoneLoad"]
        await one.stop()
        again = projectors.Projector(one.plan, one.store, one._sources)
        await again.start()
        assert not again.written, "not opened yet"
        await again.wait_written(one.written, 60.0)
        assert again.written == one.written
        await again.stop()

    play(declare(), main)


@pytest.mark.parametrize("sync_s", [1e9, 0.5])
def test_retention_waits_until_views_have_the_log_for_good(sync_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projectors, "SYNC_EVERY_S", sync_s)

    async def main(node: SimNode) -> None:
        live, chance = await node.start(), random.Random(3)
        for _ in range(10):
            await asyncio.sleep(2.0)
            await fly(live, chance, 20)
        await caught_up(live)
        assert (live.host.journal.first_position(0) == 1) == (sync_s > 1e6)
        await node.lose_power()
        live = await node.start()
        await caught_up(live)
        assert await load(live) == expected_load(live)

    play(declare(shards=1), main, settings=DROPPING)


class Entries(View):
    """Counts, and began to after the log had lost its beginning."""

    zone: Key[str]
    count: int = 0

    @project
    def entered(self, event: ZoneEntered) -> None:
        self.count += 1


class KeptEntries(View, history="kept"):
    zone: Key[str]
    count: int = 0

    @project
    def entered(self, event: ZoneEntered) -> None:
        self.count += 1


def test_rows_are_not_made_from_a_log_without_its_beginning() -> None:
    async def main(node: SimNode) -> None:
        live, chance = await node.start(), random.Random(3)
        for _ in range(10):
            await fly(live, chance, 20)
        await asyncio.sleep(5.0)
        assert live.host.journal.first_position(0) > 1
        await node.stop()
        node.change_declaration(declare([Entries], shards=1))
        live = await node.start()
        with pytest.raises(ViewFailed, match="declare the view with history='kept' if the rest is enough"):
            await live.view(Entries).after({"0": 1}).all()
        with pytest.raises(ViewFailed):
            await live.view(Entries).all()
        assert [one.code for one in live.troubles() if "begins at position" in one] == ["view-failed"]
        await node.kill()
        node.change_declaration(declare([KeptEntries], shards=1))
        live = await node.start()
        await live.send("Drone/new", Enter(zone="X"))
        await caught_up(live)
        assert await live.view(KeptEntries).get("X") == KeptEntries(zone="X", count=1)
        await node.kill()

    play(declare([], shards=1), main, settings=DROPPING)


def other_load(on_change: Any) -> Any:
    """Another version of the view, as a new release has it."""

    class ZoneLoad(View, on_change=on_change):
        zone: Key[str]
        active: int = 0

        @project
        def entered(self, event: ZoneEntered) -> None:
            self.active += 10

    return ZoneLoad


def test_changed_code_makes_the_rows_anew_beside_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        for number in range(40):
            await live.send(f"Drone/D-{number}", Enter(zone=f"Z{number % 4}"))
        await caught_up(live)
        assert await load(live) == {f"Z{number}": 10 for number in range(4)}
        await node.stop()
        changed = other_load("rebuild")
        node.change_declaration(declare([changed], shards=1))
        write, seen = SimViewStore.write, []

        async def look(self: Any, table: str, *rest: Any) -> None:
            if live_again:
                seen.append((table, {row.zone: row.active for row in await live_again[0].view(changed).all()}))
            await write(self, table, *rest)

        live_again: list[Live] = []
        monkeypatch.setattr(SimViewStore, "write", look)
        live = await node.start()
        live_again.append(live)
        await caught_up(live)
        assert seen[0] == ("ZoneLoad__next", {f"Z{number}": 10 for number in range(4)})  # the old ones answer
        assert {row.active for row in await live.view(changed).all()} == {100}
        await live.send("Drone/D-0", Enter(zone="Z0"))
        await caught_up(live)

    play(declare([ZoneLoad], shards=1), main)


def test_changed_code_is_refused_where_the_view_says_so() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Drone/D-0", Enter(zone="Z"))
        await caught_up(live)
        await node.stop()
        node.change_declaration(declare([other_load("refuse")], shards=1))
        with pytest.raises(ViewChanged, match="go back to that code, or declare on_change='rebuild'"):
            await node.start()
        node.change_declaration(declare([ZoneLoad], shards=1))
        await node.kill()
        live = await node.start()
        await caught_up(live)

    play(declare([ZoneLoad], shards=1), main)


def test_rows_of_another_fleet_are_not_mixed_with_ours() -> None:
    """Two fleets that share a database, with a view of the same name."""

    async def fill(node: SimNode) -> SimViewDisk:
        live = await node.start()
        await live.send("Drone/D-0", Enter(zone="Z"))
        await caught_up(live)
        await node.stop()
        return node._view_disk

    disk = play(declare([ZoneLoad], shards=1), fill)
    other = Declaration("ground", agents=[Drone], views=[ZoneLoad])

    async def main(node: SimNode) -> None:
        node._view_disk = disk
        with pytest.raises(ViewFailed, match="of the fleet zones, not of ground; give each fleet a file or a database"):
            await node.start()
        await node.kill()

    play(other, main)


class Broken(View):
    zone: Key[str]
    share: float = 0.0

    @project
    def entered(self, event: ZoneEntered) -> None:
        self.share = 1 / len(event.zone.strip("X"))


def test_a_handler_that_raises_stops_its_view_and_nothing_else() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Drone/D-0", Enter(zone="A"))
        await live.send("Drone/D-0", Enter(zone="X"))
        await live.send("Drone/D-0", Enter(zone="B"))
        with pytest.raises(ViewFailed, match=r"Broken, row 'X': ZoneEntered\(zone='X'\): ZeroDivisionError"):
            await live.view(Broken).after({"0": live.host.durable_position(0)}).all()
        assert any("ZeroDivisionError" in trouble for trouble in live.standing().troubles)
        assert await live.view(ZoneLoad).after({"0": live.host.durable_position(0)}).get("B")
        await node.kill()

    play(declare([Broken, ZoneLoad], shards=1), main)


def test_a_store_that_cannot_be_reached_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(node: SimNode) -> None:
        live, chance = await node.start(), random.Random(5)
        write, left = SimViewStore.write, [30]

        async def flaky(self: Any, *rest: Any) -> None:
            left[0] -= 1
            if left[0] > 0 and left[0] % 3:
                if left[0] % 2:
                    await write(self, *rest)  # kept, and nobody heard so
                raise StoreUnavailable("gone")
            await write(self, *rest)

        monkeypatch.setattr(SimViewStore, "write", flaky)
        for _ in range(20):
            await fly(live, chance, 20)
            await asyncio.sleep(1.0)
        await caught_up(live)
        assert left[0] < 20
        assert await load(live) == expected_load(live)

    play(declare(), main)


def test_a_view_that_waits_is_a_trouble_once_it_waits_for_longer_than_a_start_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(node: SimNode) -> None:
        find, reachable = SimViewStore.find, False

        async def absent(self: Any, *rest: Any) -> Any:
            if not reachable:
                raise StoreUnavailable("no logs yet")
            return await find(self, *rest)

        monkeypatch.setattr(SimViewStore, "find", absent)
        live = await node.start()
        await asyncio.sleep(projectors.PATIENCE_S / 2)
        assert live.troubles() == []
        await asyncio.sleep(projectors.PATIENCE_S)
        assert [(one.code, str(one)) for one in live.troubles()] == [("view-waits", "no logs yet")]
        reachable = True
        await caught_up(live)
        assert live.troubles() == []

    play(declare([ZoneLoad]), main)


def test_a_view_reads_on_when_its_log_can_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(node: SimNode) -> None:
        live, chance, failed = await node.start(), random.Random(7), 0
        for _ in range(20):
            await fly(live, chance, 30)
        await node.stop()
        begin = Projector.start

        def fail(call: IoCall) -> None:
            nonlocal failed
            if call.kind is Call.READ:
                failed += 1
                node.disk.fail(call.number, DiskFault.EIO)

        async def start(self: Projector) -> None:
            node.disk.on_call = fail  # from now on; the node has started
            await begin(self)

        monkeypatch.setattr(Projector, "start", start)
        node.change_declaration(declare([ZoneLoad]))
        live = await node.start()
        await asyncio.sleep(1.0)
        assert [one.code for one in live.troubles()] == ["view-waits"], "at once"
        await asyncio.sleep(3 * projectors.PATIENCE_S)
        assert 2 * projectors.PATIENCE_S / projectors.PAUSE_S_MAX <= failed <= 20, "again and again, with pauses"
        assert [one.code for one in live.troubles()] == ["view-waits"]
        assert re.search(r"^view ZoneLoad: .*the device failed a read .*it is tried again", str(live.troubles()[0]))
        node.disk.on_call = None
        await caught_up(live)
        assert await load(live) == expected_load(live)
        assert live.troubles() == []

    play(declare([]), main, in_segments=True)


def test_a_damaged_log_stops_its_view_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Drone/D-1", Enter(zone="A"))
        await node.stop()

        def read(self: Any, shard: int, after: int = 0) -> Any:
            raise JournalCorrupt(f"fleet.segments/1: damaged at byte 7; {RESTORE}")

        monkeypatch.setattr(LogFeed, "lines", read)
        node.change_declaration(declare([ZoneLoad]))
        live = await node.start()
        await asyncio.sleep(1.0)
        told = "view ZoneLoad: its log is damaged: fleet.segments/1: damaged at byte 7; restore the journal from a copy"
        assert [(one.code, str(one)) for one in live.troubles()] == [("view-failed", f"{told}; then start again")]
        with pytest.raises(ViewFailed, match="restore the journal from a copy"):
            await live.view(ZoneLoad).all()
        await node.kill()

    play(declare([]), main)


def test_events_that_change_no_row_are_read_soon_and_rarely_written() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Drone/D-1", Enter(zone="A"))
        await caught_up(live)
        assert live.views is not None
        one = live.views.projectors["ZoneLoad"]
        before, begun_s = one._revision, asyncio.get_running_loop().time()
        for number in range(60):
            await live.observe("Drone/D-1", Measured(percent=float(number)))
            end = {shard_name("zones", 0): live.host.durable_position(0)}
            assert await live.view(ZoneLoad).after(end, within_s=2.0).all() == [ZoneLoad(zone="A", active=1)]
            await asyncio.sleep(1.0)
        notes_max = (asyncio.get_running_loop().time() - begun_s) / projectors.NOTE_EVERY_S + 1
        assert 0 < one._revision - before <= notes_max < 60 / 2
        await asyncio.sleep(projectors.NOTE_EVERY_S + projectors.WAIT_S)
        assert one._noted == one._written, "also the last ones, for retention"

    play(declare([ZoneLoad], shards=1), main)


def test_metrics_say_how_far_behind_a_view_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def lag(live: Live) -> tuple[float, float]:
        found = {
            one.metric: one.value for one in NodeMetrics(live).collect().samples if one.labels == {"view": "ZoneLoad"}
        }
        return found["stigmergy_view_lag_commits"], found["stigmergy_view_lag_seconds"]

    async def main(node: SimNode) -> None:
        live, reachable = await node.start(), asyncio.Event()
        await live.send("Drone/a", Enter(zone="A"))
        await caught_up(live)
        assert lag(live) == (0, 0)
        write = SimViewStore.write

        async def held(self: Any, *rest: Any) -> None:
            await reachable.wait()
            await write(self, *rest)

        monkeypatch.setattr(SimViewStore, "write", held)
        for zone in ("B", "C", "D"):
            await asyncio.sleep(10)
            await live.send("Drone/a", Enter(zone=zone))
        commits, seconds = lag(live)
        assert commits >= 3
        assert seconds == pytest.approx(30, abs=1)
        reachable.set()
        await caught_up(live)
        assert lag(live) == (0, 0)

    play(declare(shards=1), main)


def test_a_fresh_journal_under_an_old_store_makes_the_rows_anew() -> None:
    async def main(node: SimNode) -> None:
        live, chance = await node.start(), random.Random(7)
        await fly(live, chance, 200)
        await caught_up(live)
        await node.stop()
        disk = node._view_disk
        node.replace_disk(AfterFailedSync.STALE_CACHE)
        node._view_disk = disk
        live = await node.start()
        for number in range(3):
            await live.send(f"Drone/N-{number}", Enter(zone="new"))
        await caught_up(live)
        assert await load(live) == {"new": 3}

    play(declare(), main)


def test_rows_of_another_log_that_is_longer_are_not_continued() -> None:
    """As after a restore from a copy, which has gone on since."""

    async def main(node: SimNode) -> None:
        live, chance = await node.start(), random.Random(8)
        await fly(live, chance, 5)
        await caught_up(live)
        await node.stop()
        disk = node._view_disk
        node.replace_disk(AfterFailedSync.STALE_CACHE)
        node.change_declaration(declare([]))
        live = await node.start()
        for _ in range(20):
            await fly(live, chance, 20)
        await node.stop()
        node._view_disk = disk
        node.change_declaration(declare())
        live = await node.start()
        await caught_up(live)
        assert await load(live) == expected_load(live)

    play(declare(), main)


def test_a_view_that_is_not_of_the_fleet_is_refused() -> None:
    class Elsewhere(View, fleets=("ground",)):
        zone: Key[str]

        @project
        def entered(self, event: ZoneEntered) -> None:
            pass

    async def main(node: SimNode) -> None:
        live = await node.start()
        with pytest.raises(ConfigError, match="there is no view 'Entries' here; there are Battery, ZoneLoad"):
            live.view(Entries)
        await node.stop()
        node.change_declaration(declare([Elsewhere]))
        with pytest.raises(ConfigError, match="view Elsewhere is of fleet 'ground'"):
            await node.start()

    play(declare(), main)


class MeterCounts(View):
    """Of compiled agents."""

    agent: Key[str]
    counted: int = 0
    last: int = 0

    @project
    def counted_by(self, event: meters.Counted, origin: Origin) -> None:
        self.counted += 1
        self.last = event.by


@pytest.mark.parametrize("shards", [1, 2])
def test_events_of_compiled_agents_are_in_the_rows(shards: int) -> None:
    """Live, from the journal after a crash, and compared with a fold of the whole log at the stop."""
    fleet = stage.declare(lambda _: None, lambda _: None, shards=shards)
    fleet.views = (MeterCounts,)

    async def main(node: SimNode) -> None:
        live = await node.start()
        names = ["a", "b", "c", "d"]
        await live.enroll("Meter", names)
        radio = stage.Radio(live)
        for life in range(2):
            for by in range(6):
                for shard, mine in stage.shards_of(live, names).items():
                    await radio.send(*((name, meters.Counted(by=by)) for name in mine), shard=shard)
                if by == 3 and not life:
                    await node.kill()
                    live = await node.start()
                    radio.live = live
        ends = {shard_name("meters", shard): at.position for shard, at in live.host.feed.positions().items()}
        found = await live.view(MeterCounts).after(ends, within_s=600.0).all()
        assert [(row.agent, row.counted, row.last) for row in found] == [(f"Meter/{name}", 12, 5) for name in names]

    stage.play(fleet, main)
