"""What keeps retention from dropping: holds, and an archive that must have the log first. On a disk that fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rigs.archive import SimArchive, SimHolds
from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event
from stigmergy.audit.archive import Archiver
from stigmergy.audit.archive_folder import HoldsFile
from stigmergy.audit.flight import FlightVerification
from stigmergy.audit.flight_journal import open_flight
from stigmergy.audit.retention import HOLDS_MAX, RetentionHolds, Safeguards, read_holds, write_holds
from stigmergy.base.errors import ConfigError, JournalCorrupt, JournalError, JournalFull
from stigmergy.control.live import Live
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Connections, Host
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.shard.commit import open_commit
from stigmergy.sim.disk import Call, DiskFault, SimDisk
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Counted(Event):
    number: int
    padding: bytes = b""


class Counter(Agent):
    count: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1


def rules(**retention: Any) -> Settings:
    return Settings(
        snapshots=Snapshots(every_events=10, every_s=1e9, tail_ratio=0.0, share_max=1.0),
        retention=Retention(**{"reserve_bytes": 0, "check_every_s": 0.1, **retention}),
        drain_s=1.0,
    )


def declare(shards: int = 1) -> Declaration:
    return Declaration("counters", agents=[Counter], shards=shards)


async def count(live: Live, numbers: range, padding: int = 0) -> None:
    for number in numbers:
        await live.observe(f"Counter/{number % 3}", Counted(number=number, padding=bytes(padding)))


async def drops(live: Live) -> dict[str, int]:
    """Gives retention time for everything it would do."""
    await asyncio.sleep(5.0)
    return live.standing().counters


class Guards:
    """Gives a host its safeguards."""

    def __init__(self, safeguards: Safeguards) -> None:
        self.connections = Connections(safeguards=safeguards)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def kill(self) -> None: ...


async def start(
    node: SimNode, *, archive: SimArchive | None = None, or_drop: bool = False, segment_bytes: int = 4_000
) -> tuple[Live, Safeguards]:
    def make(_: SimNode, host: Host) -> list[Guards]:
        signers, wall_ns = lambda: host.shards[0].state.signers, node.clock.wall_ns
        archivist = None
        if archive is not None:
            archivist = Archiver(host.journal, archive, node.signer, wall_ns, signers, segment_bytes=segment_bytes)
        return [Guards(Safeguards(RetentionHolds(SimHolds(node.disk)), archivist, archive_or_drop=or_drop))]

    node.make_parts = make
    live = await node.start()
    return live, live.host.housekeeper.safeguards


def holds_of(live: Live) -> RetentionHolds:
    holds = live.host.housekeeper.safeguards.holds
    assert holds is not None
    return holds


class TestHolds:
    def test_nothing_that_is_held_is_dropped_and_a_restart_knows_it(self) -> None:
        async def main(node: SimNode) -> None:
            live, _ = await start(node)
            holds_of(live).set("incident 7", "counsel", node.clock.wall_ns())
            await count(live, range(40))
            assert (await drops(live))["commits_dropped"] == 0
            await node.lose_power()
            live, _ = await start(node)
            await count(live, range(40, 60))
            assert (await drops(live))["commits_dropped"] == 0
            assert live.host.journal.first_position(0) == 1
            holds_of(live).clear(1, "settled", "counsel", node.clock.wall_ns())
            assert (await drops(live))["commits_dropped"] > 0
            assert [(hold.number, hold.is_open, hold.cleared_why) for hold in holds_of(live).all()] == [
                (1, False, "settled")
            ]

        play(declare(), main, settings=rules(keep_s=0.5))

    def test_a_hold_from_a_time_on_lets_what_was_before_it_go(self) -> None:
        async def main(node: SimNode) -> None:
            live, _ = await start(node)
            holds = holds_of(live)
            await count(live, range(3))
            await asyncio.sleep(0.2)
            since_ns = node.clock.wall_ns()
            holds.set("incident", "counsel", since_ns, since_ns=since_ns)
            await count(live, range(3, 40))
            await drops(live)
            first = live.host.journal.first_position(0)
            stored = next(live.host.journal.read(0))
            assert first > 1
            assert stored.sealed.time_ns >= since_ns
            assert sum(len(open_commit(one.sealed.body).events) for one in live.host.journal.read(0)) >= 37

        play(declare(), main, settings=rules(keep_s=0.5))

    def test_a_hold_on_an_agent_holds_its_shard_only(self) -> None:
        async def main(node: SimNode) -> None:
            live, _ = await start(node)
            held = live.host.intake.shard_of("Counter/0")
            other = 1 - held
            addresses = [f"Counter/{number}" for number in range(40)]
            holds_of(live).set("incident", "counsel", 1, agent="Counter/0")
            for number in range(80):
                await live.observe(addresses[number % 40], Counted(number=number))
            await drops(live)
            journal = live.host.journal
            assert (journal.first_position(held), journal.first_position(other) > 1) == (1, True)

        play(declare(shards=2), main, settings=rules(keep_s=0.5))

    def test_on_a_full_disk_a_hold_outranks_going_on(self) -> None:
        async def main(node: SimNode) -> Any:
            live, _ = await start(node)
            holds_of(live).set("incident", "counsel", 1)
            await count(live, range(30), padding=2_000)
            await asyncio.sleep(1.0)
            node.disk.capacity_bytes = node.disk.used_bytes() + 20_000
            with pytest.raises(JournalFull):
                await count(live, range(30, 100), padding=2_000)
            assert live.standing().counters["commits_dropped"] == 0
            assert next(iter(live.host.journal.read(0))).sealed.position == 1
            failure = live.failure
            await node.kill()
            return failure

        assert isinstance(play(declare(), main, settings=rules(keep_bytes=50_000)), JournalFull)

    def test_a_damaged_record_holds_everything_and_says_so(self) -> None:
        async def main(node: SimNode) -> None:
            live, safeguards = await start(node)
            holds = safeguards.holds
            assert holds is not None
            holds.set("incident", "counsel", 1, agent="Counter/1", since_ns=2)
            node.disk.flip("fleet.db-holds", 100)
            await node.stop()
            live, _ = await start(node)
            await count(live, range(40))
            assert (await drops(live))["commits_dropped"] == 0
            assert "nothing is dropped" in live.standing().troubles[0]
            with pytest.raises(JournalCorrupt, match="put a copy of it back"):
                holds_of(live).all()
            with pytest.raises(JournalCorrupt, match="put a copy of it back"):
                holds_of(live).set("another", "counsel", 2)

        play(declare(), main, settings=rules(keep_s=0.5))

    def test_the_record(self, tmp_path: Path) -> None:
        store = HoldsFile(tmp_path / "fleet.db-holds")
        holds = RetentionHolds(store)
        assert holds.all() == []
        first = holds.set("incident 7", "Ada", 10, agent="Drone/D-1", since_ns=5)
        second = holds.set("everything", "Bea", 20)
        cleared = holds.clear(1, "settled", "Cy", 30)
        assert (first.number, second.number, cleared.cleared_by) == (1, 2, "Cy")
        assert RetentionHolds(store).all() == [cleared, second]
        text = store.path.read_text()
        assert text.startswith("stigmergy-holds-1 ")
        assert '"reason":"incident 7"' in text
        for place in range(0, len(text), 3):
            bad = bytearray(text.encode())
            bad[place] ^= 1
            with pytest.raises(JournalCorrupt):
                read_holds(bytes(bad))
        for number, why in ((1, "cleared already"), (9, "does not exist")):
            with pytest.raises(ConfigError, match=why):
                holds.clear(number, "why", "who", 40)
        for reason, by in (("", "who"), ("why", " ")):
            with pytest.raises(ConfigError, match="needs a reason"):
                holds.set(reason, by, 1)
            with pytest.raises(ConfigError, match="needs a reason"):
                holds.clear(2, reason, by, 1)
        with pytest.raises(ConfigError, match="is no agent"):
            holds.set("why", "who", 1, agent="Drone")

    def test_the_record_is_bounded_and_open_holds_stay(self, tmp_path: Path) -> None:
        store = HoldsFile(tmp_path / "holds")
        open_hold = RetentionHolds(store).set("keep", "Ada", 1)
        many = [*RetentionHolds(store).all()]
        for number in range(2, HOLDS_MAX + 1):
            many.append(type(open_hold)(number, "r", "b", 1, cleared_ns=number, cleared_by="b", cleared_why="w"))
        store.save(write_holds(many))
        holds = RetentionHolds(store)
        assert len(holds.all()) == HOLDS_MAX
        holds.set("one more", "Ada", 2)
        assert len(holds.all()) == HOLDS_MAX
        assert holds.all()[0] == open_hold
        store.save(write_holds([type(open_hold)(number, "r", "b", 1) for number in range(1, HOLDS_MAX + 1)]))
        with pytest.raises(ConfigError, match="open holds already"):
            RetentionHolds(store).set("one more", "Ada", 2)

    def test_a_record_that_cannot_be_written_sets_nothing(self, tmp_path: Path) -> None:
        holds = RetentionHolds(HoldsFile(tmp_path / "no" / "folder"))
        with pytest.raises(JournalError):
            holds.set("incident", "Ada", 1)
        assert holds.all() == []


def test_nothing_is_dropped_under_the_hands_of_a_reader_unless_the_device_is_full() -> None:
    async def main(node: SimNode) -> None:
        live, safeguards = await start(node)
        safeguards.readers += 1
        await count(live, range(40))
        assert (await drops(live))["commits_dropped"] == 0
        assert node.store is not None
        node.store.capacity_bytes = node.store.used_bytes
        await live.observe("Counter/0", Counted(number=1))
        assert live.standing().counters["commits_dropped"] > 0
        node.store.capacity_bytes = 1 << 30
        safeguards.readers -= 1
        await count(live, range(40, 80))
        before = live.host.journal.first_position(0)
        await drops(live)
        assert live.host.journal.first_position(0) > before

    play(declare(), main, settings=rules(keep_s=0.5), in_memory=True)


def verified_archive(archive: SimArchive, disk: SimDisk, folder: Path) -> list[int]:
    """The positions in an archive, each segment checked as `log verify` does."""
    positions: list[int] = []
    for name in archive.names():
        path = folder / Path(name).name
        path.write_bytes(disk.content(name))
        flight = open_flight(path)
        found = FlightVerification(flight, Ed25519Verifier()).run()
        assert found.verified.problems == []
        positions += [stored.sealed.position for stored in flight.read(0)]
        asyncio.run(flight.close())
    return positions


class TestArchive:
    def test_everything_that_is_dropped_is_in_the_archive(self, tmp_path: Path) -> None:
        kept: list[Any] = []

        async def main(node: SimNode) -> None:
            archive = SimArchive(node.disk)
            live, safeguards = await start(node, archive=archive)
            await count(live, range(60), padding=200)
            counters = await drops(live)
            await safeguards.close()
            first = live.host.journal.first_position(0)
            assert counters["commits_dropped"] == first - 1 > 0
            assert counters["commits_archived"] >= first - 1
            assert counters["segments_archived"] > 1, "small segments, so several of them"
            assert counters["archive_failures"] == counters["commits_dropped_unarchived"] == 0
            kept.append((archive, node.disk, first))

        play(declare(), main, settings=rules(keep_s=0.5))
        archive, disk, first = kept[0]
        assert verified_archive(archive, disk, tmp_path)[: first - 1] == list(range(1, first))

    def test_what_the_archive_does_not_take_is_not_dropped(self) -> None:
        async def main(node: SimNode) -> None:
            disk = node.world.make_disk("archive", capacity_bytes=100)
            live, safeguards = await start(node, archive=SimArchive(disk))
            await count(live, range(40))
            counters = await drops(live)
            assert counters["commits_dropped"] == 0
            assert counters["archive_failures"] > 1, "it is tried again with each check"
            assert "the archive takes nothing" in live.standing().troubles[0]
            disk.capacity_bytes = 1 << 30
            counters = await drops(live)
            assert counters["commits_dropped"] > 0
            assert live.standing().troubles == []
            await safeguards.close()

        play(declare(), main, settings=rules(keep_s=0.5))

    @pytest.mark.parametrize("call", [Call.CREATE, Call.WRITE, Call.SYNC, Call.RENAME, Call.READ])
    def test_a_fault_of_the_archive_at_every_call(self, call: Call) -> None:
        async def main(node: SimNode) -> None:
            disk = node.world.make_disk("archive")
            for number in range(1, 4):
                disk.fail_kind(call, number, DiskFault.EIO)
            live, safeguards = await start(node, archive=SimArchive(disk))
            await count(live, range(40))
            counters = await drops(live)
            archived = counters["commits_archived"]
            assert counters["commits_dropped"] <= archived
            assert live.host.journal.first_position(0) <= archived + 1
            assert live.failure is None, "an archive that fails is no reason to stop"
            await safeguards.close()

        play(declare(), main, settings=rules(keep_s=0.5))

    def test_what_is_archived_but_not_dropped_is_archived_again_after_a_crash(self, tmp_path: Path) -> None:
        kept: list[Any] = []

        async def main(node: SimNode) -> None:
            archive_disk = node.world.make_disk("archive")
            archive = SimArchive(archive_disk)
            for life in range(6):
                live, safeguards = await start(node, archive=archive)
                await count(live, range(life * 15, life * 15 + 15))
                await asyncio.sleep(0.35 + 0.11 * life)
                await safeguards.close()
                await node.lose_power()
            live = await node.start()
            kept.append((archive, archive_disk, live.host.journal.first_position(0)))

        play(declare(), main, settings=rules(keep_s=0.1))
        archive, disk, first = kept[0]
        assert first > 1
        assert set(range(1, first)) <= set(verified_archive(archive, disk, tmp_path))

    @pytest.mark.parametrize("or_drop", [False, True])
    def test_a_full_disk_with_the_archive_on_it(self, or_drop: bool) -> None:
        """The stated policy: stop rather than lose what no archive has, unless it was said that it may go."""

        async def main(node: SimNode) -> None:
            node.disk.capacity_bytes = 1_000  # of the archive; with a journal in memory, which is full at the same time
            live, safeguards = await start(node, archive=SimArchive(node.disk), or_drop=or_drop)
            await count(live, range(30), padding=2_000)
            await asyncio.sleep(1.0)
            assert node.store is not None
            node.store.capacity_bytes = node.store.used_bytes + 10_000
            failure: Exception | None = None
            try:
                await count(live, range(30, 60), padding=2_000)
            except JournalFull as error:
                failure = error
            counters = live.standing().counters
            assert (failure is None) == or_drop
            assert (counters["commits_dropped_unarchived"] > 0) == or_drop
            await safeguards.close()
            await node.kill()

        play(declare(), main, settings=rules(), in_memory=True)

    def test_a_small_disk_lives_on_with_its_archive_elsewhere(self, tmp_path: Path) -> None:
        """Many times what the disk holds goes through it; nothing is lost, and nothing of it stays in the way."""
        kept: list[Any] = []

        async def main(node: SimNode) -> None:
            node.disk.capacity_bytes = 3_000_000
            disk = node.world.make_disk("archive")
            archive = SimArchive(disk)
            live, safeguards = await start(node, archive=archive, segment_bytes=100_000)
            for batch in range(24):
                await count(live, range(batch * 50, batch * 50 + 50), padding=6_000)
                await asyncio.sleep(0.5)
            assert live.failure is None
            assert live.standing().counters["commits_dropped_unarchived"] == 0
            assert disk.used_bytes() > 2 * node.disk.capacity_bytes
            first = live.host.journal.first_position(0)
            await safeguards.close()
            kept.append((archive, disk, first, live.host.journal.heads()[0].position))

        rule = rules(reserve_bytes=1_500_000)
        play(declare(), main, settings=rule)
        archive, disk, first, last = kept[0]
        assert 1 < first <= last
        assert set(range(1, first)) <= set(verified_archive(archive, disk, tmp_path))

    def test_a_damaged_commit_is_neither_archived_nor_dropped(self) -> None:
        async def main(node: SimNode) -> None:
            archive = SimArchive(node.disk)
            live, safeguards = await start(node, archive=archive)
            await count(live, range(40))
            assert node.store is not None
            kept = node.store.commits[0]
            first = kept[1].sealed
            kept[1] = type(kept[1])(type(first)(*[*_values(first)[:-1], first.body + b"\0"]), kept[1].signature)
            counters = await drops(live)
            assert counters["commits_dropped"] == 0
            assert counters["archive_failures"] > 0
            assert "are not those that were written" in live.standing().troubles[0]
            await safeguards.close()
            await node.kill()

        play(declare(), main, settings=rules(keep_s=0.5), in_memory=True)


def _values(one: Any) -> list[Any]:
    return [getattr(one, name) for name in one.__struct_fields__]
