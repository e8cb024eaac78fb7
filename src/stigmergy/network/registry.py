"""The registry of nodes on a bus: before a node connects, it looks whether another one has its agents, or its name.

Each node's last announcement is retained by the broker. A node looks at these with a connection of its own that leaves
no session, so that nothing else reaches it meanwhile: neither new commands nor what the broker has kept for it. Two
kinds of nodes are its *rivals*: those that run one of its agents for certain, and those with its name and another
journal. A node that is away keeps its agents and its name; only `take_over` takes them.

At the start a rival is an error. If the broker cannot be reached then, the node starts, because it must work offline,
and looks as soon as it can: while it has a rival, it stays off the bus and says so, again to everybody who comes; at
its end it says that this is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from msgspec import Struct

from stigmergy.agents.assignment import shown
from stigmergy.base.errors import ConfigError, LinkDown, PeerError, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.presence import (
    MEMBERS_COUNT_MAX,
    Member,
    Presence,
    certain_overlap,
    is_other_journal,
    names,
    read_presence,
)
from stigmergy.bus.topics import Channel, Topics, parse_topic

LINK_S_MAX = 2.0
"""How long a start waits for the bus; then the node starts, and looks later."""
LINK_LOOK_S = 0.02
LOOK_S_MAX = 1.0
QUIET_S = 0.3
"""It looks until no announcement has come for so long, at most for the former."""
AGAIN_S = 20.0
"""How often a node that stays off the bus says so; less than others wait for it."""
SAY_S = 1.0
DROP_S_MAX = 5.0
"""How long a broker may take to forget the session of a node whose agents are taken over."""
LEAVE_S_MAX = 2.0
"""How long a broker may take to keep that we no longer stay off the bus."""
NEVER_S = float("-inf")
EPOCH_MAX = 2**60


class Rival(Struct, frozen=True):
    """A node that has what is ours."""

    member: Member
    both: tuple[str, ...]
    """The agents; none if it has our name."""

    @property
    def why(self) -> str:
        """Who it is and what it has, for a sentence."""
        node, since = self.member.node, self.member.since or "before"
        here = f"here since {since}" if self.member.online else "which is away"
        if not self.both:
            return f"another node with another journal calls itself {node!r}, {here}"
        return f"node {node!r}, {here}, runs {shown(self.both)}"


class Registry:
    """Of one node. `check` at the start; then `wait_free`, if that could not look; then
    `stay_off` and `say_off` at any time."""

    def __init__(
        self,
        open_client: Callable[[str], Bus],
        topics: Topics,
        node: str,
        agents: Sequence[str] = (),
        *,
        quiet_s: float = QUIET_S,
        drops_sessions: bool = True,
        take_over: bool = False,
    ) -> None:
        """`open_client` makes a client of the broker that leaves no session, not connected yet, in the name of a node;
        with an empty name, in ours, beside the node itself."""
        self._open_client = open_client
        self._topics = topics
        self._node = node
        self._agents = tuple(agents)
        self._quiet_s = quiet_s
        self._drops_sessions = drops_sessions
        self._take_over = take_over
        self._bus: Bus | None = None
        self._found: dict[str, Member] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._will: BusMessage | None = None
        self._said: BusMessage | None = None
        self._said_s = NEVER_S
        self.journal = ""
        """What our journal is called; empty for one in memory. Set it before the first look."""
        self.epoch = 0
        """Above this one ours must begin: of those that were taken over, and what we said last."""
        self.is_checked = False
        self.rivals: list[Rival] = []
        self.trouble = ""

    async def check(self) -> None:
        """Looks, if the broker can be reached now. Raises ConfigError if there is a rival that is not taken over."""
        await self._open(None)
        try:
            if not await self._is_reached() or not await self._look():
                return
            if self.rivals:
                raise ConfigError(f"{self.rivals[0].why}: {self._remedy(self.rivals[0])}")
            self.is_checked = True
        finally:
            await self._close()

    async def wait_free(self, presence: Presence) -> None:
        """Looks once the broker can be reached, and returns when there is no rival."""
        await self._open(presence.said_off("it was looking for others", online=False))
        try:
            while True:
                self._news.clear()
                bus = self._bus
                assert bus is not None
                if bus.is_up:
                    if await self._look() and not self.rivals:
                        break
                    if self.rivals:
                        await self._say_off(presence)
                elif isinstance(bus.last_error, ConfigError):
                    # The node itself may still connect. It could be here twice then, as before there was a registry.
                    self.trouble = f"whether another node has the agents of this one is not known: {bus.last_error}"
                    break
                await self._has_news(AGAIN_S if self.rivals else SAY_S)
            self.is_checked = True
            presence.begin_epoch(self.epoch)
        finally:
            self.rivals = []
            await self._close()

    def stay_off(self, rival: Member) -> None:
        """From now on this node is off the bus, until it is started again. Its caller ends its link, and then lets
        others know with `say_off`."""
        self.rivals = [self._rival(rival) or Rival(rival, ())]

    def say_off(self, presence: Presence) -> None:
        self._task = asyncio.ensure_future(self._live_off(presence))

    async def stop(self) -> None:
        await end_tasks(self._task)
        await self._close()

    @property
    def last_error(self) -> StigmergyError | None:
        """Why the broker cannot be reached, while we look."""
        return None if self._bus is None else self._bus.last_error

    @property
    def conflict(self) -> str:
        """Why this node stays off the bus, and what to do; empty if it does not."""
        if not self.rivals:
            return ""
        first = self.rivals[0]
        return f"{first.why}, so this node stays off the bus: {self._remedy(first)}"

    def holder(self, address: str, remedy: str) -> str:
        """Which rival has this agent, while we stay off the bus because of it, and what to do; empty if none has."""
        found = next((one for one in self.rivals if one.both and names(one.member, address)), None)
        return "" if found is None else f"{address}: {found.why}, and this node stays off the bus; {remedy}"

    def _remedy(self, rival: Rival) -> str:
        if rival.both:
            what = "take it out of agents of one of them"
        else:
            what = "give one of them a name of its own with --node, or start this one with the journal of that name"
        return f"{what}; if {rival.member.node!r} is gone for good, start with --take-over"

    # ------------------------------------------------------------------ looking

    async def _open(self, will: BusMessage | None) -> None:
        self._bus = bus = self._open_client("")
        self._will, self._said = will, None
        self._found.clear()
        bus.on_link(lambda _: self._news.set())
        await bus.subscribe(self._topics.nodes_pattern(Channel.PRESENCE), self._hear)
        await bus.open(will)

    async def _close(self) -> None:
        bus, self._bus = self._bus, None
        if bus is None:
            return
        if self._said is not None and self._will is not None and bus.is_up:
            # A client that leaves in order has no will, and the broker would tell every later node that we are off.
            with contextlib.suppress(StigmergyError, TimeoutError):
                async with asyncio.timeout(LEAVE_S_MAX):
                    await bus.publish(self._will)
        await bus.close()

    async def _hear(self, message: BusMessage) -> None:
        with contextlib.suppress(PeerError):
            node = parse_topic(message.topic).name
            if not message.payload:
                self._found.pop(node, None)
            elif len(self._found) < MEMBERS_COUNT_MAX or node in self._found:
                known, member = self._found.get(node), read_presence(message)
                self._found[node] = member
                if member.off and node == self._node:
                    return  # ourselves
                if known is None or known.run != member.run:
                    self._said_s = NEVER_S  # it believes only what is said while it is there
            self._news.set()

    async def _is_reached(self) -> bool:
        """Waits for the link; not once it is clear that there is none."""
        assert self._bus is not None
        first, deadline_s = self._bus.last_error, asyncio.get_running_loop().time() + LINK_S_MAX
        while not self._bus.is_up:
            error = self._bus.last_error
            if asyncio.get_running_loop().time() > deadline_s or (str(error) != str(first) and error is not None):
                return False
            await asyncio.sleep(LINK_LOOK_S)
        return True

    async def _look(self) -> bool:
        """Finds out who our rivals are, and takes over from them if that is wanted. False: the link was lost."""
        assert self._bus is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S_MAX):
                while self._bus.is_up and await self._has_news(self._quiet_s):
                    continue
        found = [self._found[node] for node in sorted(self._found)]
        self.rivals = [rival for rival in map(self._rival, found) if rival is not None]
        with contextlib.suppress(LinkDown):
            await self._settle(found)
            return self._bus.is_up
        return False

    async def _settle(self, found: Sequence[Member]) -> None:
        """Removes what earlier runs of ours have left, and rivals that are taken over."""
        for member in found:
            if member.node == self._node and not is_other_journal(member.journal, self.journal):
                self.epoch = max(self.epoch, min(member.epoch, EPOCH_MAX))
            elif self._is_us(member):
                await self._forget(member)  # our last run had another name
        if self._take_over:
            for rival in self.rivals:
                self.epoch = max(self.epoch, min(rival.member.epoch, EPOCH_MAX) + 1)
                await self._forget(rival.member)
                if rival.member.node != self._node:
                    await self._drop_session(self._node)  # what it holds, the other one had too
            self.rivals = []

    def _is_us(self, member: Member) -> bool:
        return bool(member.journal) and member.journal == self.journal

    def _rival(self, member: Member) -> Rival | None:
        """Whether it has something of ours. A journal in memory is gone with its node, and so are its agents."""
        if member.off or self._is_us(member):
            return None
        both, is_other = certain_overlap(self._agents, member), is_other_journal(member.journal, self.journal)
        if member.node == self._node:
            # Also one that is away: the broker keeps a session under this name, with what is for that node.
            return Rival(member, ()) if is_other else None
        return Rival(member, tuple(both)) if both and (member.online or member.journal) else None

    async def _forget(self, member: Member) -> None:
        """Removes a node's announcement, and what the broker keeps for it: it must not be decided once more."""
        assert self._bus is not None
        if member.node != self._node:
            await self._drop_session(member.node)
        # Behind the session: its end may have a will, which is an announcement once more.
        topic = self._topics.of_node(member.node, Channel.PRESENCE)
        await self._bus.publish(BusMessage(topic, b"", retained=True))
        self._found.pop(member.node, None)

    async def _drop_session(self, node: str) -> None:
        """A client that connects under a node's id and leaves no session ends the one that the broker has."""
        if not self._drops_sessions:
            return
        client = self._open_client(node)
        came = asyncio.Event()
        client.on_link(lambda _: came.set())
        await client.subscribe(self._topics.of_node(node, Channel.PRESENCE), _pass_over)
        await client.open()
        try:
            async with asyncio.timeout(DROP_S_MAX):
                await came.wait()
        except TimeoutError:
            error = client.last_error
            self.trouble = f"what the broker keeps for node {node!r} could not be removed: {error}"
        finally:
            await client.close()

    # ------------------------------------------------------------------ staying off

    async def _live_off(self, presence: Presence) -> None:
        await self._open(presence.said_off(self.conflict, online=False))
        await self._drop_session(self._node)  # what others decide now must not wait here for our next start
        while True:
            await self._say_off(presence)
            await asyncio.sleep(SAY_S)

    async def _say_off(self, presence: Presence) -> None:
        assert self._bus is not None
        message, now_s = presence.said_off(self.rivals[0].why, online=True), asyncio.get_running_loop().time()
        if self._bus.is_up and (message != self._said or now_s > self._said_s + AGAIN_S):
            self._said, self._said_s = message, now_s
            with contextlib.suppress(StigmergyError):
                await self._bus.publish(message)

    async def _has_news(self, within_s: float) -> bool:
        self._news.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


async def _pass_over(message: BusMessage) -> None:
    del message
