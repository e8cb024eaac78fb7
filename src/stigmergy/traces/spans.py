"""Makes the spans of a commit's notes. Pure: the same commit gives the same spans, live and months later.

    Drone StartMission            an input: from when it came to the node until its commit was closed
      commit                      from the decision until it was durable
      tell GiveWay                an effect: from the decision until it is settled
        Drone GiveWay             the input at the receiver, on this node or on another
          action Land
            actuator Land         the device: from the first call until it was done
            Drone Done.Land       its confirmation, an input again

When a commit became durable is noted in a later one.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterator

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, tag_of
from stigmergy.agents.effects import ACTUATORS, PUBLISH, REMOTE_SINKS, TIMERS, WORK
from stigmergy.agents.messages import is_raw, spec_of
from stigmergy.agents.ordered import LEDGER
from stigmergy.agents.supervision import InputFailed
from stigmergy.shard.commit import Commit
from stigmergy.shard.forwarding import FORWARD
from stigmergy.shard.tracing import TracedCommit, TracedEffect, TracedInput, derived_span, input_span

EVENTS_COUNT_MAX = 32
"""Events that a span names; of more it says how many."""
_FAILED = spec_of(InputFailed).tag
_failed = msgspec.msgpack.Decoder(InputFailed)


class SpanKind(enum.IntEnum):
    """As OpenTelemetry numbers them."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


_EFFECTS = {
    ACTUATORS: ("action", SpanKind.CLIENT, "actuator"),
    WORK: ("work", SpanKind.CLIENT, "worker"),
    PUBLISH: ("publish", SpanKind.PRODUCER, ""),
    FORWARD: ("send on", SpanKind.CLIENT, ""),
    TIMERS: ("timer", SpanKind.INTERNAL, ""),
    LEDGER: ("claim", SpanKind.CLIENT, ""),
}
_TELL = ("tell", SpanKind.PRODUCER, "")
_INSIDE = (ACTUATORS, WORK, TIMERS, LEDGER, "shard/")
Attribute = str | int | tuple[str, ...]


class Span(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One span. Ids are hexadecimal; `parent` is empty for the first of a trace."""

    trace_id: str
    span_id: str
    parent: str
    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: dict[str, Attribute]
    error: str = ""
    state: str = ""
    decided_ns: int = 0
    """Of an input: when its agent decided."""
    fleet: str = ""
    node: str = ""
    """Whose log it is from, where that is known."""


def spans_of(commit: Commit, wanted: Container[bytes] | None = None) -> Iterator[Span]:
    """The spans of all notes of a commit, or of those of some traces."""
    for number, note in enumerate(commit.traces):
        if wanted is not None and note.trace_id not in wanted:
            continue
        if isinstance(note, TracedInput):
            yield _input(commit, number, note)
        elif isinstance(note, TracedEffect):
            yield from _effect(commit, note)
        else:
            yield _commit(commit, note)


def _input(commit: Commit, number: int, note: TracedInput) -> Span:
    span_id = input_span(note.trace_id, commit.previous, number)
    answer = commit.answers[note.answer] if 0 <= note.answer < len(commit.answers) else None
    first, count = note.events
    kept = commit.events[first : first + count]
    names = [_name(tag_of(body)) for _, body in kept]
    attributes: dict[str, Attribute] = {
        "stigmergy.agent": note.agent,
        "stigmergy.shard": commit.shard,
        "stigmergy.position": commit.position,
        "stigmergy.source": note.source,
        "stigmergy.events": tuple(names[:EVENTS_COUNT_MAX]),
    }
    if count > EVENTS_COUNT_MAX:
        attributes["stigmergy.events_count"] = count
    error = next((_reason(body) for _, body in kept if tag_of(body) == _FAILED), "")
    if answer is not None:
        attributes["stigmergy.command_id"] = answer.command_id
        error = answer.refused or error
    end_ns = max(commit.runs[-1].time_ns, note.decided_ns)
    is_inside = note.source in _INSIDE or note.source.startswith("shard/")
    kind = SpanKind.SERVER if answer else SpanKind.INTERNAL if is_inside else SpanKind.CONSUMER
    return Span(
        trace_id=note.trace_id.hex(),
        span_id=span_id.hex(),
        parent=note.parent.hex(),
        name=f"{note.agent.partition('/')[0]} {_name(note.message)}",
        kind=kind,
        start_ns=note.came_ns,
        end_ns=end_ns,
        attributes=attributes,
        error=error,
        state=note.state,
        decided_ns=note.decided_ns,
    )


def _commit(commit: Commit, note: TracedCommit) -> Span:
    return Span(
        trace_id=note.trace_id.hex(),
        span_id=note.span_id.hex(),
        parent=note.parent.hex(),
        name="commit",
        kind=SpanKind.INTERNAL,
        start_ns=note.decided_ns,
        end_ns=note.durable_ns,
        attributes={"stigmergy.shard": commit.shard, "stigmergy.position": note.position},
        state=note.state,
    )


def view_spans(commit: Commit, view: str, tags: Container[str], written_ns: int) -> Iterator[Span]:
    """The spans of what a view has made of a commit: from its end until its rows were written, by that moment."""
    for number, note in enumerate(commit.traces):
        if not isinstance(note, TracedInput):
            continue
        first, count = note.events
        kept = [tag for _, body in commit.events[first : first + count] if (tag := tag_of(body)) in tags]
        if kept:
            parent = input_span(note.trace_id, commit.previous, number)
            start_ns = commit.runs[-1].time_ns
            yield Span(
                trace_id=note.trace_id.hex(),
                span_id=derived_span(note.trace_id, parent, b"view " + view.encode()).hex(),
                parent=parent.hex(),
                name=f"view {view}",
                kind=SpanKind.CONSUMER,
                start_ns=start_ns,
                end_ns=max(start_ns, written_ns),
                attributes={"stigmergy.agent": note.agent, "stigmergy.events": tuple(map(_name, kept))},
                state=note.state,
            )


def _effect(commit: Commit, note: TracedEffect) -> Iterator[Span]:
    is_tell = note.sink.startswith(("shard/", REMOTE_SINKS))
    what, kind, device = _TELL if is_tell else _EFFECTS.get(note.sink, (note.sink, SpanKind.CLIENT, ""))
    name = note.name if note.sink == TIMERS else _name(note.name)
    attributes: dict[str, Attribute] = {"stigmergy.agent": note.agent, "stigmergy.shard": commit.shard}
    if note.to:
        attributes["stigmergy.to"] = note.to
    yield Span(
        trace_id=note.trace_id.hex(),
        span_id=note.span_id.hex(),
        parent=note.parent.hex(),
        name=f"{what} {name}",
        kind=kind,
        start_ns=note.owed_ns,
        end_ns=max(note.owed_ns, note.settled_ns),
        attributes=attributes,
        error=note.failed,
        state=note.state,
    )
    if note.began_ns and device:
        yield Span(
            trace_id=note.trace_id.hex(),
            span_id=derived_span(note.trace_id, note.span_id, b"device").hex(),
            parent=note.span_id.hex(),
            name=f"{device} {name}",
            kind=SpanKind.INTERNAL,
            start_ns=note.began_ns,
            end_ns=max(note.began_ns, note.ended_ns),
            attributes={"stigmergy.agent": note.agent},
            error=note.failed,
            state=note.state,
        )


def _name(tag: str) -> str:
    return tag.partition("@")[0].removeprefix("stigmergy.") or "message"


def _reason(body: bytes) -> str:
    try:
        failed = _failed.decode(body)
        # What a handler says of an input may quote it, and spans leave the device.
        return failed.error.partition(":")[0] if is_raw(tag_of(failed.input)) else failed.error
    except UNDECODABLE:
        return "failed"
