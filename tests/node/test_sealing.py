"""A group that is sealed while another is on its way to the disk: who is told when, what is seen, what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event
from stigmergy.base.errors import JournalFull, JournalUnknown, NotRunning
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import open_host
from stigmergy.node.settings import Settings, Snapshots
from stigmergy.shard.commit import Group
from stigmergy.shard.inputs import Accepted
from stigmergy.sim.loop import SimClock, SimEntropy
from stigmergy.sim.run import Run

BATCH = 4


class Add(Command):
    number: int


class Added(Event):
    number: int


class Counter(Agent):
    numbers: tuple[int, ...] = ()

    @decide
    def add(self, command: Add) -> Events:
        yield Added(number=command.number)

    @evolve
    def added(self, event: Added) -> None:
        self.numbers = (*self.numbers, event.number)


class SlowJournal(MemoryJournal):
    """Each append waits until the test lets it go on, or fail."""

    def __init__(self, store: MemoryJournalStore) -> None:
        super().__init__(store)
        self.gates: list[asyncio.Future[None]] = []
        self.slow = False
        self.groups: list[Group] = []

    async def append(self, group: Group) -> None:
        if self.slow:
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.gates.append(gate)
            self._idle.clear()
            try:
                await gate
            finally:
                self._idle.set()
        await super().append(group)
        self.groups.append(group)


class Stage:
    """A node whose writes are slow from when the scene begins."""

    def __init__(self, **settings: Any) -> None:
        self.world = Run(1)
        self.store = MemoryJournalStore(JournalIdentity(fleet="counters", shards=1, incarnation=1))
        self.settings = Settings(batch_events_max=BATCH, **settings)
        self.sent = 0

    async def start(self) -> Live:
        self.store.owner = None
        self.journal = SlowJournal(self.store)
        fleet = Declaration("counters", agents=[Counter])
        clock = SimClock(self.world.loop)
        self.host = open_host(fleet, self.journal, Ed25519Signer(bytes(32)), Ed25519Verifier(), clock, self.settings)
        await self.host.start()
        live = Live(self.host, SimEntropy(1, "ids"))
        await asyncio.sleep(0.1)
        return live

    def send(self, count: int) -> list[asyncio.Future[None]]:
        futures = []
        for _ in range(count):
            self.sent += 1
            item = ("Counter/a", Added(number=self.sent))
            futures.append(self.host.intake.deliver(pack_envelope("s", [item], sequence=self.sent)))
        return futures

    async def sealed_ahead(self, left: int = 2) -> tuple[Live, Any, Any, Any]:
        """One group on its way, one sealed behind it, and some in the open draft."""
        live = await self.start()
        self.journal.slow = True
        first = self.send(BATCH)
        await asyncio.sleep(0.01)
        assert len(self.journal.gates) == 1
        second = self.send(BATCH)
        await asyncio.sleep(0.01)
        third = self.send(left)
        await asyncio.sleep(0.01)
        committer = self.host.committer
        assert committer.flight is not None
        assert committer._sealed is not None
        assert len(committer.in_doubt) == 2
        assert not committer.idle
        return live, first, second, third


def played(scene: Callable[[Stage], Coroutine[Any, Any, None]], **settings: Any) -> None:
    stage = Stage(**settings)
    stage.world.run(scene(stage))


def test_tickets_and_queries_follow_the_disk_group_by_group() -> None:
    async def scene(stage: Stage) -> None:
        live, first, second, third = await stage.sealed_ahead()
        gates = stage.journal.gates
        assert live.query("Counter/a").numbers == ()
        assert live.agents() == []
        assert live.standing().events == 1, "that the signer is enrolled"
        gates[0].set_result(None)
        await asyncio.sleep(0.01)
        assert all(one.done() for one in first)
        assert not any(one.done() for one in (*second, *third))
        assert live.query("Counter/a").numbers == (1, 2, 3, 4)
        assert live.standing().events == 5
        assert len(gates) == 2, "the sealed one went to the disk at once"
        gates[1].set_result(None)
        await asyncio.sleep(0.01)
        assert all(one.done() for one in second)
        assert not any(one.done() for one in third)
        assert live.query("Counter/a").numbers == tuple(range(1, 9))
        stage.journal.slow = False
        gates[2].set_result(None)
        await asyncio.gather(*third)
        assert live.query("Counter/a").numbers == tuple(range(1, 11))
        positions = [commit.position for group in stage.journal.groups for commit in group.commits]
        assert positions == sorted(positions)
        await stage.host.stop()

    played(scene)


def test_a_repetition_of_what_is_sealed_is_acknowledged_only_when_that_is_durable() -> None:
    """It leaves nothing to write itself, and the open draft is empty."""

    async def scene(stage: Stage) -> None:
        _, first, second, _ = await stage.sealed_ahead(left=0)
        gates = stage.journal.gates
        items = [("Counter/a", Added(number=number)) for number in (5, 6)]
        repeated = stage.host.intake.deliver(pack_envelope("s", items, sequence=5))
        await asyncio.sleep(0.01)
        gates[0].set_result(None)
        await asyncio.gather(*first)
        await asyncio.sleep(0.01)
        assert not repeated.done()
        gates[1].set_result(None)
        await asyncio.gather(*second, repeated)
        stage.journal.slow = False
        await stage.host.stop()

    played(scene)


def test_a_command_whose_answer_is_sealed_is_answered_when_it_is_durable_and_its_repetition_with_it() -> None:
    async def scene(stage: Stage) -> None:
        live = await stage.start()
        stage.journal.slow = True
        first = stage.send(BATCH)
        await asyncio.sleep(0.01)
        asked = [
            asyncio.ensure_future(live.send("Counter/a", Add(number=number), command_id=f"c{number}"))
            for number in range(BATCH)
        ]
        await asyncio.sleep(0.01)
        again = asyncio.ensure_future(live.send("Counter/a", Add(number=0), command_id="c0"))
        await asyncio.sleep(0.01)
        assert stage.host.committer._sealed is not None
        stage.journal.gates[0].set_result(None)
        await asyncio.gather(*first)
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in (*asked, again))
        stage.journal.slow = False
        stage.journal.gates[1].set_result(None)
        assert all(isinstance(one, Accepted) for one in await asyncio.gather(*asked, again))
        assert len(live.query("Counter/a").numbers) == 2 * BATCH
        await stage.host.stop()

    played(scene)


@pytest.mark.parametrize("error", [JournalUnknown("the sync failed"), OSError("gone")])
def test_when_the_write_under_way_fails_all_behind_it_are_told_and_none_of_it_is_written(error: Exception) -> None:
    async def scene(stage: Stage) -> None:
        live, first, second, third = await stage.sealed_ahead()
        stage.journal.gates[0].set_exception(error)
        found = await asyncio.gather(*first, *second, *third, return_exceptions=True)
        assert all(isinstance(one, type(error)) for one in found), found
        assert live.failure is not None
        await asyncio.sleep(1.0)
        assert len(stage.journal.gates) == 1, "nothing was written after that"
        assert live.query("Counter/a").numbers == ()
        stage.sent = 0
        again = await stage.start()
        assert again.query("Counter/a").numbers == ()
        await asyncio.gather(*stage.send(3))
        assert again.query("Counter/a").numbers == (1, 2, 3)
        await stage.host.stop()

    played(scene)


def test_a_full_disk_that_can_be_made_room_on_keeps_the_order_of_what_is_sealed() -> None:
    async def scene(stage: Stage) -> None:
        live, first, second, third = await stage.sealed_ahead()
        rooms: list[int] = []

        async def make_room() -> bool:
            rooms.append(len(stage.journal.groups))
            return True

        stage.host.housekeeper.make_room = make_room  # type: ignore[method-assign]
        stage.journal.slow = False
        stage.journal.gates[0].set_exception(JournalFull("no room"))
        await asyncio.gather(*first, *second, *third)
        assert len(rooms) == 1
        assert live.query("Counter/a").numbers == tuple(range(1, 11))
        positions = [commit.position for group in stage.journal.groups for commit in group.commits]
        assert positions == list(range(1, len(positions) + 1))
        await stage.host.stop()
        again = await stage.start()
        assert again.query("Counter/a").numbers == tuple(range(1, 11))
        await stage.host.stop()

    played(scene)


def test_a_full_disk_without_room_fails_the_sealed_one_too() -> None:
    async def scene(stage: Stage) -> None:
        live, first, second, third = await stage.sealed_ahead()
        stage.journal.gates[0].set_exception(JournalFull("no room"))
        found = await asyncio.gather(*first, *second, *third, return_exceptions=True)
        assert all(isinstance(one, JournalFull) for one in found), found
        assert isinstance(live.failure, JournalFull)
        assert live.query("Counter/a").numbers == ()

    played(scene)


def test_a_stop_writes_what_is_sealed_and_what_is_open() -> None:
    async def scene(stage: Stage) -> None:
        _, first, second, third = await stage.sealed_ahead()
        stopping = asyncio.ensure_future(stage.host.stop())
        await asyncio.sleep(0.01)
        stage.journal.slow = False
        stage.journal.gates[0].set_result(None)
        await stopping
        assert [one.exception() for one in (*first, *second, *third)] == [None] * 10
        again = await stage.start()
        assert again.query("Counter/a").numbers == tuple(range(1, 11))
        await stage.host.stop()

    played(scene)


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_a_snapshot_of_a_sealed_commit_that_never_gets_to_the_disk_harms_nobody(parts: int) -> None:
    """Its parts may be there before the commit. After the crash another commit has that position."""

    async def scene(stage: Stage) -> None:
        _, first, second, third = await stage.sealed_ahead()
        host = stage.host
        taking = [record.taking for record in host.housekeeper._records.values()]
        assert any(one is not None for one in taking), "a snapshot was begun when the group was sealed"
        stage.journal.gates[0].set_result(None)
        await asyncio.gather(*first)
        for _ in range(parts):
            await asyncio.sleep(0.001)
        await host.kill()
        found = await asyncio.gather(*second, *third, return_exceptions=True)
        assert all(isinstance(one, NotRunning) for one in found), found
        stage.sent = 4
        again = await stage.start()
        assert again.query("Counter/a").numbers == (1, 2, 3, 4)
        for _ in range(5):
            await asyncio.gather(*stage.send(BATCH))
        assert again.query("Counter/a").numbers == tuple(range(1, 25))
        await stage.host.stop()
        last = await stage.start()
        assert last.query("Counter/a").numbers == tuple(range(1, 25))
        await stage.host.stop()

    played(scene, snapshots=Snapshots(every_events=7, tail_ratio=0.0, share_max=1000.0))
