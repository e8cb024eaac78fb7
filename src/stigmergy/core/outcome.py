"""What one input has caused: collected on the side, then entered into the draft in one go, which cannot fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from stigmergy.core.codec import UNDECODABLE, canonical_bytes, encode, tag_of
from stigmergy.core.commit import Owed
from stigmergy.core.draft import OVERHEAD_BYTES, Draft
from stigmergy.core.effects import PUBLISH, TIMERS, Publish, Tell, TellFailed, WindowClosed, shard_sink, sink_of
from stigmergy.core.errors import TooLarge
from stigmergy.core.homes import Homes
from stigmergy.core.messages import Bindable, Claimed, Command, Effect, Event, Keeping, spec_of
from stigmergy.core.plans import AgentPlan, Plan, without_shared
from stigmergy.core.state import ShardState, evolve_event
from stigmergy.core.timers import WINDOW_PREFIX, TimerSet, read_timer, timer_body

NO_CAUSE = -1
"""The cause of an effect whose event was transient, and so is not in the log."""

_TOLD_BACK = spec_of(TellFailed).tag
PackedEffect = tuple[str, bytes]
"""Sink and bytes."""


class Outcome(Struct):
    """The events and effects of one input."""

    events: list[tuple[Plan, Any, bytes]]
    effects: list[tuple[PackedEffect, int]]
    """Each with the index of the event behind it among `events`, or NO_CAUSE."""
    size_bytes: int = 0


def pack_effect(state: ShardState, homes: Homes, effect: Effect, cause: tuple[Any, bytes], now_ns: int) -> PackedEffect:
    """Names the sink of an effect and encodes it. Raises for what is no effect, or cannot be written and read back:
    then this input fails, and not, later, whoever is to carry it out.

    `cause` is the event behind it with its bytes: whoever passes that event on passes on the bytes as they came.
    """
    if isinstance(effect, Tell):
        state.plan_at(effect.to)
        message = cause[1] if effect.message is cause[0] else _readable(effect.message, Command | Event, "Tell")
        return shard_sink(homes.of(effect.to)), encode((effect.to, message))
    if isinstance(effect, Publish):
        event = cause[1] if effect.event is cause[0] else _readable(effect.event, Event, "Publish")
        if not isinstance(effect.topic, str):
            raise TypeError(f"Publish(topic={effect.topic!r}): a topic is a text")
        return PUBLISH, encode((effect.topic, event))
    if not isinstance(effect, Effect):
        raise TypeError(f"a @react handler yields effects; {type(effect).__name__} is none")
    sink = sink_of(effect)
    if sink == TIMERS:
        return sink, timer_body(effect, now_ns)
    if isinstance(effect, Bindable) and effect.valid_while is not UNSET:
        _check_bound(effect.valid_while)
    return sink, _readable(effect, Effect, "a @react handler")


def _check_bound(claim: object) -> None:
    if not isinstance(claim, Claimed) or not claim.field:
        raise TypeError(f"valid_while={claim!r}: give an ordered field of the agent, such as self.dock")


def _readable(message: Any, wanted: Any, who: str) -> bytes:
    """The bytes of a message of ours, from which it can be read back; raises TypeError where it cannot."""
    cls = message.__class__
    if not isinstance(message, wanted):
        shown = message.__name__ if isinstance(message, type) else cls.__name__
        raise TypeError(f"{who} sends messages, made from their classes; {shown} is none that it can send")
    body = encode(message)
    decode = _decoders.get(cls)
    if decode is None:
        decode = _decoders[cls] = _decoder_of(cls)
    try:
        decode(body)
    except UNDECODABLE as error:
        raise TypeError(
            f"{cls.__name__} cannot be read back from its own bytes: {error}; give each field a value of its type"
        ) from None
    return body


_decoders: dict[type, Callable[[bytes], Any]] = {}
"""Made once for each class of messages that agents send."""


def _decoder_of(cls: type) -> Callable[[bytes], Any]:
    try:
        return msgspec.msgpack.Decoder(cls).decode
    except (NameError, TypeError):
        return msgspec.msgpack.decode  # defined where its annotations cannot be looked up, so nobody can decode it


def collect(
    state: ShardState,
    homes: Homes,
    agent_plan: AgentPlan,
    agent: Any,
    decided: Sequence[tuple[Any, bytes]],
    now_ns: int,
    bytes_max: int,
) -> Outcome:
    """Evolves and reacts to each event in turn. The agent changes; on an exception the caller puts its image back."""
    outcome = Outcome(events=[], effects=[])
    overhead = len(agent.address) + OVERHEAD_BYTES
    for event, body in decided:
        plan = agent_plan.plan_for(type(event))
        evolve_event(plan, agent, event, now_ns)
        cause = NO_CAUSE
        if plan.promise is not Keeping.TRANSIENT:
            cause = len(outcome.events)
            outcome.events.append((plan, event, body))
            outcome.size_bytes += len(body) + overhead
        reactions = () if plan.react is None else plan.react(agent, event) or ()
        room_bytes = bytes_max - outcome.size_bytes
        packed = pack_effects(state, homes, agent, reactions, (event, body), now_ns, room_bytes)
        packed += window_timers(state, agent_plan, plan, agent, event)
        for effect in packed:
            outcome.effects.append((effect, cause))
            outcome.size_bytes += len(effect[1]) + overhead
    return outcome


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
    overhead = len(agent.address) + OVERHEAD_BYTES
    agent_plan = state.plan_of[type(agent)]
    for effect in effects:
        packed.append(pack_effect(state, homes, effect, cause, now_ns))
        room_bytes -= len(packed[-1][1]) + overhead
        if isinstance(effect, Tell) and not state.assignment.runs(effect.to) and agent_plan.handles(TellFailed):
            packed.append(_tell_back(state, agent.address, effect))
            room_bytes -= len(packed[-1][1]) + overhead
        if room_bytes < 0:
            break
    if room_bytes < 0:
        raise TooLarge(
            f"more than {state.limits.bytes_per_decision_max} bytes of events and effects from one input; "
            "put large payloads into a store and keep a Blob"
        )
    return packed


def _tell_back(state: ShardState, teller: str, tell: Tell) -> PackedEffect:
    """What the teller hears of a tell for an agent that does not run here: as a tell of its own, in a later step. The
    tell itself leaves as ever, and is a dead letter where it arrives."""
    reason = state.assignment.refusal(tell.to)
    failed = TellFailed(to=tell.to, message=type(tell.message).__name__, reason=reason)
    return shard_sink(state.shard), encode((teller, encode(failed)))


def is_tell_back(owed: Owed) -> bool:
    """Whether the framework added this effect: no handler asked for it."""
    if not owed.sink.startswith("shard/"):
        return False
    to, body = msgspec.msgpack.decode(owed.body, type=tuple[str, bytes])
    return to == owed.agent and tag_of(body) == _TOLD_BACK


def enter(state: ShardState, draft: Draft, address: str, agent: Any, image: Any, outcome: Outcome, now_ns: int) -> None:
    """Lets an outcome become part of the draft and of the state. `image` is the agent before; None: it is new."""
    if outcome.events:
        state.agents[address] = agent
        draft.touched.setdefault(address, image)
        if image is None:
            _introduce(state.plan_of[type(agent)], draft, address)
    base = len(draft.events)
    alone = len(outcome.events) == 1 and not outcome.effects
    for plan, event, body in outcome.events:
        if plan.promise is Keeping.LATEST and alone:
            image = _supersede(state, draft, address, agent, image, plan, event, now_ns)
            draft.events.append((address, body))
            draft.remember_newest(address, plan.tag, image)
        else:
            draft.events.append((address, body))
            draft.forget_newest(address)
        draft.hurry(plan.wait_ns)
        if plan.watched:
            draft.fresh.append((address, type(event)))
        if plan.shares:
            draft.shared.append((address, event))
    draft.size_bytes += outcome.size_bytes
    for packed, cause in outcome.effects:
        owe(state, draft, address, packed, cause if cause == NO_CAUSE else base + cause, now_ns)


def _introduce(agent_plan: AgentPlan, draft: Draft, address: str) -> None:
    """A new agent: whoever watches for its silence or shares its fields is to know of it."""
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
    draft.hurry(0)


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
