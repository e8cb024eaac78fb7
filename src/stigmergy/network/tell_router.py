"""Tells between nodes over a bus: sends what our shards owe to agents of other nodes, and takes what those tell ours.

The outbox is the queue of what is sent, and the receiver's mark makes it arrive once and in order, for each *pair* of a
shard and an agent elsewhere. A tell is settled only when its receiver says that it is durable there. What is not
acknowledged is sent again: after a pause that doubles, when the link comes up, and when presence says that a node with
the agent has come. One agent that is away delays no other.

A tell is given up, by a journaled input, when its time is over, when too many are kept, or when its receiver refuses it
for good. Only once that is durable a frame may pass over its number: after a crash it must not count as delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct, structs

from stigmergy.agents.assignment import is_foreign
from stigmergy.agents.codec import REASON_CHARS_MAX, encode, printable
from stigmergy.agents.effects import REMOTE_SINKS, remote_sink
from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.raw import TELLS
from stigmergy.base.errors import (
    LinkDown,
    Malformed,
    NotRunning,
    PeerError,
    SequenceGap,
    StaleEpoch,
    StigmergyError,
)
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.presence import Presence, may_run
from stigmergy.bus.tells import (
    CONTENT_TYPE,
    TellAcknowledgement,
    TellFrame,
    TellItem,
    read_acknowledgement,
    read_frame,
    write_tells,
)
from stigmergy.bus.topics import Channel, Topics, parse_topic
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.network.forwarder import BUS, HOPS_MAX, CommandOnItsWay, Forwarder
from stigmergy.network.level_links import Neighbour, TellsCarried, TellsTold
from stigmergy.network.tell_pair import RESEND_S, Pair
from stigmergy.node.host import Host
from stigmergy.node.ingress import bus_source
from stigmergy.node.intake import AwaitedTicket, Stream
from stigmergy.node.settings import REFUSE, TellSettings
from stigmergy.shard.dispatch import decode
from stigmergy.shard.inputs import ELSEWHERE, EffectsSettled, TellGivenUp
from stigmergy.shard.judging import Sender
from stigmergy.shard.outbox import PassedTell, Pending, read_passed, read_told
from stigmergy.shard.tracing import read_traces

PUBLISHES_MAX = 32
"""Frames of all pairs that the broker has not taken yet."""
CARRIED_MAX = 64
"""Frames that came over links between levels and are not durable yet."""
PUBLISH_S_MAX = 10.0
"""A broker that has not taken a frame for so long makes room for others; whether it has it is not known."""
SWEEP_S = 0.5
"""How often times are looked at: what is due again, what is over."""
RESEND_S_MAX = 30.0
"""The pause before a frame that nobody acknowledged is sent again: it doubles from `RESEND_S` up to this."""
ROUND_TRIPS = 4.0
"""What is sent again has waited for at least so many usual times from a frame to its acknowledgement. Of what waits in
a queue that shortens, the newest answer says how long that takes."""
ROUND_TRIP_WEIGHT = 0.125
"""Of the newest one in the average."""
ROUND_TRIP_S_MAX = 150.0
"""More than this counts as this."""
SENT_AGAIN_MIN = 8
"""Frames that are sent again between two sweeps, or twice as many as were answered since the last one if that is more.
A receiver that has fallen behind would never come up again if copies kept on coming behind what waits for it."""
UNCLAIMED_RESEND_S_MAX = 600.0
"""The same while presence knows no node of this fleet that could run the agent: brokers hold messages for sessions
that are away, and must not be filled."""
UNCLAIMED_S = 10.0
"""With `unclaimed = "refuse"`: how long somebody may take to claim the agent, or to answer, while the link is up."""
SETTLE_S = 2.0
"""After the link came up a node that runs everything takes tells only for agents that it has, until the announcements
of others are here: one of them may name the agent."""
ACCEPTED_COUNT_MAX = 10_000
"""Pairs of which is remembered how far their tells are queued here; then the marks say it."""
DRAIN_LOOK_S = 0.01
SILENT_S = 60.0
"""A receiver that is here and has not answered for so long, with the link up, is a trouble."""
PERMISSIONS = "look whether the broker lets both nodes use the topics tells and acknowledgements (docs/topics.md)"
TOLD_FULL = 0.5
"""Tells kept for one agent, as a part of what there is room for, from which on it is a trouble."""
KEPT_S = 600.0
"""An agent that has not acknowledged its tells for so long, with the link up, is a trouble wherever it is."""
SILENT_COUNT_MAX = 200
"""Silent agents that are looked for, for troubles."""
TROUBLES_MAX = 3
"""Agents that are named in troubles; of more only how many they are."""


COPIED = "another program runs a copy of this journal; stop one of them"


class RouterCounters(Struct):
    """What became of tells between nodes."""

    tells_sent: int = 0
    """Repetitions included."""
    tells_confirmed: int = 0
    tells_taken: int = 0
    """New ones, of agents of other nodes."""
    tells_refused: int = 0
    """Of other nodes, for good; their senders are told."""
    tells_ignored: int = 0
    """`TellFailed` of nodes on the way, for tellers without a handler for it."""


class TellRouter:
    """Both directions of one node. `start` before the bus opens, `stop` before it closes."""

    def __init__(
        self, bus: Bus, topics: Topics, node: str, host: Host, presence: Presence, forwarder: Forwarder
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._node = node
        self._host = host
        self._presence = presence
        self._forwarder = forwarder
        forwarder.carried, forwarder.on_change = self._hear_carried, self._routes_changed
        self._settings: TellSettings = host.settings.tells
        self._clock = host.clock
        self._pairs: dict[tuple[int, str], Pair] = {}
        self._round_trip_s = 0.0
        """The usual time from a frame to its acknowledgement, of all pairs: most of them are new."""
        self._answered_count = 0
        """Frames, since the last sweep."""
        self._kept = 0
        self._ready: dict[tuple[int, str], None] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._publishes: dict[int, asyncio.Task[None]] = {}
        self._publish_count = 0
        self._up_ns: int | None = None
        self._refused = ""
        """Why the broker did not take the last frame or acknowledgement, if that was not for want of a link."""
        self._accepted: dict[tuple[str, int], int] = {}
        """Per pair that others tell us by: up to where its tells are queued here."""
        self.counters = RouterCounters()

    async def start(self) -> None:
        """Listens for acknowledgements, and sends whenever the link is up."""
        topic = self._topics.of_node(self._node, Channel.ACKNOWLEDGEMENTS)
        await self._bus.subscribe(topic, self._acknowledged)
        self._task = asyncio.ensure_future(self._live())

    async def wait_idle(self, within_s: float) -> None:
        """Waits for acknowledgements of what was just sent, if receivers answer."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        while self._bus.is_up and asyncio.get_running_loop().time() < deadline_s:
            if not any(pair.waiting and not pair.is_sent_again and not pair.trouble for pair in self._pairs.values()):
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    async def stop(self) -> None:
        """Sends nothing more. What is not acknowledged stays owed."""
        await end_tasks(self._task, *self._publishes.values())

    def link(self, up: bool) -> None:
        """The link came or went: what was under way is in doubt."""
        self._up_ns = self._clock.monotonic_ns() if up else None
        for pair in self._pairs.values():
            self._send_anew(pair)

    def joined(self, node: str) -> None:
        """A node has come, or has other agents now: what waits for them is sent at once."""
        come = [member for member in self._presence.members() if member.node == node]
        for pair in self._pairs.values():
            if not pair.is_heard and not is_foreign(pair.to) and may_run(pair.to, come):
                self._send_anew(pair)

    @property
    def kept(self) -> int:
        """Tells that are not acknowledged."""
        return self._kept

    def troubles(self) -> list[Trouble]:
        """Receivers that say that we are somebody else, and agents for which much is kept, or for long."""
        found = coded("tells-refused", [self._refused, *(pair.trouble for pair in self._pairs.values())])
        kept: list[str] = []
        full = TOLD_FULL * self._settings.kept_max
        silent = [one for one in self._pairs.values() if one.silent_s > SILENT_S or len(one.waiting) > full]
        for pair in silent[:SILENT_COUNT_MAX]:
            what = f"{len(pair.waiting):,} tells for {pair.to} are not acknowledged"
            where = "" if is_foreign(pair.to) else self._presence.locate(pair.to)
            if where and pair.silent_s > SILENT_S:
                kept.append(f"{what} although {where}: {PERMISSIONS}")
            elif pair.waiting and (len(pair.waiting) > full or pair.silent_s > KEPT_S):
                kept.append(f"{what}; {self._whereabouts(pair.to)}")
        if len(kept) > TROUBLES_MAX:
            count = f"{len(kept) - TROUBLES_MAX:,}{' or' * (len(silent) > SILENT_COUNT_MAX)} more agents"
            more = f"tells for {count} are not acknowledged: see stigmergy commands"
            kept[TROUBLES_MAX:] = [more]
        return found + coded("tells-kept", kept)

    def on_their_way(self) -> list[CommandOnItsWay]:
        """The tells that are not acknowledged, by agent."""
        found: list[CommandOnItsWay] = []
        for pair in sorted(self._pairs.values(), key=lambda one: (one.to, one.shard)):
            for pending in list(pair.waiting.values())[:1]:
                told, expires_ns = read_told(pending.body), self._expires_ns(pending)
                standing = pair.trouble or f"waiting: {self._whereabouts(pair.to)}"
                rest = (told.message, told.told_ns, expires_ns, standing, len(pair.waiting))
                found.append(CommandOnItsWay(pair.to, "", *rest))
        return found

    # ------------------------------------------------------------------ what our shards owe

    def release(self, shard: int, epoch: int, pendings: Sequence[Pending]) -> None:
        """Takes durable tells; those that there is no room for are given up."""
        for pending in pendings:
            key = (shard, pending.sink)
            pair = self._pairs.get(key)
            if pair is None:
                pair = self._pairs[key] = Pair(shard, pending.sink, pending.sink.removeprefix(REMOTE_SINKS))
            pair.epoch = epoch
            pair.add(pending, self._expires_ns(pending))
            self._kept += 1
            raw = self._host.raw
            if not raw.is_idle and (why := raw.stops(read_told(pending.body).message, TELLS)):
                self._give_up(pair, pending, why)
            elif len(pair.waiting) > self._settings.kept_max:
                self._give_up(pair, pending, f"{self._settings.kept_max:,} tells are kept for {pair.to} already")
            elif self._kept > self._settings.kept_all_max:
                self._give_up(pair, pending, f"{self._settings.kept_all_max:,} tells to other nodes are kept already")
            self._make_ready(pair)

    def _send_anew(self, pair: Pair) -> None:
        pair.rewind()
        pair.pause_s, pair.is_sent_again, pair.asked = RESEND_S, False, None
        self._make_ready(pair)

    def _make_ready(self, pair: Pair) -> None:
        self._ready[pair.shard, pair.sink] = None
        self._woken.set()

    def _give_up(self, pair: Pair, pending: Pending, reason: str) -> None:
        """Has its shard keep that a tell is given up; from then on frames may pass over it."""
        if pending.sequence in pair.given_up:
            return
        pair.given_up[pending.sequence] = None
        if self._host.failure is not None:
            return
        given_up = TellGivenUp(pending.sink, pending.sequence, printable(reason, REASON_CHARS_MAX))
        try:
            kept = self._host.intake.take(pair.shard, given_up)
        except NotRunning:
            return

        def durable(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                pair.forget(pending.sequence)
                self._kept -= 1
                self._make_ready(pair)

        kept.add_done_callback(durable)
        self._host.tells.note_given_up(pair.shard, pending, reason)

    def _expires_ns(self, pending: Pending) -> int:
        told = read_told(pending.body)
        return told.told_ns + (told.within_ns or int(self._settings.keep_s * SECOND_NS))

    async def _live(self) -> None:
        """Sends what is ready, and looks at the times now and then."""
        swept_ns = self._clock.monotonic_ns()
        while True:
            if not self._pairs:
                await self._woken.wait()
                swept_ns = self._clock.monotonic_ns()
            try:
                async with asyncio.timeout(SWEEP_S):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            now_ns = self._clock.monotonic_ns()
            if now_ns - swept_ns >= SWEEP_S * SECOND_NS:
                self._sweep(now_ns, (now_ns - swept_ns) / SECOND_NS)
                swept_ns = now_ns
            self._send_ready(now_ns)

    def _sweep(self, now_ns: int, passed_s: float) -> None:
        """Gives up what is over, and sends again what nobody acknowledged."""
        wall_ns = self._clock.wall_ns()
        due: list[Pair] = []
        usual_ns = int(ROUND_TRIPS * self._round_trip_s * SECOND_NS)
        for key, pair in list(self._pairs.items()):
            if not pair.waiting:
                del self._pairs[key]
                self._ready.pop(key, None)
                continue
            for pending in pair.over(wall_ns):
                self._give_up(pair, pending, f"{pair.to} did not take it in time; {self._whereabouts(pair.to)}")
            if self._way(pair) is None:
                continue
            pair.silent_s += passed_s
            if self._settings.unclaimed == REFUSE and pair.silent_s > UNCLAIMED_S and not self._is_claimed(pair):
                why = f"{pair.to}: {self._whereabouts(pair.to)}, and tells.unclaimed is {REFUSE!r}"
                for pending in list(pair.waiting.values()):
                    self._give_up(pair, pending, why)
            if not pair.due_ns:
                self._make_ready(pair)  # nothing of it was sent so far
            elif now_ns >= pair.due_ns and now_ns - pair.sent_ns >= usual_ns:
                due.append(pair)
        count_max, self._answered_count = max(SENT_AGAIN_MIN, 2 * self._answered_count), 0
        for pair in heapq.nsmallest(count_max, due, key=lambda one: one.due_ns):
            claimed = is_foreign(pair.to) or self._presence.may_run(pair.to)
            claimed = claimed or self._forwarder.way_to(pair.to)[0] is not None
            pair.rewind()
            pair.is_sent_again = True
            pair.pause_s = min(RESEND_S_MAX if claimed else UNCLAIMED_RESEND_S_MAX, pair.pause_s * 2)
            pair.due_ns = now_ns + int(pair.pause_s * SECOND_NS)
            self._make_ready(pair)

    def _is_claimed(self, pair: Pair) -> bool:
        """Whether somebody answers for an agent, or says that it runs there. Of other fleets nothing is announced."""
        if pair.is_heard or is_foreign(pair.to):
            return pair.is_heard
        if self._presence.settling():
            return True  # perhaps: its node has time to appear
        claimed = self._presence.may_run(pair.to) or bool(self._presence.claimants(pair.to))
        return claimed or self._forwarder.way_to(pair.to)[0] is not None

    def _whereabouts(self, to: str) -> str:
        if self._up_ns is None:
            return "the link to the bus is down"
        if is_foreign(to):
            return "nobody of that fleet has answered on this bus"
        if where := self._host.assignment.locate(to):
            return where
        way, leads_to = self._forwarder.way_to(to)
        if way is not None:
            return f"it is reachable through {leads_to}"
        settling = self._presence.settling()
        why = self._presence.locate_away(to) or "no node says that it runs it"
        return why + (settling and f"; {settling}")

    def _send_ready(self, now_ns: int) -> None:
        """One frame of each pair that is ready, in turn, as long as the broker takes them."""
        me = (self._topics.fleet, self._topics.site, self._node)
        while self._ready and len(self._publishes) < PUBLISHES_MAX:
            key = next(iter(self._ready))
            del self._ready[key]
            pair = self._pairs.get(key)
            way = None if pair is None else self._way(pair)
            # Without a way it is ready again when a link comes up, or somebody announces the agent.
            if pair is None or way is None:
                continue
            frame = pair.next_frame(me, now_ns, self._host.shards[pair.shard].state.traces)
            if frame is None:
                continue
            self._ready[key] = None
            pair.sent_ns, pair.due_ns = now_ns, now_ns + int(pair.pause_s * SECOND_NS)
            self.counters.tells_sent += len(frame.items)
            tells = write_tells(frame)
            if isinstance(way, Neighbour):
                self._start(way.send(TellsCarried(pair.to, tells)))
            else:
                self._publish(BusMessage(self._topic_of(pair.to), tells, CONTENT_TYPE))

    def _way(self, pair: Pair) -> Neighbour | Bus | None:
        """By what to send now; None if there is no way. What came over a link does not leave by it."""
        bus = None if self._up_ns is None else self._bus
        if is_foreign(pair.to) or not self._forwarder.links.exist or not pair.waiting:
            return bus
        first = next(iter(pair.waiting.values()))
        way, _ = self._forwarder.way_to(pair.to, _came_by(first))
        if isinstance(way, Neighbour):
            return way if way.is_up else None
        return bus if way is not None or self._presence.may_run(pair.to) else None

    def _routes_changed(self) -> None:
        """A link between levels came, or what is reachable by it is something else."""
        for pair in self._pairs.values():
            if not pair.is_heard:
                self._send_anew(pair)

    def _topic_of(self, to: str) -> str:
        fleet, _, address = to.partition("/")
        if is_foreign(to):
            return Topics(fleet, self._topics.site).of_agent(address, Channel.TELLS)
        return self._topics.of_agent(to, Channel.TELLS)

    def _publish(self, message: BusMessage) -> None:
        self._start(self._say(message))

    def _start(self, work: Awaitable[object]) -> None:
        """Has something sent; what does not arrive is sent again, as what nobody acknowledges."""

        async def publish() -> None:
            try:
                await work
            finally:
                del self._publishes[number]
                self._woken.set()

        self._publish_count = number = self._publish_count + 1
        self._publishes[number] = asyncio.ensure_future(publish())

    async def _say(self, message: BusMessage) -> None:
        """Publishes, or does not: tells and acknowledgements are sent again until the other one has them."""
        try:
            async with asyncio.timeout(PUBLISH_S_MAX):
                await self._bus.publish(message)
            self._refused = ""
        except (LinkDown, TimeoutError):
            pass
        except StigmergyError as error:
            self._refused = f"{message.topic}: {error}"

    # ------------------------------------------------------------------ what receivers say

    async def _acknowledged(self, message: BusMessage) -> None:
        self._hear_acknowledgement(message.payload)

    def _hear_acknowledgement(self, payload: bytes) -> None:
        said = read_acknowledgement(payload)
        to = said.to if said.fleet == self._topics.fleet else f"{said.fleet}/{said.to}"
        pair = self._pairs.get((said.shard, remote_sink(to)))
        if pair is None or said.epoch > pair.epoch:
            return
        known = self._host.shards[said.shard].state.outbox.next_sequence(pair.sink) - 1
        if said.stale:
            if said.epoch == pair.epoch:
                pair.trouble = f"node {said.node!r} has tells of a later run of this node for {to}: {COPIED}"
            return
        if max(said.durable, said.consumed) > known:
            if said.incarnation == self._host.journal.identity.incarnation:
                pair.trouble = (
                    f"node {said.node!r} has {said.consumed} tells of shard {said.shard} for {to}, this journal knows "
                    f"of {known}: the end of the log is lost; restore it from a newer copy"
                )
            return
        self._answered_count += 1
        now_ns = self._clock.monotonic_ns()
        if (took_s := pair.took_s(said.durable, now_ns)) is not None:
            usual_s = self._round_trip_s or took_s
            self._round_trip_s = usual_s + ROUND_TRIP_WEIGHT * (min(took_s, ROUND_TRIP_S_MAX) - usual_s)
        pair.heard()
        pair.due_ns = now_ns + int(pair.pause_s * SECOND_NS)
        settled = pair.confirm(said.incarnation, said.durable)
        if settled:
            self._kept -= len(settled)
            self.counters.tells_confirmed += len(settled)
            if self._host.failure is None:
                self._host.intake.put_inside(pair.shard, EffectsSettled(pair.sink, settled))
        for sequence, why in said.refused:
            pending = pair.waiting.get(sequence)
            if pending is not None and pending.incarnation == said.incarnation:
                self._give_up(pair, pending, f"node {said.node!r} refuses it: {why}")
                pair.rewind(sequence - 1)
        if said.resume is not None and said.epoch == pair.epoch:
            pair.rewind(said.resume)
        self._make_ready(pair)

    # ------------------------------------------------------------------ what others tell us

    async def take(self, message: BusMessage) -> None:
        """Takes tells for an agent of ours, and acknowledges them once they are durable."""
        to = parse_topic(message.topic).name
        frame = read_frame(message.payload)
        if self._host.intake.shard_of(to) not in self._host.shards or not self._is_for_us(to):
            return
        if not self._host.assignment.runs(to) and not self._may_pass_on(frame):
            return
        said = await self._take(to, frame, BUS)
        topic = Topics(frame.fleet, frame.site).of_node(frame.node, Channel.ACKNOWLEDGEMENTS)
        await self._say(BusMessage(topic, write_tells(said), CONTENT_TYPE))

    def _may_pass_on(self, frame: TellFrame) -> bool:
        """Whether tells for an agent elsewhere are ours to send on. Never our own, which a broker may have held for our
        session; and not before announcements are here: a node at this level that we do not know yet takes them too."""
        if (frame.fleet, frame.site, frame.node) == (self._topics.fleet, self._topics.site, self._node):
            return False
        return self._up_ns is not None and self._clock.monotonic_ns() - self._up_ns > SETTLE_S * SECOND_NS

    def _hear_carried(self, neighbour: Neighbour, carried: TellsCarried | TellsTold) -> None:
        """The same over a link between levels. A frame that there is no room for is sent again."""
        if isinstance(carried, TellsTold):
            with contextlib.suppress(PeerError):
                self._hear_acknowledgement(carried.acknowledgement)
        elif len(self._publishes) < PUBLISHES_MAX + CARRIED_MAX:
            self._start(self._take_carried(neighbour, carried))

    async def _take_carried(self, neighbour: Neighbour, carried: TellsCarried) -> None:
        with contextlib.suppress(StigmergyError):
            said = await self._take(carried.agent, read_frame(carried.tells), neighbour.name)
            await neighbour.send(TellsTold(write_tells(said)))

    def _is_for_us(self, to: str) -> bool:
        """Of nodes that run everything, one takes tells for an agent only if no other node names the agent."""
        host = self._host
        if host.assignment.agents:
            return True
        if self._presence.claimants(to):
            return False
        if host.assignment.knows_kind(to) and host.shards[host.intake.shard_of(to)].state.has_agent(to):
            return True
        settled = self._up_ns is not None and self._clock.monotonic_ns() - self._up_ns > SETTLE_S * SECOND_NS
        return settled and (host.assignment.knows_kind(to) or not self._presence.locate(to))

    async def _take(self, to: str, frame: TellFrame, came_by: str) -> TellAcknowledgement:
        """Puts what is new of a frame into the shard, and waits until it is durable. What is for an agent of a third
        node is owed to it again."""
        passed_on = not self._host.assignment.runs(to)
        marks = self._host.shards[self._host.intake.shard_of(to)].state.marks
        source = bus_source(f"tells {frame.source} {to}")
        key = (source, frame.incarnation)
        consumed = self._accepted.get(key, marks.consumed(*key))
        said = self._answer(to, frame)
        if frame.epoch < marks.epoch(*key):
            return said(stale=True)
        if frame.after > consumed:
            return said(resume=consumed, consumed=consumed)
        skipped = max(0, consumed + 1 - frame.first)
        taken, refused = self._acceptable(to, frame, skipped)
        last = frame.first + len(taken) - 1
        if not taken and refused:
            return said(refused=refused, consumed=consumed)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = Stream(source, frame.incarnation, frame.epoch)
        bodies = [self._passed(to, item, came_by) if passed_on else self._body(to, item) for item in taken]
        self.counters.tells_ignored += sum(body is ELSEWHERE for body in bodies[skipped:])
        try:
            self._host.intake.take_told(
                stream,
                frame.first,
                to,
                bodies,
                AwaitedTicket(future),
                passes=frame.first > consumed + 1,
                passed_on=passed_on,
                traces=read_traces(frame.traces, len(bodies), self._clock.wall_ns()),
                sender=self._sender_of(frame),
            )
            self._accept(key, max(consumed, last))
            self.counters.tells_taken += len(taken) - min(skipped, len(taken))
            await future
        except SequenceGap:
            self._accepted.pop(key, None)
            return said(resume=marks.consumed(*key))
        except StaleEpoch:
            self._accepted.pop(key, None)
            return said(stale=True)
        except BaseException:
            self._accepted.pop(key, None)
            raise
        return said(durable=last, consumed=marks.consumed(*key), refused=refused)

    def _sender_of(self, frame: TellFrame) -> Sender | None:
        """Who tells, if it is another fleet: a policy is asked about that."""
        if frame.fleet == self._topics.fleet:
            return None
        return Sender(how="tell", node=f"{frame.site}/{frame.node}", fleet=frame.fleet)

    def _accept(self, key: tuple[str, int], last: int) -> None:
        self._accepted.pop(key, None)
        self._accepted[key] = last
        if len(self._accepted) > ACCEPTED_COUNT_MAX:
            del self._accepted[next(iter(self._accepted))]

    def _acceptable(self, to: str, frame: TellFrame, known: int) -> tuple[list[TellItem], list[tuple[int, str]]]:
        """The tells up to the first that must be refused for good, and that one with the reason. Those that were taken
        before are not looked at again."""
        host, wall_ns = self._host, self._clock.wall_ns()
        for number, item in enumerate(frame.items):
            if number < known:
                continue
            try:
                if host.assignment.runs(to) or not self._forwarder.forwards(to):
                    host.assignment.check(to)
                    if not self._is_ignored(to, item.message):
                        decode(host.shards.first.state.plan_at(to), item.message)
                elif item.hops > HOPS_MAX:
                    raise Malformed(f"it came through {item.hops} nodes: two send it to each other")
                if item.expires_ns < wall_ns:
                    raise Malformed("its time is over")
            except PeerError as error:
                self.counters.tells_refused += 1
                return frame.items[:number], [(frame.first + number, printable(error, REASON_CHARS_MAX))]
        return frame.items, []

    def _is_ignored(self, to: str, message: bytes) -> bool:
        return self._host.shards.first.state.plan_at(to).may_ignore(message)

    def _body(self, to: str, item: TellItem) -> bytes:
        """What is put into the shard. The number of what its agent ignores counts, too."""
        return ELSEWHERE if self._is_ignored(to, item.message) else item.message

    def _passed(self, to: str, item: TellItem, came_by: str) -> bytes:
        now_ns = self._clock.wall_ns()
        within_ns = max(1, item.expires_ns - now_ns)
        return encode(PassedTell(to, item.message, now_ns, within_ns, item.hops + 1, came_by, item.teller))

    def _answer(self, to: str, frame: TellFrame) -> Callable[..., TellAcknowledgement]:
        """Makes an answer to a frame."""
        me = (self._topics.fleet, self._topics.site, self._node)
        plain = TellAcknowledgement(*me, to, frame.shard, frame.incarnation, frame.epoch)

        def said(**what: Any) -> TellAcknowledgement:
            return structs.replace(plain, **what)

        return said


def _came_by(pending: Pending) -> str:
    return read_passed(pending.body).came_by
