"""Sends the drones' events at their scheduled times, as a process of its own. It never waits for an answer.

`python -m bench.sender FD SEED EVENTS RATE` reads one start time (monotonic nanoseconds) per line, for each
sends a window of single-event envelopes over the socket, and says how late its own sends were. What it sends can be
computed from the arguments, so the receiver knows when each event was due and which of them cause an action.
"""

from __future__ import annotations

import ctypes
import random
import socket
import sys
import time

from bench.workload import Report, reports
from stigmergy.agents.codec import ENVELOPE_FORMAT, Envelope, encode
from stigmergy.agents.messages import SECOND_NS

ACTING = 0.25
_PR_SET_TIMERSLACK = 29


def plan_window(seed: int, count: int) -> list[Report]:
    """The events of one window, in the order in which they are due."""
    return reports(seed, count, acting=ACTING)


class Sources:
    """One source per drone, each with its own consecutive sequences, over all windows."""

    def __init__(self, seed: int) -> None:
        self._incarnation = random.Random(seed).randrange(1, 2**31)
        self._sequences: dict[str, int] = {}

    def envelope(self, report: Report) -> bytes:
        """The next envelope of this drone."""
        sequence = self._sequences.get(report.address, 0) + 1
        self._sequences[report.address] = sequence
        items = [(report.address, report.body)]
        return encode(Envelope(ENVELOPE_FORMAT, report.address, self._incarnation, 0, sequence, items))


def send_window(channel: socket.socket, envelopes: list[bytes], start_ns: int, interval_ns: int) -> list[int]:
    """Sends each envelope when it is due; returns how late each was."""
    late_ns: list[int] = []
    due_ns = start_ns
    for data in envelopes:
        wait_ns = due_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / SECOND_NS)
        channel.send(data)
        late_ns.append(time.monotonic_ns() - due_ns)
        due_ns += interval_ns
    return late_ns


def percentile(values: list[int], share: float) -> int:
    """The value that this share of all is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main(arguments: list[str]) -> None:
    """Sends a window for each line that comes."""
    # Without it the kernel lets every sleep take 50 us longer, which is a quarter of the interval.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    descriptor, seed, count, rate = (int(argument) for argument in arguments)
    channel = socket.socket(fileno=descriptor)
    sources = Sources(seed)
    window = 0
    while True:
        envelopes = [sources.envelope(report) for report in plan_window(seed + window, count)]
        print("ready", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        late_ns = send_window(channel, envelopes, int(line), SECOND_NS // rate)
        print(percentile(late_ns, 0.99), flush=True)
        window += 1


if __name__ == "__main__":
    main(sys.argv[1:])
