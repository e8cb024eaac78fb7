"""Sends commands on to agents that other nodes run, and brings back the answers. Journal before send.

Each command is in this node's log until it is answered (shard/forwarding.py). It is sent again until then, over a link
that comes and goes, always under its own id: every node on the way knows an id that it has had, so it is decided once.
Commands for one agent leave in order, each when the one before has been taken into the next node's log.

A command is given up here, as expired or superseded, only while it is certain that nobody else can have got it: it came
in this run and was never sent. Otherwise it is sent on with what became of it, and the node that has it answers: either
it was decided, or it never will be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct, structs

from stigmergy.agents.codec import REASON_CHARS_MAX, describe, printable
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.errors import Overloaded, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.cloudevents import STRUCTURED, CloudEvent, data_of, read_event, write_structured
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.presence import Presence, may_run, names
from stigmergy.bus.replies import ANSWER, TAKEN
from stigmergy.bus.topics import Channel, Topics, escape, parse_topic
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.network.level_links import (
    ANNOUNCE_S,
    Forward,
    ForwardAnswered,
    ForwardTaken,
    LevelLinks,
    Neighbour,
    RoutedFrame,
    Routes,
    TellsCarried,
    TellsTold,
    routes_of,
)
from stigmergy.node.host import Host
from stigmergy.node.intake import AwaitedTicket
from stigmergy.shard.forwarding import FORWARD, LATE, Forwarded, read_forwarded
from stigmergy.shard.inputs import CommandAnswered, Refused, Travel, Verdict
from stigmergy.shard.judging import Sender
from stigmergy.shard.outbox import Pending
from stigmergy.shard.tracing import TraceContext, read_context, write_parent, write_state

BUS = "bus"
AGAIN_S = 1.0
AGAIN_S_MAX = 15.0
"""An unanswered command is sent again after so long; the wait doubles up to the larger."""
POLL_S = 20.0
"""How often a node that has taken a command is asked for its answer: the answer itself may have been lost."""
LOOK_S = 1.0
"""How often expiry and links are looked at, at least."""
HOPS_MAX = 8
"""Through more nodes a command comes only where two send it to each other."""
SERVED_MAX = 2_000
"""Commands of other nodes whose answers are waited for here; of more, their senders ask again later."""
LISTENED_MAX = 256
"""So many agents on the bus are listened to for answers one by one; for more, those of all are heard."""
PUBLISH_S = 10.0


class ForwarderCounters(Struct):
    """Counts of commands for agents on other nodes."""

    forwards_sent: int = 0
    """Repetitions included."""
    forwards_answered: int = 0
    forwards_given_up: int = 0
    """Expired or superseded before they were sent."""
    forwards_served: int = 0
    """Commands that other nodes sent to this one, repetitions included."""


class Travelling:
    """One command on its way."""

    __slots__ = ("again_ns", "agent", "is_unsent", "one", "pause_s", "sequence", "shard", "superseded_by", "taken_by")

    def __init__(self, shard: int, pending: Pending, one: Forwarded, *, is_unsent: bool) -> None:
        self.shard = shard
        self.sequence = pending.sequence
        self.agent = pending.agent
        self.one = one
        self.is_unsent = is_unsent
        """Nobody can have got it: it came in this run, and was not sent."""
        self.superseded_by = ""
        self.taken_by = ""
        """The next node, once it has it in its log."""
        self.again_ns = 0
        self.pause_s = AGAIN_S


class CommandOnItsWay(Struct, frozen=True):
    """A command that is not answered yet, or the tells for one agent that are not acknowledged, for people."""

    agent: str
    command_id: str
    command: bytes
    asked_ns: int
    expires_ns: int
    standing: str
    tells: int = 0
    """How many tells these are, of which the first is shown; 0: a command."""


class Served:
    """A command of another node whose answer is waited for here."""

    __slots__ = ("durable", "is_taken", "task")

    def __init__(self, durable: asyncio.Future[None]) -> None:
        self.durable = durable
        self.is_taken = False
        self.task: asyncio.Task[None] | None = None


class Forwarder:
    """A node's side. `release` takes durable commands, before the start those of earlier runs; then `start`, `stop`."""

    def __init__(self, host: Host, bus: Bus, topics: Topics, node: str, presence: Presence, links: LevelLinks) -> None:
        self._host = host
        self._bus = bus
        self._topics = topics
        self._node = node
        self._presence = presence
        self.links = links
        links.heard, links.wake = self._heard, self._link_changed
        self.carried: Callable[[Neighbour, TellsCarried | TellsTold], None] = lambda *_: None
        """Hears tells that came over a link, and acknowledgements. Must not wait."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a link, or what is reachable by it, has changed."""
        self._queues: dict[str, list[Travelling]] = {}
        """By agent, oldest first."""
        self._served: dict[tuple[str, str, str], Served] = {}
        self._listened: dict[str, None] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._replies: dict[int, asyncio.Task[None]] = {}
        self._announced_ns = 0
        self.is_off: Callable[[], bool] = lambda: False
        """Whether this node stays off the bus: another one has its agents, and takes what comes over links."""
        self.trouble = ""
        self.counters = ForwarderCounters()

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Subscribes on the links, and begins to send."""
        await self.links.start()
        self._task = asyncio.ensure_future(self._live())

    def link(self, up: bool) -> None:
        """A link came up or was lost."""
        del up
        self.changed()

    def _link_changed(self) -> None:
        self.changed()
        self.on_change()

    def changed(self) -> None:
        """A link or a node came or went: what was on its way there is sent again at once, and what is reachable here
        may be something else."""
        for queue in self._queues.values():
            for travelling in queue:
                travelling.again_ns, travelling.pause_s = 0, AGAIN_S
        self._announced_ns = 0
        self._woken.set()

    async def stop(self) -> None:
        """Sends nothing more; what is not answered is released again by the next start."""
        task, self._task = self._task, None
        await end_tasks(task, *(served.task for served in self._served.values()), *self._replies.values())

    def release(self, shard: int, pending: Pending) -> None:
        """Takes a durable command."""
        travelling = Travelling(shard, pending, read_forwarded(pending), is_unsent=self._task is not None)
        self._queues.setdefault(pending.agent, []).append(travelling)
        self._woken.set()

    def on_their_way(self) -> list[CommandOnItsWay]:
        """The commands that are not answered, by agent and then in order."""
        return [
            CommandOnItsWay(
                agent, it.one.command_id, it.one.command, it.one.asked_ns, it.one.expires_ns, self._standing(it)
            )
            for agent in sorted(self._queues)
            for it in self._queues[agent]
        ]

    def _standing(self, travelling: Travelling) -> str:
        if travelling.taken_by:
            return f"taken by {travelling.taken_by}"
        way, why = self.way_to(travelling.agent, travelling.one.came_by)
        if way is None:
            settling = self._presence.settling()
            return f"waiting: {why}" + (settling and f"; {settling}")
        return f"{'waiting for' if travelling.is_unsent else 'sent to'} {why}"

    # ------------------------------------------------------------------ where to

    def forwards(self, agent: str) -> bool:
        """Whether this node takes commands for an agent that it does not run."""
        way, _ = self.way_to(agent)
        # A link that is down now keeps nothing from being taken: it is sent on when the link is back.
        ways = (self.links.above, *self.links.find(agent, all_of_kind=False), *self.links.find(agent, all_of_kind=True))
        if way is not None or any(ways) or any(names(one, agent) for one in self._presence.away()):
            return True
        keeps = self._host.settings.commands.unclaimed == "keep"
        return self.links.has_below and keeps and agent.partition("/")[0] in self._host.declaration.plans

    def takes(self, agent: str) -> bool:
        """Whether this node takes from the bus what is for an agent that no node on the bus runs, or may run."""
        if not self.links.exist or self._host.assignment.runs(agent):
            return False
        return not may_run(agent, [*self._presence.others(), *self._presence.away()]) and self.forwards(agent)

    def way_to(self, agent: str, came_by: str = "") -> tuple[Neighbour | Bus | None, str]:
        """The way to an agent, and where it leads, in words; or None, and why. What came by a link does not leave by
        it. Who names an agent comes before who runs all of its kind, and the level above comes last."""
        others, links = self._presence.others(), self.links
        if here := [one for one in others if names(one, agent)]:
            return self._bus, f"node {here[0].node!r}"
        if ways := [one for one in links.find(agent, all_of_kind=False) if one.name != came_by]:
            return _reachable(ways)
        if gone := [one for one in self._presence.away() if names(one, agent)]:
            return None, f"node {gone[0].node!r} runs it, and {self._presence.absence(gone[0].node)}"
        kind = agent.partition("/")[0]
        if here := [one for one in others if one.everything and kind in one.kinds]:
            return self._bus, f"node {here[0].node!r}"
        if ways := [one for one in links.find(agent, all_of_kind=True) if one.name != came_by]:
            return _reachable(ways)
        if came_by != BUS and may_run(agent, [one for one in others if not one.routes]):
            return self._bus, "a node that does not say which agents it runs"
        above = links.above
        if above is not None and came_by != above.name:
            return _reachable([above])
        routers = [one for one in others if one.routes]
        if above is None and routers and came_by != BUS:
            return self._bus, f"node {routers[0].node!r}, which is between levels"
        return None, "no node that is known here says that it runs it"

    def routes(self) -> Routes:
        """What is reachable through this node: its own agents, those of this level, and what is below."""
        me, members = self._host.assignment, [*self._presence.others(), *self._presence.away()]
        below = [one.known.routes for one in self.links.below.values()]
        agents = [*me.agents, *(agent for one in members for agent in one.agents)]
        agents += [agent for one in below for agent in one.agents]
        kinds = [kind for one in members if one.everything for kind in one.kinds]
        kinds += [kind for one in below for kind in one.kinds]
        agents += self._led_to()
        return routes_of(agents, [*kinds, *(self._host.declaration.plans if me.is_everything else ())])

    def _led_to(self) -> list[str]:
        """Agents elsewhere whose commands are on their way, or were answered lately: also while nobody below is heard,
        their answers are found here."""
        runs = self._host.assignment.runs
        answers = (answer for shard in self._host.shards for answer in shard.state.answers.all())
        answered = (one.agent for one in answers if not runs(one.agent) and not (one.refused or "").startswith(LATE))
        return list(dict.fromkeys((*self._queues, *answered)))

    # ------------------------------------------------------------------ sending

    async def _live(self) -> None:
        while self._host.failure is None:
            try:
                await self._announce()
                await self._send_due()
            except Exception as error:
                # Not one of our errors: a failing driver, or a bug. The agents go on, and the status reports it.
                self.trouble = f"commands for other nodes: {describe(error)}"
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def _announce(self) -> None:
        now_ns, above = self._host.clock.monotonic_ns(), self.links.above
        is_due = not self._announced_ns or now_ns - self._announced_ns > ANNOUNCE_S * SECOND_NS
        if is_due and above is not None and above.is_up:
            self._announced_ns = now_ns
            await self.links.announce(self.routes())

    async def _send_due(self) -> None:
        now_ns = self._host.clock.monotonic_ns()
        failed: list[object] = []
        for agent in list(self._queues):
            self._give_up(agent)
            for travelling in self._due(agent, now_ns):
                way, _ = self.way_to(agent, travelling.one.came_by)
                if way is None or way in failed or not way.is_up:
                    break
                travelling.is_unsent = False
                travelling.again_ns = now_ns + int(travelling.pause_s * SECOND_NS)
                travelling.pause_s = min(AGAIN_S_MAX, 2 * travelling.pause_s)
                self.counters.forwards_sent += 1
                if not await self._send(way, travelling):
                    failed.append(way)

    def _due(self, agent: str, now_ns: int) -> list[Travelling]:
        """Those to send: the first that nobody has taken, and those whose answers are overdue."""
        found: list[Travelling] = []
        for travelling in self._queues.get(agent, ()):
            if travelling.again_ns <= now_ns:
                found.append(travelling)
            if not travelling.taken_by:
                break
        return found

    def _give_up(self, agent: str) -> None:
        """Answers those that are of no use any more, if they cannot have left; the others are told to the next node."""
        newer: dict[tuple[str, str], str] = {}
        wall_ns = self._host.clock.wall_ns()
        for travelling in reversed(self._queues[agent][:]):
            one = travelling.one
            place = (one.origin, one.replaces)
            travelling.superseded_by = newer.get(place, "") if one.replaces else ""
            newer.setdefault(place, one.command_id)
            if not travelling.is_unsent:
                continue
            reason = ""
            if travelling.superseded_by:
                reason = f"superseded by the command {travelling.superseded_by!r}; nothing of it was done"
            elif wall_ns > one.expires_ns:
                _, why = self.way_to(agent, one.came_by)
                reason = f"expired: it could not be sent on in time: {why}; nothing of it was done"
            if reason:
                self.counters.forwards_given_up += 1
                self._answer(travelling, reason)

    async def _send(self, way: Neighbour | Bus, travelling: Travelling) -> bool:
        if isinstance(way, Neighbour):
            return await way.send(self._frame(travelling))
        try:
            async with asyncio.timeout(PUBLISH_S):
                await self._listen(travelling.agent)
                await self._bus.publish(self._message(travelling))
        except (StigmergyError, TimeoutError):
            return False
        return True

    def _frame(self, travelling: Travelling) -> Forward:
        one = travelling.one
        origin = one.origin or f"{self._topics.site}/{self._node}"
        rest = (one.expires_ns, origin, one.replaces, travelling.superseded_by, one.hops + 1)
        carried = self._host.shards[travelling.shard].state.traces.get(FORWARD, travelling.sequence)
        trace = () if carried is None else (write_parent(carried.context()), write_state(carried.context()))
        return Forward(travelling.agent, one.command_id, one.command, one.client, *rest, *trace)

    def _message(self, travelling: Travelling) -> BusMessage:
        """The same as a command on the bus, which any node takes."""
        frame, agent = self._frame(travelling), travelling.agent
        kind, content_type, data = data_of(frame.command)
        extensions = {"expires": str(frame.expires_ns), "origin": frame.origin, "hops": str(frame.hops)}
        if frame.replaces:
            extensions["replaces"] = frame.replaces
        if frame.superseded_by:
            extensions["supersededby"] = frame.superseded_by
        if frame.traceparent:
            extensions |= {"traceparent": frame.traceparent, "tracestate": frame.tracestate}
        source = f"{self._topics.source_of_node(self._node)}/{escape(frame.client)}"
        event = CloudEvent(
            frame.command_id, source, kind, agent, datacontenttype=content_type, data=data, extensions=extensions
        )
        topic = self._topics.of_agent(agent, Channel.COMMANDS)
        return BusMessage(topic, write_structured(event), content_type=STRUCTURED)

    async def _listen(self, agent: str) -> None:
        pattern = self._topics.agents_pattern(Channel.ANSWERS, agent if len(self._listened) < LISTENED_MAX else "*/*")
        if pattern not in self._listened:
            self._listened[pattern] = None
            await self._bus.subscribe(pattern, self._hear_answer)

    # ------------------------------------------------------------------ answers

    async def _hear_answer(self, message: BusMessage) -> None:
        agent = parse_topic(message.topic).name
        if agent not in self._queues:
            return
        event = read_event(message.payload, message.content_type, message.properties)
        if event.type == TAKEN:
            self._taken(agent, event.id, "the next node")
        elif event.type == ANSWER and isinstance(event.data, dict):
            self._answered(agent, event.id, refused_of(event.data), event.data.get("after"))

    def _heard(self, neighbour: Neighbour, frame: RoutedFrame) -> None:
        if self.is_off():
            return
        match frame:
            case TellsCarried() | TellsTold():
                self.carried(neighbour, frame)
            case ForwardTaken():
                self._taken(frame.agent, frame.command_id, neighbour.shown)
            case ForwardAnswered():
                self._answered(frame.agent, frame.command_id, frame.refused, frame.after)
            case Forward():
                self._serve(neighbour, frame)

    def _find(self, agent: str, command_id: str) -> Travelling | None:
        return next((one for one in self._queues.get(agent, ()) if one.one.command_id == command_id), None)

    def _taken(self, agent: str, command_id: str, by: str) -> None:
        travelling = self._find(agent, command_id)
        if travelling is not None and not travelling.is_unsent:
            travelling.taken_by = by
            travelling.again_ns = self._host.clock.monotonic_ns() + int(POLL_S * SECOND_NS)
            self._woken.set()

    def _answered(self, agent: str, command_id: str, refused: str | None, after: object) -> None:
        travelling = self._find(agent, command_id)
        if travelling is not None and not travelling.is_unsent:
            self.counters.forwards_answered += 1
            if refused is None:
                self._host.intake.decided(agent, command_id, after)
            self._answer(travelling, refused)

    def _answer(self, travelling: Travelling, refused: str | None) -> None:
        queue = self._queues[travelling.agent]
        queue.remove(travelling)
        if not queue:
            del self._queues[travelling.agent]
        if self._host.failure is None:
            self._host.intake.put_inside(travelling.shard, CommandAnswered(travelling.sequence, refused))
        self._woken.set()

    # ------------------------------------------------------------------ commands of other nodes

    def _serve(self, neighbour: Neighbour, frame: Forward) -> None:
        travel = Travel(
            expires_ns=frame.expires_ns,
            origin=frame.origin,
            replaces=frame.replaces,
            superseded_by=frame.superseded_by,
            hops=frame.hops,
            came_by=neighbour.name,
        )

        async def taken() -> None:
            await neighbour.send(ForwardTaken(frame.agent, frame.command_id))

        async def answer(verdict: Verdict) -> None:
            refused, after = (verdict.reason, "") if isinstance(verdict, Refused) else (None, verdict.after)
            await neighbour.send(ForwardAnswered(frame.agent, frame.command_id, refused, after))

        with contextlib.suppress(StigmergyError):  # its sender sends it again
            trace = read_context(frame.traceparent, frame.tracestate)
            _ = self.serve(frame.agent, frame.command, frame.command_id, frame.client, travel, taken, answer, trace)

    def serve(
        self,
        agent: str,
        command: bytes,
        command_id: str,
        client: str,
        travel: Travel,
        taken: Callable[[], Coroutine[Any, Any, None]],
        answer: Callable[[Verdict], Awaitable[None]],
        trace: TraceContext | None = None,
    ) -> asyncio.Future[None]:
        """Takes a command that came from another node; the future is done when it is durable here.

        Its sender is told when it is `taken`, unless the answer comes at once, and then its `answer`. Neither is
        repeated: a sender that misses one sends the command again. Raises Overloaded or NotRunning with nothing taken.
        """
        self.counters.forwards_served += 1
        key = (agent, command_id, travel.came_by)
        served = self._served.get(key)
        if served is not None:
            if served.is_taken and len(self._replies) < SERVED_MAX:
                self._spawn(taken())
            return served.durable
        if len(self._served) >= SERVED_MAX:
            raise Overloaded(f"{SERVED_MAX} commands of other nodes wait for their answers here; try again later")
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        durable.add_done_callback(lambda done: done.cancelled() or done.exception())
        verdict = self._ask(agent, command, command_id, client, travel, AwaitedTicket(durable), trace)
        verdict.add_done_callback(lambda done: done.cancelled() or done.exception())
        served = self._served[key] = Served(durable)
        served.task = asyncio.ensure_future(self._reply(key, served, verdict, taken, answer))
        return durable

    def _ask(
        self,
        agent: str,
        command: bytes,
        command_id: str,
        client: str,
        travel: Travel,
        ticket: AwaitedTicket,
        trace: TraceContext | None,
    ) -> asyncio.Future[Verdict]:
        intake, source = self._host.intake, f"{BUS}:{travel.origin}"
        here = self._host.assignment.runs(agent)
        if not here and travel.hops > HOPS_MAX:
            travel = structs.replace(travel, refused=f"it came through {travel.hops} nodes: two send it to each other")
        elif not here and not self.forwards(agent):
            # Refused in the log, under its id: a copy that comes later must not be done.
            reason = printable(self._host.assignment.refusal(agent), REASON_CHARS_MAX)
            travel = structs.replace(travel, refused=reason)
        how = "bus" if travel.came_by == BUS else "link"
        sender = Sender(how=how, node=travel.origin, source=client)
        return intake.ask(agent, command, command_id, source, client, travel, ticket, trace, sender)

    async def _reply(
        self,
        key: tuple[str, str, str],
        served: Served,
        verdict: asyncio.Future[Verdict],
        taken: Callable[[], Awaitable[None]],
        answer: Callable[[Verdict], Awaitable[None]],
    ) -> None:
        try:
            await asyncio.shield(served.durable)
            served.is_taken = True
            if not verdict.done():
                await taken()
            await answer(await verdict)
        except StigmergyError:
            pass  # the node stops, or the link is down: the sender sends it again
        finally:
            del self._served[key]
            verdict.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._replies[self.counters.forwards_served] = task
        number = self.counters.forwards_served
        task.add_done_callback(lambda _: self._replies.pop(number, None))

    @property
    def troubles(self) -> list[Trouble]:
        return coded("commands-stuck", [self.trouble])


def refused_of(data: dict[str, Any]) -> str | None:
    """What an answer on the bus says: None for an accepted command."""
    return None if data.get("accepted") is True else printable(data.get("reason"), REASON_CHARS_MAX)


def travel_of(event: CloudEvent) -> Travel:
    """What a command on the bus says of its way. Raises PeerError for numbers that are none."""
    expires_ns, hops = event.number("expires") or 0, event.number("hops") or 0
    texts = [event.text(name) for name in ("origin", "replaces", "supersededby")]
    return Travel(False, expires_ns, 0, texts[0], texts[1], texts[2], hops, BUS if hops else "")


def _reachable(ways: list[Neighbour]) -> tuple[Neighbour | None, str]:
    """The first that can be reached now. Several may announce the same: a site may have two gateways."""
    up = [one for one in ways if one.is_up]
    return (up[0], up[0].shown) if up else (None, f"{ways[0].shown} cannot be reached now")
