"""Starting again: from a snapshot or without, with the right key, never from a log that does not hold together."""

import asyncio
import zlib
from typing import Any

import pytest
from msgspec import msgpack, structs

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.codec import canonical_bytes, encode
from stigmergy.agents.effects import ACTUATORS, Effects, Order
from stigmergy.agents.messages import Action, Event
from stigmergy.audit.history import History, Moment
from stigmergy.base.errors import BadSignature, ConfigError, DataLost, FoldMismatch, WrongKey
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import Journal, JournalIdentity, SnapshotPart, StoredCommit
from stigmergy.journal.recovery import sum_up_passed_over
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host, open_host
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.shard.commit import head_of, open_commit, seal
from stigmergy.shard.snapshot import SnapshotWriter, read_header
from stigmergy.sim.loop import SimClock
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.node.rig import play


class Counted(Event):
    number: int


class Pressed(Event):
    number: int


class Press(Action):
    number: int


class Counter(Agent):
    count: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1

    @react
    def press(self, event: Pressed) -> Effects:
        yield Press(number=event.number)


def make_newer() -> type[Agent]:
    class Newer(Agent, kind="Counter", version=2):
        count: int = 0
        doubled: int = 0

        @evolve
        def counted(self, event: Counted) -> None:
            self.count += 1
            self.doubled += 2

    return Newer


def make_carrying() -> type[Agent]:
    class Carrying(Agent, kind="Counter", version=3):
        count: int = 0
        tripled: int = 0

        @evolve
        def counted(self, event: Counted) -> None:
            self.count += 1
            self.tripled += 3

        @classmethod
        def upcast_state(cls, version: int, fields: Any) -> Any:
            return cls(id=fields["id"], count=fields["count"], tripled=3 * fields["count"])

    return Carrying


SETTINGS = Settings(
    snapshots=Snapshots(every_events=10, every_s=1e9, tail_ratio=0.0, share_max=1.0, incremental_max=0),
    retention=Retention(reserve_bytes=0, check_every_s=0.1),
    drain_s=1.0,
)
DROPPING = Settings(
    snapshots=SETTINGS.snapshots, retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.1), drain_s=1.0
)


def declare(agent: type[Agent] = Counter, shards: int = 1) -> Declaration:
    return Declaration("counters", agents=[agent], shards=shards)


async def run_for(node: SimNode, events: int, agents: int = 1) -> None:
    live = await node.start()
    for number in range(events):
        await live.observe(f"Counter/{number % agents}", Counted(number=number))
    await asyncio.sleep(2.0)


async def damage(node: SimNode, position: int) -> None:
    """Changes the bytes of a stored snapshot, as a bad disk would, behind the journal's own checksums."""
    assert node.live is not None
    journal = node.live.host.journal
    parts = [part.body for part in journal.read_snapshot(0, position)]
    spoilt = parts[-1][:-3] + bytes([parts[-1][-3] ^ 1]) + parts[-1][-2:]
    await journal.put_snapshot(
        0, position, [SnapshotPart(number, body) for number, body in enumerate([*parts[:-1], spoilt])]
    )


def test_what_an_upgrade_passed_over_is_said_once() -> None:
    why = "version 1 was stored and this is version 2; write upcast_state"
    lines = [f"shard {shard}, snapshot at {at}: Drone/D-{shard}: {why}" for shard in range(8) for at in (20, 10)]
    damaged = "shard 3, snapshot at 5: no commit notes it, it was never finished"
    assert sum_up_passed_over([*lines, damaged]) == [f"16 snapshots of 8 shards: Drone: {why}", damaged]
    assert sum_up_passed_over(lines[:1]) == lines[:1]
    assert sum_up_passed_over(lines[:2]) == [f"2 snapshots of 1 shard: Drone: {why}"]
    assert sum_up_passed_over(["something else"]) == ["something else"]


def test_a_damaged_snapshot_is_passed_over_for_an_older_one() -> None:
    async def main(node: SimNode) -> Any:
        await run_for(node, 35)
        assert node.live is not None
        older, newest = node.live.host.journal.snapshots(0)[-2:]
        await damage(node, newest)
        await node.kill()
        live = await node.start()
        assert live.query("Counter/0").count == 35
        assert live.recovered.snapshots == {0: older}
        assert len(live.recovered.passed_over) == 1

    play(declare(), main, settings=SETTINGS)


def test_with_all_snapshots_damaged_the_whole_log_is_replayed() -> None:
    async def main(node: SimNode) -> Any:
        await run_for(node, 35)
        assert node.live is not None
        for position in node.live.host.journal.snapshots(0):
            await damage(node, position)
        await node.kill()
        live = await node.start()
        assert live.query("Counter/0").count == 35
        assert not live.recovered.snapshots

    play(declare(), main, settings=SETTINGS)


@pytest.mark.parametrize("dropped", [False, True], ids=["with the whole log", "with the log dropped"])
def test_a_base_that_was_exchanged_with_care_is_not_used(dropped: bool) -> None:
    """Its parts decode and their checksums are right, and only the newest snapshot was compared with its note."""
    settings = structs.replace(
        DROPPING if dropped else SETTINGS, snapshots=structs.replace(SETTINGS.snapshots, incremental_max=3)
    )

    async def main(node: SimNode) -> None:
        await run_for(node, 20, agents=10)
        assert node.live is not None
        for number in range(20, 32):
            await node.live.observe("Counter/0", Counted(number=number))
        await asyncio.sleep(2.0)
        journal = node.live.host.journal
        headers = [read_header(next(iter(journal.read_snapshot(0, at))).body) for at in journal.snapshots(0)]
        assert headers[-1].base == headers[-2].tables.position, "the newest adds to one before it"
        assert (journal.first_position(0) > 1) == dropped
        for header in headers:
            if not header.base:
                await exchange(journal, header.tables.position, "Counter/7", Counter(id="7", count=1_000_000))
        history = History(journal, declare().plans)
        if dropped:
            with pytest.raises(ConfigError, match="no snapshot is left"):
                history.look("Counter/7", Moment())
        else:
            assert history.look("Counter/7", Moment()).agent.count == 2
        await node.kill()
        if dropped:
            with pytest.raises(FoldMismatch, match="is not the one it was built on"):
                await node.start()
        else:
            live = await node.start()
            assert live.query("Counter/7").count == 2
            assert not live.recovered.snapshots
            assert "is not the one it was built on" in live.recovered.passed_over[0]

    play(declare(), main, settings=settings)


async def exchange(journal: Journal, position: int, address: str, agent: Agent) -> None:
    """Stores a snapshot again with another state of one agent, as somebody would who knows the format."""
    parts = [part.body for part in journal.read_snapshot(0, position)]
    for number, part in enumerate(parts[1:], start=1):
        agents = dict(msgpack.decode(zlib.decompress(part), type=list[tuple[str, bytes]]))
        assert address in agents
        agents[address] = canonical_bytes(agent)
        parts[number] = zlib.compress(encode(list(agents.items())), 1)
    await journal.put_snapshot(0, position, [SnapshotPart(number, body) for number, body in enumerate(parts)])


def test_with_the_log_dropped_and_no_snapshot_left_the_node_refuses_to_start() -> None:
    async def main(node: SimNode) -> None:
        await run_for(node, 35)
        assert node.live is not None
        assert node.live.host.journal.first_position(0) > 1
        for position in node.live.host.journal.snapshots(0):
            await damage(node, position)
        await node.kill()
        with pytest.raises(FoldMismatch, match="restore from a copy"):
            await node.start()

    play(declare(), main, settings=DROPPING)


def test_a_snapshot_that_no_commit_notes_is_none() -> None:
    async def main(node: SimNode) -> None:
        await run_for(node, 5)
        assert node.live is not None
        host = node.live.host
        body = b"not a snapshot at all"
        await host.journal.put_snapshot(0, host.shards[0].state.position, [SnapshotPart(0, body)])
        await node.kill()
        live = await node.start()
        assert live.query("Counter/0").count == 5
        await asyncio.sleep(1.0)
        assert live.host.journal.snapshots(0) == []

    play(declare(), main, settings=SETTINGS)


def test_a_snapshot_that_was_not_finished_is_none() -> None:
    """Its header is whole and true; the agents are missing."""

    async def main(node: SimNode) -> None:
        await run_for(node, 5)
        assert node.live is not None
        host = node.live.host
        header = SnapshotWriter(host.shards[0].state).next_part({})
        assert header is not None
        await host.journal.put_snapshot(0, host.shards[0].state.position, [SnapshotPart(0, header)])
        await node.kill()
        live = await node.start()
        assert live.query("Counter/0").count == 5

    play(declare(), main, settings=SETTINGS)


def test_another_version_of_the_fold_replays_the_log() -> None:
    async def main(node: SimNode) -> None:
        await run_for(node, 25)
        await node.stop()
        node.change_declaration(declare(make_newer()))
        live = await node.start()
        assert (live.query("Counter/0").count, live.query("Counter/0").doubled) == (25, 50)
        assert not live.recovered.snapshots

    play(declare(), main, settings=SETTINGS)


def test_another_version_of_the_fold_carries_the_state_over_where_it_says_how() -> None:
    async def main(node: SimNode) -> None:
        await run_for(node, 25)
        await node.stop()
        node.change_declaration(declare(make_carrying()))
        live = await node.start()
        assert (live.query("Counter/0").count, live.query("Counter/0").tripled) == (25, 75)
        assert live.recovered.snapshots

    play(declare(), main, settings=DROPPING)


def test_another_version_of_the_fold_is_refused_where_the_log_is_gone() -> None:
    async def main(node: SimNode) -> None:
        await run_for(node, 25)
        await node.stop()
        node.change_declaration(declare(make_newer()))
        with pytest.raises(FoldMismatch):
            await node.start()

    play(declare(), main, settings=DROPPING)


def test_another_key_may_not_go_on_with_the_log() -> None:
    async def main(node: SimNode) -> None:
        await run_for(node, 5)
        await node.stop()
        before = node.logbook.positions
        node.signer = Ed25519Signer(bytes(range(32)))
        with pytest.raises(WrongKey):
            await node.start()
        assert node.logbook.positions == before

    play(declare(), main, settings=SETTINGS)


def test_a_quiet_shard_is_still_vouched_for_when_the_others_have_snapshots_and_dropped_their_logs() -> None:
    """The only signature over the quiet shard's head once lay with a commit that another shard has dropped since."""

    async def main(node: SimNode) -> None:
        live = await node.start()
        quiet = next(f"Counter/q{n}" for n in range(100) if live.host.intake.shard_of(f"Counter/q{n}") == 0)
        busy = [f"Counter/b{n}" for n in range(100) if live.host.intake.shard_of(f"Counter/b{n}") == 3][:3]
        both = [live.observe(quiet, Counted(number=1)), live.observe(busy[0], Counted(number=1))]
        await asyncio.gather(*both)
        for number in range(60):
            await live.observe(busy[number % 3], Counted(number=number))
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        assert live.host.journal.first_position(3) > 5
        assert live.host.shards[0].state.position <= 3
        await node.lose_power()
        live = await node.start()
        assert live.query(quiet).count == 1
        assert sum(live.query(address).count for address in busy) == 61

    play(declare(shards=4), main, settings=DROPPING)


def test_an_end_that_nobody_has_signed_is_refused() -> None:
    async def main(node: SimNode) -> None:
        await run_for(node, 5)
        await node.stop()
        assert node.store is not None
        last = node.store.commits[0][-1].sealed
        node.store.commits[0][-1] = StoredCommit(last, None)
        with pytest.raises(BadSignature, match="no signature covers"):
            await node.start()

    play(declare(), main, settings=SETTINGS, in_memory=True)


def test_a_forged_end_is_refused_also_if_its_signature_hides_behind_a_later_one() -> None:
    """Only the last signature in a shard was checked; what an older one claims about another shard was believed."""
    fleet = declare(shards=4)
    store = MemoryJournalStore(JournalIdentity(fleet="counters", shards=4, incarnation=1))
    world = Run(1)

    def make_host() -> Host:
        store.owner = None
        signer = Ed25519Signer(bytes(32))
        return open_host(fleet, MemoryJournal(store), signer, Ed25519Verifier(), SimClock(world.loop), SETTINGS)

    async def main() -> None:
        host = make_host()
        await host.start()
        address = next(f"Counter/{n}" for n in range(100) if host.intake.shard_of(f"Counter/{n}") == 3)
        for number in range(3):
            await host.intake.observe(address, Counted(number=number))
        await host.stop()
        forge(store, victim=0, holder=3)
        with pytest.raises(BadSignature):
            await make_host().start()

    world.run(main())


def forge(store: MemoryJournalStore, *, victim: int, holder: int) -> None:
    """Appends a commit to one shard, and lets an old signature of another shard claim it."""
    last = store.commits[victim][-1].sealed
    forged = seal(structs.replace(open_commit(last.body), position=last.position + 1, previous=last.digest))
    store.commits[victim].append(StoredCommit(forged, None))
    index = next(index for index, stored in enumerate(store.commits[holder][:-1]) if stored.signature)
    stored = store.commits[holder][index]
    assert stored.signature is not None
    heads = [one for one in stored.signature.heads if one.shard != victim]
    claim = structs.replace(stored.signature, heads=[head_of(forged), *heads])
    store.commits[holder][index] = StoredCommit(stored.sealed, claim)


def test_a_receiver_that_has_confirmed_more_than_we_hold_keeps_us_from_starting() -> None:
    fleet = declare()
    confirmed = [0]

    @fleet.actuator(Press)
    def press(order: Order[Press]) -> None:
        confirmed[0] = max(confirmed[0], order.sequence)

    fleet.receivers[ACTUATORS] = lambda shard: confirmed[0]

    async def main(node: SimNode) -> None:
        live = await node.start()
        for number in range(3):
            await live.observe("Counter/0", Pressed(number=number))
        await asyncio.sleep(1.0)
        await node.kill()
        await node.start()
        await node.kill()
        confirmed[0] = 4
        with pytest.raises(DataLost, match="restore from a newer copy"):
            await node.start()

    play(fleet, main, settings=SETTINGS)
