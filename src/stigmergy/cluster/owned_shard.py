"""A shard that is ours: its host, what stands around it, and their beginning and end in the right order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from stigmergy.base.clock import Clock, Entropy
from stigmergy.base.errors import NotOwned, NotRunning, StigmergyError
from stigmergy.base.trust import Signer, Verifier
from stigmergy.bus.port import Bus
from stigmergy.cluster.fencing import LeasedHost, MayAct, guarded
from stigmergy.cluster.records import Member
from stigmergy.cluster.standby import Claimed
from stigmergy.control.live import Live
from stigmergy.journal.port import ShardLog
from stigmergy.network.bus_link import BusLink
from stigmergy.network.peers import Neighbours
from stigmergy.network.replication import Companions
from stigmergy.node.declaration import Declaration
from stigmergy.node.device_tasks import Devices
from stigmergy.node.settings import Settings
from stigmergy.shard.inputs import EnrollSigner

# What stands around the host of one shard, and its life in order: neighbours, devices, bus, company, control.
#
# Made before the host starts, which releases then what is still owed. Whatever is missing is left out.


class Door(Protocol):
    """Where operators ask the host of a shard."""

    async def start(self) -> None:
        """Begins to answer."""
        ...

    async def close(self) -> None:
        """Answers nobody any more."""
        ...


class House:
    """The surroundings of one host."""

    def __init__(
        self,
        *,
        neighbours: Neighbours | None = None,
        devices: Devices | None = None,
        link: BusLink | None = None,
        bus: Bus | None = None,
        companions: Companions | None = None,
        door: Callable[[Live], Door] | None = None,
    ) -> None:
        self.neighbours = neighbours
        self.devices = devices
        self.link = link
        self._bus = bus
        """The connection of the link, which is closed whatever way it ends."""
        self.companions = companions
        self._make_door = door
        self._door: Door | None = None
        self._started: list[Neighbours | Devices | BusLink | Companions] = []

    async def start(self, live: Live) -> None:
        """Right behind the start of the host, before its first turn. Raises, with all of it ended again."""
        live.neighbours, live.link, live.companions = self.neighbours, self.link, self.companions
        try:
            # Side by side: each way to the servers and back is time in which the shard has no owner.
            await asyncio.gather(self._meet_neighbours(), self._open_door(live))
            if self.devices is not None:
                self._started.append(self.devices)
                self.devices.start()
            if self.link is not None:
                self._started.append(self.link)
                await self.link.start()
            if self.companions is not None:
                self._started.append(self.companions)
                await self.companions.start()
        except BaseException:
            await self.kill()
            raise

    async def _meet_neighbours(self) -> None:
        if self.neighbours is not None:
            self._started.append(self.neighbours)
            await self.neighbours.start()

    async def _open_door(self, live: Live) -> None:
        if self._make_door is not None:
            self._door = self._make_door(live)
            await self._door.start()

    async def stop(self) -> None:
        """Before the host stops: nothing more is taken, what is owed leaves if it can."""
        leaving = [part for part in self._started if isinstance(part, Neighbours)]
        await asyncio.gather(self._close_door(), *(part.stop() for part in leaving))
        for part in _in_order(self._started, (Devices, Companions, BusLink)):
            await part.stop()
        self._started.clear()

    async def kill(self) -> None:
        """Ends all of it as it is, without a word to anybody."""
        await self._close_door()
        for part in _in_order(self._started, (Devices, Companions, BusLink, Neighbours)):
            with contextlib.suppress(StigmergyError):
                await (part.stop() if isinstance(part, Neighbours) else part.kill())
        self._started.clear()
        if self._bus is not None:
            with contextlib.suppress(StigmergyError):
                await self._bus.close()

    async def _close_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            with contextlib.suppress(StigmergyError):
                await door.close()


Part = Neighbours | Devices | BusLink | Companions


def _in_order(parts: Sequence[Part], kinds: Sequence[type[Part]]) -> list[Part]:
    return [part for kind in kinds for part in parts if isinstance(part, kind)]


class Estate(Protocol):
    """What a worker needs of the world for a shard; the composition root gives it."""

    async def open_log(self, shard: int) -> ShardLog:
        """The log of a shard, made if there is none. Raises LinkDown, JournalForeign, ConfigError."""
        ...

    def furnish(self, host: LeasedHost, shard: int, claim: int) -> House:
        """What stands around the host of a shard, not yet started. `claim` is the number by which we own it."""
        ...


class Means(Struct, frozen=True):
    """What all shards of a worker run with."""

    declaration: Declaration
    estate: Estate
    signer: Signer
    verifier: Verifier
    clock: Clock
    entropy: Entropy
    settings: Settings
    trusted: Sequence[bytes] = ()
    """Other workers' keys: whose end of a log we believe, and who may sign ours."""
    has_bus: bool = False
    has_ledger: bool = False
    """Whether the estate brings them; a fleet that needs one that is missing is refused."""
    agents: Sequence[str] = ()
    """Which agents the fleet's workers run, the same for all of them; without any, all."""


class Tenure:
    """One host of one shard, on a log that was claimed for it."""

    def __init__(self, shard: int, means: Means, claimed: Claimed, may_act: MayAct) -> None:
        self._shard = shard
        self._means = means
        self._claimed = claimed
        self.host = LeasedHost(
            guarded(means.declaration, may_act),
            claimed.journal,
            means.signer,
            means.verifier,
            means.clock,
            means.settings,
            means.trusted,
            agents=means.agents,
        )
        self.host.may_act = may_act
        self.house = means.estate.furnish(self.host, shard, claimed.number)
        self.live: Live | None = None

    @property
    def claim(self) -> int:
        """The number of our claim."""
        return self._claimed.number

    async def begin(self, over: Callable[[], None]) -> None:
        """Starts the host and all around it. `over` is called when the host ends by itself. Raises as they do."""
        found = await self.host.start(self._claimed.recovered, self._claimed.number)
        self.live = Live(self.host, self._means.entropy, found, self.house.devices)
        await self.house.start(self.live)
        asyncio.ensure_future(self.host.wait_failure()).add_done_callback(lambda _: over())

    async def finish(self) -> Exception | None:
        """Ends in good order: what was taken is finished and written. Returns what went wrong on the way."""
        try:
            await self.house.stop()
            await self.host.stop()
        except StigmergyError as error:
            return error
        return None if isinstance(self.host.failure, NotRunning) else self.host.failure

    async def abandon(self) -> None:
        """Ends as it is: nothing more is written, and the world hears nothing."""
        self.host.retire(NotOwned("the shard is another worker's; ask again"))
        await self.house.kill()
        await self.host.kill()
        with contextlib.suppress(StigmergyError, TimeoutError):
            async with asyncio.timeout(self._means.settings.drain_s):
                await self._claimed.journal.close()

    def enrol(self, members: Sequence[Member]) -> None:
        """Lets the keys of members that we trust sign this log, so that each of them may own it next."""
        known = [(signer.algorithm, signer.public_key) for signer in self.host.shards.signers.state.signers]
        for member in members:
            key = (member.algorithm, key_of(member))
            if key[1] in self._means.trusted and key not in known:
                known.append(key)
                if not self._means.verifier.acceptable(*key):  # it says what is wrong with it
                    self.host.intake.put_inside(self._shard, EnrollSigner(*key))


def key_of(member: Member) -> bytes:
    """The key that a member says it signs with; empty if it says nonsense."""
    try:
        return bytes.fromhex(member.public_key)
    except ValueError:
        return b""
