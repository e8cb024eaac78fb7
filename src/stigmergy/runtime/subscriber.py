"""The subscriber: takes what comes over a bus and may come. The broker hears that it was taken when it is durable.

Commands are answered on the agent's `answers`; the same command id gets the same answer. What agents elsewhere publish
is numbered and consumed once, in order: a message that comes before the one it follows waits for it, within a bound.
What is malformed, too large, for somebody else, in somebody else's name, of an unknown type or of an older owner is
refused, counted, and its sender is told where that is possible. What a source sends beyond its quota is shed before it
is looked at, so that a flood costs the others nothing.

A message without numbers is taken as it comes. If it has an id, a repetition is dropped as long as this run lasts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from blake3 import blake3
from msgspec import Struct

from stigmergy.core.cloudevents import EVENT_BYTES_MAX, CloudEvent, body_of, read_event
from stigmergy.core.codec import (
    ENVELOPE_FORMAT,
    MESSAGE_BYTES_MAX,
    SOURCE_CHARS_MAX,
    UNDECODABLE,
    Envelope,
    encode,
    is_sound,
)
from stigmergy.core.errors import Malformed, NotRunning, PeerError, SequenceGap, TooLarge, UnknownTag
from stigmergy.core.inputs import Refused
from stigmergy.core.messages import Command, Event, Message, spec_of
from stigmergy.core.plans import AgentPlan
from stigmergy.ports.bus import Bus, BusMessage
from stigmergy.runtime.host import Host
from stigmergy.runtime.ingress import BUS_SOURCES
from stigmergy.runtime.listening import Listen
from stigmergy.runtime.mapping import (
    DeviceCommands,
    DeviceEvent,
    read_device_command,
    read_device_event,
    write_device_answer,
)
from stigmergy.runtime.phrasing import find_message
from stigmergy.runtime.quotas import Quotas
from stigmergy.runtime.settings import BusSettings
from stigmergy.runtime.telling import Teller
from stigmergy.runtime.topics import AGENTS, Channel, Topics, fill_address, parse_topic

SECOND_NS = 1_000_000_000
SOURCES_COUNT_MAX = 100_000
"""Topics whose last number is remembered here; the marks know the others."""
SEEN_COUNT_MAX = 10_000
"""Ids of messages without numbers that are remembered."""
OURS = "stigmergy."
"""What the framework says itself begins so; it is not taken from a bus."""
AGENT_LEVELS = 6
"""fleet, site, agents, kind, name, channel."""
Key = tuple[str, int]


class SubscriberCounters(Struct):
    """What came over the bus."""

    bus_received: int = 0
    bus_commands: int = 0
    bus_repeated: int = 0
    bus_refused: int = 0
    bus_shed: int = 0
    """Beyond a source's quota."""
    bus_early: int = 0
    """Times that a message waited for one before it."""
    bus_gaps: int = 0
    """Gaps that nobody has filled in time."""
    bus_lost_by_senders: int = 0
    """Messages that senders say they have given up."""


class Numbers(Struct, frozen=True):
    """The numbers of a message on its topic."""

    sequence: int
    incarnation: int
    epoch: int
    previous: int | None


class Subscriber:
    """Takes what comes. `start` subscribes; after `close` everything is left with the broker."""

    def __init__(
        self,
        bus: Bus,
        topics: Topics,
        host: Host,
        teller: Teller,
        settings: BusSettings,
        fresh_id: Callable[[], str],
        agents: tuple[str, ...] = (),
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._host = host
        self._teller = teller
        self._agents = agents
        self._fresh_id = fresh_id
        self._gap_wait_ns = int(settings.gap_wait_s * SECOND_NS)
        self._quotas = Quotas(settings.messages_per_s, settings.burst)
        self._reached: dict[Key, int] = {}
        """Per source the highest number that was handed over or refused in this run."""
        self._gaps: dict[Key, int] = {}
        """Per source that waits for a message, since when."""
        self._lossy: dict[str, None] = {}
        """Who has left a gap in this run, by its doing or ours: nobody waits for a message of theirs again."""
        self._seen: dict[tuple[str, str, str], None] = {}
        self._closed = False
        self._has_listened = False
        self.counters = SubscriberCounters()

    async def start(self) -> None:
        """Subscribes to everything that the fleet takes."""
        marks = (mark for shard in self._host.shards for mark in shard.state.marks.all())
        self._has_listened = any(mark.source.startswith(BUS_SOURCES) for mark in marks)
        for address in self._agents or ("+/+",):
            await self._bus.subscribe(
                self._topics.agents_pattern(Channel.COMMANDS, address), self._guard(self._command)
            )
            await self._bus.subscribe(self._topics.agents_pattern(Channel.INPUTS, address), self._guard(self._input))
        declaration = self._host.declaration
        for listen in declaration.listens:
            template = listen.template(self._topics.fleet, self._topics.site)
            await self._bus.subscribe(template.pattern, self._guard(self._listener(listen)))
        for spec in declaration.device_events:
            await self._bus.subscribe(spec.topic.pattern, self._guard(self._device_listener(spec)))
        for orders in declaration.device_commands_taken:
            await self._bus.subscribe(orders.topic.pattern, self._guard(self._device_taker(orders)))

    def close(self) -> None:
        """Takes nothing more: what comes now stays with the broker."""
        self._closed = True

    # ------------------------------------------------------------------ the door

    def _guard(self, take: Callable[[BusMessage], Awaitable[None]]) -> Callable[[BusMessage], Awaitable[None]]:
        """Sheds, refuses and counts; what is left goes in."""

        async def handle(message: BusMessage) -> None:
            if self._closed:
                raise NotRunning("the node is stopping; nothing was taken")
            sender = _sender(message.topic)
            if not self._quotas.admit(sender, self._host.clock.monotonic_ns()):
                self.counters.bus_shed += 1
                self._note_lossy(sender)
                return
            self.counters.bus_received += 1
            try:
                await take(message)
            except SequenceGap:
                raise
            except PeerError as error:
                self.refuse(message, error)

        return handle

    def refuse(self, message: BusMessage, error: PeerError) -> None:
        """Counts a refusal, and tells of it."""
        self.counters.bus_refused += 1
        self._teller.refused(message.topic, str(error))

    # ------------------------------------------------------------------ commands

    async def _command(self, message: BusMessage) -> None:
        address = parse_topic(message.topic).name
        event = _read(message)
        try:
            _check_names(event, address)
            plan = self._plan(address)
            body = self._body(event, plan, Command)
        except PeerError as error:
            # Its sender waits for an answer, and there is an id to answer to.
            self.counters.bus_refused += 1
            await self._teller.answer(address, event.id, Refused(str(error)))
            return
        self.counters.bus_commands += 1
        verdict = await self._host.intake.ask(address, body, event.id, source=_source(message.topic))
        await self._teller.answer(address, event.id, verdict)

    # ------------------------------------------------------------------ events

    async def _input(self, message: BusMessage) -> None:
        address = parse_topic(message.topic).name
        event = _read(message)
        # Several may send to one agent; each has numbers of its own.
        source = _source(f"{message.topic} {event.source}")
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
            # The same topic may be listened to for several agents, and each of them has a mark of its own.
            source = _source(f"{message.topic} {to}")
            await self._take_event(message, event, source, to, topic.name, speaker)

        return hear

    async def _take_event(
        self, message: BusMessage, event: CloudEvent, source: str, to: str, subject: str, speaker: str = ""
    ) -> None:
        numbers = _numbers(event)
        try:
            _check_names(event, subject, speaker)
            body = self._body(event, self._plan(to), Event)
        except PeerError:
            if numbers is not None:
                self._pass(source, numbers)
            raise
        if numbers is None:
            await self._take_unnumbered(source, event, to, body)
        else:
            self.counters.bus_lost_by_senders += event.number("shed") or 0
            await self._take_numbered(_sender(message.topic), source, numbers, to, body)

    async def _take_numbered(self, sender: str, source: str, numbers: Numbers, to: str, body: bytes) -> None:
        """Hands a message over, unless one before it is still to come. Up to its first wait calls are in order."""
        key = (source, numbers.incarnation)
        reached = max(self._reached.get(key, 0), self._consumed(key))
        missing = False
        if numbers.sequence <= reached:
            self.counters.bus_repeated += 1
        elif numbers.previous is not None and numbers.previous > reached and (reached or self._has_listened):
            missing = self._gives_up(key, sender, numbers)
        envelope = Envelope(ENVELOPE_FORMAT, source, numbers.incarnation, numbers.epoch, numbers.sequence, [(to, body)])
        taken = self._host.intake.take_numbered(envelope, missing=missing)
        if not (taken.done() and taken.exception() is not None):
            self._gaps.pop(key, None)
            self._pass(source, numbers)
        await taken

    def _gives_up(self, key: Key, sender: str, numbers: Numbers) -> bool:
        """A message before this one is missing: True when the wait for it is over, else SequenceGap."""
        now_ns = self._host.clock.monotonic_ns()
        since_ns = self._gaps.setdefault(key, now_ns)
        if sender not in self._lossy and now_ns - since_ns < self._gap_wait_ns:
            self.counters.bus_early += 1
            raise SequenceGap(f"{key[0]}: {numbers.sequence} came before {numbers.previous}, which it follows")
        self.counters.bus_gaps += 1
        self._note_lossy(sender)
        return True

    async def _take_unnumbered(self, source: str, event: CloudEvent, to: str, body: bytes) -> None:
        once = (source, event.source, event.id)
        if once in self._seen:
            self.counters.bus_repeated += 1
            return
        await self._host.intake.take_numbered(Envelope(ENVELOPE_FORMAT, source, 0, 0, 0, [(to, body)]), missing=False)
        self._seen[once] = None
        if len(self._seen) > SEEN_COUNT_MAX:
            del self._seen[next(iter(self._seen))]

    def _pass(self, source: str, numbers: Numbers) -> None:
        key = (source, numbers.incarnation)
        self._reached[key] = max(self._reached.pop(key, 0), numbers.sequence)
        if len(self._reached) > SOURCES_COUNT_MAX:
            del self._reached[next(iter(self._reached))]

    def _note_lossy(self, sender: str) -> None:
        self._lossy[sender] = None
        if len(self._lossy) > SOURCES_COUNT_MAX:
            del self._lossy[next(iter(self._lossy))]

    def _consumed(self, key: Key) -> int:
        return min(shard.state.marks.consumed(*key) for shard in self._host.shards)

    # ------------------------------------------------------------------ devices

    def _device_listener(self, spec: DeviceEvent) -> Callable[[BusMessage], Awaitable[None]]:
        async def hear(message: BusMessage) -> None:
            to, observed = read_device_event(spec, _places(spec, message.topic), message.payload)
            self._plan(to)
            envelope = Envelope(ENVELOPE_FORMAT, _source(message.topic), 0, 0, 0, [(to, encode(observed))])
            await self._host.intake.take_numbered(envelope, missing=False)

        return hear

    def _device_taker(self, spec: DeviceCommands) -> Callable[[BusMessage], Awaitable[None]]:
        async def take(message: BusMessage) -> None:
            places = _places(spec, message.topic)
            to, command_id, command = read_device_command(spec, places, message.payload)
            self._plan(to)
            self.counters.bus_commands += 1
            asked_as = command_id or self._fresh_id()
            verdict = await self._host.intake.ask(to, command, asked_as, source=_source(message.topic))
            refused = verdict.reason if isinstance(verdict, Refused) else None
            answer = write_device_answer(spec, places, command_id, refused)
            if answer is not None:
                await self._bus.publish(answer)

        return take

    # ------------------------------------------------------------------ messages

    def _plan(self, address: str) -> AgentPlan:
        return self._host.shards[0].state.plan_at(address)

    def _body(self, event: CloudEvent, plan: AgentPlan, base: type[Command] | type[Event]) -> bytes:
        """The bytes of the message for this kind of agent. Raises PeerError for one that it could not take."""
        if event.type.startswith(OURS):
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
        except UNDECODABLE as error:
            raise Malformed(str(plan.explain(body, error))) from None
        if not isinstance(message, base):
            raise UnknownTag(f"{tag} is no {base.__name__.lower()}; it belongs on another topic")
        return body


def _read(message: BusMessage) -> CloudEvent:
    if len(message.payload) > EVENT_BYTES_MAX:
        raise TooLarge(f"a message of {len(message.payload)} bytes, {EVENT_BYTES_MAX} at most")
    return read_event(message.payload, message.content_type, message.properties)


def _check_names(event: CloudEvent, address: str, speaker: str = "") -> None:
    """The attributes must not name another agent than the topic does. `speaker` is the source of whoever owns it."""
    if event.subject and event.subject != address:
        raise Malformed(f"its subject is {event.subject[:100]!r}, but the topic belongs to {address!r}")
    if speaker and event.source != speaker and f"/{AGENTS}/" in event.source:
        raise Malformed(f"its source is {event.source[:100]!r}, but the topic belongs to {speaker!r}")


def _numbers(event: CloudEvent) -> Numbers | None:
    sequence = event.number("sequence")
    if not sequence:
        return None
    incarnation, epoch = event.number("incarnation") or 0, event.number("epoch") or 0
    return Numbers(sequence, incarnation, epoch, event.number("previous"))


def _places(spec: DeviceEvent | DeviceCommands, topic: str) -> Mapping[str, str]:
    places = spec.topic.match(topic)
    if places is None:
        raise Malformed(f"{topic[:200]!r} is not what was listened for")
    return places


def _source(name: str) -> str:
    """The source under which marks and the log know a topic; of a long one the end is a digest."""
    source = f"{BUS_SOURCES}{name}"
    if len(source) <= SOURCE_CHARS_MAX:
        return source
    digest = blake3(source.encode()).hexdigest(length=16)
    return f"{source[: SOURCE_CHARS_MAX - len(digest) - 1]}~{digest}"


def _sender(topic: str) -> str:
    """Whose quota a message counts against: an agent's events count together, whatever it calls its topics."""
    levels = topic.split("/", AGENT_LEVELS)
    if len(levels) > AGENT_LEVELS and levels[2] == AGENTS:
        return "/".join(levels[:AGENT_LEVELS])
    return topic
