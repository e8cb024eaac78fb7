"""A log belongs to one fleet, to one owner at a time, and to one incarnation, and says so in every commit."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from msgspec import structs

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Effects, Order, Tell
from stigmergy.agents.messages import Action, Event
from stigmergy.audit.history import History, Moment
from stigmergy.audit.verification import Verification
from stigmergy.base.errors import JournalError, StaleEpoch
from stigmergy.base.system import SystemClock
from stigmergy.journal.memory import MemoryJournal
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.journal.recovery import Recovery
from stigmergy.journal.sqlite import inspect_journal, open_journal
from stigmergy.journal.sqlite.schema import identity_row
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import open_host
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.shard.commit import genesis_of
from stigmergy.shard.homes import shard_of
from stigmergy.shard.inputs import Delivery
from stigmergy.shard.state import Limits
from stigmergy.sim.node import SimNode
from tests.node.rig import play

NEVER = Settings(snapshots=Snapshots(every_events=10**9, every_s=1e9), drain_s=1.0)
OFTEN = Settings(
    snapshots=Snapshots(every_events=3, every_s=1e9, tail_ratio=0.0, share_max=1000.0, incremental_max=0), drain_s=1.0
)
DROPPING = structs.replace(OFTEN, retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.1))
FROM = ["from the log", "from snapshots", "with the log dropped"]

GIVER = next(f"Counter/g{number}" for number in range(100) if shard_of(f"Counter/g{number}", 2) == 0)
TAKER = next(f"Counter/t{number}" for number in range(100) if shard_of(f"Counter/t{number}", 2) == 1)


class Counted(Event):
    number: int


class Given(Event):
    number: int


class Wanted(Event):
    number: int


class Press(Action):
    number: int


class Counter(Agent):
    numbers: tuple[int, ...] = ()

    @evolve
    def counted(self, event: Counted) -> None:
        self.numbers = (*self.numbers, event.number)

    @react
    def give(self, event: Given) -> Effects:
        yield Tell(TAKER, Counted(number=event.number))

    @react
    def press(self, event: Wanted) -> Effects:
        yield Press(number=event.number)


def declare(shards: int = 1, name: str = "counters") -> Declaration:
    return Declaration(name, agents=[Counter], shards=shards)


class TestFleet:
    @pytest.mark.parametrize("settings", [NEVER, OFTEN, DROPPING], ids=FROM)
    def test_a_log_that_is_given_the_name_of_another_fleet_is_refused(self, settings: Settings) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            for number in range(20):
                await live.observe("Counter/a", Counted(number=number))
            await asyncio.sleep(1.0)
            assert (live.host.journal.first_position(0) > 1) == (settings is DROPPING)
            await node.stop()
            store = node.store
            assert store is not None
            ours = store.identity
            store.owner = None
            check(MemoryJournal(store), sound=True)
            store.identity = structs.replace(ours, fleet="others")
            store.owner = None
            check(MemoryJournal(store), sound=False)
            store.identity = ours

        play(declare(), main, settings=settings, in_memory=True)

    @pytest.mark.parametrize("settings", [NEVER, OFTEN], ids=["from the log", "from snapshots"])
    async def test_nor_does_it_help_to_put_the_checksum_of_the_file_right(
        self, tmp_path: Path, settings: Settings
    ) -> None:
        path = tmp_path / "fleet.db"
        journal: Journal = open_journal(f"sqlite:{path}", JournalIdentity("counters", 1, 7))
        host = open_host(declare(), journal, Ed25519Signer(bytes(32)), Ed25519Verifier(), SystemClock(), settings)
        await host.start()
        for number in range(20):
            await host.intake.observe("Counter/a", Counted(number=number))
        await host.stop()
        with contextlib.closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("INSERT OR REPLACE INTO identity VALUES (?, ?, ?, ?, ?)", identity_row(_named("others")))
        opened = open_journal(f"sqlite:{path}", _named("others"))
        with pytest.raises(JournalError):
            Recovery(opened, declare().plans, Ed25519Verifier(), Limits()).recover()
        await opened.close()
        check(inspect_journal(f"sqlite:{path}"), sound=False)

    def test_every_shard_of_every_fleet_begins_elsewhere(self) -> None:
        assert len({genesis_of(fleet, shard) for fleet in ("a", "b", "a1") for shard in range(12)}) == 36


def _named(fleet: str) -> JournalIdentity:
    return JournalIdentity(fleet, 1, 7)


def check(journal: Journal, *, sound: bool) -> None:
    """Recovery, a look back and verification agree about a journal."""
    plans = declare().plans
    assert Verification(journal, Ed25519Verifier()).run().sound == sound
    with contextlib.nullcontext() if sound else pytest.raises(JournalError):
        Recovery(journal, plans, Ed25519Verifier(), Limits()).recover()
    if sound:
        History(journal, plans).look("Counter/a", Moment())


class TestEpoch:
    def test_each_start_begins_a_new_one(self) -> None:
        async def main(node: SimNode) -> None:
            for life in range(1, 5):
                before = node.logbook.positions[0]
                live = await node.start()
                await live.observe(GIVER, Counted(number=life))
                await live.observe(GIVER, Counted(number=life))
                commits = node.logbook.commits[0][before:]
                assert len(commits) >= 2
                assert {commit.epoch for commit in commits} == {life}
                await [node.stop, node.lose_power, node.kill, node.stop][life - 1]()

        play(declare(), main, settings=NEVER)

    def test_a_start_that_writes_nothing_leaves_no_trace(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe(GIVER, Counted(number=1))
            for _ in range(3):
                await node.stop()
                live = await node.start()
            await live.observe(GIVER, Counted(number=2))
            assert [commit.epoch for commit in node.logbook.commits[0]][-1] == 2

        play(declare(), main, settings=NEVER)

    @pytest.mark.parametrize("settings", [NEVER, OFTEN], ids=["from the log", "from snapshots"])
    def test_what_the_last_owner_owed_other_shards_is_released_under_the_new_one(self, settings: Settings) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe(GIVER, Given(number=1))
            await asyncio.sleep(1.5)
            assert node.logbook.states[1].marks.epoch("shard/0", 0) == 1
            await live.observe(GIVER, Given(number=2))
            await node.kill()
            assert node.logbook.states[1].marks.consumed("shard/0", 0) == 1, "it is still owed"
            live = await node.start()
            await asyncio.sleep(1.5)
            assert live.query(TAKER).numbers == (1, 2)
            assert node.logbook.states[1].marks.epoch("shard/0", 0) == 2
            item = (TAKER, encode(Counted(number=3)))
            late = Delivery("shard/0", [item], sequence=3, epoch=1)
            stepped = live.host.shards[1].step([late], live.host.clock.wall_ns())
            assert [type(error) for _, error in stepped.untaken] == [StaleEpoch]
            await live.observe(GIVER, Given(number=4))
            await asyncio.sleep(1.5)
            assert live.query(TAKER).numbers == (1, 2, 4)

        play(declare(2), main, settings=settings)


class TestIncarnation:
    @pytest.mark.parametrize("settings", [NEVER, OFTEN, DROPPING], ids=FROM)
    def test_what_was_owed_before_a_restore_keeps_its_key_and_what_is_new_has_a_new_one(
        self, settings: Settings
    ) -> None:
        fleet = declare()
        keys: dict[int, list[str]] = {}
        working = asyncio.Event()

        @fleet.actuator(Press)
        async def press(order: Order[Press]) -> None:
            keys.setdefault(order.effect.number, []).append(order.key)
            await working.wait()

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/a", Wanted(number=1))
            await live.observe("Counter/b", Wanted(number=2))
            for number in range(10):
                await live.observe("Counter/c", Counted(number=number))
            await asyncio.sleep(1.0)
            await node.kill()
            assert node.store is not None
            node.store.renew_incarnation(2)
            working.set()
            live = await node.start()
            assert bool(live.recovered.snapshots) == (settings is not NEVER)
            await live.observe("Counter/a", Wanted(number=3))
            await asyncio.sleep(2.0)
            assert live.standing().owed == 0
            assert [commit.incarnation for commit in node.logbook.commits[0]][-1] == 2

        play(fleet, main, settings=settings, in_memory=True)
        assert len(keys[1]) == len(keys[2]) == 2, "released again after the restore"
        assert len(set(keys[1])) == len(set(keys[2])) == 1
        assert [keys[number][0].partition(".")[0] for number in (1, 2, 3)] == ["1", "1", "2"]
