"""Sends column batches at their scheduled times through a ring, as a process of its own. It waits for no answer.

`python -m bench.columns.sender RING` reads one request a line: one to make a window ready, one to send it.
What it sends can be computed from the request, so the receiver knows when each event was due and which of them cause
an action. Events are due one after the other; a batch is sent when the last of its events is due.
"""

from __future__ import annotations

import ctypes
import sys
import time

import numpy as np
from msgspec import Struct

from bench.columns.rig import ColumnFeed
from bench.records import Records, records
from bench.sender import percentile
from bench.subjects import serve
from stigmergy.agents.messages import SECOND_NS
from stigmergy.node.column_roster import ShardRoster
from stigmergy.ring import BlockingProducer, open_blocking_producer

MODULE = "bench.columns.sender"
STOCK_RECORDS = 200_000
SEED = 7
SOURCE = "ground"
_PR_SET_TIMERSLACK = 29


class Plan(Struct, frozen=True):
    """A window: so many batches at this rate, made ready; or sent, if it says when to begin."""

    batches: int
    batch_records: int
    events_per_s: int
    acting: float
    """The share of events that cause an action."""
    sequence: int
    """Of the first record."""
    roster: ShardRoster
    start_ns: int = 0
    """0 to make it ready; the monotonic clock is the same for all processes."""

    @property
    def events(self) -> int:
        """In all."""
        return self.batches * self.batch_records

    def stock(self) -> Records:
        """The records, of which whole batches are used in turn."""
        whole = max(1, STOCK_RECORDS // self.batch_records) * self.batch_records
        return records(SEED, min(self.events, whole), acting=self.acting)

    def feed(self) -> ColumnFeed:
        """The batches."""
        return ColumnFeed(SOURCE, self.stock(), self.roster, self.batch_records, self.sequence)


class Sent(Struct, frozen=True):
    """A window is ready, or was sent."""

    late_p99_ns: int
    """How late the sender itself was."""


def send(ring: BlockingProducer, batches: list[bytes], plan: Plan) -> Sent:
    """Sends each batch when it is due."""
    late_ns: list[int] = []
    for number, data in enumerate(batches, start=1):
        due_ns = plan.start_ns + number * plan.batch_records * SECOND_NS // plan.events_per_s
        wait_ns = due_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / SECOND_NS)
        ring.put(data)
        late_ns.append(time.monotonic_ns() - due_ns)
    return Sent(percentile(late_ns, 0.99))


def due_times(
    plan: Plan, acts: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """When each event was due that causes an action, in their order; `acts` says it of the stock."""
    rounds, rest = divmod(plan.events, len(acts))
    whole = np.flatnonzero(np.concatenate([np.tile(acts, rounds), acts[:rest]]))
    return plan.start_ns + (whole + 1) * SECOND_NS // plan.events_per_s


def main(arguments: list[str]) -> None:
    """Sends what it is asked to."""
    # Without it the kernel lets every sleep take 50 us longer, which is a quarter of the shortest interval.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    (path,) = arguments
    ready: list[bytes] = []
    with open_blocking_producer(path) as ring:

        def handle(plan: Plan) -> Sent:
            if plan.start_ns:
                return send(ring, ready, plan)
            ready[:] = plan.feed().batches(plan.batches)
            return Sent(0)

        serve(Plan, handle)


if __name__ == "__main__":
    main(sys.argv[1:])
