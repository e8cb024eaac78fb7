"""What a shard owes to an agent of another node: what waits, what is under way, which frame comes next. Pure."""

from __future__ import annotations

from collections import deque

from stigmergy.agents.messages import SECOND_NS
from stigmergy.bus.tells import FRAME_BYTES_MAX, FRAME_ITEMS_MAX, TellFrame, TellItem
from stigmergy.node.tells import traces_of
from stigmergy.shard.outbox import OwedTraces, Pending, read_passed, read_told
from stigmergy.shard.tracing import write_traces

FRAMES_IN_FLIGHT_MAX = 8
"""Frames of one pair under way to a receiver that answers; to one that has not answered yet, one."""
RESEND_S = 2.0
"""The least pause before a frame that nobody acknowledged is sent again."""


class Pair:
    """A shard of ours and an agent elsewhere. The router carries out what this says."""

    def __init__(self, shard: int, sink: str, to: str) -> None:
        self.shard = shard
        self.sink = sink
        self.to = to
        self.epoch = 0
        self.waiting: dict[int, Pending] = {}
        """Everything that is not acknowledged, in the order of the numbers."""
        self.given_up: dict[int, None] = {}
        """Those of them that are being given up: no frame passes over them before that is durable."""
        self.expires_ns: dict[int, int] = {}
        """Until when each of those that wait is kept."""
        self.first_expiry_ns = 0
        """None of them is over before."""
        self._sent: int | None = None
        """The last number sent since the receiver's position was last in doubt."""
        self._in_flight: deque[int] = deque()
        """The last numbers of frames under way."""
        self.asked: tuple[int, int] | None = None
        """The last number of the oldest frame without an acknowledgement, and when it was first sent."""
        self.is_heard = False
        """Whether the receiver has answered since then."""
        self.pause_s = RESEND_S
        self.is_sent_again = False
        """Whether the last pause passed without an answer."""
        self.sent_ns = 0
        """When the newest frame was sent."""
        self.due_ns = 0
        """When to send again what is not acknowledged; 0 while nothing was sent."""
        self.silent_s = 0.0
        """How long the link was up without an answer since the first tell that waits."""
        self.trouble = ""

    def add(self, pending: Pending, expires_ns: int) -> None:
        """Takes on a durable tell, to be kept until this time."""
        self.first_expiry_ns = min(self.first_expiry_ns, expires_ns) if self.waiting else expires_ns
        self.waiting[pending.sequence] = pending
        self.expires_ns[pending.sequence] = expires_ns

    def over(self, wall_ns: int) -> list[Pending]:
        """Those that are not to be kept any longer."""
        if wall_ns <= self.first_expiry_ns:
            return []
        self.first_expiry_ns = min(self.expires_ns.values(), default=wall_ns)
        return [pending for sequence, pending in self.waiting.items() if self.expires_ns[sequence] < wall_ns]

    def rewind(self, resume: int | None = None) -> None:
        """Everything behind this number is to be sent again; None: everything, and one frame until there is an
        answer."""
        self._in_flight.clear()
        self._sent = resume
        self.is_heard = self.is_heard and resume is not None

    def next_frame(self, me: tuple[str, str, str], now_ns: int, carried: OwedTraces) -> TellFrame | None:
        """The next frame to send; None if nothing is to be sent now."""
        window = FRAMES_IN_FLIGHT_MAX if self.is_heard else 1
        if self.trouble or len(self._in_flight) >= window:
            return None
        pendings: list[Pending] = []
        size_bytes = 0
        for sequence, pending in self.waiting.items():
            if self._sent is not None and sequence <= self._sent:
                continue
            size_bytes += len(pending.body)
            alike = not pendings or (pendings[0].incarnation, pendings[-1].sequence + 1) == (
                pending.incarnation,
                sequence,
            )
            full = len(pendings) == FRAME_ITEMS_MAX or (pendings and size_bytes > FRAME_BYTES_MAX)
            if sequence in self.given_up or not alike or full:
                break
            pendings.append(pending)
        if not pendings:
            return None
        first, last = pendings[0], pendings[-1]
        # What lies before the first that waits is settled: delivered, or durably given up.
        after = 0 if first.sequence == next(iter(self.waiting)) else self._sent or 0
        self._sent = last.sequence
        self._in_flight.append(last.sequence)
        self.asked = self.asked or (last.sequence, now_ns)
        items = [
            TellItem(read_told(one.body).message, self.expires_ns[one.sequence], one.agent, _hops(one))
            for one in pendings
        ]
        traces = write_traces(traces_of(carried, pendings))
        return TellFrame(*me, self.shard, first.incarnation, self.epoch, after, first.sequence, items, traces)

    def confirm(self, incarnation: int, durable: int) -> list[int]:
        """The receiver has everything up to here; returns what is settled by that."""
        settled: list[int] = []
        for sequence, pending in self.waiting.items():
            if sequence > durable or pending.incarnation != incarnation:
                break
            if sequence not in self.given_up:
                settled.append(sequence)
        for sequence in settled:
            del self.waiting[sequence]
            del self.expires_ns[sequence]
        while self._in_flight and self._in_flight[0] <= durable:
            self._in_flight.popleft()
        return settled

    def heard(self) -> None:
        """The receiver answers."""
        self.is_heard, self.is_sent_again, self.pause_s, self.silent_s = True, False, RESEND_S, 0.0

    def took_s(self, durable: int, now_ns: int) -> float | None:
        """How long the oldest frame took that is acknowledged up to here; None if it is not. From when it was first
        sent: of two copies nobody knows which one was answered."""
        if self.asked is None or durable < self.asked[0]:
            return None
        took_s, self.asked = (now_ns - self.asked[1]) / SECOND_NS, None
        return took_s

    def forget(self, sequence: int) -> None:
        """It is durable that this one was given up."""
        self.waiting.pop(sequence, None)
        self.expires_ns.pop(sequence, None)
        self.given_up.pop(sequence, None)
        self.asked = None


def _hops(pending: Pending) -> int:
    return read_passed(pending.body).hops
