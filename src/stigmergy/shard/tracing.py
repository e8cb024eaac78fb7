"""Trace contexts in the log, and which spans they make. Pure; ids are derived, so nothing random enters a decision.

A trace context comes with an input. What the input causes inherits it: each effect is a span of its own, whose id is
known from the log alone, and whoever takes the effect (an actuator, another agent, another node) continues from there.
A commit holds a note for each traced input that it consumed and for each traced effect that it settled. One commit is
enough to make the spans of its notes (`traces.spans`), so a trace can be rebuilt as long as the log is kept.

On the wire a context is the W3C `traceparent` and `tracestate`. Only sampled contexts are kept and passed on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from blake3 import blake3
from msgspec import Struct, structs

DEPTH_MAX = 64
"""So many inputs may follow from each other in one trace: a timer that sets itself again must not trace for ever."""
STATE_CHARS_MAX = 512
"""Of `tracestate`, as W3C asks for at least; a longer one is left out."""
NAME_CHARS_MAX = 200
MEMBER = "stigmergy"
"""Our entry in `tracestate`: how deep the context is."""
_SPANS = blake3(derive_key_context="stigmergy 2026 span id")
_TRACE_CONTEXT = "stigmergy 2026 trace id"
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(Struct, array_like=True, frozen=True):
    """To which trace an input belongs, and which span it follows from."""

    trace_id: bytes
    span_id: bytes = b""
    """Empty: the input begins the trace."""
    state: str = ""
    """What other vendors said in `tracestate`."""
    depth: int = 0
    came_ns: int = 0
    """When the input came to this node, by its wall clock; not on the wire."""


UNSAMPLED = TraceContext(b"")
"""Stands, by its empty id, for a trace that its sender does not record: nor is it here."""


Traces = tuple[tuple[int, TraceContext], ...]
"""The contexts of some items, by their places, in order."""
WireTraces = list[tuple[int, str, str]]
"""The same on the wire: `traceparent` and `tracestate`."""


class TracedInput(Struct, array_like=True, frozen=True, tag=1):
    """An input of a commit that belongs to a trace."""

    trace_id: bytes
    parent: bytes
    state: str
    depth: int
    agent: str
    message: str
    """The tag of what came."""
    source: str
    came_ns: int
    decided_ns: int
    events: tuple[int, int]
    """The first of the commit's events that it caused, and how many; those of compiled agents do not count."""
    owed: tuple[int, int]
    """The first of the commit's effects that it caused, and how many."""
    answer: int = -1
    """Which of the commit's answers it got; -1: none."""

    @property
    def chars(self) -> int:
        """How long its texts are."""
        return len(self.agent) + len(self.state) + len(self.message) + len(self.source)

    def placed(self, place: Sequence[int]) -> TracedInput:
        """The same where some events were superseded: `place` says where each one is now."""
        first, count = self.events
        return structs.replace(self, events=(place[first], place[first + count] - place[first]))


class TracedEffect(Struct, array_like=True, frozen=True, tag=2):
    """An effect of a trace that a commit settles: carried out, taken by its receiver, or given up."""

    trace_id: bytes
    span_id: bytes
    parent: bytes
    state: str
    agent: str
    sink: str
    name: str
    """The tag of the action or message, or the name of the timer."""
    to: str
    """The receiver of a tell or the topic of a publication; else empty."""
    owed_ns: int
    settled_ns: int
    began_ns: int = 0
    ended_ns: int = 0
    """When its actuator or worker was first called and when it was done; 0: nobody was, or it is not known."""
    failed: str = ""

    @property
    def chars(self) -> int:
        """How long its texts are."""
        return len(self.agent) + len(self.state) + len(self.name) + len(self.to) + len(self.failed)


class TracedCommit(Struct, array_like=True, frozen=True, tag=3):
    """When the commit of a traced input became durable: a later commit says it."""

    trace_id: bytes
    span_id: bytes
    parent: bytes
    """The span of the input."""
    state: str
    agent: str
    position: int
    decided_ns: int
    durable_ns: int

    @property
    def chars(self) -> int:
        """How long its texts are."""
        return len(self.agent) + len(self.state)


Traced = TracedInput | TracedEffect | TracedCommit


class OwedTrace(Struct, array_like=True, frozen=True):
    """The trace of an effect that is owed."""

    trace_id: bytes
    span_id: bytes
    """The span of the effect itself."""
    parent: bytes
    state: str
    depth: int
    owed_ns: int
    due_ns: int = 0
    """Of a timer."""

    def context(self, came_ns: int = 0) -> TraceContext:
        """What whoever takes the effect continues from."""
        return TraceContext(self.trace_id, self.span_id, self.state, self.depth, came_ns)


def input_span(trace_id: bytes, previous: bytes, number: int) -> bytes:
    """The id of an input's span: the number-th note of the commit that cites `previous`."""
    return _span(trace_id, previous, b"input", number)


def effect_span(trace_id: bytes, previous: bytes, index: int) -> bytes:
    """The id of the span of the index-th effect that the commit that cites `previous` owes."""
    return _span(trace_id, previous, b"effect", index)


def derived_span(trace_id: bytes, span_id: bytes, what: bytes) -> bytes:
    """The id of a span that is part of another one."""
    return _span(trace_id, span_id, what, 0)


def _span(trace_id: bytes, previous: bytes, what: bytes, number: int) -> bytes:
    hasher = _SPANS.copy()  # the context is hashed once
    hasher.update(trace_id + previous + what + number.to_bytes(8, "big"))
    return hasher.digest(length=8)


def durable_notes(
    previous: bytes, position: int, traces: Sequence[Traced], durable_ns: int
) -> tuple[TracedCommit, ...]:
    """What is noted of a commit with these notes, which cites `previous`, once it is durable."""
    found: list[TracedCommit] = []
    for number, note in enumerate(traces):
        if isinstance(note, TracedInput):
            parent = input_span(note.trace_id, previous, number)
            span_id = derived_span(note.trace_id, parent, b"commit")
            rest = (note.state, note.agent, position, note.decided_ns, max(note.decided_ns, durable_ns))
            found.append(TracedCommit(note.trace_id, span_id, parent, *rest))
    return tuple(found)


def new_trace(*names: object) -> TraceContext:
    """A trace that begins with what these names stand for; the same names give the same trace."""
    text = "\0".join(map(str, names)).encode(errors="replace")
    return TraceContext(blake3(text, derive_key_context=_TRACE_CONTEXT).digest(length=16))


# On the wire.


def write_parent(context: TraceContext) -> str:
    """The `traceparent` of a context."""
    return f"00-{context.trace_id.hex()}-{context.span_id.hex()}-01"


def write_state(context: TraceContext) -> str:
    """The `tracestate` of a context."""
    ours = f"{MEMBER}={context.depth}"
    both = f"{ours},{context.state}"
    return both if context.state and len(both) <= STATE_CHARS_MAX else ours


def read_context(parent: str, state: str = "", came_ns: int = 0) -> TraceContext | None:
    """The context that somebody sent, UNSAMPLED if its sender does not record the trace, None if there is none.

    W3C asks receivers to go on without a context that they cannot read, so nothing is raised.
    """
    found = _PARENT.fullmatch(parent)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5] is not None):
        return None
    trace_id, span_id = bytes.fromhex(found[2]), bytes.fromhex(found[3])
    if not any(trace_id) or not any(span_id):
        return None
    if not int(found[4], 16) & _SAMPLED:
        return UNSAMPLED
    depth, others = 0, []
    if len(state) <= STATE_CHARS_MAX and state.isascii() and state.isprintable():
        for member in filter(None, (one.strip() for one in state.split(","))):
            name, _, value = member.partition("=")
            if name == MEMBER:
                depth = int(value) if value.isdecimal() and len(value) < 4 else 0
            else:
                others.append(member)
    return TraceContext(trace_id, span_id, ",".join(others), depth, came_ns)


def write_traces(traces: Traces) -> WireTraces:
    """The contexts of some items, for another node."""
    return [(place, write_parent(context), write_state(context)) for place, context in traces]


def read_traces(traces: WireTraces, count: int, came_ns: int) -> Traces:
    """The contexts of so many items that another node has sent; what cannot be read is left out."""
    found = {place: read_context(parent, state, came_ns) for place, parent, state in traces if 0 <= place < count}
    return tuple((place, context) for place, context in sorted(found.items()) if context and context.trace_id)
