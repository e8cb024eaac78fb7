"""The subscriber: takes permitted messages from a bus, and acknowledges them to the broker when they are durable.

Commands are answered on the agent's `answers`; the same command id gets the same answer. Events that agents elsewhere
publish are numbered and consumed once, in order: a message that arrives before the one it follows waits for it, within
a bound. A message that is malformed, too large, misaddressed, in somebody else's name, of an unknown type or of an
older owner is refused and counted, and its sender is told where possible. Messages beyond the quota of a source are
shed on arrival, unread; the rest wait in turn with the other sources. So a flood costs the others next to nothing.

A source is an agent and a channel: everything sent to an agent's `commands`, everything sent to its `inputs`, and
everything it publishes under `events`, whatever the topics. For topics of devices it is the pattern and the target
agent. A sender that may publish in the name of several agents has the share of each: a bus does not say who sends.

A message without numbers is taken as it comes. The ids of the latest ones are remembered during this run, and a
repetition is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime

from msgspec import Struct, structs

from stigmergy.agents.codec import MESSAGE_BYTES_MAX, encode, is_sound
from stigmergy.agents.display import plain_state
from stigmergy.agents.messages import SECOND_NS, Command, Event, Message, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import find_message
from stigmergy.base.errors import (
    ConfigError,
    Malformed,
    NotAssigned,
    NotRunning,
    PeerError,
    SequenceGap,
    StigmergyError,
    TooLarge,
    UnknownTag,
)
from stigmergy.bus.cloudevents import EVENT_BYTES_MAX, CloudEvent, body_of, read_event, trace_of
from stigmergy.bus.mapping import (
    DeviceCommands,
    DeviceEvent,
    read_device_command,
    read_device_event,
    write_device_answer,
)
from stigmergy.bus.port import Bus, BusMessage, Gate
from stigmergy.bus.quotas import Quotas
from stigmergy.bus.replies import QUERY, Responder
from stigmergy.bus.subscriptions import Listen
from stigmergy.bus.topics import (
    AGENT_LEVELS,
    AGENTS,
    Channel,
    Topics,
    TopicTemplate,
    fill_address,
    parse_topic,
    quota_source,
    unescape,
)
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.network.forwarder import BUS, Forwarder, travel_of
from stigmergy.network.ordering import Ordering, numbers_of
from stigmergy.node.host import Host
from stigmergy.node.ingress import bus_source
from stigmergy.node.intake import Stream
from stigmergy.node.settings import BusSettings
from stigmergy.shard.inputs import Refused, Verdict
from stigmergy.shard.judging import Sender

SEEN_COUNT_MAX = 10_000
"""Ids of messages without numbers that are remembered."""
HURRY_COUNT = 16
"""When this many messages wait for the disk, the commit waits for no more, whatever their types allow: brokers stop at
a window of unacknowledged messages, often of 20."""
TOPICS_COUNT_MAX = 10_000
"""Topics of which is remembered whether they are ours."""
STALL_NS = 1_000_000_000
"""When messages are under way and none becomes durable for so long, we hold up our senders: nobody pays for that."""
REPEATED_COUNT_MAX = 2_048
"""So many messages that were under way on a link that broke may come again on the next one, some brokers give them half
a minute later: a window of theirs."""
OPEN_COUNT_MAX = 1_000
"""A source may have as many messages without numbers here, not yet durable, as are still free of these: one alone half
of them, nine a tenth each. About the window of a broker."""
OPEN_PER_SOURCE_MIN = 32
"""So many it may have in any case."""
SHED_AHEAD_COUNT_MAX = 50_000
"""A message may say that so many were given up beyond the numbers that it passes over: where an alert was kept, those
behind it were given up before it was sent. As many as a publisher keeps."""
SHED_COUNT_MAX = 1_000_000_000
"""No sender gives up more between two messages: at a thousand a second that takes eleven days."""
SHED_TOLD_NS = 600 * SECOND_NS
"""Shed messages are among the troubles until none was shed for so long."""
TOO_FAST = "it sends more than bus.messages_per_s and bus.burst allow"
TOO_MANY_OPEN = "its messages come faster than they become durable here"
TOO_MANY_BYTES = "too many bytes of it wait here"
UNCLAIMED_COUNT_MAX = 1_000
"""Topics of agents that no node runs which are told of, in one run of the node."""
UNCLAIMED_S = 10.0
"""So long another node may take to say that it runs an agent."""
SHED = (Channel.INPUTS, Channel.QUERIES)
"""Of these a source that floods loses what is too much; senders of commands and tells send them again."""
OURS = "stigmergy."
"""What the framework says itself begins so; it is not taken from a bus."""


class SubscriberCounters(Struct):
    """What came over the bus."""

    bus_received: int = 0
    bus_commands: int = 0
    bus_queries: int = 0
    bus_refused: int = 0
    bus_shed: int = 0
    """Beyond a source's quota."""
    bus_lost_by_senders: int = 0
    """Messages that senders say they have given up."""
    bus_unclaimed: int = 0
    """Topics that name an agent which no node runs."""
    bus_shed_doubted: int = 0
    """Times that a sender said it gave up more than it can have; that was not counted."""


class Shedding(Struct, frozen=True):
    """Messages that were shed, from the first to the last one."""

    since: str
    last_ns: int = 0
    count: int = 0
    source: str = ""
    why: str = ""


class Subscriber:
    """Takes what comes. `start` subscribes; after `close` everything is left with the broker."""

    def __init__(
        self,
        bus: Bus,
        topics: Topics,
        host: Host,
        teller: Responder,
        settings: BusSettings,
        fresh_id: Callable[[], str],
        tells: Callable[[BusMessage], Awaitable[None]],
        forwarder: Forwarder,
        is_claimed: Callable[[str], bool],
    ) -> None:
        """`tells` takes what agents of other nodes tell agents of ours. `is_claimed` says whether another node runs an
        agent, or may."""
        self._tells = tells
        self._is_claimed = is_claimed
        self._unclaimed: dict[str, None] = {}
        """Topics that name an agent which does not run here."""
        self._bus = bus
        self._topics = topics
        self._host = host
        self._teller = teller
        self._assignment = host.assignment
        self._fresh_id = fresh_id
        self._forwarder = forwarder
        self._settings = settings
        self._quotas = Quotas(settings.messages_per_s, settings.burst)
        self.ordering = Ordering(host.intake, host.shards, bus, host.clock.monotonic_ns, settings.gap_wait_s)
        self._seen: dict[tuple[str, str, str], asyncio.Future[None]] = {}
        """Messages without numbers; each is done when it is durable."""
        self._owned = host.journal.identity.owned
        """The shards of this host, also while it lets go of them: what is theirs must not count as others'."""
        self._closed = False
        self._under_way = 0
        self._ours: dict[str, bool] = {}
        """By topic whether it is for an agent that runs here."""
        self._done_ns = 0
        """When the last message was dealt with."""
        self._is_up = False
        self._down_ns: int | None = None
        """When the link was lost; None before that."""
        self._shedding: Shedding | None = None
        self.counters = SubscriberCounters()

    async def start(self) -> None:
        """Subscribes to everything that the fleet takes."""
        self.ordering.start()
        own = (
            (Channel.COMMANDS, self._command),
            (Channel.INPUTS, self._input),
            (Channel.QUERIES, self._query),
            (Channel.TELLS, self._tells),
        )
        for channel, take in own:
            # Brokers know no part of a level: of the patterns' kinds everything is heard, and most of it passed over.
            is_sent_on = channel in (Channel.COMMANDS, Channel.TELLS)
            everything = not self._assignment.agents or (is_sent_on and self._forwarder.links.exist)
            for pattern in dict.fromkeys(
                self._topics.agents_pattern(channel, entry)
                for entry in (("*/*",) if everything else self._assignment.agents)
            ):
                mine = self._is_for_us if is_sent_on else self._is_ours
                await self._bus.subscribe(pattern, self._guard(take, is_ours=mine, sheds=channel in SHED))
        declaration = self._host.declaration
        for listen in declaration.listens:
            if listen.history is not None:
                continue  # `HistoryListener` reads the logs of the nodes instead
            template = listen.template(self._topics.fleet, self._topics.site)
            is_ours = self._is_of_ours(template, listen.to)
            await self._bus.subscribe(template.pattern, self._guard(self._listener(listen), is_ours=is_ours))
        for spec in declaration.device_events:
            is_ours = self._is_of_ours(spec.topic, spec.to)
            gate = self._guard(self._device_listener(spec), _device(spec), is_ours=is_ours)
            await self._bus.subscribe(spec.topic.pattern, gate)
        for orders in declaration.device_commands_taken:
            is_ours = self._is_of_ours(orders.topic, orders.to)
            taker = self._guard(self._device_taker(orders), _device(orders), is_ours=is_ours, sheds=False)
            await self._bus.subscribe(orders.topic.pattern, taker)

    def close(self) -> None:
        """Takes nothing more: what comes now stays with the broker."""
        self._closed = True

    def _is_ours(self, topic: str) -> bool:
        """False for what is for agents that other nodes run: they hear it, too."""
        known = self._ours.get(topic)
        if known is None:
            levels = topic.split("/", AGENT_LEVELS)
            known = len(levels) < AGENT_LEVELS or self._runs("/".join(levels[3:5]))
            if not known and levels[5] in (Channel.COMMANDS.value, Channel.INPUTS.value):
                self._note_unclaimed(topic, parse_topic(topic).name)
            if len(self._ours) >= TOPICS_COUNT_MAX:
                del self._ours[next(iter(self._ours))]
            self._ours[topic] = known
        return known

    def _is_for_us(self, topic: str) -> bool:
        """Also what this node sends on to another level."""
        if self._is_ours(topic):
            return True
        try:
            return self._forwarder.takes(parse_topic(topic).name)
        except Malformed:
            return False

    def _is_of_ours(self, template: TopicTemplate, to: str) -> Callable[[str], bool]:
        """Whether a topic of devices, or one that is listened to, is for an agent that runs here. Other nodes, or other
        owners of shards, get it too: what is for them is passed over unread, and takes no share of our queues."""
        known: dict[str, bool] = {}

        def is_ours(topic: str) -> bool:
            found = known.get(topic)
            if found is None:
                if len(known) >= TOPICS_COUNT_MAX:
                    known.clear()
                found = known[topic] = self._lives_here(template, to, topic)
            return found

        return is_ours

    def _lives_here(self, template: TopicTemplate, to: str, topic: str) -> bool:
        """True also where the handler must say what is wrong with a topic."""
        try:
            places = template.match(topic)
            if places is None:
                return True
            address = fill_address(to, places)
            if not self._assignment.runs(address):
                self._note_unclaimed(topic, address)
                return False
            return self._host.intake.shard_of(address) in self._owned
        except StigmergyError:
            return True

    def _note_unclaimed(self, topic: str, address: str) -> None:
        """A message is for an agent that does not run here. If no other node says that it runs it either, that is
        refused and told of, once for each topic; a moment later, because a node may just have started."""
        if topic not in self._unclaimed and len(self._unclaimed) < UNCLAIMED_COUNT_MAX:
            self._unclaimed[topic] = None
            asyncio.get_running_loop().call_later(UNCLAIMED_S, self._refuse_unclaimed, topic, address)

    def _refuse_unclaimed(self, topic: str, address: str) -> None:
        if not (self._closed or self._is_claimed(address) or self._forwarder.takes(address)):
            self.counters.bus_unclaimed += 1
            self.refuse(BusMessage(topic, b""), NotAssigned(self._assignment.refusal(address)))

    def _runs(self, escaped: str) -> bool:
        """Whether the agent of a topic runs here; a badly escaped topic is refused later with the reason."""
        try:
            return self._assignment.runs("/".join(unescape(level) for level in escaped.split("/")))
        except Malformed:
            return self._assignment.is_everything

    # ------------------------------------------------------------------ the door

    def _guard(
        self,
        take: Callable[[BusMessage], Awaitable[None]],
        source_of: Callable[[str], str] | None = None,
        *,
        is_ours: Callable[[str], bool] = lambda _: True,
        sheds: bool = True,
    ) -> Gate:
        """Sheds, refuses and counts; what is left goes in. Without `sheds` only the quota sheds, no full queue does.
        What is not ours is passed over, and counts for nobody."""

        async def handle(message: BusMessage) -> None:
            if self._closed:
                raise NotRunning("the node is stopping; nothing was taken")
            began_ns = self._host.clock.monotonic_ns()
            self._under_way += 1
            if self._under_way >= HURRY_COUNT:
                self._host.committer.may_wait(began_ns)
            try:
                await take(message)
            except PeerError as error:
                if isinstance(error, SequenceGap):
                    raise
                self.refuse(message, error)
            finally:
                self._under_way -= 1
                self._note_stall(began_ns)

        def admit(source: str, message: BusMessage, open_count: int, open_all_count: int) -> bool:
            if not is_ours(message.topic):
                return False
            if self._closed:
                return True  # It stays with the broker.
            now_ns = self._host.clock.monotonic_ns()
            if not self._is_up:
                # Brokers deliver held messages as soon as we are connected, before the link counts as up.
                self._allow_held(now_ns)
            crowded = sheds and self._is_crowded(message, open_count, open_all_count, now_ns)
            if self._quotas.admit(source, now_ns, crowded=crowded):
                self.counters.bus_received += 1
                return True
            self._shed(source, TOO_MANY_OPEN if crowded else TOO_FAST)
            return False

        def shed_waiting(source: str) -> None:
            self._shed(source, TOO_MANY_BYTES)

        return Gate(source_of or quota_source, admit, handle, shed=shed_waiting if sheds else None, wants=is_ours)

    def _is_crowded(self, message: BusMessage, open_count: int, open_all_count: int, now_ns: int) -> bool:
        """Whether a source has more open than its share, because it sends faster than it is taken.

        What is open here is not acknowledged, and brokers stop at a window of about a thousand such messages: a few
        that flood must leave some of it to the others. Numbered messages are spared, and all are while nothing at all
        becomes durable: then the broker has to wait.
        """
        if open_count < max(OPEN_PER_SOURCE_MIN, OPEN_COUNT_MAX - open_all_count):
            return False
        return now_ns - self._done_ns <= STALL_NS and not _is_numbered(message)

    def _shed(self, source: str, why: str) -> None:
        clock, before = self._host.clock, self._shedding
        self.counters.bus_shed += 1
        if before is None or clock.monotonic_ns() - before.last_ns > SHED_TOLD_NS:
            before = Shedding(f"{datetime.fromtimestamp(clock.wall_ns() // SECOND_NS, UTC):%Y-%m-%dT%H:%M:%SZ}")
        self._shedding = Shedding(before.since, clock.monotonic_ns(), before.count + 1, source, why)
        self.ordering.note_lossy(source)

    @property
    def troubles(self) -> list[Trouble]:
        """What is lost, and what does not mend itself."""
        return [*coded("bus-shed", self._told_shed()), *coded("bus-order", self.ordering.troubles)]

    def _told_shed(self) -> Iterator[str]:
        shed = self._shedding
        if shed is not None and self._host.clock.monotonic_ns() - shed.last_ns <= SHED_TOLD_NS:
            yield (
                f"messages from the bus were shed, {shed.count:,} since {shed.since}; the last is of {shed.source!r}: "
                f"{shed.why}. They are lost: see Fairness between sources in docs/edge.md"
            )

    def _note_stall(self, began_ns: int) -> None:
        """What sources sent while the disk stood still comes all at once, and is within their quotas."""
        now_ns = self._host.clock.monotonic_ns()
        since_ns, self._done_ns = max(began_ns, self._done_ns), now_ns
        if now_ns - since_ns > STALL_NS:
            self._quotas.allow_for(now_ns - since_ns, now_ns)

    def link(self, up: bool) -> None:
        """The link came or went. What the broker has held comes with it: so much is no flood."""
        now_ns = self._host.clock.monotonic_ns()
        self._is_up = up
        if not up:
            self._down_ns = now_ns
        else:
            self._allow_held(now_ns)
        self.ordering.link(up)

    def _allow_held(self, now_ns: int) -> None:
        away_ns = self._away_ns() if self._down_ns is None else now_ns - self._down_ns
        self._quotas.allow_for(away_ns, now_ns, repeated=REPEATED_COUNT_MAX if away_ns else 0)

    def _away_ns(self) -> int:
        """How long ago the last run of this node has ended. By the wall clock, which may be wrong."""
        found_ns = self._host.found_time_ns
        return max(0, self._host.clock.wall_ns() - found_ns) if found_ns else 0

    def refuse(self, message: BusMessage, error: PeerError) -> None:
        """Counts a refusal, and tells of it."""
        self.counters.bus_refused += 1
        self._teller.refused(message, error)

    # ------------------------------------------------------------------ commands

    async def _command(self, message: BusMessage) -> None:
        address = parse_topic(message.topic).name
        if self._assignment.is_elsewhere(address):
            return  # the node that names it hears it, too
        event = _read(message)
        try:
            _check_names(event, address)
            plan = self._plan(address)
            body = self._body(event, plan, Command)
            travel = travel_of(event)
        except PeerError as error:
            # Its sender waits for an answer, and there is an id to answer to.
            self.counters.bus_refused += 1
            await self._teller.answer(address, event.id, Refused(str(error)))
            return
        self.counters.bus_commands += 1
        source, client = bus_source(message.topic), bus_source(event.source)
        if self._assignment.runs(address):
            trace = trace_of(event)
            sender = Sender(how="bus", node=travel.origin, source=event.source)
            ask = self._host.intake.ask(address, body, event.id, source, client, travel, trace=trace, sender=sender)
            verdict = await ask
            await self._teller.answer(address, event.id, verdict)
            return
        teller, travel = self._teller, structs.replace(travel, came_by=BUS)

        async def taken() -> None:
            await teller.taken(address, event.id)

        async def answer(verdict: Verdict) -> None:
            await teller.answer(address, event.id, verdict)

        # The broker need not hold it until it is answered: who waits for an answer sends it again.
        here = self._forwarder.serve(address, body, event.id, client, travel, taken, answer, trace_of(event))
        await asyncio.shield(here)

    # ------------------------------------------------------------------ queries

    async def _query(self, message: BusMessage) -> None:
        """Answers with the durable state of an agent. Of several owners of shards, all hear it and one answers."""
        address, host = parse_topic(message.topic).name, self._host
        if self._assignment.is_elsewhere(address):
            return
        event = _read(message)
        if event.type != QUERY:
            raise UnknownTag(f"{event.type[:100]} is no query; ask with {QUERY}")
        try:
            plan = self._plan(address)
            number = host.intake.shard_of(address)
            if number not in host.shards:
                return
            if not self._settings.queries:
                raise ConfigError(f"this node answers no queries; switch them on, or ask it: stigmergy state {address}")
            shard, agent = host.shards[number], host.durable_image(address)
            state = plain_state(shard.state.new_agent(address, plan) if agent is None else agent)
            position = host.durable_position(number)
        except StigmergyError as error:
            self.counters.bus_refused += 1
            await self._teller.state(address, event.id, {}, error)
            return
        self.counters.bus_queries += 1
        stopped = shard.state.stopped_at(position).get(address)
        data = {"known": agent is not None, "shard": number, "position": position, "stopped": stopped, "state": state}
        await self._teller.state(address, event.id, data, None)

    # ------------------------------------------------------------------ events

    async def _input(self, message: BusMessage) -> None:
        address = parse_topic(message.topic).name
        if self._assignment.is_elsewhere(address):
            return
        event = _read(message)
        # Several may send to one agent; each has numbers of its own.
        source = bus_source(f"{message.topic} {event.source}")
        await self._take_event(message, event, source, address, address)

    def _listener(self, listen: Listen) -> Callable[[BusMessage], Awaitable[None]]:
        template = listen.template(self._topics.fleet, self._topics.site)

        async def hear(message: BusMessage) -> None:
            topic = parse_topic(message.topic)
            places = template.match(message.topic)
            if places is None:
                raise Malformed(f"{message.topic[:200]!r} is not what was listened for")
            event = _read(message)
            speaker = Topics(topic.fleet, topic.site).source_of(topic.name)
            to = fill_address(listen.to, places)
            if not self._assignment.runs(to):
                return
            # The same topic may be listened to for several agents, and each of them has a mark of its own.
            source = bus_source(f"{message.topic} {to}")
            await self._take_event(message, event, source, to, topic.name, speaker)

        return hear

    async def _take_event(
        self, message: BusMessage, event: CloudEvent, source: str, to: str, subject: str, speaker: str = ""
    ) -> None:
        numbers, shed = numbers_of(event), event.number("shed") or 0
        self._note_lag(event)
        # In another's name: then its numbers say nothing about the numbers of this one.
        _check_names(event, subject, speaker)
        try:
            body = self._body(event, self._plan(to), Event)
        except PeerError:
            if numbers is not None:
                self.ordering.note_refused(source, numbers, to)
            raise
        if numbers is None:
            await self._take_unnumbered(source, event, to, body)
            return
        plausible = self.ordering.passed_over(source, numbers, to) + SHED_AHEAD_COUNT_MAX
        if await self.ordering.take(quota_source(message.topic), source, numbers, to, body, trace_of(event)):
            if shed <= min(plausible, SHED_COUNT_MAX):
                self.counters.bus_lost_by_senders += shed
            else:
                self.counters.bus_shed_doubted += 1

    def _note_lag(self, event: CloudEvent) -> None:
        """For metrics: how old an event is that comes. A time that cannot be read says nothing."""
        if self._host.measures is not None and event.time:
            with contextlib.suppress(ValueError, OverflowError):
                sent_ns = int(datetime.fromisoformat(event.time).timestamp() * SECOND_NS)
                self._host.measures.source_lag.observe(self._host.clock.wall_ns() - sent_ns)

    async def _take_unnumbered(self, source: str, event: CloudEvent, to: str, body: bytes) -> None:
        once = (source, event.source, event.id)
        taken = self._seen.get(once)
        if taken is not None:
            self.ordering.counters.bus_repeated += 1
        else:
            stream, trace = Stream(source), trace_of(event)
            taken = self._host.intake.take_numbered(stream, 0, to, body, missing=False, trace=trace)
            self._seen[once] = taken
            if len(self._seen) > SEEN_COUNT_MAX:
                del self._seen[next(iter(self._seen))]
        try:
            # Also a repetition is acknowledged only when the first one is durable.
            await asyncio.shield(taken)
        except BaseException:
            if self._seen.get(once) is taken:
                del self._seen[once]
            raise

    # ------------------------------------------------------------------ devices

    def _device_listener(self, spec: DeviceEvent) -> Callable[[BusMessage], Awaitable[None]]:
        async def hear(message: BusMessage) -> None:
            places = _places(spec, message.topic)
            address = fill_address(spec.to, places)
            if not self._assignment.runs(address) or self._assignment.is_elsewhere(address):
                return
            to, observed = read_device_event(spec, places, message.payload)
            self._plan(to)
            stream = Stream(bus_source(message.topic))
            await self._host.intake.take_numbered(stream, 0, to, encode(observed), missing=False)

        return hear

    def _device_taker(self, spec: DeviceCommands) -> Callable[[BusMessage], Awaitable[None]]:
        async def take(message: BusMessage) -> None:
            places = _places(spec, message.topic)
            address = fill_address(spec.to, places)
            if not self._assignment.runs(address) or self._assignment.is_elsewhere(address):
                return
            to, command_id, command = read_device_command(spec, places, message.payload)
            self._plan(to)
            asked_as = command_id or self._fresh_id()
            self.counters.bus_commands += 1
            source = bus_source(message.topic)
            sender = Sender(how="bus", source=message.topic)
            verdict = await self._host.intake.ask(to, command, asked_as, source, source, sender=sender)
            refused = verdict.reason if isinstance(verdict, Refused) else None
            answer = write_device_answer(spec, places, command_id, refused)
            if answer is not None:
                await self._bus.publish(answer)

        return take

    # ------------------------------------------------------------------ messages

    def is_here(self, address: str) -> bool:
        """Whether an agent runs here, in a shard of this host."""
        return self._assignment.runs(address) and self._host.intake.shard_of(address) in self._owned

    def check_event(self, event: CloudEvent, to: str) -> bytes:
        """The bytes of an event for an agent. Raises PeerError for one that it could not take."""
        return self._body(event, self._plan(to), Event)

    def _plan(self, address: str) -> AgentPlan:
        return self._host.shards.first.state.plan_at(address)

    def _body(self, event: CloudEvent, plan: AgentPlan, base: type[Command] | type[Event]) -> bytes:
        """The bytes of the message for this kind of agent. Raises PeerError for one that it could not take."""
        if event.type.startswith(OURS) and not (issubclass(base, Command) and _takes(plan, event.type)):
            raise UnknownTag(f"{event.type[:100]} is said by the framework alone; send a message of your own")
        tag = event.type
        if tag not in plan.known_tags:
            command = issubclass(base, Command)
            tag = spec_of(find_message(plan, Command, tag) if command else find_message(plan, Event, tag)).tag
        body = body_of(event, tag)
        if len(body) > MESSAGE_BYTES_MAX:
            raise TooLarge(f"a message of {len(body)} bytes, {MESSAGE_BYTES_MAX} at most")
        if not is_sound(body):
            raise Malformed("a message that is nested too deep")
        try:
            message: Message = plan.decode(body)
        except Exception as error:
            # Also what a check of the class itself has raised: no repetition would help.
            raise Malformed(str(plan.explain(body, error))) from None
        if not isinstance(message, base):
            raise UnknownTag(f"{tag} is no {base.__name__.lower()}; it belongs on another topic")
        return body


def _takes(plan: AgentPlan, tag: str) -> bool:
    """Whether a message of ours is a command of this kind of agent, such as those of people to runs of workflows."""
    return any(one.is_command and spec_of(message).tag == tag for message, one in plan.plans.items())


def _is_numbered(message: BusMessage) -> bool:
    """Whether a message seems to have a number, before it is parsed. A quota holds for it in any case."""
    return b'"sequence"' in message.payload or any(name == "sequence" for name, _ in message.properties)


def _read(message: BusMessage) -> CloudEvent:
    if len(message.payload) > EVENT_BYTES_MAX:
        raise TooLarge(f"a message of {len(message.payload)} bytes, {EVENT_BYTES_MAX} at most")
    return read_event(message.payload, message.content_type, message.properties)


def _check_names(event: CloudEvent, address: str, speaker: str = "") -> None:
    """The attributes must not name another agent than the topic. `speaker` is the source of the topic's owner."""
    if event.subject and event.subject != address:
        raise Malformed(f"its subject is {event.subject[:100]!r}, but the topic belongs to {address!r}")
    if speaker and event.source != speaker and f"/{AGENTS}/" in event.source:
        raise Malformed(f"its source is {event.source[:100]!r}, but the topic belongs to {speaker!r}")


def _places(spec: DeviceEvent | DeviceCommands, topic: str) -> Mapping[str, str]:
    places = spec.topic.match(topic)
    if places is None:
        raise Malformed(f"{topic[:200]!r} is not what was listened for")
    return places


def _device(spec: DeviceEvent | DeviceCommands) -> Callable[[str], str]:
    """Whose quota a device's messages count against: all of one pattern for one agent, whatever else the topics say."""

    def source_of(topic: str) -> str:
        places = spec.topic.match(topic)
        return topic if places is None else f"{spec.topic.pattern} {fill_address(spec.to, places)}"

    return source_of
