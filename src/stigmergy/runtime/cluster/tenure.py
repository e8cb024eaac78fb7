"""A shard that is ours: its host, what stands around it, and their beginning and end in the right order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from msgspec import Struct

from stigmergy.core.errors import NotOwned, NotRunning, StigmergyError
from stigmergy.core.inputs import EnrollSigner
from stigmergy.ports.clock import Clock, Entropy
from stigmergy.ports.trust import Signer, Verifier
from stigmergy.runtime.cluster.house import Estate
from stigmergy.runtime.cluster.leased_host import LeasedHost, MayAct, guarded
from stigmergy.runtime.cluster.records import Member
from stigmergy.runtime.cluster.standby import Claimed
from stigmergy.runtime.declaration import Declaration
from stigmergy.runtime.live import Live
from stigmergy.runtime.settings import Settings


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
