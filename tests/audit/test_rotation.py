"""Whose log it is: a forged one is refused, however well it holds together; an honest change of keys is not."""

import asyncio

import pytest

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event
from stigmergy.audit.rotation import Rotation
from stigmergy.audit.verification import Verification
from stigmergy.base.errors import WrongKey
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Connections, Host, open_host
from stigmergy.node.settings import Settings, Snapshots
from stigmergy.sim.loop import SimClock, SimEntropy
from stigmergy.sim.run import Run

OURS, OTHERS, THIRD = (Ed25519Signer(bytes([number]) * 32) for number in (1, 2, 3))
NAMES = [f"Counter/{number}" for number in range(8)]
"""Agents of every shard."""
NEVER = Settings(snapshots=Snapshots(every_events=10**9, every_s=1e9))
OFTEN = Settings(snapshots=Snapshots(every_events=4, tail_ratio=0.0, share_max=1000.0, incremental_max=0))


class Counted(Event):
    pass


class Counter(Agent):
    count: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1


class Machine:
    """A store in virtual time, on which nodes with different keys are started."""

    def __init__(self, shards: int, settings: Settings = NEVER) -> None:
        self.world = Run(1)
        self.clock = SimClock(self.world.loop)
        self.fleet = Declaration("counters", agents=[Counter], shards=shards)
        self.settings = settings
        self.connected = 0
        """How many hosts have made their services: a ledger, a mesh, a bus link."""
        self.store = MemoryJournalStore(JournalIdentity(fleet="counters", shards=shards, incarnation=1))

    async def start(self, signer: Ed25519Signer, *trusted: Ed25519Signer) -> Live:
        keys = [one.public_key for one in trusted]
        journal, verifier = self.journal(), Ed25519Verifier()
        connect = self.connect
        host = open_host(self.fleet, journal, signer, verifier, self.clock, self.settings, keys, connect=connect)
        await host.start()
        return Live(host, SimEntropy(1, "ids"))

    def connect(self, _: Host) -> Connections:
        self.connected += 1
        return Connections()

    async def live_with(self, signer: Ed25519Signer, *enrolled: Ed25519Signer) -> None:
        """A node makes a log with this key, and lets others sign it from now on."""
        live = await self.start(signer)
        await asyncio.gather(*(live.observe(name, Counted()) for name in NAMES))
        for name in NAMES:
            await live.observe(name, Counted())
        for other in enrolled:
            live.enroll_signer(other.algorithm, other.public_key)
        await live.host.stop()

    def journal(self) -> MemoryJournal:
        self.store.owner = None
        return MemoryJournal(self.store)

    def rotation(self, signer: Ed25519Signer) -> Rotation:
        return Rotation(self.journal(), signer, Ed25519Verifier(), self.clock)

    def check_sound(self) -> None:
        assert Verification(self.journal(), Ed25519Verifier()).run().problems == []


def check_whole(live: Live) -> None:
    assert [live.query(name).count for name in NAMES] == [2] * len(NAMES)


@pytest.mark.parametrize("settings", [NEVER, OFTEN], ids=["from the log", "from snapshots"])
@pytest.mark.parametrize("shards", [1, 4])
def test_a_whole_journal_forged_by_another_key_that_enrolled_ours_is_refused(shards: int, settings: Settings) -> None:
    machine = Machine(shards, settings)

    async def main() -> None:
        await machine.live_with(OTHERS, OURS)
        ends = {shard: len(kept) for shard, kept in machine.store.commits.items()}
        with pytest.raises(WrongKey, match="--trust") as refused:
            await machine.start(OURS)
        assert OTHERS.public_key.hex()[:16] in str(refused.value)
        with pytest.raises(WrongKey, match="--trust"):
            await machine.start(OURS, THIRD)
        assert machine.connected == 1, "only the one that made the log"
        assert {shard: len(kept) for shard, kept in machine.store.commits.items()} == ends
        machine.check_sound()

    machine.world.run(main())


@pytest.mark.parametrize("settings", [NEVER, OFTEN], ids=["from the log", "from snapshots"])
@pytest.mark.parametrize("shards", [1, 4])
def test_whoever_trusts_the_other_key_starts_and_need_not_say_so_again(shards: int, settings: Settings) -> None:
    """The first commit of the new key covers the ends of all shards, also of those that stay idle."""
    machine = Machine(shards, settings)

    async def main() -> None:
        await machine.live_with(OTHERS, OURS)
        live = await machine.start(OURS, OTHERS)
        check_whole(live)
        await live.observe(NAMES[0], Counted())
        await live.host.stop()
        live = await machine.start(OURS)
        assert live.query(NAMES[0]).count == 3
        await live.host.stop()
        machine.check_sound()

    machine.world.run(main())


@pytest.mark.parametrize("settings", [NEVER, OFTEN], ids=["from the log", "from snapshots"])
@pytest.mark.parametrize("shards", [1, 4])
def test_a_key_that_has_accepted_the_log_offline_needs_no_trust(shards: int, settings: Settings) -> None:
    machine = Machine(shards, settings)

    async def main() -> None:
        await machine.live_with(OTHERS)
        rotation = machine.rotation(OTHERS)
        await rotation.enrol((OURS.algorithm, OURS.public_key))
        with pytest.raises(WrongKey, match="--trust"):
            await machine.start(OURS)
        await machine.rotation(OTHERS).accept(OURS)
        machine.check_sound()
        live = await machine.start(OURS)
        check_whole(live)
        await live.host.stop()
        with pytest.raises(WrongKey, match="--trust"):
            await machine.start(OTHERS)
        machine.check_sound()

    machine.world.run(main())


def test_a_key_that_was_never_enrolled_is_not_helped_by_trust() -> None:
    machine = Machine(1)

    async def main() -> None:
        await machine.live_with(OTHERS)
        with pytest.raises(WrongKey, match="is not enrolled"):
            await machine.start(OURS, OTHERS)

    machine.world.run(main())
