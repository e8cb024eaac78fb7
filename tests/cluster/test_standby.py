"""Following a shard's log and taking it over: from a snapshot or the start, fenced, in the state its owner was in."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event
from stigmergy.base.errors import DataLost, FoldMismatch, JournalConflict, JournalCorrupt, LinkDown, NotRunning
from stigmergy.base.tasks import end_tasks
from stigmergy.cluster import standby as module
from stigmergy.cluster.standby import ClaimedShard, Standby
from stigmergy.journal.memory import MemoryShard, MemoryShardLog
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.sim.loop import SimClock
from stigmergy.sim.run import Run

SIGNER = Ed25519Signer(bytes(range(32)))


class Counted(Event):
    number: int


class Counter(Agent):
    count: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1


FLEET = Declaration("standing", agents=[Counter])
SNAPPY = Settings(
    snapshots=Snapshots(every_events=20, every_s=1e9, tail_ratio=0.0, share_max=1.0, incremental_max=2),
    retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.1),
)


def make_shard() -> MemoryShard:
    return MemoryShard(JournalIdentity(fleet="standing", shards=1, incarnation=3, part=(0, 0)))


def standby_of(shard: MemoryShard) -> Standby:
    return Standby(MemoryShardLog(shard), FLEET.plans, Ed25519Verifier(), FLEET.settings.limits)


async def begin(world: Run, claimed: ClaimedShard, settings: Settings | None = None) -> Host:
    clock = SimClock(world.loop)
    verifier, number = Ed25519Verifier(), claimed.number
    host = Host(claimed.recovered, FLEET, claimed.journal, SIGNER, verifier, clock, settings, claim=number)
    await host.start()
    return host


async def count(host: Host, times: int) -> None:
    for number in range(times):
        await host.intake.observe("Counter/A", Counted(number=number))


def run(scene: object) -> None:
    world = Run(1)
    world.run(scene(world))  # type: ignore[operator]


def test_taken_over_with_the_state_of_its_owner_and_a_higher_epoch() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"))
        await count(first, 30)
        follower = standby_of(shard)
        await follower.warm()
        assert follower.position == first.durable_position(0) > 0
        following = asyncio.ensure_future(follower.follow())
        await count(first, 10)
        await asyncio.sleep(0.1)
        assert follower.position == first.durable_position(0), "it hears when the log grows"
        await first.stop()
        claimed = await follower.claim("b")
        following.cancel()
        second = await begin(world, claimed)
        assert second.durable_image("Counter/A").count == 40
        assert second.shards[0].epoch > first.shards[0].epoch
        await count(second, 1)
        assert second.durable_image("Counter/A").count == 41
        await second.stop()

    run(scene)


def test_who_was_owner_has_its_writes_refused_and_acknowledges_nothing() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"))
        await count(first, 3)
        second = await begin(world, await standby_of(shard).claim("b"))
        with pytest.raises((JournalConflict, NotRunning)):
            await count(first, 1)
        assert isinstance(first.failure, JournalConflict)
        await count(second, 1)
        assert second.durable_image("Counter/A").count == 4
        await second.stop()

    run(scene)


def test_an_owner_that_never_wrote_is_told_from_the_next_one() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        epochs = []
        for name in ("a", "b", "c"):
            host = await begin(world, await standby_of(shard).claim(name))
            epochs.append(host.shards[0].epoch)
            await host.kill()
        assert epochs == sorted(set(epochs)), "each has an epoch of its own, although none has committed"

    run(scene)


def test_begins_from_a_snapshot_when_the_log_was_dropped() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"), SNAPPY)
        slow = standby_of(shard)
        await slow.warm()
        await count(first, 200)
        await asyncio.sleep(2.0)
        await count(first, 5)
        log = MemoryShardLog(shard)
        assert await log.first_position() > 1, "retention has dropped the beginning"
        assert await log.snapshots()
        await first.stop()
        for follower in (standby_of(shard), slow):
            claimed = await follower.claim("b")
            assert claimed.recovered.snapshots == {0: claimed.recovered.bases[0].chain[-1][0]}
            assert claimed.recovered.states[0].agents["Counter/A"].count == 205
            await claimed.journal.close()

    run(scene)


def test_who_takes_over_keeps_the_snapshots_that_were_taken_while_it_followed() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"), SNAPPY)
        follower = standby_of(shard)
        await follower.warm()
        following = asyncio.ensure_future(follower.follow())
        for _ in range(20):
            await count(first, 10)
            await asyncio.sleep(0.1)
        await first.stop()
        log = MemoryShardLog(shard)
        assert await log.first_position() > 1, "what was before is in snapshots only"
        kept = await log.snapshots()
        claimed = await follower.claim("b")
        await end_tasks(following)
        assert claimed.recovered.bases[0].chain == (), "it began before any of them, and has followed since"
        second = await begin(world, claimed)
        await count(second, 5)
        await asyncio.sleep(2.0)
        assert await log.snapshots() == kept
        await second.kill()
        third = await begin(world, await standby_of(shard).claim("c"), SNAPPY)
        assert third.durable_image("Counter/A").count == 205
        # Those that it takes itself replace them, also where they were added to each other.
        for _ in range(20):
            await count(third, 10)
            await asyncio.sleep(0.1)
        await third.kill()
        assert not [position for position in await log.snapshots() if position in kept]
        assert (await standby_of(shard).claim("d")).recovered.states[0].agents["Counter/A"].count == 405

    run(scene)


def test_a_noted_snapshot_that_is_damaged_is_not_counted_on() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        rare = structs.replace(SNAPPY, retention=Retention())
        first = await begin(world, await standby_of(shard).claim("a"), rare)
        await count(first, 25)
        await asyncio.sleep(1.0)
        await count(first, 5)
        await first.stop()
        [(place, parts)] = shard.store.snapshots.items()
        body = parts[-1].body
        spoilt = structs.replace(parts[-1], body=body[:-1] + bytes([body[-1] ^ 1]))
        shard.store.snapshots[place] = [*parts[:-1], spoilt]
        claimed = await standby_of(shard).claim("b")
        assert claimed.recovered.bases[0].noted == ()
        second = await begin(world, claimed, structs.replace(SNAPPY, snapshots=Snapshots()))
        await count(second, 1)
        await asyncio.sleep(2.0)
        await count(second, 1)
        assert await MemoryShardLog(shard).first_position() == 1, "nothing was dropped on account of it"
        await second.kill()
        assert (await standby_of(shard).claim("c")).recovered.states[0].agents["Counter/A"].count == 32

    run(scene)


@pytest.mark.parametrize("left", [0, 5])
def test_a_log_that_ends_long_before_its_snapshots_has_lost_its_end(left: int) -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"), structs.replace(SNAPPY, retention=Retention()))
        await count(first, 60)
        await asyncio.sleep(1.0)
        await first.stop()
        assert await MemoryShardLog(shard).snapshots()
        lost = shard.store.commits[0][left:]
        del shard.store.commits[0][left:]
        with pytest.raises(DataLost, match=f"the log ends at {left}: the end of it is lost"):
            await standby_of(shard).claim("b")
        shard.store.commits[0].extend(lost)
        assert (await standby_of(shard).claim("c")).recovered.states[0].agents["Counter/A"].count == 60

    run(scene)


def test_a_snapshot_that_cannot_be_used_is_passed_over_or_refused() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"), SNAPPY)
        await count(first, 60)
        await asyncio.sleep(2.0)
        await count(first, 5)
        await first.stop()
        for place, parts in list(shard.store.snapshots.items()):
            spoilt = bytes([parts[-1].body[-1] ^ 1])
            shard.store.snapshots[place] = [*parts[:-1], structs.replace(parts[-1], body=parts[-1].body[:-1] + spoilt)]
        with pytest.raises(FoldMismatch, match="no snapshot covers what was before"):
            await standby_of(shard).warm()

    run(scene)


def test_a_bad_digest_in_the_log_is_refused() -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"))
        await count(first, 5)
        await first.stop()
        kept = shard.store.commits[0]
        body = kept[2].sealed.body
        sealed = structs.replace(kept[2].sealed, body=body[:-1] + bytes([body[-1] ^ 1]))
        kept[2] = structs.replace(kept[2], sealed=sealed)
        with pytest.raises(JournalCorrupt):
            await standby_of(shard).warm()

    run(scene)


def test_an_owner_that_writes_all_the_time_keeps_its_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"))
        await count(first, 1)

        class Late(MemoryShardLog):
            async def claim(self, after: int, owner: str) -> tuple[Journal, int]:
                await count(first, 1)
                return await super().claim(after, owner)

        late = Standby(Late(shard), FLEET.plans, Ed25519Verifier(), FLEET.settings.limits)
        with pytest.raises(JournalConflict, match="let it go on"):
            await late.claim("b")
        assert first.failure is None
        await count(first, 1)
        await first.stop()

    run(scene)


def test_a_log_out_of_reach_is_said() -> None:
    async def scene(world: Run) -> None:
        log = MemoryShardLog(make_shard())
        log.is_cut = True
        with pytest.raises(LinkDown):
            await Standby(log, FLEET.plans, Ed25519Verifier(), FLEET.settings.limits).claim("a")

    run(scene)


def test_others_have_their_turn_while_it_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORTION_EVENTS", 10)

    async def scene(world: Run) -> None:
        shard = make_shard()
        first = await begin(world, await standby_of(shard).claim("a"))
        await count(first, 100)
        turns = 0

        async def watch() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        await standby_of(shard).warm()
        watching.cancel()
        assert turns >= 8
        await first.stop()

    run(scene)
