"""The outbox: the effects that are owed to each sink and not yet settled. Rebuilt from commits, so it is never lost.

Sequences of a sink are dense, from 1. A sink may settle out of order; everything below its *cursor* is settled. After a
restart the effects still owed are released again, in order, with the same effect ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec
from msgspec import Struct

from stigmergy.agents.columns import ColumnRun
from stigmergy.agents.effects import REMOTE_SINKS, TIMERS
from stigmergy.shard.commit import Owed, Settled
from stigmergy.shard.timers import WINDOW_PREFIX, read_timer
from stigmergy.shard.tracing import DEPTH_MAX, OwedTrace, TracedInput, effect_span, input_span


class Pending(Struct, array_like=True, frozen=True):
    """An owed effect: its place in the log, and the effect itself."""

    incarnation: int
    position: int
    index: int
    agent: str
    sink: str
    sequence: int
    body: bytes


class TellBody(Struct, array_like=True, frozen=True):
    """The body of a tell: its receiver and the message. One for an agent that runs elsewhere says when it was told, and
    how long it may be kept at most; 0: as long as the node's settings say."""

    to: str
    message: bytes
    told_ns: int = 0
    within_ns: int = 0


class PassedTell(Struct, array_like=True, frozen=True):
    """The body of a tell that came from one node and goes to another: this one runs neither of both agents."""

    to: str
    message: bytes
    told_ns: int
    within_ns: int
    hops: int = 0
    came_by: str = ""
    """The link that it came by, which it does not leave by."""
    teller: str = ""


read_passed = msgspec.msgpack.Decoder(PassedTell).decode
read_told = msgspec.msgpack.Decoder(TellBody).decode


class Outbox:
    """What a shard owes the world."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._pending: dict[str, dict[int, Pending]] = {}
        self.count = 0
        self.remote_count = 0
        """How many agents that run elsewhere were ever told something."""

    def next_sequence(self, sink: str) -> int:
        """The sequence of the next effect for this sink."""
        return self._sent.get(sink, 0) + 1

    def owe(self, incarnation: int, position: int, index: int, owed: Owed) -> Pending:
        """Takes on an effect."""
        sink, sequence = owed.sink, owed.sequence
        pending = Pending(incarnation, position, index, owed.agent, sink, sequence, owed.body)
        if sink not in self._sent:
            self.remote_count += sink.startswith(REMOTE_SINKS)
        self._sent[sink] = sequence
        of_sink = self._pending.get(sink)
        if of_sink is None:
            of_sink = self._pending[sink] = {}
        of_sink[sequence] = pending
        self.count += 1
        return pending

    def knows(self, sink: str) -> bool:
        """Whether this sink was ever owed something."""
        return sink in self._sent

    def get(self, sink: str, sequence: int) -> Pending | None:
        """The effect, if it is still owed."""
        of_sink = self._pending.get(sink)
        return None if of_sink is None else of_sink.get(sequence)

    def drop(self, pending: Pending) -> None:
        """Forgets an effect that is still owed."""
        del self._pending[pending.sink][pending.sequence]
        self.count -= 1

    def settle(self, settled: Settled) -> None:
        """Forgets effects that were carried out or given up; those settled before are passed over."""
        pending = self._pending.get(settled.sink, {})
        for sequence in settled.sequences:
            if pending.pop(sequence, None) is not None:
                self.count -= 1

    def cursor(self, sink: str) -> int:
        """Everything of this sink up to here is settled."""
        pending = self._pending.get(sink)
        return next(iter(pending)) - 1 if pending else self._sent.get(sink, 0)

    def sent(self) -> dict[str, int]:
        """How many effects each sink has been owed so far, in a fixed order."""
        return dict(sorted(self._sent.items()))

    def owed(self) -> Iterator[Pending]:
        """Everything still owed, in the order of the log for each sink."""
        for sink in sorted(self._pending):
            yield from self._pending[sink].values()

    def count_after(self, position: int) -> int:
        """How many of them commits behind this position owe."""
        return sum(
            sum(1 for _ in takewhile(lambda pending: pending.position > position, reversed(owed.values())))
            for owed in self._pending.values()
        )

    def lowest_position(self) -> int | None:
        """The oldest commit that still owes something: retention stops before it."""
        return min((next(iter(owed.values())).position for owed in self._pending.values() if owed), default=None)

    def restore(self, sent: dict[str, int], pending: list[Pending]) -> None:
        """Takes over what a snapshot says."""
        self._sent = dict(sent)
        self.remote_count = sum(sink.startswith(REMOTE_SINKS) for sink in sent)
        self._pending = {}
        for effect in pending:
            self._pending.setdefault(effect.sink, {})[effect.sequence] = effect
        self.count = len(pending)


class OwedTraces:
    """The traces of effects that are owed, and of timers that are set. Empty while nothing is traced: callers look
    before they ask."""

    def __init__(self) -> None:
        self._carried: dict[tuple[str, int], OwedTrace] = {}

    def __len__(self) -> int:
        return len(self._carried)

    def carry(self, previous: bytes, number: int, note: TracedInput, owed: Sequence[Owed]) -> None:
        """What an input has caused belongs to its trace: the number-th note of the commit that cites `previous`, and
        owes these effects."""
        first, count = note.owed
        if not count or note.depth >= DEPTH_MAX:
            return
        parent = input_span(note.trace_id, previous, number)
        for index in range(first, min(first + count, len(owed))):
            one, due_ns = owed[index], 0
            key = (one.sink, one.sequence)
            if one.sink == TIMERS:
                timer = read_timer(one.body)
                key, due_ns = _timer_key(one.agent, timer.name), timer.due_ns or 0
                if timer.due_ns is None or timer.name.startswith(WINDOW_PREFIX):
                    self._carried.pop(key, None)
                    continue
            span_id, depth = effect_span(note.trace_id, previous, index), note.depth + 1
            self._carried[key] = OwedTrace(note.trace_id, span_id, parent, note.state, depth, note.decided_ns, due_ns)

    def of(self, pending: Pending) -> OwedTrace | None:
        """The trace of an effect."""
        return self.get(pending.sink, pending.sequence)

    def get(self, sink: str, sequence: int) -> OwedTrace | None:
        """The same by its sink and number."""
        return self._carried.get((sink, sequence))

    def settle(self, sink: str, sequence: int) -> OwedTrace | None:
        """Forgets the trace of an effect that is settled, and returns it."""
        return self._carried.pop((sink, sequence), None)

    def fire(self, agent: str, name: str, due_ns: int) -> OwedTrace | None:
        """Forgets the trace of a timer that went off; None if the timer was set anew without one."""
        carried = self._carried.pop(_timer_key(agent, name), None)
        return None if carried is None or carried.due_ns != due_ns else carried

    def all(self) -> list[tuple[str, int, OwedTrace]]:
        """All of them, in a fixed order."""
        return [(*key, self._carried[key]) for key in sorted(self._carried)]

    def restore(self, carried: list[tuple[str, int, OwedTrace]]) -> None:
        """Takes over what a snapshot says."""
        self._carried = {(sink, sequence): one for sink, sequence, one in carried}


def _timer_key(agent: str, name: str) -> tuple[str, int]:
    return f"{TIMERS}/{agent}/{name}", 0


# Blocks of actions of compiled agents, owed to batch actuators. Rebuilt from commits.
#
# The actions of a kind are numbered from 1 without a gap, in the order of the log, and confirmed in that order: one
# cursor per kind says how far. After a restart everything behind the cursor is released again, with the same ids.

INDEX_BITS = 20
"""The low bits of a token: where in its commit an effect stands."""
BLOCK_INDEX = 1 << 19
"""In the ids of effects, actions in blocks count from here within their commit: so no ordinary effect has theirs."""


class Block(Struct, array_like=True, frozen=True):
    """The actions that one column run owes."""

    incarnation: int
    position: int
    index: int
    """Of the first, among all actions in blocks of its commit."""
    kind: str
    templates: bytes
    first: int
    count: int
    actions: bytes


class Blocks:
    """What a shard owes to batch actuators."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._confirmed: dict[str, int] = {}
        self._blocks: dict[str, deque[Block]] = {}
        self.count = 0
        """How many actions are in blocks that are not confirmed to their end."""

    def next_sequence(self, kind: str) -> int:
        """The sequence of the next action of this kind."""
        return self._sent.get(kind, 0) + 1

    def owe(self, incarnation: int, position: int, index: int, run: ColumnRun) -> Block:
        """Takes on the actions of a run; `index` is how many the same commit owed before them."""
        count = run.actions_count
        block = Block(incarnation, position, index, run.kind, run.templates, run.first, count, run.actions)
        self._sent[run.kind] = run.first + count - 1
        self._blocks.setdefault(run.kind, deque()).append(block)
        self.count += count
        return block

    def confirm(self, kind: str, upto: int) -> None:
        """Everything of this kind up to there is carried out or given up. It never goes back."""
        self._confirmed[kind] = max(upto, self.cursor(kind))
        blocks = self._blocks.get(kind)
        while blocks and blocks[0].first + blocks[0].count - 1 <= self._confirmed[kind]:
            self.count -= blocks.popleft().count

    def cursor(self, kind: str) -> int:
        """Everything of this kind up to here is confirmed."""
        return self._confirmed.get(kind, 0)

    def sent_before(self, kind: str, position: int) -> int:
        """The last sequence of this kind that commits before this position owe."""
        for block in reversed(self._blocks.get(kind, ())):
            if block.position < position:
                return block.first + block.count - 1
        return self.cursor(kind)

    def count_after(self, position: int) -> int:
        """How many of them commits behind this position owe."""
        return sum(
            sum(block.count for block in takewhile(lambda block: block.position > position, reversed(blocks)))
            for blocks in self._blocks.values()
        )

    def owed(self) -> Iterator[Block]:
        """Everything still owed, in the order of the log for each kind."""
        for kind in sorted(self._blocks):
            yield from self._blocks[kind]

    def lowest_position(self) -> int | None:
        """The oldest commit that still owes something: retention stops before it."""
        return min((blocks[0].position for blocks in self._blocks.values() if blocks), default=None)

    def sent(self) -> list[tuple[str, int, int]]:
        """Per kind how many actions were asked for so far, and up to where they are confirmed; in a fixed order."""
        return [(kind, self._sent[kind], self.cursor(kind)) for kind in sorted(self._sent)]

    def restore(self, sent: list[tuple[str, int, int]], blocks: list[Block]) -> None:
        """Takes over what a snapshot says."""
        self._sent = {kind: last for kind, last, _ in sent}
        self._confirmed = {kind: upto for kind, _, upto in sent}
        self._blocks = {}
        for block in blocks:
            self._blocks.setdefault(block.kind, deque()).append(block)
        self.count = sum(block.count for block in blocks)
