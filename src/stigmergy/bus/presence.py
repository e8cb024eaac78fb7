"""Presence: who is in the fleet, and their capabilities. Joins and leaves reach agents as observed events.

A node announces itself on its own retained topic, and again at intervals; its will announces that it is gone. Members
are known only from these announcements: one that is silent for too long is gone, by our own clock, whatever its clock
or the broker says.

Two nodes with the same agent, or with one name and two journals, are *rivals*: both would decide the same commands. One
of them stays off the bus, the one with the lower epoch, and says so in its announcement.

Nothing here is durable. After a start all members are announced again; `MembersReset` comes first, so that an agent
forgets those that left meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.assignment import ANY, Assignment, shown
from stigmergy.agents.messages import Event, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import FrameworkEvent
from stigmergy.base.errors import ConfigError, Malformed, PeerError, StigmergyError, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, read_event, write_structured
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.quotas import Quotas
from stigmergy.bus.topics import Channel, Topics, parse_topic
from stigmergy.diagnostics.logger import Log

SECOND_NS = 1_000_000_000
MEMBERS_COUNT_MAX = 10_000
MEMBERS_BYTES_MAX = 16 * 1024 * 1024
"""The announcements of all members together; beyond it new members are ignored."""
NAMES_COUNT_MAX = 1_000
"""Kinds, commands, actions or agents that one node may announce."""
PRESENCE_BYTES_MAX = 48 * 1024
"""One announcement, so that an agent can be told of it. A node with more to announce leaves out names."""
HEARD_BURST = 30
HEARD_PER_BEAT = 4
"""How many announcements a node may make at once, and in the time between two heartbeats."""
OFF_CHARS_MAX = 400
TWINS_COUNT_MAX = 16
TWIN_GONE_S = 5.0
"""A node with our name that has left counts for so long: two that take the session from each other come back."""
PRESENT = "stigmergy.NodePresent@1"
ASKED_MAX = 1_000
"""The most members searched for an agent: every refusal does a search. And the most that are remembered when away."""
log = Log("presence")


class Member(Struct, frozen=True):
    """A node of the fleet, as it announces itself."""

    node: str
    run: str
    """Another one each time the node starts."""
    online: bool = True
    version: str = ""
    since: str = ""
    kinds: tuple[str, ...] = ()
    commands: Mapping[str, tuple[str, ...]] = {}
    """The commands that each kind of agent accepts."""
    actions: tuple[str, ...] = ()
    """The actions that it can carry out."""
    agents: tuple[str, ...] = ()
    """The agents that it runs, as its configuration names them; none means any, and so do too many to name."""
    everything: bool | None = None
    """Whether it runs every agent of its kinds; None if it does not say, or is of an older version."""
    epoch: int = 0
    """Of its shards' owner: each start of a node has a higher one. 0 if it does not say."""
    routes: bool = False
    """Whether it sends on what is for agents that no node here runs: it is between this level and others."""

    shards_run: tuple[str, ...] = ()
    """Of an owner of some shards: the agents that all owners together run, as their configuration names them."""
    journal: str = ""
    """Tells its journal from others; a restored copy has another one. Empty for one in memory, or if unsaid."""
    off: str = ""
    """Why it takes nothing from the bus: another node has its agents, or its name. Empty: it is on the bus."""

    @property
    def assignment(self) -> Assignment | None:
        """Which agents it runs; None if it does not say."""
        return _assignment(self.agents) if self.agents or self.everything else None


class MemberJoined(Event, name="stigmergy.MemberJoined"):
    """A node has joined the fleet, or was found there."""

    node: str
    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()


class MemberLeft(Event, name="stigmergy.MemberLeft"):
    """A node has left, or was silent for too long."""

    node: str
    because: str = ""


class MembersReset(Event, name="stigmergy.MembersReset"):
    """This node has started: all members are announced again. Sent to agents with a handler for it."""


class PresenceCounters(Struct):
    """Counts of other nodes' announcements."""

    members_joined: int = 0
    members_left: int = 0
    name_conflicts: int = 0
    presence_refused: int = 0


Tell = Callable[[Event], None]
"""Tells every interested agent."""


class Presence:
    """Announces this node, and knows the other members."""

    def __init__(
        self,
        bus: Bus,
        topics: Topics,
        me: Member,
        tell: Tell,
        monotonic_ns: Callable[[], int],
        *,
        every_s: float,
        gone_s: float,
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._me = me
        self._tell = tell
        self._monotonic_ns = monotonic_ns
        self._every_s = every_s
        self._gone_ns = int(gone_s * SECOND_NS)
        self._spoken = _within_bounds(me, self._message)
        """What we announce of ourselves; possibly not everything."""
        self._quotas = Quotas(HEARD_PER_BEAT / every_s, HEARD_BURST)
        self._members: dict[str, tuple[Member, int, int]] = {}
        """Each with the time of its last announcement and the bytes of that."""
        self._said: dict[str, tuple[bytes, Member]] = {}
        """By topic: the last announcement of a present member, and its meaning."""
        self._members_bytes = 0
        self._absent: dict[str, tuple[Member, int]] = {}
        """Nodes that left and name their agents, as they last announced themselves: those agents are still theirs. Each
        with the time when we heard of it."""
        self._left: dict[str, int] = {}
        """All nodes that are away, with the times when we heard of it: those in `_absent`, and those without names of
        agents that left in this run."""
        self._off: dict[str, tuple[Member, int]] = {}
        """Nodes that stay off the bus, with the times of their last announcements."""
        self.on_rival: Callable[[Member], None] = lambda _: None
        """Called with a node that has our agents, or our name, and goes before us."""
        self._task: asyncio.Task[None] | None = None
        self._saying: asyncio.Task[None] | None = None
        self._leaving = False
        self._twins: dict[str, tuple[int, int]] = {}
        """Other runs that use our name, with the times of their first announcements and until when they count."""
        self._conflict = ""
        self._up_ns: int | None = None
        """Since when the link is up."""
        self._has_heard_all = False
        self._has_heard_us = False
        self.is_late = False
        """There was no link at the start, or it was lost. The broker may have forgotten everything then: others say it
        again."""
        self.counters = PresenceCounters()

    @property
    def conflict(self) -> str:
        """About another node with our name, if there is one now."""
        now_ns = self._monotonic_ns()
        return self._conflict if any(until_ns >= now_ns for _, until_ns in self._twins.values()) else ""

    @property
    def will(self) -> BusMessage:
        """What the broker publishes when we are gone."""
        return self._message(msgspec.structs.replace(self._spoken, online=False))

    @property
    def me(self) -> Member:
        """What we say of ourselves."""
        return self._spoken

    def said_off(self, off: str, *, online: bool) -> BusMessage:
        """The announcement of a node that stays off the bus."""
        return self._message(msgspec.structs.replace(self._spoken, off=off[:OFF_CHARS_MAX], online=online))

    def begin_epoch(self, epoch: int) -> None:
        """We have taken over agents of nodes with lower epochs: from now on we go before them."""
        if epoch > self._me.epoch:
            self._me = msgspec.structs.replace(self._me, epoch=epoch)
            self._spoken = msgspec.structs.replace(self._spoken, epoch=epoch)

    def members(self) -> list[Member]:
        """All members by name, ourselves included."""
        found = {self._me.node: self._me} | {node: member for node, (member, _, _) in self._members.items()}
        return [found[node] for node in sorted(found)]

    def others(self) -> list[Member]:
        """The other members that are there, by name."""
        return [member for member in self.members() if member.node != self._me.node]

    def away(self) -> list[Member]:
        """Members that have left and said which agents are theirs: what is for those waits for them."""
        return [self._absent[node][0] for node in sorted(self._absent)]

    def left(self) -> dict[str, int]:
        """Nodes that are away in the order in which they left, with our monotonic time when we heard of it. A node that
        names no agents is among them only if it left in this run."""
        return self._left

    def staying_off(self) -> list[Member]:
        """Nodes that take nothing from the bus, because another has their agents or their name."""
        now_ns = self._monotonic_ns()
        return [one for _, (one, heard_ns) in sorted(self._off.items()) if now_ns - heard_ns <= self._gone_ns]

    def unheard(self) -> str:
        """Why there may be nodes that we have not heard since the start; empty once all have been heard."""
        if self._has_heard_all:
            return ""
        if self._up_ns is None:
            return "there was no link to the bus since the start"
        settling = self.settling()
        self._has_heard_all = not settling
        return settling

    def settling(self) -> str:
        """Why nodes may appear that are here and not known, while the link is up; empty once they had the time for it.

        The broker sends what it has retained before our own announcement. If it has that from before a crash, or not at
        all, only time helps: whoever is on the bus announces itself in the time between two heartbeats."""
        is_sure = self._up_ns is None or (self._has_heard_us and not self.is_late)
        if is_sure or self._monotonic_ns() - (self._up_ns or 0) > self._every_s * SECOND_NS:
            return ""
        return f"the link to the bus is new, and other nodes have {self._every_s:g} s to appear"

    def locate(self, address: str) -> str:
        """Which other node announces that it runs this agent; see `Assignment.locate`."""
        return locate(address, self._me.node, self.members())

    def locate_away(self, address: str) -> str:
        """The same of nodes that are away."""
        now_ns = self._monotonic_ns()
        for member, left_ns in self._absent.values():
            if names(member, address):
                since = f" for {(now_ns - left_ns) // SECOND_NS} s or longer" if self._bus.is_up else ""
                return f"node {member.node!r} runs it, and {self.absence(member.node)}{since}"
        return ""

    def absence(self, node: str) -> str:
        """What to say of a node that is not heard: that it is away, unless it is we who hear nobody."""
        if self._bus.is_up:
            return "is away"
        return f"this node has no link to the bus, so it cannot tell whether {node!r} is there"

    def claimants(self, address: str) -> list[Member]:
        """Which other nodes name this agent in their configuration, whether they are here or away."""
        known = [member for member, _, _ in self._members.values()]
        others = [*known[:ASKED_MAX], *(member for member, _ in self._absent.values())]
        return [one for one in others if one.agents and one.assignment is not None and one.assignment.runs(address)]

    def is_here(self, node: str) -> bool:
        """Whether another node is in the fleet now."""
        return node in self._members

    def may_run(self, address: str) -> bool:
        """Whether a node that is here runs this agent, or may; other than ourselves."""
        return may_run(address, [member for member, _, _ in self._members.values()])

    def overlaps(self) -> list[str]:
        """Which other nodes run agents that run here too: both would carry out their commands."""
        return overlaps(self._me, self.members())

    async def start(self) -> None:
        """Subscribes, and announces this node whenever the link is up."""
        self._tell(MembersReset())
        await self._bus.subscribe(self._topics.nodes_pattern(Channel.PRESENCE), self._heard)
        self._task = asyncio.ensure_future(self._beat())

    def link(self, up: bool) -> None:
        """The link is back: our will may have been published meanwhile, so announce ourselves."""
        self.unheard()  # Once all have been heard, that stays so.
        is_up = up and self._bus.is_up
        self.is_late = self.is_late or (self._up_ns is not None and not is_up)
        self._up_ns = (self._up_ns or self._monotonic_ns()) if is_up else None
        if up and not self._leaving and (self._saying is None or self._saying.done()):
            self._saying = asyncio.ensure_future(self._say(self._spoken))

    async def stop(self) -> None:
        """Announces that we leave."""
        await self.kill()
        await self._say(msgspec.structs.replace(self._spoken, online=False))

    async def kill(self) -> None:
        """Ends at once without an announcement, like a crash."""
        self._leaving = True
        await end_tasks(self._task, self._saying)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            # A broker that does not answer must not stop us from noticing who is gone.
            self._expire()
            self.link(True)

    async def _say(self, member: Member) -> None:
        if self._bus.is_up:
            # If the link breaks now, we announce again when it is back; and in any case after a while.
            with contextlib.suppress(StigmergyError):
                await self._bus.publish(self._message(member))

    def _message(self, member: Member) -> BusMessage:
        event = CloudEvent(
            id=f"{member.run}.{int(member.online)}",
            source=self._topics.source_of_node(member.node),
            type=PRESENT,
            datacontenttype=JSON,
            data=msgspec.to_builtins(member),
        )
        topic = self._topics.of_node(member.node, Channel.PRESENCE)
        return BusMessage(topic, write_structured(event), content_type=STRUCTURED, retained=True)

    # ------------------------------------------------------------------ others

    async def _heard(self, message: BusMessage) -> None:
        if not message.payload:  # somebody cleared it
            with contextlib.suppress(PeerError):
                node = parse_topic(message.topic).name
                self._forget(node)
            return
        try:
            if not self._quotas.admit(message.topic, self._monotonic_ns()):
                raise TooLarge("announced too often")
            member = self._said_before(message) or read_presence(message)
        except PeerError:
            self.counters.presence_refused += 1
            return
        if member.node == self._me.node:
            self._heard_our_name(member)
        elif member.off:
            self._stays_off(member, is_kept=message.retained)
        elif member.online:
            self._here(member, message)
        else:
            self._gone(member.node, "it said so, or its link was lost", member.run)
            if member.node not in self._members:
                self._remember(member)

    def _said_before(self, message: BusMessage) -> Member | None:
        """Skips parsing an unchanged announcement: a node gets one of every other node each half minute."""
        said = self._said.get(message.topic)
        return said[1] if said is not None and said[0] == message.payload else None

    def _here(self, member: Member, message: BusMessage) -> None:
        size_bytes = len(message.payload)
        known = self._members.get(member.node)
        total_bytes = self._members_bytes + size_bytes - (known[2] if known else 0)
        if total_bytes > MEMBERS_BYTES_MAX or (known is None and len(self._members) >= MEMBERS_COUNT_MAX):
            self.counters.presence_refused += 1
            return
        self._members[member.node] = (member, self._monotonic_ns(), size_bytes)
        self._forget(member.node)
        self._said[message.topic] = (message.payload, member)
        self._members_bytes = total_bytes
        if known is None or known[0] != member:
            self.counters.members_joined += 1
            self._tell(MemberJoined(node=member.node, kinds=member.kinds, actions=member.actions, agents=member.agents))
            for sentence in overlaps(self._me, [member]):
                log.say("agents-conflict", sentence, is_trouble=True)
            if certain_overlap(self._me.agents, member) and goes_before(member, self._me):
                self.on_rival(member)

    def _stays_off(self, member: Member, *, is_kept: bool) -> None:
        """What the broker has kept may be of a node that is gone since: one that is there says it again."""
        self._gone(member.node, "it stays off the bus")
        known = self._off.get(member.node)
        self._forget(member.node)
        if member.online and is_kept:
            self._off |= {} if known is None else {member.node: known}
        elif member.online and len(self._off) < ASKED_MAX:
            self._off[member.node] = (member, self._monotonic_ns())

    def _gone(self, node: str, because: str, run: str | None = None) -> None:
        known = self._members.get(node)
        # A will of an earlier run may come after the announcement of the next run.
        if known is not None and run in (None, known[0].run):
            del self._members[node]
            self._said.pop(self._topics.of_node(node, Channel.PRESENCE), None)
            self._members_bytes -= known[2]
            self.counters.members_left += 1
            if not known[0].shards_run:  # Workers come and go; the others have their shards.
                self._left[node] = self._monotonic_ns()
            self._remember(known[0])
            self._tell(MemberLeft(node=node, because=because))

    def _forget(self, node: str) -> None:
        for known in (self._absent, self._left, self._off):
            known.pop(node, None)

    def _remember(self, member: Member) -> None:
        """Keeps which agents a node names that is away. Beyond the bound the one that left first is forgotten."""
        if member.agents:
            self._absent.pop(member.node, None)
            self._absent[member.node] = (member, self._monotonic_ns())
            self._left.setdefault(member.node, self._monotonic_ns())
        for known in (self._absent, self._left):
            if len(known) > ASKED_MAX:
                del known[next(iter(known))]

    def _expire(self) -> None:
        now_ns = self._monotonic_ns()
        for node, (_, heard_ns, _) in list(self._members.items()):
            if now_ns - heard_ns > self._gone_ns:
                self._gone(node, f"not heard for {self._gone_ns // SECOND_NS} s")
        self._twins = {run: times for run, times in self._twins.items() if now_ns <= times[1]}
        self._off = {node: one for node, one in self._off.items() if now_ns - one[1] <= self._gone_ns}

    def _heard_our_name(self, member: Member) -> None:
        """Our own announcement, one left by our last run, or one of another running node with our name.

        A leftover comes at once and never again; a twin announces itself again and again.
        """
        if not member.online:
            # The will of a link that we have replaced, or of our last run: the broker has retained it.
            self.link(True)
        if member.run == self._me.run or member.off:
            self._has_heard_us = self._has_heard_us or (member.run == self._me.run and member.online)
            return
        now_ns = self._monotonic_ns()
        first_ns, _ = self._twins.pop(member.run, (now_ns, now_ns))
        stays_ns = self._gone_ns if member.online else int(TWIN_GONE_S * SECOND_NS)
        self._twins[member.run] = (first_ns, now_ns + stays_ns)
        if len(self._twins) > TWINS_COUNT_MAX:
            del self._twins[next(iter(self._twins))]
        other = is_other_journal(member.journal, self._me.journal)
        if member.online and (other or now_ns - first_ns > self._every_s * SECOND_NS / 2):
            self.counters.name_conflicts += 1
            self._conflict = f"another node calls itself {member.node!r} too, here since {member.since}; rename one"
            if other and goes_before(member, self._me):
                self.on_rival(member)


def read_presence(message: BusMessage) -> Member:
    """The member in an announcement. Raises PeerError if it is not a presence message."""
    if len(message.payload) > PRESENCE_BYTES_MAX:
        raise TooLarge(f"a presence of {len(message.payload)} bytes, {PRESENCE_BYTES_MAX} at most")
    topic = parse_topic(message.topic)
    event = read_event(message.payload, message.content_type, message.properties)
    if event.type != PRESENT:
        raise Malformed(f"{event.type} is not a presence")
    try:
        member = msgspec.convert(event.data, Member)
    except msgspec.ValidationError as error:
        raise Malformed(f"not a presence: {error}") from None
    if member.node != topic.name:
        raise Malformed(f"{topic.name} sends in the name of {member.node}")
    if _names_count(member) > NAMES_COUNT_MAX:
        raise Malformed(f"more than {NAMES_COUNT_MAX} names")
    return member


@lru_cache(ASKED_MAX)
def _assignment(agents: tuple[str, ...]) -> Assignment | None:
    try:
        return Assignment(agents)
    except ConfigError:
        return None  # perhaps of a later version


def locate(address: str, here: str, members: Sequence[Member]) -> str:
    """Who of these, other than ourselves, runs an agent: those that name it, else those that run everything."""
    others = [one for one in members[:ASKED_MAX] if one.node != here and one.assignment is not None]
    named = [one.node for one in others if one.agents and one.assignment and one.assignment.runs(address)]
    kind = address.partition("/")[0]
    found = named or [one.node for one in others if one.everything and kind in one.kinds]
    names = " and ".join(f"node {name!r}" for name in found[:2])
    return f"{names} {'run' if len(found) > 1 else 'runs'} it" if found else ""


def may_run(address: str, members: Sequence[Member]) -> bool:
    """Whether one of these runs an agent, or may: a node that does not announce its agents, or its kinds."""
    kind = address.partition("/")[0]
    return any(
        (not one.kinds or kind in one.kinds) and (one.assignment is None or one.assignment.runs(address))
        for one in members
        if not one.shards_run or names(one, address)
    )


def names(member: Member, address: str) -> bool:
    """Whether a node names this agent as its own, or as one of the owners of its fleet's shards."""
    named = member.agents or member.shards_run
    found = _assignment(named) if named else None
    return found is not None and found.runs(address)


def certain_overlap(agents: Sequence[str], member: Member) -> list[str]:
    """Entries of ours that another node runs for certain: it names that agent or that very pattern, or has a pattern
    that the agent fits. Two patterns that differ may have no agent in common; a node that names no agents at all may be
    a gateway, which runs copies of what its devices run."""
    theirs = member.assignment
    if theirs is None or not member.agents or not agents:
        return []
    both = [entry for entry in agents if entry in member.agents or (ANY not in entry and theirs.runs(entry))]
    if both:
        return both
    mine = _assignment(tuple(agents))
    return [entry for entry in member.agents if ANY not in entry and mine is not None and mine.runs(entry)]


def is_other_journal(one: str, other: str) -> bool:
    """Whether two nodes are known to have two journals."""
    return bool(one and other and one != other)


def goes_before(one: Member, other: Member) -> bool:
    """Which of two rivals stays on the bus: the one with the higher epoch, else the one that started first. Whoever
    takes agents over begins a higher epoch than the node that had them."""
    if one.epoch != other.epoch:
        return one.epoch > other.epoch
    return (one.since, one.run) < (other.since, other.run)


def overlaps(me: Member, members: Sequence[Member]) -> list[str]:
    """Sentences about nodes that run agents of ours. A node that names its agents may share a bus with one that names
    none, like a drone with its gateway; that is not reported."""
    found: list[str] = []
    ours = me.assignment
    for member in members:
        theirs = member.assignment
        if member.node == me.node or ours is None or theirs is None or not set(me.kinds) & set(member.kinds):
            continue
        if me.everything and member.everything:
            found.append(
                f"node {member.node!r} runs every agent of this fleet, and so does this one: both carry out every "
                'command; name in each one\'s configuration its agents, for example agents = ["Drone/D-17"]'
            )
        elif here := ours.shared_with(theirs):
            there = theirs.shared_with(ours)
            # Each in its own words: one may name agents that match a pattern of the other.
            both = f"{shown(there)}, {'too' if sorted(here) == sorted(there) else f'and this one {shown(here)}'}"
            found.append(f"node {member.node!r} runs {both}: take what both run out of agents of one of the nodes")
    return found


def _names_count(member: Member) -> int:
    return max(len(member.kinds), len(member.commands), len(member.actions), len(member.agents))


def _within_bounds(me: Member, message: Callable[[Member], BusMessage]) -> Member:
    """Shortens our announcement to what others accept: drops the agents, if they are too many, which means any; etc."""
    shorter: tuple[dict[str, Any], ...] = (
        {"agents": (), "everything": None},
        {"commands": {}},
        {"actions": ()},
        {"kinds": ()},
    )
    for less in shorter:
        if _names_count(me) <= NAMES_COUNT_MAX and len(message(me).payload) <= PRESENCE_BYTES_MAX:
            break
        me = msgspec.structs.replace(me, **less)
    return me


def describe_node(
    node: str, run: str, version: str, since: str, plans: Mapping[str, AgentPlan], actions: Mapping[str, Any]
) -> Member:
    """A node's description of itself."""
    return Member(
        node=node,
        run=run,
        version=version,
        since=since,
        kinds=tuple(sorted(plans)),
        commands={
            kind: tuple(
                sorted(
                    spec_of(message).name
                    for message, plan in agent.plans.items()
                    if plan.is_command and not issubclass(message, FrameworkEvent)
                )
            )
            for kind, agent in sorted(plans.items())
        },
        actions=tuple(sorted(tag.partition("@")[0] for tag in actions)),
    )
