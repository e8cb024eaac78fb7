"""The draft: the commit that is still open. Steps add to it; sealing turns it into bytes. It never leaves its shard.

Several steps may share one draft: events kept `within` a second then share a write, and of events kept as `latest` only
the newest is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from stigmergy.agents.assignment import is_foreign
from stigmergy.agents.codec import SOURCE_CHARS_MAX, canonical_bytes, encode, printable, readable, tag_of
from stigmergy.agents.columns import ColumnRun
from stigmergy.agents.copies import without_shared
from stigmergy.agents.effects import (
    PUBLISH,
    REMOTE_SINKS,
    TIMERS,
    Publish,
    Tell,
    TellFailed,
    WindowClosed,
    remote_sink,
    shard_sink,
    sink_of,
)
from stigmergy.agents.messages import SECOND_NS, Bindable, Claimed, Command, Effect, Event, Keeping, Message, spec_of
from stigmergy.agents.plans import AgentPlan, Plan
from stigmergy.agents.shared import Merged, SharedChanged
from stigmergy.agents.steps import StepEffect
from stigmergy.base.errors import Malformed, SequenceGap, StaleEpoch, StaleMapping, StigmergyError, TooLarge
from stigmergy.shard.commit import (
    COLUMNS_FORMAT,
    COMMIT_FORMAT,
    NO_CAUSE,
    Answer,
    Commit,
    EventRun,
    HashAlgorithm,
    MarkMoved,
    Owed,
    Ruled,
    Sealed,
    Settled,
    SnapshotNote,
)
from stigmergy.shard.homes import Homes, is_remote_address
from stigmergy.shard.inputs import ELSEWHERE, Asked, Input, Verdict
from stigmergy.shard.judging import Ruling
from stigmergy.shard.outbox import Block, Pending, TellBody, read_told
from stigmergy.shard.state import ShardState, evolve_event
from stigmergy.shard.timers import WINDOW_PREFIX, PendingTimer, TimerSet, read_timer, timer_body
from stigmergy.shard.tracing import Traced, TracedInput

NEVER_NS = 2**62
DRAFT_BYTES_MAX = 240 * 1024
"""Past this a step leaves the rest of its inputs for the next commit.

The room up to COMMIT_BYTES_MAX is what one input can need at worst: a window closes with its effects (17 KiB), then a
command causes all that it may (80 KiB) or fails (84 KiB with the reactions to that) and its agent is stopped (17 KiB),
then it is answered (68 KiB).
"""
COLUMNS_REST_BYTES = 80 * 1024
"""How much larger than `columns_bytes_max` a commit with records can become. A table never makes more than there is
room for; the rest is what one record needs that fails: its message in words (64 KiB), its error, and why its agent is
stopped (5 KiB); then the run and the mark of its source (4 KiB)."""
REMOTE_ADDRESSES_MAX = 50_000
"""So many agents that run elsewhere a shard may tell something, ever: each has sequences of its own, at the receiver
too. What is told to one more is given up."""
WITHIN_S_MAX = 366 * 86_400
JOINED_BYTES_MAX = 16 * 1024
"""Runs of more bytes are not joined: to copy them costs more than a new one."""
TRACE_BYTES = 120
"""Counted for each note of a trace beside its texts and what every entry has."""
ADDRESS_CHARS_MAX = 200
TRACES_BYTES_MAX = 48 * 1024
"""Past it a step leaves the rest for the next commit; effects that are settled together beyond it have no span."""
OVERHEAD_BYTES = 64
"""Counted for each entry of a commit beside its texts and bodies: numbers and the framing."""


def _alike(last: ColumnRun, run: ColumnRun) -> bool:
    same = (last.kind, last.layout, last.time_ns, last.source) == (run.kind, run.layout, run.time_ns, run.source)
    return same and len(last.records) + len(run.records) <= JOINED_BYTES_MAX


class Draft:
    """What the next commit of a shard will say, and what the host does once it is durable."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.events: list[tuple[str, bytes] | None] = []
        self.answers: list[Answer] = []
        self.clients: list[str] = []
        self.digests: list[bytes] = []
        self.ruled: list[Ruled] = []
        """Who got each of them."""
        self.owed: list[Owed] = []
        self.marks: dict[tuple[str, int], MarkMoved] = {}
        self.settled: dict[str, list[int]] = {}
        self.fired: list[tuple[str, str, int]] = []
        self.snapshots: list[SnapshotNote] = []
        self.columns: list[ColumnRun] = []
        self.columns_count = 0
        """How many events are in them."""
        self.columns_bytes = 0
        """How much of the size are records and batched actions."""
        self.confirmed: dict[str, int] = {}
        self.blocks: list[Block] = []
        self.pending: list[Pending] = []
        self.timers: list[tuple[PendingTimer, int]] = []
        self.verdicts: list[tuple[Asked, Verdict]] = []
        self.touched: dict[str, Any] = {}
        """Agents as they were before this draft (None: not there); queries see these until it is durable."""
        self.stopped: list[str] = []
        self.shared: list[tuple[str, SharedChanged | Merged | None]] = []
        """Agents with shared fields that are new (None), and what has changed in whose."""
        self.fresh: list[tuple[str, type[Message] | None]] = []
        """Agents with staleness rules that are new (None) or got an event that a rule waits for."""
        self.size_bytes = 0
        self.wait_ns = NEVER_NS
        self.traces: list[Traced] = []
        self._traces_bytes = 0
        self.trace_id = b""  # of the input that is taken now
        """Whether the current input belongs to a trace."""
        self._runs: list[tuple[int, int, str]] = []
        self._origin: tuple[int, str, bool] | None = None
        """Of the current input: its time, its source, and whether it is a command."""
        self._told: tuple[int, str, bool] | None = None
        """The same with the source as it was given."""
        self._joins = False
        """Whether the next records may share a run with the last ones."""
        self._superseded = 0
        self.newest_events: dict[str, tuple[int, str, Any]] = {}
        """Per agent whose last event here is a `latest` one: where it stands, its tag, the agent before it."""

    @property
    def empty(self) -> bool:
        """Whether sealing would write nothing."""
        return not (
            self.events
            or self.columns
            or self.answers
            or self.owed
            or self.marks
            or self.settled
            or self.confirmed
            or self.fired
            or self.snapshots
            or self.traces
        )

    def begin_run(self, time_ns: int, source: str, *, asked: bool = False) -> None:
        """From here on events are taken at this time from this source. Those of commands, which were `asked` for, are
        in runs of their own: in a run, what follows an answer came from its command."""
        told = (time_ns, source, asked)
        if told == self._told:
            return  # as always, where many come at once
        self._told = told
        start, origin = len(self.events), (time_ns, printable(source, SOURCE_CHARS_MAX), asked)
        if origin == self._origin:
            return
        self._origin, self._joins = origin, False
        if self._runs and self._runs[-1][0] == start:
            self._runs[-1] = (start, *origin[:2])
        else:
            self._runs.append((start, *origin[:2]))
            self.grow(origin[1])

    @property
    def source(self) -> str:
        """The source of the current input."""
        return self._runs[-1][2]

    @property
    def full_of_words(self) -> bool:
        """Whether inputs other than records, dead letters for example, use up all their space."""
        return self.size_bytes - self.columns_bytes > DRAFT_BYTES_MAX

    def hurry(self, wait_ns: int) -> None:
        """Something was added that may wait this long for the disk."""
        self.wait_ns = min(self.wait_ns, wait_ns)

    def grow(self, *texts: str, bodies_bytes: int = 0) -> None:
        """One more entry, with these texts in it, makes the commit larger by so much."""
        self.size_bytes += bodies_bytes + OVERHEAD_BYTES
        for text in texts:
            self.size_bytes += len(text) if text.isascii() else 4 * len(text)

    def fitting(self, items: list[tuple[str, bytes]], size_bytes: int) -> list[tuple[str, bytes]]:
        """The items for which there is room, and counts their bytes. An empty draft has room for any one. With the
        length of the envelope that they are all of, none of them is looked at."""
        room_bytes = DRAFT_BYTES_MAX - self.size_bytes
        if 0 < size_bytes <= room_bytes:
            self.size_bytes += size_bytes
            return items
        used_bytes = count = 0
        for address, body in items:
            # What is for another shard leaves nothing here. Counted, it would fill one draft after the other.
            item_bytes = 0 if body is ELSEWHERE else len(body) + 4 * len(address) + OVERHEAD_BYTES
            if used_bytes + item_bytes > room_bytes and (count or not self.empty):
                break
            used_bytes += item_bytes
            count += 1
        self.size_bytes += used_bytes
        return items[:count]

    def move_mark(self, moved: MarkMoved) -> None:
        """A source has been consumed up to here."""
        key = (moved.source, moved.incarnation)
        if key not in self.marks:
            self.grow(moved.source)
        self.marks[key] = moved

    @property
    def full_of_traces(self) -> bool:
        """Whether notes of traces use up all their space."""
        return self._traces_bytes > TRACES_BYTES_MAX

    def trace(self, note: Traced) -> None:
        """Something of a trace was consumed or settled."""
        self.traces.append(note)
        size_bytes = TRACE_BYTES + OVERHEAD_BYTES + 4 * note.chars
        self._traces_bytes += size_bytes
        self.size_bytes += size_bytes
        self.wait_ns = min(self.wait_ns, SECOND_NS)

    def rule(self, ruling: Ruling, *, answered: bool) -> None:
        """A policy was asked about the input that is taken now, which is `answered`, or leaves events."""
        place = len(self.answers) if answered else -1 - len(self.events)
        self.ruled.append(Ruled(place, ruling.refused is None, ruling.policy, ruling.version, ruling.digest))
        self.grow(ruling.policy, bodies_bytes=len(ruling.digest))

    def settle(self, sink: str, sequences: list[int]) -> None:
        """Effects of this sink are over."""
        self.grow(sink, bodies_bytes=9 * len(sequences))
        self.settled.setdefault(sink, []).extend(sequences)

    def add_run(self, run: ColumnRun) -> None:
        """Events of compiled agents. Single ones of one source at one time share a run."""
        last = self.columns[-1] if self.columns else None
        joins, self._joins = self._joins, True
        if joins and last is not None and run.actions_count == 0 and _alike(last, run):
            joined = structs.replace(last, count=last.count + run.count, records=b"".join((last.records, run.records)))
            self.columns[-1] = joined
        else:
            self.columns.append(run)
            self.grow(run.kind, run.source)
        self.columns_count += run.count
        self.columns_bytes += len(run.records) + len(run.actions)
        self.size_bytes += len(run.records) + len(run.actions)

    def confirm(self, kind: str, upto: int) -> None:
        """Batched actions of this kind are over, up to there."""
        if kind not in self.confirmed:
            self.grow(kind)
        self.confirmed[kind] = upto

    def fire(self, agent: str, name: str) -> None:
        """A timer went off, after the effects that are owed so far."""
        self.grow(agent, name)
        self.fired.append((agent, name, len(self.owed)))

    def remember_newest(self, agent: str, tag: str, before: Any) -> None:
        """The event just added is a `latest` one of this agent, whose state before it was this."""
        self.newest_events[agent] = (len(self.events) - 1, tag, before)

    def newest(self, agent: str) -> tuple[int, str, Any] | None:
        """Where the last event of this agent stands, its tag and the state before it, if it was a `latest` one."""
        return self.newest_events.get(agent)

    def forget_newest(self, agent: str) -> None:
        """Another event of this agent follows: what came before it must stay."""
        self.newest_events.pop(agent, None)

    def supersede(self, index: int) -> None:
        """Drops a `latest` event that a newer one has made superfluous."""
        self.events[index] = None
        self._superseded += 1

    def close(self, state: ShardState, epoch: int, time_ns: int) -> Commit:
        """The commit, complete but for its digest. Its last run carries the time up to which it goes."""
        if not self._runs or self._runs[-1][1] != time_ns:
            self.begin_run(time_ns, "")
        starts = [start for start, _, _ in self._runs] + [len(self.events)]
        runs = [
            EventRun(events=self._kept_between(starts[number], starts[number + 1]), time_ns=time_ns, source=source)
            for number, (_, time_ns, source) in enumerate(self._runs)
        ]
        events, owed, answers, traces, ruled = self.events, self.owed, self.answers, self.traces, self.ruled
        if self._superseded:
            place = self._places()
            events = [event for event in events if event is not None]
            owed = [Owed(o.agent, o.sink, o.sequence, o.cause if o.cause < 0 else place[o.cause], o.body) for o in owed]
            answers = [a if a.at < 0 else structs.replace(a, at=place[a.at]) for a in answers]
            traces = [note.placed(place) if isinstance(note, TracedInput) else note for note in traces]
            ruled = [r if r.place >= 0 else structs.replace(r, place=-1 - place[-1 - r.place]) for r in ruled]
        return Commit(
            format=COLUMNS_FORMAT if self.columns or self.confirmed else COMMIT_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            shard=state.shard,
            position=self.position,
            epoch=epoch,
            previous=state.digest,
            runs=runs,
            events=events,  # type: ignore[arg-type]  # superseded ones are gone
            answers=answers,
            owed=owed,
            marks=list(self.marks.values()),
            settled=[Settled(sink, sequences) for sink, sequences in self.settled.items()],
            fired=self.fired,
            snapshots=self.snapshots,
            incarnation=state.incarnation,
            columns=self.columns,
            confirmed=list(self.confirmed.items()),
            clients=self.clients if any(self.clients) else [],
            digests=self.digests if any(self.digests) else [],
            traces=traces,
            instance=state.instance if traces else "",
            ruled=ruled,
        )

    def _kept_between(self, start: int, end: int) -> int:
        if not self._superseded:
            return end - start
        return sum(1 for event in self.events[start:end] if event is not None)

    def _places(self) -> list[int]:
        """For each index before dropping, the index after it."""
        places: list[int] = []
        kept = 0
        for event in self.events:
            places.append(kept)
            kept += event is not None
        places.append(kept)
        return places


# What a shard returns to its host: after a step its requests, after sealing what to persist and then to do.


class Stepped(Struct, frozen=True):
    """What a step asks of the host: how long the draft may stay open, and what to step again after sealing."""

    wait_ns: int | None
    left: list[Input]
    repeats: list[tuple[Asked, Verdict, int]]
    """Commands that are not done now, because they were before or may not be: the answer, and the position that must be
    durable to give it."""
    fresh: list[tuple[str, type[Message] | None]]
    """Agents with staleness rules that are new (None) or got an event that a rule waits for."""
    untaken: list[tuple[Input, StigmergyError]] = []
    """Inputs of which nothing was consumed, and why: nobody may be told that they are durable."""


class Ready(Struct, frozen=True):
    """A sealed commit. First persist `sealed`; only then tell `verdicts`, release `owed` and
    `blocks`, schedule `timers`."""

    sealed: Sealed
    commit: Commit
    verdicts: list[tuple[Asked, Verdict]]
    """Answers to give."""
    owed: list[Pending]
    blocks: list[Block]
    """Actions for batch actuators."""
    timers: list[tuple[PendingTimer, int]]
    """Timers that were set, each with the time of the step that set it."""
    stopped: list[str]
    """Agents that supervision has stopped: their safe actions are due."""
    shared: list[tuple[str, SharedChanged | Merged | None]]
    """Agents with shared fields: None for a new one, else its changes. For peers."""
    touched: dict[str, Any]
    """Agents as they were before this commit; what a query sees until it is durable."""
    images: dict[str, Any]
    """Per kind of compiled agents that has changed, its table's image of that; None: its events are to be folded."""
    enrolled: dict[str, int]
    """How many compiled agents of each kind there are once it is durable."""


# The results of one input: collected aside, then entered into the draft in one go, which cannot fail.


_TOLD_BACK = spec_of(TellFailed).tag
PackedEffect = tuple[str, bytes]
"""Sink and bytes."""


class InputOutcome(Struct):
    """The events and effects of one input."""

    events: list[tuple[Plan, Any, bytes]]
    effects: list[tuple[PackedEffect, int]]
    """Each with the index of the event behind it among `events`, or NO_CAUSE."""
    size_bytes: int = 0


def pack_effect(state: ShardState, homes: Homes, effect: Effect, cause: tuple[Any, bytes], now_ns: int) -> PackedEffect:
    """Names the sink of an effect and encodes it. Raises for what is no effect, or cannot be written and read back:
    then this input fails now, and not its actuator later.

    `cause` is the event behind it with its bytes: code that passes that event on passes on the bytes as they came.
    """
    known = _sinks.get(effect.__class__)
    if known is not None:
        return known, readable(effect, Effect, "a @react handler")
    if isinstance(effect, Tell):
        to = _receiver(state, effect)
        message = cause[1] if effect.message is cause[0] else readable(effect.message, Command | Event, "Tell")
        return pack_tell(state, homes, to, message, now_ns, int((effect.within_s or 0) * SECOND_NS))
    if isinstance(effect, Publish):
        event = cause[1] if effect.event is cause[0] else readable(effect.event, Event, "Publish")
        if not isinstance(effect.topic, str):
            raise TypeError(f"Publish(topic={effect.topic!r}): a topic is a text")
        return PUBLISH, encode((effect.topic, event))
    if not isinstance(effect, Effect):
        raise TypeError(f"a @react handler yields effects; {type(effect).__name__} is none")
    if isinstance(effect, StepEffect):
        return pack_effect(state, homes, effect.does, cause, now_ns)[0], effect.packed()
    sink = sink_of(effect)
    if sink == TIMERS:
        return sink, timer_body(effect, now_ns)
    if not isinstance(effect, Bindable):
        _sinks[effect.__class__] = sink
    elif effect.valid_while is not UNSET:
        _check_bound(effect.valid_while)
    return sink, readable(effect, Effect, "a @react handler")


def _receiver(state: ShardState, tell: Tell) -> str:
    """Whom a tell is for. Raises UnknownKind for what can be no address, and TypeError for a time that is none."""
    to = state.assignment.within_fleet(tell.to)
    in_scenario = not state.assignment.fleet and not is_foreign(to)  # which has no other node
    if in_scenario or not is_remote_address(to):
        state.plan_at(to)
    within_s: object = tell.within_s
    if within_s is not None and not (isinstance(within_s, int | float) and 0 < within_s <= WITHIN_S_MAX):
        raise TypeError(f"Tell(within_s={within_s!r}): give seconds, more than 0 and at most a year, or leave it out")
    return to


def pack_tell(
    state: ShardState, homes: Homes, to: str, message: bytes, now_ns: int, within_ns: int = 0
) -> PackedEffect:
    """A tell to an agent that this node or another owner of shards of this fleet runs, or else to one elsewhere. A kind
    that the fleet does not have runs nowhere that is known here: whoever carries tells to other nodes knows better.

    Sequences of a sink are dense, so sinks are never forgotten: one agent elsewhere too many has no sink of its own,
    and what is owed to the common one is given up.
    """
    known = not is_foreign(to) and state.plans.get(to.partition("/")[0]) is not None
    if known and state.assignment.runs(to) and not state.assignment.is_elsewhere(to):
        return shard_sink(homes.of(to)), encode((to, message))
    sink = remote_sink(to)
    if not state.outbox.knows(sink) and state.outbox.remote_count >= REMOTE_ADDRESSES_MAX:
        sink = REMOTE_SINKS
    return sink, encode(TellBody(to, message, now_ns, within_ns))


def size_of(packed: PackedEffect) -> int:
    """How many bytes of a commit an effect takes beside what every entry does."""
    sink, body = packed
    return len(body) + len(sink) if sink.startswith(REMOTE_SINKS) else len(body)


def _check_bound(claim: object) -> None:
    if not isinstance(claim, Claimed) or not claim.field:
        raise TypeError(f"valid_while={claim!r}: give an ordered field of the agent, such as self.dock")


_sinks: dict[type, str] = {}
"""Of classes of effects that are written as they are, whatever is in them."""


def collect(
    state: ShardState,
    homes: Homes,
    agent_plan: AgentPlan,
    agent: Any,
    decided: Sequence[tuple[Any, bytes]],
    now_ns: int,
    bytes_max: int,
) -> InputOutcome:
    """Evolves and reacts to each event in turn. The agent changes; on an exception the caller puts its image back."""
    events: list[tuple[Plan, Any, bytes]] = []
    effects: list[tuple[PackedEffect, int]] = []
    overhead, size_bytes = len(agent.address) + OVERHEAD_BYTES, 0
    for event, body in decided:
        plan = agent_plan.plan_for(event.__class__)
        if not plan.plain:
            evolve_event(plan, agent, event, now_ns)
        elif plan.evolve is not None:
            plan.evolve(agent, event)
        cause = NO_CAUSE
        if plan.promise is not Keeping.TRANSIENT:
            cause = len(events)
            events.append((plan, event, body))
            size_bytes += len(body) + overhead
        reactions = () if plan.react is None else plan.react(agent, event) or ()
        packed = pack_effects(state, homes, agent, reactions, (event, body), now_ns, bytes_max - size_bytes)
        if agent_plan.tumbling:
            packed += window_timers(state, agent_plan, plan, agent, event)
        for effect in packed:
            effects.append((effect, cause))
            size_bytes += size_of(effect) + overhead
    return InputOutcome(events, effects, size_bytes)


def pack_effects(
    state: ShardState,
    homes: Homes,
    agent: Any,
    effects: Iterable[Effect],
    cause: tuple[Any, bytes],
    now_ns: int,
    room_bytes: int,
) -> list[PackedEffect]:
    """The effects with their sinks. Raises TooLarge as soon as they are more than there is room for."""
    packed: list[PackedEffect] = []
    overhead = 0
    for effect in effects:
        one = pack_effect(state, homes, effect, cause, now_ns)
        packed.append(one)
        overhead = overhead or len(agent.address) + OVERHEAD_BYTES
        room_bytes -= size_of(one) + overhead
        if room_bytes < 0:
            break
    if room_bytes < 0:
        raise TooLarge(
            f"more than {state.limits.bytes_per_decision_max} bytes of events and effects from one input; "
            "put large payloads into a store and keep a Blob"
        )
    return packed


def compared(homes: Homes, owed: Owed) -> PackedEffect:
    """Sink and bytes of an effect as a replay compares them: which node ran the receiver of a tell was configured, and
    is no part of the decision."""
    if not owed.sink.startswith(REMOTE_SINKS):
        return owed.sink, owed.body
    told = read_told(owed.body)
    return "" if is_foreign(told.to) else shard_sink(homes.of(told.to)), encode((told.to, told.message))


def is_tell_back(owed: Owed) -> bool:
    """Whether the framework added this effect, as versions did that carried no tell to another node."""
    if not owed.sink.startswith("shard/"):
        return False
    to, body = msgspec.msgpack.decode(owed.body, type=tuple[str, bytes])
    return to == owed.agent and tag_of(body) == _TOLD_BACK


def enter(
    state: ShardState, draft: Draft, address: str, agent: Any, image: Any, outcome: InputOutcome, now_ns: int
) -> None:
    """Lets an outcome become part of the draft and of the state. `image` is the agent before; None: it is new."""
    if outcome.events:
        state.agents[address] = agent
        draft.touched.setdefault(address, image)
        if image is None:
            _introduce(state.plan_of[type(agent)], draft, address)
    base = len(draft.events)
    for plan, event, body in outcome.events:
        if plan.promise is Keeping.LATEST and len(outcome.events) == 1 and not outcome.effects:
            image = _supersede(state, draft, address, agent, image, plan, event, now_ns)
            draft.events.append((address, body))
            draft.remember_newest(address, plan.tag, image)
        else:
            draft.events.append((address, body))
            if draft.newest_events:
                draft.forget_newest(address)
        draft.hurry(plan.wait_ns)
        if plan.watched:
            draft.fresh.append((address, type(event)))
        if plan.shares:
            draft.shared.append((address, event))
    draft.size_bytes += outcome.size_bytes
    for packed, cause in outcome.effects:
        owe(state, draft, address, packed, cause if cause == NO_CAUSE else base + cause, now_ns)


def keep_silent(draft: Draft, address: str, agent_plan: AgentPlan, agent: Any, fact: Event, body: bytes) -> Any:
    """Keeps a fact that changes nothing by itself. Returns the image of the agent if one was made."""
    plan, image = agent_plan.plans[fact.__class__], None
    if address not in draft.touched:
        image = draft.touched[address] = agent_plan.copy(agent)
    draft.events.append((address, body))
    if draft.newest_events:
        draft.forget_newest(address)
    if plan.watched:
        draft.fresh.append((address, fact.__class__))
    draft.hurry(plan.wait_ns)
    draft.size_bytes += len(body) + len(address) + OVERHEAD_BYTES
    return image


def _introduce(agent_plan: AgentPlan, draft: Draft, address: str) -> None:
    """Announces a new agent, for staleness checks and for its shared fields."""
    if agent_plan.stale_rules:
        draft.fresh.append((address, None))
    if agent_plan.shared:
        draft.shared.append((address, None))


def owe(state: ShardState, draft: Draft, address: str, packed: PackedEffect, cause: int, now_ns: int) -> None:
    """Takes on one effect: a timer enters the table, anything else the outbox."""
    sink, body = packed
    index = len(draft.owed)
    if sink == TIMERS:
        draft.owed.append(Owed(address, sink, 0, cause, body))
        timer = state.timers.put(address, read_timer(body))
        if timer is not None:
            draft.timers.append((timer, now_ns))
    else:
        owed = Owed(address, sink, state.outbox.next_sequence(sink), cause, body)
        draft.owed.append(owed)
        draft.pending.append(state.outbox.owe(state.incarnation, draft.position, index, owed))
    draft.wait_ns = 0


def window_timers(state: ShardState, agent_plan: AgentPlan, plan: Plan, agent: Any, event: Any) -> list[PackedEffect]:
    """A tumbling window by our own time is closed by a timer, also when no further event comes."""
    timers: list[PackedEffect] = []
    for name in agent_plan.tumbling:
        window = getattr(agent, name)
        changed = name in plan.windows or (isinstance(event, WindowClosed) and event.window == name)
        if not changed or window.by or window.end_ns is None:
            continue
        due_ns = window.end_ns + window.late_ns
        known = state.timers.get(agent.address, WINDOW_PREFIX + name)
        if known is None or known.due_ns != due_ns:
            timers.append((TIMERS, encode(TimerSet(WINDOW_PREFIX + name, due_ns))))
    return timers


def _supersede(
    state: ShardState, draft: Draft, address: str, agent: Any, image: Any, plan: Plan, event: Any, now_ns: int
) -> Any:
    """Drops the `latest` event before this one if, without it, the agent would be just the same.

    That is tried out, not assumed: whatever `evolve` does, a replay of what is kept ends in this very state.
    Returns the image that belongs to the newest event.
    """
    newest = draft.newest(address)
    if newest is None or newest[1] != plan.tag:
        return image
    index, _, first_image = newest
    agent_plan = state.plan_of[type(agent)]
    other = state.new_agent(address, agent_plan) if first_image is None else agent_plan.copy(first_image)
    try:
        evolve_event(plan, other, event, now_ns)
        same = _are_same(agent_plan, other, agent)
    except Exception:
        return image
    if not same:
        return image
    draft.supersede(index)
    return first_image


def _are_same(agent_plan: AgentPlan, one: Any, other: Any) -> bool:
    """Whether two states are the same. What is shared may be large, and is the very same object if nobody wrote it."""
    if all(getattr(one, name) is getattr(other, name) for name in agent_plan.shared):
        one, other = without_shared(agent_plan.shared, one), without_shared(agent_plan.shared, other)
    return canonical_bytes(one) == canonical_bytes(other)


class ShardCounters(Struct):
    """What became of inputs since the start; for metrics, not part of the state."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    duplicates: int = 0
    gaps: int = 0
    stale_epochs: int = 0
    stale_mappings: int = 0
    malformed: int = 0
    overloads: int = 0
    skipped: int = 0

    def count_untaken(self, error: StigmergyError) -> None:
        """Counts a delivery that was not taken."""
        match error:
            case SequenceGap():
                self.gaps += 1
            case StaleEpoch():
                self.stale_epochs += 1
            case StaleMapping():
                self.stale_mappings += 1
            case Malformed():
                self.malformed += 1
            case _:
                self.overloads += 1
