"""A disk that does not answer: the node gives up on it in time, and a slow one that answers does no harm."""

import asyncio
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.effects import Events, Order
from stigmergy.agents.messages import Action, Command, Event
from stigmergy.agents.supervision import SafeAction
from stigmergy.base.errors import JournalUnknown, NotRunning
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

TICK_S = 0.001
FOREVER_S = 1e9


class Add(Command):
    number: int


class Added(Event):
    number: int


class Land(Action):
    pass


class Counter(Agent):
    count: int = 0
    safe = SafeAction(then=Land())

    @decide
    def add(self, command: Add) -> Events:
        yield Added(number=command.number)

    @evolve
    def added(self, event: Added) -> None:
        self.count += 1


class StallingJournal(MemoryJournal):
    """A journal whose writes take as long as the test says. Like a real one it cannot be closed meanwhile."""

    append_s = 0.0
    snapshot_s = 0.0

    async def append(self, group: Group) -> None:
        await self._stall(self.append_s)
        await super().append(group)

    async def put_snapshot(self, shard: int, position: int, parts: Any) -> None:
        await self._stall(self.snapshot_s)
        await super().put_snapshot(shard, position, parts)

    async def _stall(self, seconds: float) -> None:
        self._idle.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._idle.set()


class Stage:
    """A node in virtual time on a disk that stalls."""

    def __init__(self, **settings: Any) -> None:
        self.world = Run(1)
        self.landed: list[tuple[str, float]] = []
        self.settings = Settings(write_within_s=2.0, drain_s=1.0, **settings)
        self.store = MemoryJournalStore(JournalIdentity(fleet="counters", shards=1, incarnation=1))
        self.journal = StallingJournal(self.store)
        fleet = Declaration("counters", agents=[Counter])

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            self.landed.append((order.agent, self.world.loop.time()))

        self._fleet = fleet

    async def start(self) -> Live:
        signer, clock = Ed25519Signer(bytes(32)), SimClock(self.world.loop)
        self.host = open_host(self._fleet, self.journal, signer, Ed25519Verifier(), clock, self.settings)
        await self.host.start()
        live = Live(self.host, SimEntropy(1, "ids"))
        for name in ("a", "b"):
            await live.send(f"Counter/{name}", Add(number=0))
        return live


def test_an_append_that_never_returns_lets_safe_actions_out_and_tells_everybody_in_time() -> None:
    stage = Stage()

    async def main() -> None:
        live = await stage.start()
        stage.journal.append_s = FOREVER_S
        began_s = stage.world.loop.time()
        waits: list[Any] = [
            live.send("Counter/a", Add(number=1)),
            live.send("Counter/b", Add(number=1), command_id="x"),
            live.observe("Counter/a", Added(number=2)),
            live.deliver(pack_envelope("s", [("Counter/a", Added(number=3))], sequence=1)),
            live.deliver(pack_envelope("s", [("Counter/a", Added(number=9))], sequence=9)),
            live.wait_failure(),
        ]
        told = [asyncio.ensure_future(one) for one in waits]
        await asyncio.sleep(stage.settings.write_within_s - TICK_S)
        assert not any(one.done() for one in told)
        assert not stage.landed
        late = asyncio.ensure_future(live.send("Counter/b", Add(number=4)))
        await asyncio.sleep(2 * TICK_S)
        assert all(isinstance(one.exception() or one.result(), JournalUnknown) for one in (*told, late))
        assert isinstance(live.failure, JournalUnknown)
        assert [agent for agent, _ in stage.landed] == ["Counter/a", "Counter/b"]
        limit_s = began_s + stage.settings.write_within_s
        assert all(limit_s <= moment_s <= limit_s + TICK_S for _, moment_s in stage.landed)
        with pytest.raises(NotRunning):
            await live.observe("Counter/a", Added(number=5))

    stage.world.run(main())


def test_a_journal_that_finds_a_new_leader_first_is_waited_for() -> None:
    stage = Stage()
    stage.journal.write_within_s = 9.0  # type: ignore[attr-defined]

    async def main() -> None:
        live = await stage.start()
        stage.journal.append_s = 8.0
        assert isinstance(await live.send("Counter/a", Add(number=1)), Accepted)
        assert not stage.landed
        stage.journal.append_s = FOREVER_S
        began_s = stage.world.loop.time()
        told = asyncio.ensure_future(live.send("Counter/a", Add(number=2)))
        assert isinstance(await live.wait_failure(), JournalUnknown)
        assert 9.0 <= stage.world.loop.time() - began_s <= 9.0 + TICK_S
        with pytest.raises(JournalUnknown):
            await told

    stage.world.run(main())


def test_the_write_that_begins_behind_another_has_a_deadline_too() -> None:
    stage = Stage()

    async def main() -> None:
        live = await stage.start()
        stage.journal.append_s = 1.0
        first = asyncio.ensure_future(live.send("Counter/a", Add(number=1)))
        await asyncio.sleep(TICK_S)
        second = asyncio.ensure_future(live.send("Counter/b", Add(number=2)))
        await asyncio.sleep(TICK_S)
        stage.journal.append_s = FOREVER_S
        assert isinstance(await first, Accepted)
        began_s = stage.world.loop.time()
        assert isinstance(await live.wait_failure(), JournalUnknown)
        assert stage.world.loop.time() - began_s <= stage.settings.write_within_s + TICK_S
        with pytest.raises(JournalUnknown):
            await second
        assert len(stage.landed) == 2

    stage.world.run(main())


def test_a_stalled_snapshot_ends_the_node_too() -> None:
    stage = Stage(snapshots=Snapshots(every_events=1, tail_ratio=0.0, share_max=1000.0))

    async def main() -> None:
        live = await stage.start()
        stage.journal.snapshot_s = FOREVER_S
        asked = live.send("Counter/a", Add(number=1))
        told = await asyncio.gather(live.wait_failure(), asked, return_exceptions=True)
        assert isinstance(told[0], JournalUnknown)
        assert isinstance(told[1], Accepted | JournalUnknown), "written before the snapshot, or waiting behind it"
        assert len(stage.landed) == 2

    stage.world.run(main())


def test_a_write_that_comes_back_after_all_changes_nothing_any_more() -> None:
    stage = Stage()

    async def main() -> None:
        live = await stage.start()
        stage.journal.append_s = 10.0
        with pytest.raises(JournalUnknown, match="has not answered for 2 s"):
            await live.send("Counter/a", Add(number=1))
        await asyncio.sleep(20.0)
        assert isinstance(live.failure, JournalUnknown)
        assert len(stage.landed) == 2

    stage.world.run(main())


@pytest.mark.parametrize("stall_s", [0.5, 1.9])
def test_a_slow_write_that_is_finished_does_no_harm(stall_s: float) -> None:
    stage = Stage()

    async def main() -> None:
        live = await stage.start()
        stage.journal.append_s = stall_s
        for number in range(5):
            assert isinstance(await live.send("Counter/a", Add(number=number)), Accepted)
        await asyncio.sleep(60.0)
        assert live.failure is None
        assert live.query("Counter/a").count == 6
        assert not stage.landed
        stage.journal.append_s = 0.0
        await stage.host.stop()

    stage.world.run(main())


def test_a_node_whose_disk_never_answers_can_be_stopped() -> None:
    """Closing the journal waited for the write for ever, and with it the process that was to be started again."""
    stage = Stage()

    async def main() -> None:
        live = await stage.start()
        stage.journal.append_s = FOREVER_S
        with pytest.raises(JournalUnknown):
            await live.send("Counter/a", Add(number=1))
        began_s = stage.world.loop.time()
        await stage.host.stop()
        assert stage.world.loop.time() - began_s <= 3 * stage.settings.drain_s

    stage.world.run(main())


@pytest.mark.parametrize("end", ["kill", "deadline"])
def test_a_host_that_is_over_starts_no_write_when_the_last_one_comes_back(end: str) -> None:
    """What was stepped meanwhile was given up, and whoever sent it was told so: it must not be kept after all."""
    stage = Stage()

    async def main() -> None:
        live = await stage.start()
        kept = len(stage.store.commits[0])
        stage.journal.append_s = 1.0 if end == "kill" else 3.0
        told = [asyncio.ensure_future(live.send("Counter/a", Add(number=1)))]
        await asyncio.sleep(TICK_S)
        told.append(asyncio.ensure_future(live.send("Counter/b", Add(number=2))))
        await asyncio.sleep(TICK_S)
        if end == "kill":
            await stage.host.kill()
        else:
            await live.wait_failure()
        stage.journal.append_s = 0.0
        await asyncio.sleep(20.0)
        assert all(one.exception() is not None for one in told)
        assert len(stage.store.commits[0]) == kept + 1, "the write under way ends, and no other begins"

    stage.world.run(main())


@pytest.mark.parametrize("behind", [False, True], ids=["in a turn", "behind a write"])
def test_a_signer_that_fails_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    stage = Stage()

    async def main() -> None:
        live = await stage.start()
        stage.journal.append_s = 1.0
        first = asyncio.ensure_future(live.observe("Counter/a", Added(number=1)))
        if behind:
            await asyncio.sleep(TICK_S)

        def sign(_: Any, statement: bytes) -> bytes:
            raise RuntimeError("the key store is gone")

        monkeypatch.setattr(Ed25519Signer, "sign", sign)
        told = asyncio.ensure_future(live.deliver(pack_envelope("s", [("Counter/a", Added(number=2))], sequence=1)))
        await asyncio.sleep(10.0)
        with pytest.raises(RuntimeError, match="the key store is gone"):
            await told
        if behind:
            await first
        else:
            assert isinstance(first.exception(), RuntimeError)
        assert isinstance(live.failure, RuntimeError)
        assert len(stage.landed) == 2

    stage.world.run(main())
