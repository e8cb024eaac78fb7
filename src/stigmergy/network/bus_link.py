"""A node on a bus: publishing, listening and presence, started and stopped in order.

The host connects to it when it is made, and releases to it at its start what an earlier run still owes. Call `start`
after the host's, and `stop` before the host's: it takes nothing more, sends what is owed if it can, and announces that
this node leaves. While the link is down the node is *local-only*: agents decide and keep their decisions as always.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from msgspec import Struct, structs

from stigmergy.agents.assignment import UNKNOWN_NODES
from stigmergy.agents.effects import PUBLISH
from stigmergy.agents.messages import Event
from stigmergy.agents.raw import BUS
from stigmergy.base.clock import Clock, Entropy
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError, JournalError, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.mapping import write_device_order
from stigmergy.bus.port import LOCAL_ONLY, NO_BUS, UP, Bus, BusMessage
from stigmergy.bus.presence import Member, MemberJoined, Presence, describe_node
from stigmergy.bus.publisher import Publisher
from stigmergy.bus.replies import Responder
from stigmergy.bus.subscriptions import COLLECT_ALL, Collect
from stigmergy.bus.topics import Topics, check_level_name
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.membership.bus_mesh import BusMesh
from stigmergy.network.forwarder import Forwarder
from stigmergy.network.history import HistoryService
from stigmergy.network.history_listener import HistoryListener
from stigmergy.network.level_links import LevelLinks
from stigmergy.network.registry import Registry
from stigmergy.network.signed_bus import SignedBus, SigningCounters
from stigmergy.network.subscriber import Subscriber
from stigmergy.network.tell_router import TellRouter
from stigmergy.node.host import Connections, Host
from stigmergy.shard.inputs import EffectSettled, EffectsSettled
from stigmergy.shard.outbox import Pending, read_told
from stigmergy.uplink.collector import Collector
from stigmergy.uplink.messages import UplinkStatus
from stigmergy.uplink.names import CollectedBus, UplinkSource
from stigmergy.uplink.rules import UplinkRule
from stigmergy.uplink.sender import Uplink

RECALLED_COMMITS_MAX = 2_000
"""So many of the last commits are read at the start for what was published last."""
RUN_BYTES = 8
DRAIN_LOOK_S = 0.005
AWAY_TOLD_MAX = 10
"""So many nodes that are away are named among the troubles."""
LINK_PATIENCE_NS = 3_000_000_000
"""A link that is down for less is no trouble: every start begins so."""


class LinkStatus(Struct, frozen=True):
    """How a node stands with its bus."""

    link: str = NO_BUS
    """`up`; `local-only` while the link is down, or a gateway's to its hub; `none` without a bus."""
    why: str = ""
    """What keeps the link down, or that another node has our name."""
    owed: int = 0
    """Published messages that the broker has not taken yet."""
    tells: int = 0
    """Tells that agents of other nodes have not acknowledged yet."""
    members: int = 0
    """Those that are heard: while the bus is unreachable only this node."""
    uplink: UplinkStatus | None = None
    """How far the receiver of the node's uplink is behind; None without one."""


# The uplinks of a node on a bus: its own, if it has a rule for one, and those that it collects.
#
# A gateway is between two levels: its own uplink may use another bus than its site, and uplinks of whole sites may
# arrive on a third one. By default everything is on the node's bus.

ANY_SITE = "+"


@runtime_checkable
class Counting(Protocol):
    """A bus with its own counters."""

    def counted(self) -> dict[str, int]: ...


class Levels(Struct, frozen=True):
    """The buses to the levels above and below, if they are not the node's own."""

    above: Bus | None = None
    """For the node's own uplink."""
    below: Bus | None = None
    """For uplinks of all sites."""

    @property
    def buses(self) -> list[Bus]:
        """The existing ones."""
        return [bus for bus in (self.above, self.below) if bus is not None]


class Relay:
    """Both directions; starts and stops with the node's link."""

    def __init__(
        self,
        bus: Bus,
        host: Host,
        me: UplinkSource,
        run: str,
        teller: Responder,
        rule: UplinkRule | None,
        collects: Sequence[Collect],
        levels: Levels | None = None,
    ) -> None:
        settings = host.settings
        self._host = host
        self.levels = levels or Levels()
        self.uplink = None if rule is None else Uplink(self.levels.above or bus, host, me, rule, settings.uplink, run)
        buses = [CollectedBus(bus, me.site)] if collects else []
        if self.levels.below is not None:
            buses.append(CollectedBus(self.levels.below, ANY_SITE))
            collects = (*collects, COLLECT_ALL)
        self.collects_all = COLLECT_ALL in collects
        """Whether the events of all agents that have an uplink to this node become events of the same agents here."""
        expects = self.levels.below is not None
        self.links = LevelLinks(me, self.levels.above, buses, host.clock.monotonic_ns, expects=expects)
        self.collector = Collector(buses, host, me, run, teller, collects, settings.bus) if buses else None
        if self.levels.above is not None:
            self.levels.above.on_link(self._heard_above)

    async def start(self) -> None:
        """Call it after the host has started, and before the bus opens."""
        if self.collector is not None:
            await self.collector.start()
        if self.uplink is not None:
            # From now on retention keeps what is not sent yet.
            self._host.housekeeper.safeguards.uplink = self.uplink
            await self.uplink.start()
        for bus in self.levels.buses:
            await bus.open()

    def link(self, up: bool) -> None:
        """The node's own link came up or was lost."""
        if self.uplink is not None and self.levels.above is None:
            self.uplink.link(up)

    def _heard_above(self, up: bool) -> None:
        if self.uplink is not None:
            self.uplink.link(up)

    def close(self) -> None:
        """Collects nothing more."""
        if self.collector is not None:
            self.collector.close()

    async def stop(self) -> None:
        """Sends nothing more."""
        if self.uplink is not None:
            await self.uplink.stop()
        for bus in self.levels.buses:
            await bus.close()

    @property
    def is_cut_off(self) -> bool:
        """Whether the level above is unreachable, over its own bus."""
        return self.levels.above is not None and not self.levels.above.is_up

    @property
    def why_cut_off(self) -> str:
        """Why a level with its own bus is unreachable."""
        errors = [str(bus.last_error) for bus in self.levels.buses if bus.last_error is not None]
        return errors[0] if errors else ""

    def standing(self) -> UplinkStatus | None:
        """The status of the node's own uplink; None without one."""
        return None if self.uplink is None else self.uplink.standing()

    @property
    def troubles(self) -> list[Trouble]:
        """Why nothing goes up now, if somebody has to do something about it."""
        standing = self.standing()
        stuck = [f"uplink: {standing.trouble}"] if standing is not None and standing.trouble else []
        errors = (bus.last_error for bus in self.levels.buses)
        refused = (str(error) for error in errors if isinstance(error, ConfigError))
        return [*coded("uplink-stuck", stuck), *coded("bus-refused", refused)]

    def counters(self) -> dict[str, int]:
        """Counts of sent and collected events, and those of the buses between levels."""
        found = {} if self.uplink is None else self.uplink.counted()
        if self.collector is not None:
            found |= structs.asdict(self.collector.counters)
        for bus in self.levels.buses:
            if isinstance(bus, Counting):
                found |= bus.counted()
        return found


class BusLink:
    """The bus's side of a running node."""

    def __init__(
        self,
        host: Host,
        bus: Bus,
        entropy: Entropy,
        *,
        site: str,
        node: str,
        version: str = "",
        uplink: UplinkRule | None = None,
        collects: bool = False,
        levels: Levels | None = None,
        registry: Registry | None = None,
    ) -> None:
        """`registry` has looked for rivals, or has to before the bus opens."""
        declaration, settings, clock = host.declaration, host.settings, host.clock
        self._host = host
        self._registry = registry
        self._joining: asyncio.Task[None] | None = None
        self._is_off = False
        self._down_ns: int | None = clock.monotonic_ns()
        """Since when the node is local-only."""
        self._bus = bus
        self.node = check_level_name("node", node)
        self.topics = Topics(declaration.name, check_level_name("site", site))
        routes = levels is not None and bool(levels.buses)
        journal = "" if registry is None else registry.journal
        me = structs.replace(describe_this_node(host, node, entropy, version), routes=routes, journal=journal)
        self.teller = Responder(bus, self.topics, node, clock.monotonic_ns, refusals_per_s=settings.bus.refusals_per_s)
        buses = (bus, *(() if levels is None else levels.buses))
        self._signed = [one for one in buses if isinstance(one, SignedBus)]
        for one in self._signed:
            one.on_refused = self.teller.refused
        self.publisher = Publisher(
            bus,
            self.topics,
            self._settle,
            clock.wall_ns,
            owed_count_max=max(1, settings.owed_count_max // 2),
            in_flight_max=settings.bus.in_flight_max,
            in_flight_per_topic_max=settings.bus.in_flight_per_topic_max,
            messages_per_s=settings.bus.messages_per_s,
            burst=settings.bus.burst,
            retry_pause_s=settings.bus.retry_pause_s,
            binary=settings.bus.binary,
            outlet=self._outlet if declaration.device_orders else None,
        )
        self.presence = Presence(
            bus,
            self.topics,
            me,
            self._told,
            clock.monotonic_ns,
            every_s=settings.bus.presence_every_s,
            gone_s=settings.bus.presence_gone_s,
        )
        self.presence.on_rival = self._give_way
        self.history = HistoryService(bus, self.topics, node, host)
        sender = UplinkSource(declaration.name, site, node)
        all_of_them = (COLLECT_ALL,) if collects else ()
        collected = (*declaration.collects, *all_of_them)
        self.relay = Relay(bus, host, sender, me.run, self.teller, uplink, collected, levels)
        self.forwarder = Forwarder(host, bus, self.topics, node, self.presence, self.relay.links)
        self.router = TellRouter(bus, self.topics, node, host, self.presence, self.forwarder)
        ids, takers = _ids(clock, entropy), (self._take_tells, self.forwarder, self._is_claimed)
        self.subscriber = Subscriber(bus, self.topics, host, self.teller, settings.bus, ids, *takers)
        self.listener = HistoryListener(bus, self.topics, node, host, self.subscriber, lambda: _watch_id(entropy))
        self.forwarder.is_off = lambda: registry is not None and bool(registry.rivals)
        self._watchers: list[Callable[[], None]] = []
        bus.on_link(self._heard)

    @property
    def is_up(self) -> bool:
        """Whether the bus is connected."""
        return self._bus.is_up

    @property
    def connections(self) -> Connections:
        """What the host calls of it."""
        return Connections(
            publish=self._release,
            forward=self.forwarder.release,
            forwards=self.forwarder.forwards,
            locate=self.presence.locate,
            unreachable=self.unreachable,
            is_named=lambda address: bool(self.presence.claimants(address)),
            remote=self.router,
        )

    def unreachable(self, address: str) -> str:
        """Why an agent of another node cannot be reached now, if that may change by itself; else empty."""
        if away := self.presence.locate_away(address):
            return away
        if not self._bus.is_up:
            return f"which node runs it is not known without a link to the bus ({self._error})"
        settling = self.presence.settling()
        return settling and f"which node runs it is not known yet: {settling}"

    def make_mesh(self, name: str = "") -> BusMesh:
        """A mesh over this bus: a broker says who is there, and reaches everybody."""
        return BusMesh(self._bus, self.topics, self.node, name)

    def watch(self, look: Callable[[], None]) -> None:
        """Has `look` called when somebody has joined or left."""
        self._watchers.append(look)

    async def start(self) -> None:
        """Subscribes, connects, and lets leave what is owed. Does not wait for the link."""
        for shard in self._host.shards:
            after = max(0, shard.state.position - RECALLED_COMMITS_MAX // len(self._host.shards))
            with contextlib.suppress(JournalError):  # then messages do not say what they follow
                stays = self._host.raw.stays
                self.publisher.recall(shard.state, self._host.journal.read(shard.state.shard, after), stays)
        await self.presence.start()
        await self.subscriber.start()
        await self.router.start()
        await self.forwarder.start()
        await self.history.start()
        self.listener.start()
        await self.relay.start()
        self.publisher.start()
        if self._registry is None or self._registry.is_checked:
            await self._bus.open(self.presence.will)
        else:
            self._joining = asyncio.ensure_future(self._join(self._registry))

    async def _join(self, registry: Registry) -> None:
        self.presence.is_late = True
        await registry.wait_free(self.presence)
        await self._bus.open(self.presence.will)

    def _give_way(self, rival: Member) -> None:
        """Another node has our agents, or our name, and goes before us: leaves the bus before anything more comes."""
        if self._registry is not None and not self._is_off:
            self._is_off = True
            self.subscriber.close()
            self._joining = asyncio.ensure_future(self._leave(self._registry, rival))

    async def _leave(self, registry: Registry, rival: Member) -> None:
        registry.stay_off(rival)
        await self.presence.kill()
        await self._bus.close()
        registry.say_off(self.presence)

    def holder(self, address: str, remedy: str) -> str:
        """Which other node has this agent, while this one stays off the bus because of it; empty if none has."""
        return "" if self._registry is None else self._registry.holder(address, remedy)

    def unheard(self) -> dict[str, str]:
        """Why this node does not know the fleet, by the names of nodes: of its rivals, and UNKNOWN_NODES last. Empty
        once it has heard of all that are there."""
        rivals = [] if self._registry is None else self._registry.rivals
        found = {one.member.node: f"{one.why}, so this node stays off the bus" for one in rivals}
        if why := "this node stays off the bus" if rivals else self.presence.unheard():
            found[UNKNOWN_NODES] = f"the other nodes of the fleet are not known: {why}"
        return found

    async def stop(self) -> None:
        """Leaves in order."""
        await end_tasks(self._joining)
        if self._registry is not None:
            await self._registry.stop()
        self.subscriber.close()
        self.relay.close()
        await self.listener.stop()
        await self._wait_decided(self._host.settings.drain_s)
        if self._host.failure is None:
            await self.publisher.wait_idle(self._host.settings.drain_s)
            await self.router.wait_idle(self._host.settings.drain_s)
        try:
            async with asyncio.timeout(self._host.settings.drain_s):
                await self.presence.stop()
        except TimeoutError:
            pass  # the broker does not answer; it will publish our will
        await self._end()
        await self._bus.close()

    async def kill(self) -> None:
        """Ends at once, as a crash would, without a word. For simulations, which cut the link themselves."""
        self.subscriber.close()
        self.relay.close()
        await self.listener.stop()
        await self.presence.kill()
        await self._end()

    async def _end(self) -> None:
        await self.publisher.stop()
        await self.router.stop()
        await self.forwarder.stop()
        await self.history.stop()
        await self.relay.stop()
        await self.teller.stop()

    def members(self) -> list[Member]:
        """Who is in the fleet, as far as is known."""
        return self.presence.members()

    def standing(self) -> LinkStatus:
        """How this node stands with its bus."""
        error, rival = self._error, "" if self._registry is None else self._registry.conflict
        return LinkStatus(
            link=LOCAL_ONLY if self._is_local_only else UP,
            why=rival or self.presence.conflict or ("" if error is None else str(error)) or self.relay.why_cut_off,
            owed=self.publisher.owed,
            tells=self.router.kept,
            members=len(self.presence.members()) if self._bus.is_up else 1,
            uplink=self.relay.standing(),
        )

    def troubles(self) -> list[Trouble]:
        """No link, a name that two nodes use, a broker that will not have us, messages that were shed."""
        registry = self._registry
        off = (f"node {one.node!r} stays off the bus: {one.off}" for one in self.presence.staying_off())
        refused = [str(self._error)] if isinstance(self._error, ConfigError) else []
        found = [] if registry is None else coded("name-conflict", [registry.conflict])
        found += [] if registry is None else coded("registry-unknown", [registry.trouble])
        found += [
            *coded("name-conflict", [self.presence.conflict]),
            *coded("agents-conflict", self.presence.overlaps()),
        ]
        found += [*coded("node-off", off), *coded("bus-refused", refused)]
        found += self._told_down(found) or self._told_away()
        found += [*self.subscriber.troubles, *self.router.troubles(), *self.forwarder.troubles, *self.listener.troubles]
        signed = [trouble for bus in self._signed for trouble in bus.troubles()]
        return [*found, *self.relay.troubles, *signed]

    def _told_down(self, others: Sequence[Trouble]) -> list[Trouble]:
        """That the link is down, once it has been so for some time, unless another trouble says why."""
        self._note_link()
        if self._down_ns is None or self._host.clock.monotonic_ns() - self._down_ns < LINK_PATIENCE_NS:
            return []
        why = self.standing().why
        return [] if why in others else [Trouble("bus-down", f"link {LOCAL_ONLY}: {why or 'it is not connected yet'}")]

    @property
    def is_on_bus(self) -> bool:
        """Whether the other nodes are heard now."""
        return self._bus.is_up

    def away(self) -> dict[str, str]:
        """Nodes that have left, with the times since when they are away at the latest, those that left last first."""
        clock = self._host.clock
        ago_ns = clock.wall_ns() - clock.monotonic_ns()
        return {node: _second(ago_ns + left_ns) for node, left_ns in reversed(self.presence.left().items())}

    def _told_away(self) -> list[Trouble]:
        """Nodes that are away, while we would hear them."""
        if not self._bus.is_up or self.presence.settling():
            return []
        away = self.away()
        told = [
            f"node {node!r} is away, since {since} at the latest" for node, since in [*away.items()][:AWAY_TOLD_MAX]
        ]
        more = [f"{len(away) - len(told)} more nodes are away"] if len(away) > len(told) else []
        return coded("node-away", [*told, *more])

    def _note_link(self) -> None:
        down_ns = self._host.clock.monotonic_ns() if self._down_ns is None else self._down_ns
        self._down_ns = down_ns if self._is_local_only else None

    def counters(self) -> dict[str, int]:
        """What was published, taken, refused and shed."""
        parts = (
            self.publisher.counters,
            self.subscriber.counters,
            self.subscriber.ordering.counters,
            self.presence.counters,
            self.teller.counters,
            self.router.counters,
            self.forwarder.counters,
            self.history.counters,
            self.listener.counters,
        )
        counted = {name: value for part in parts for name, value in structs.asdict(part).items()}
        counted |= structs.asdict(SigningCounters())
        for bus in self._signed:
            for name, value in structs.asdict(bus.counters).items():
                counted[name] += value
        return (
            counted | {"local_only": int(self._is_local_only), "tells_kept": self.router.kept} | self.relay.counters()
        )

    @property
    def _error(self) -> StigmergyError | None:
        """Why the bus cannot be reached: as the registry says, while that looks."""
        return (None if self._registry is None else self._registry.last_error) or self._bus.last_error

    @property
    def _is_local_only(self) -> bool:
        return not self._bus.is_up or self.relay.is_cut_off

    async def _wait_decided(self, within_s: float) -> None:
        """What was taken before the stop is decided and written first: what it publishes leaves in this run then."""
        host, loop = self._host, asyncio.get_running_loop()
        host.committer.draining = True
        deadline_s = loop.time() + within_s
        while host.failure is None and self._bus.is_up and loop.time() < deadline_s:
            if not host.mailbox.waiting and host.committer.idle:
                return
            host.wake()
            await asyncio.sleep(DRAIN_LOOK_S)

    # ------------------------------------------------------------------ what the host and the bus say

    def _release(self, shard: int, pending: Pending) -> None:
        one = self._host.shards[shard]
        raw = self._host.raw
        if not raw.is_idle and (why := raw.stops(read_told(pending.body).message, BUS)):
            if (failures := self._host.effector.failures) is not None:
                failures.effect_failed(shard, pending.agent, "Publish", f"{shard}.{pending.position}", why)
            self._host.intake.put_inside(shard, EffectSettled(PUBLISH, pending.sequence, failed=why))
            return
        carried = one.state.traces.of(pending) if one.state.traces else None
        self.publisher.release(shard, one.epoch, pending, None if carried is None else carried.context())

    def _settle(self, shard: int, settled: EffectsSettled) -> None:
        if self._host.failure is None:
            self._host.intake.put_inside(shard, settled)

    def _is_claimed(self, address: str) -> bool:
        return self.presence.may_run(address) or bool(self.presence.claimants(address))

    async def _take_tells(self, message: BusMessage) -> None:
        await self.router.take(message)

    def _told(self, event: Event) -> None:
        self.listener.look(self.presence.members())
        if isinstance(event, MemberJoined):
            self.router.joined(event.node)
        for look in self._watchers:
            look()
        self.forwarder.changed()
        self._host.tell_interested(event)

    def _heard(self, up: bool) -> None:
        self._note_link()
        self.publisher.link(up)
        self.router.link(up)
        self.subscriber.link(up)
        self.listener.link(up)
        self.presence.link(up)
        self.relay.link(up)
        self.forwarder.link(up)

    def _outlet(self, agent: str, about: str, body: bytes) -> tuple[BusMessage, ...] | None:
        """What devices hear instead of a CloudEvent on the agent's own topic."""
        messages: list[BusMessage] = []
        for order in self._host.declaration.device_orders:
            message = write_device_order(order, agent, about, body)
            if message is not None:
                messages.append(message)
        return tuple(messages) or None


def describe_this_node(host: Host, node: str, entropy: Entropy, version: str) -> Member:
    """What this run of a node says about itself."""
    since = _second(host.clock.wall_ns())
    run = entropy.token(RUN_BYTES).hex()
    member = describe_node(node, run, version, since, host.declaration.plans, host.declaration.actuators.by_tag)
    # Of several owners of shards each runs those of its shards only; they announce what all of them run together.
    if len(host.journal.identity.owned) < host.shards.total:
        return structs.replace(member, shards_run=host.assignment.agents)
    epoch = max(shard.epoch for shard in host.shards)
    assignment = host.assignment
    return structs.replace(member, agents=assignment.agents, everything=assignment.is_everything, epoch=epoch)


def _second(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1_000_000_000, UTC).isoformat(timespec="seconds")


def _watch_id(entropy: Entropy) -> str:
    return entropy.token(RUN_BYTES).hex()


def _ids(clock: Clock, entropy: Entropy) -> Callable[[], str]:
    return lambda: new_command_id(clock.wall_ns(), entropy.token(RANDOM_BYTES))
