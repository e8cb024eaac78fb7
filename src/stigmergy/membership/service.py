"""Membership without a broker: runs SWIM (`membership/swim.py`) on a mesh and a clock.

It reports joins and leaves like presence on a bus: the same events, through the same callback, with the same
queries. If a transport has presence, that is used instead: it notices a lost link sooner, and costs less. Nothing here
is durable. After a start `MembersReset` comes first, then the members that are found.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
from msgspec import Struct, structs

from stigmergy.base.clock import Clock, Entropy
from stigmergy.bus.presence import Member, MemberJoined, MemberLeft, MembersReset, Tell, locate
from stigmergy.membership.mesh import Mesh
from stigmergy.membership.packets import ABOUT_BYTES_MAX, INCARNATION_MAX, RUN_BYTES, MemberStatus, SwimUpdate
from stigmergy.membership.settings import SwimSettings
from stigmergy.membership.swim import Appeared, OwnRecord, Swim

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
TICK_S_MIN = 0.001
"""The shortest time between ticks: a clock that stands still must not keep the loop busy."""
SEED_BYTES = 16
LEFT_BECAUSE = "it said so"
DEAD_BECAUSE = "it did not answer, neither to us nor to others"


class About(Struct, frozen=True, array_like=True):
    """A node's description of itself, small enough for a datagram."""

    version: str = ""
    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    """None named means any, and so do too many to name."""
    everything: bool | None = None


class Membership:
    """Runs SWIM for this node. Opens and closes the given mesh, which must be its own channel (`MeshChannels`)."""

    def __init__(
        self,
        mesh: Mesh,
        me: Member,
        tell: Tell,
        clock: Clock,
        entropy: Entropy,
        *,
        fleet: str,
        seeds: Sequence[str] = (),
        settings: SwimSettings | None = None,
    ) -> None:
        self._mesh = mesh
        self._me = me
        self._tell = tell
        self._clock = clock
        self._fleet = fleet
        self._seeds = tuple(seeds)
        self._settings = settings or SwimSettings()
        self._entropy = entropy
        self._swim: Swim | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    @property
    def swim(self) -> Swim:
        """The state machine; after `start`."""
        if self._swim is None:
            raise RuntimeError("membership was not started")
        return self._swim

    @property
    def conflict(self) -> str:
        """Says that another node uses our name; else empty."""
        if self._swim is None or self._swim.twin(self._clock.monotonic_ns()) is None:
            return ""
        return f"another node calls itself {self._me.node!r} too; rename one"

    def members(self) -> list[Member]:
        """All members by name, ourselves included. Suspects count until they are declared dead."""
        found = {self._me.node: self._me}
        if self._swim is not None:
            found |= {record.node: _member(record) for record in self._swim.members() if record.node != self._me.node}
        return [found[node] for node in sorted(found)]

    def locate(self, address: str) -> str:
        """Which other node announces that it runs this agent; see `Assignment.locate`."""
        return locate(address, self._me.node, self.members())

    def suspects(self) -> list[str]:
        """Members that do not answer now, by name."""
        return [record.node for record in self.swim.members() if record.status == MemberStatus.SUSPECT]

    def counters(self) -> dict[str, int]:
        """Counters of membership and of its mesh."""
        if self._swim is None:
            return {}
        sent = {f"membership_{name}": value for name, value in structs.asdict(self._mesh.counters).items()}
        full = {"membership_full_count": self._swim.table.full_count}
        return (
            {f"membership_{name}": value for name, value in structs.asdict(self._swim.counters).items()} | sent | full
        )

    async def start(self) -> None:
        """Opens the mesh and searches for others: first the seeds, then the members that they know."""
        self._tell(MembersReset())
        await self._mesh.open(self._hear)
        now_ns = self._clock.monotonic_ns()
        # A restart needs a higher incarnation than the last run. If the clock went back, SWIM raises it a little later.
        incarnation = min(max(0, self._clock.wall_ns() // MILLISECOND_NS), INCARNATION_MAX // 2)
        identity = OwnRecord(
            self._me.node, self._entropy.token(RUN_BYTES), incarnation, self._mesh.contact, write_about(self._me)
        )
        chance = random.Random(self._entropy.token(SEED_BYTES))
        self._swim = Swim(
            identity,
            fleet=self._fleet,
            bytes_max=self._mesh.bytes_max,
            choose=chance.randrange,
            now_ns=now_ns,
            seeds=self._seeds,
            settings=self._settings,
        )
        self._tick()

    async def stop(self) -> None:
        """Announces that we leave, to some members that pass it on."""
        if self._swim is not None:
            self._swim.leave(self._clock.monotonic_ns())
            for to, body in self._swim.ready().sends:
                self._mesh.send_nowait(to, body)
        await self.kill()

    async def kill(self) -> None:
        """Ends at once without an announcement."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._mesh.close()

    def _hear(self, sender: str, body: bytes) -> None:
        if self._swim is not None:
            self._swim.step(sender, body, self._clock.monotonic_ns())
            self._do(self._swim)

    def _tick(self) -> None:
        self._timer = None
        self.swim.tick(self._clock.monotonic_ns())
        self._do(self.swim)

    def _do(self, swim: Swim) -> None:
        ready = swim.ready()
        # First the addresses of nodes that we have just learned of.
        for event in ready.events:
            if isinstance(event, Appeared) and event.record.contact:
                self._mesh.introduce(event.record.node, event.record.contact)
        for to, body in ready.sends:
            self._mesh.send_nowait(to, body)
        if self._timer is None or ready.wake_ns < self._timer_ns:
            self._wake_at(ready.wake_ns)
        for event in ready.events:
            if isinstance(event, Appeared):
                member = _member(event.record)
                self._tell(MemberJoined(member.node, member.kinds, member.actions, member.agents))
            else:
                left = event.record.status == MemberStatus.LEFT
                self._tell(MemberLeft(event.record.node, LEFT_BECAUSE if left else DEAD_BECAUSE))

    def _wake_at(self, wake_ns: int) -> None:
        """One timer, for the earliest request. An early tick does no harm: it does what is due."""
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(TICK_S_MIN, (wake_ns - self._clock.monotonic_ns()) / SECOND_NS)
        self._timer_ns = wake_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)


def write_about(me: Member) -> bytes:
    """Our description for others: without the agents, if it is too large, then without the actions, then less."""
    about = About(me.version, me.kinds, me.actions, me.agents, me.everything)
    shorter = (
        about,
        structs.replace(about, agents=(), everything=None),
        About(me.version, me.kinds),
        About(me.version[:64]),
        About(),
    )
    written = (msgspec.msgpack.encode(less) for less in shorter)
    return next(body for body in written if len(body) <= ABOUT_BYTES_MAX)


def _member(record: SwimUpdate) -> Member:
    try:
        about = msgspec.msgpack.decode(record.about, type=About) if record.about else About()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        about = About()  # perhaps of a later version; the name is what counts
    return Member(
        node=record.node,
        run=record.run.hex(),
        version=about.version,
        kinds=about.kinds,
        actions=about.actions,
        agents=about.agents,
        everything=about.everything,
    )
