"""Notes what inputs of traces have caused, in the draft of a commit. Pure; the loop that takes inputs is not slower."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from operator import length_hint

from stigmergy.agents.codec import REASON_CHARS_MAX, printable, tag_of
from stigmergy.agents.effects import REMOTE_SINKS
from stigmergy.shard.draft import ADDRESS_CHARS_MAX, Draft
from stigmergy.shard.inputs import ELSEWHERE
from stigmergy.shard.state import ShardState
from stigmergy.shard.tracing import NAME_CHARS_MAX, OwedTrace, TraceContext, TracedEffect, TracedInput, Traces

Item = tuple[str, bytes]


def trace_input(
    state: ShardState,
    draft: Draft,
    context: TraceContext,
    address: str,
    tag: str,
    begun: tuple[int, int, int],
    now_ns: int,
) -> None:
    """Notes an input of a trace. What came behind `begun` (so many events, effects, answers) was caused by it."""
    events, owed, answers = begun
    owed_count, came_ns = len(draft.owed) - owed, context.came_ns
    note = TracedInput(
        context.trace_id,
        context.span_id,
        context.state,
        context.depth,
        address,
        tag if len(tag) <= NAME_CHARS_MAX and tag.isascii() else printable(tag, NAME_CHARS_MAX),
        draft.source,
        came_ns if 0 < came_ns < now_ns else now_ns,
        now_ns,
        (events, len(draft.events) - events),
        (owed, owed_count),
        answers if len(draft.answers) > answers else -1,
    )
    draft.trace(note)
    if owed_count:
        state.traces.carry(state.digest, len(draft.traces) - 1, note, draft.owed)


class TracedItems:
    """Messages of which some belong to traces, as one iterator. Between two of those it goes through a list, as if
    there were none; around each of them it notes what it has caused. Call `end` when nothing more is taken."""

    def __init__(self, state: ShardState, draft: Draft, items: list[Item], traces: Traces, now_ns: int) -> None:
        self._state, self._draft, self._now_ns = state, draft, now_ns
        self._items, self._traces = items, traces
        self._given = 0
        """So many of the items are in the pieces that were given."""
        self._plain: Iterator[Item] = iter(())
        self._noted: Generator[Item] | None = None

    def pieces(self) -> Iterator[Iterator[Item]]:
        """What to go through, one after the other. There are no more where notes use up all their space."""
        for place, context in self._traces:
            if place < len(self._items) and self._items[place][1] is not ELSEWHERE:
                yield self._until(place)
                self._given = place + 1
                self._noted = self._note(self._items[place], context)
                yield self._noted
                if self._draft.full_of_traces:
                    return
        yield self._until(len(self._items))

    def end(self) -> int:
        """Notes the last one, if nothing was taken behind it; returns how many were taken in all."""
        if self._noted is not None:
            self._noted.close()
        return self._given - length_hint(self._plain)

    def _until(self, place: int) -> Iterator[Item]:
        self._plain = iter(self._items[self._given : place])
        self._given = place
        return self._plain

    def _note(self, item: Item, context: TraceContext) -> Generator[Item]:
        draft, (address, body) = self._draft, item
        begun = (len(draft.events), len(draft.owed), len(draft.answers))
        draft.trace_id = context.trace_id
        try:
            yield item
        finally:  # the loop asks for the next one, or takes no more
            draft.trace_id = b""
            if address not in self._state.agents:
                address = printable(address.removeprefix(REMOTE_SINKS), ADDRESS_CHARS_MAX)
            trace_input(self._state, draft, context, address, tag_of(body), begun, self._now_ns)


def settled_note(
    carried: OwedTrace,
    agent: str,
    sink: str,
    name: tuple[str, str],
    now_ns: int,
    times_ns: tuple[int, int] = (0, 0),
    failed: str = "",
) -> TracedEffect:
    """What is noted of an effect of a trace that is over."""
    of = (carried.trace_id, carried.span_id, carried.parent, carried.state)
    what, to = (printable(text, NAME_CHARS_MAX) for text in name)
    return TracedEffect(
        *of, agent, sink, what, to, carried.owed_ns, now_ns, *times_ns, printable(failed, REASON_CHARS_MAX)
    )
