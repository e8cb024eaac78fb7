"""Snapshots between commits, retention within its bounds, and what a full disk may and may not cost."""

import asyncio
import random
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.effects import Effects, Order
from stigmergy.agents.messages import Action, Event
from stigmergy.base.errors import JournalFull
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.sim.disk import Call, DiskFault
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Counted(Event):
    number: int
    padding: bytes = b""


class Pressed(Event):
    number: int


class Press(Action):
    number: int


class Counter(Agent):
    count: int = 0
    last: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1
        self.last = event.number

    @react
    def press(self, event: Pressed) -> Effects:
        yield Press(number=event.number)


def declare() -> Declaration:
    return Declaration("counters", agents=[Counter])


def rules(
    every_events: int = 10, retention: Retention | None = None, tail_ratio: float = 0.0, incremental_max: int = 8
) -> Settings:
    return Settings(
        snapshots=Snapshots(
            every_events=every_events,
            every_s=1e9,
            tail_ratio=tail_ratio,
            share_max=1.0,
            incremental_max=incremental_max,
        ),
        retention=retention or Retention(reserve_bytes=0, check_every_s=0.1),
        drain_s=1.0,
        effect_tries=1,
        effect_within_s=100.0,
    )


async def count(live: Live, numbers: range, agents: int = 1, padding: int = 0) -> None:
    for number in numbers:
        await live.observe(f"Counter/{number % agents}", Counted(number=number, padding=bytes(padding)))


async def idle(live: Live) -> None:
    await asyncio.sleep(3.0)


def test_a_snapshot_is_noted_and_the_next_start_begins_there() -> None:
    async def main(node: SimNode) -> Any:
        live = await node.start()
        await count(live, range(25))
        await idle(live)
        assert live.standing().counters["snapshots"] >= 1
        await node.lose_power()
        live = await node.start()
        assert live.query("Counter/0").count == 25
        return live.recovered

    recovered = play(declare(), main, settings=rules())
    assert recovered.snapshots
    assert recovered.events < 25


def test_a_snapshot_holds_the_moment_it_began_although_agents_go_on() -> None:
    """Several parts, with commits between them, on a slow disk."""

    async def main(node: SimNode) -> None:
        live = await node.start()
        await asyncio.gather(*(live.observe(f"Counter/{number}", Counted(number=number)) for number in range(2_500)))
        node.latency.before_s = 0.05
        for number in range(60):
            await live.observe(f"Counter/{(number * 37) % 2_500}", Counted(number=number))
        node.latency.before_s = 0.0
        await idle(live)
        assert live.standing().counters["snapshots"] >= 1
        await node.kill()
        live = await node.start()
        assert live.recovered.snapshots
        assert sum(live.query(address).count for address in live.agents()) == 2_560

    play(declare(), main, settings=rules(every_events=2_000))


def test_incremental_snapshots_add_to_each_other_and_a_full_one_comes_in_time() -> None:
    bases: list[int] = []

    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(40), agents=40)
        for chunk in range(12):
            await idle(live)
            await count(live, range(chunk * 10, chunk * 10 + 10), agents=4)
        await idle(live)
        bases.extend(base for _, base in live.host.housekeeper._records[0].noted)
        await node.kill()
        live = await node.start()
        assert sum(live.query(address).count for address in live.agents()) == 160
        assert live.recovered.events < 20

    play(declare(), main, settings=rules(incremental_max=3))
    assert any(bases)
    assert 0 in bases


def test_the_first_snapshot_after_a_restart_stands_on_its_own() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await count(live, range(40), agents=40)
        await idle(live)
        await node.kill()
        live = await node.start()
        await count(live, range(12), agents=2)
        await idle(live)
        records = live.host.housekeeper._records[0]
        assert live.standing().counters["snapshots"] == 1
        assert records.noted[-1][1] == 0

    play(declare(), main, settings=rules())


def test_a_large_state_is_not_written_again_before_the_log_has_grown() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await asyncio.gather(*(live.observe(f"Counter/{number}", Counted(number=1)) for number in range(500)))
        await idle(live)
        taken = live.standing().counters["snapshots"]
        await count(live, range(20))
        await idle(live)
        assert live.standing().counters["snapshots"] == taken

    play(declare(), main, settings=rules(tail_ratio=4.0))


class TestRetention:
    def test_by_age_and_never_past_what_a_snapshot_covers(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(35))
            await asyncio.sleep(10.0)
            await count(live, range(35, 38))
            await idle(live)
            first = live.host.journal.first_position(0)
            oldest = live.host.housekeeper._records[0].noted[0][0]
            assert 1 < first <= oldest + 1
            await node.lose_power()
            live = await node.start()
            assert live.query("Counter/0").count == 38

        play(declare(), main, settings=rules(retention=Retention(keep_s=5.0, reserve_bytes=0, check_every_s=0.1)))

    def test_by_bytes(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(60), padding=2_000)
            await idle(live)
            assert live.standing().counters["commits_dropped"] > 0

        limits = Retention(keep_bytes=50_000, reserve_bytes=0, check_every_s=0.1)
        play(declare(), main, settings=rules(retention=limits))

    def test_by_the_reserve_of_the_device(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(30))
            await idle(live)
            assert live.standing().counters["commits_dropped"] == 0
            node.disk.capacity_bytes = node.disk.used_bytes() + 500_000
            await asyncio.sleep(1.0)
            await live.observe("Counter/0", Counted(number=1))
            await asyncio.sleep(1.0)
            assert live.standing().counters["commits_dropped"] > 0

        limits = Retention(reserve_bytes=1_000_000, check_every_s=0.1)
        play(declare(), main, settings=rules(retention=limits))

    def test_never_past_what_is_still_owed(self) -> None:
        fleet = declare()
        go = asyncio.Event()

        @fleet.actuator(Press)
        async def press(order: Order[Press]) -> None:
            await go.wait()

        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(5))
            await live.observe("Counter/0", Pressed(number=1))
            owed_at = live.host.shards[0].state.outbox.lowest_position()
            assert owed_at is not None
            await count(live, range(40))
            await idle(live)
            assert live.standing().counters["snapshots"] >= 1
            assert live.host.journal.first_position(0) <= owed_at
            go.set()
            await asyncio.sleep(2.0)
            await count(live, range(40, 60))
            await idle(live)
            assert live.host.journal.first_position(0) > owed_at

        play(fleet, main, settings=rules(retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.1)))

    def test_an_unfinished_snapshot_covers_nothing(self) -> None:
        """The node died while it wrote its first snapshot: until another is noted, all of the log stays."""

        async def main(node: SimNode) -> None:
            live = await node.start()
            await asyncio.gather(*(live.observe(f"Counter/{n}", Counted(number=n)) for n in range(2_500)))
            while not live.host.journal.snapshots(0):
                await live.observe("Counter/0", Counted(number=0))
            await node.kill()
            live = await node.start()
            assert not live.recovered.snapshots
            live.host.housekeeper._records[0].events = 0
            await asyncio.sleep(2.0)
            assert live.host.journal.first_position(0) == 1
            assert live.host.journal.snapshots(0) == [], "what was left of it is dropped"

        settings = rules(every_events=2_000, retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.1))
        play(declare(), main, settings=settings)


class TestFullDisk:
    def test_during_a_snapshot_only_the_snapshot_is_given_up(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(9))
            snapshot_writes = 0

            def spoil(call: Any) -> None:
                nonlocal snapshot_writes
                taking = live.host.housekeeper._records[0].taking
                if taking is not None and call.kind is Call.WRITE and live.host.committer.flight is None:
                    snapshot_writes += 1
                    # Nor can the log be copied, so that it would start again from its front.
                    node.disk.fail(call.number, DiskFault.EIO if call.path == "fleet.db" else DiskFault.ENOSPC)

            node.disk.on_call = spoil
            await count(live, range(3))
            await asyncio.sleep(1.0)
            node.disk.on_call = None
            assert snapshot_writes
            assert live.standing().counters["snapshots_given_up"] == 1
            assert live.failure is None
            await count(live, range(30))
            await idle(live)
            assert live.standing().counters["snapshots"] >= 1

        play(declare(), main, settings=rules())

    def test_what_a_given_up_snapshot_would_have_held_is_in_the_next_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next one adds to the last finished one, so agents that only the given-up one had must come again."""

        async def main(node: SimNode) -> list[int]:
            live = await node.start()
            await count(live, range(40), agents=40)
            await idle(live)
            finished = live.standing().counters["snapshots"]

            async def full(*_: Any) -> None:
                raise JournalFull("no room for a snapshot")

            with monkeypatch.context() as patch:
                patch.setattr(live.host.journal, "put_snapshot", full)
                await count(live, range(12), agents=4)
                await idle(live)
            assert live.standing().counters["snapshots_given_up"] == 1
            for number in range(12):
                await live.observe("Counter/30", Counted(number=number))
            await idle(live)
            assert live.standing().counters["snapshots"] == finished + 1
            bases = [base for _, base in live.host.housekeeper._records[0].noted]
            await node.kill()
            live = await node.start()
            assert live.recovered.events < 12, "it began at the snapshot"
            assert sum(live.query(address).count for address in live.agents()) == 64
            return bases

        assert play(declare(), main, settings=rules())[-1], "it was an incremental one"

    def test_for_a_snapshot_the_log_that_may_go_goes_and_the_next_one_finds_room(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise commits, which still fit, fill the device, and nothing newer may be dropped: the node would end."""

        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(30))
            await idle(live)
            assert live.host.journal.first_position(0) == 1
            oldest = live.host.housekeeper._records[0].noted[0][0]

            async def full(*_: Any) -> None:
                raise JournalFull("no room for a snapshot")

            with monkeypatch.context() as patch:
                patch.setattr(live.host.journal, "put_snapshot", full)
                await count(live, range(12))
                await idle(live)
            assert live.standing().counters["snapshots_given_up"] == 1
            assert live.host.journal.first_position(0) == oldest + 1
            await node.kill()

        play(declare(), main, settings=rules(retention=Retention(reserve_bytes=0, check_every_s=1e6)))

    def test_during_a_commit_the_log_that_may_go_goes_and_the_commit_is_kept(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(60), padding=1_000)
            await idle(live)
            assert live.host.journal.first_position(0) == 1
            assert node.store is not None
            node.store.capacity_bytes = node.store.used_bytes
            await live.observe("Counter/0", Counted(number=1))
            assert live.failure is None
            assert live.host.journal.first_position(0) > 1

        play(declare(), main, settings=rules(), in_memory=True)

    def test_without_anything_to_drop_the_node_stops(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await count(live, range(3))
            node.disk.capacity_bytes = node.disk.used_bytes()
            with pytest.raises(JournalFull):
                await live.observe("Counter/0", Counted(number=1, padding=random.Random(1).randbytes(40_000)))
            assert isinstance(live.failure, JournalFull)
            await node.kill()

        play(declare(), main, settings=rules())


class Odd(Agent):
    count: Any = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count = 2**70 if event.number == 3 else event.number


def test_a_state_that_cannot_be_written_costs_the_snapshot_and_not_the_node() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        for number in range(12):
            await live.observe(f"Odd/{number}", Counted(number=number))
        await asyncio.sleep(1.0)
        assert live.failure is None
        assert live.standing().counters["snapshots_given_up"] >= 1
        (trouble,) = live.standing().troubles
        assert "no snapshot of shard 0: Odd/3: its state cannot be written" in trouble
        assert "field count holds what it is not declared for, a int" in trouble
        assert "fix the @evolve handler of Odd" in trouble
        for number in range(12):
            await live.observe("Odd/3", Counted(number=4 + number))
        await asyncio.sleep(1.0)
        assert live.standing().counters["snapshots"] >= 1
        assert not live.standing().troubles, "it is over"
        await node.kill()

    play(Declaration("odd", agents=[Odd]), main, settings=rules())


def test_retention_and_old_snapshots_have_their_turn_under_constant_load() -> None:
    async def main(node: SimNode) -> None:
        node.latency.before_s = 0.01
        live = await node.start()

        async def load(lane: int) -> None:
            for number in range(150):
                await live.observe(f"Counter/{lane}", Counted(number=number))

        loading = [asyncio.ensure_future(load(lane)) for lane in range(8)]
        await asyncio.sleep(2.0)
        assert not any(one.done() for one in loading)
        counters = live.standing().counters
        assert counters["snapshots"] >= 2
        assert counters["commits_dropped"] > 0
        assert len(live.host.journal.snapshots(0)) <= 12
        await asyncio.gather(*loading)

    play(declare(), main, settings=rules(retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.1)))
