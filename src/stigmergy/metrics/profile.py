"""What a profile of a running process says: where its time went, and what it wrote to its disk. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

ON_LOOP = ("decode", "decide", "step", "seal", "release", "other")
"""The phases on the event loop, which make up its time. `step` and `other` are what the rest took of a step, and of the
loop."""
AWAITED = ("write", "sync")
"""What the loop does not wait for: a group on its way to the disk, and the sync in it."""
COMPILED = "(compiled)"
"""Stands for all handlers of a compiled kind: they are one loop of machine code."""
THREADS = {
    "journal ": "journal",
    "ledger ": "ledger",
    "views-": "views",
    "asyncio_": "blobs and archive",
    "stigmergy-": "devices and work",
}
"""What the threads write whose names begin so."""


class PhaseTime(Struct, frozen=True):
    """How long the process was in one phase of its turns, and how often: messages, calls, turns or groups."""

    phase: str
    count: int
    seconds: float


class HandlerTime(Struct, frozen=True):
    """One handler of a kind; its `role` is `decide`, `evolve` or `react`."""

    kind: str
    handler: str
    role: str
    calls: int
    seconds: float


class WrittenBytes(Struct, frozen=True):
    """What was written for one cause: whole pages, as the kernel counts them, or bytes of content."""

    cause: str
    bytes: int
    per_hour: int


class Profile(Struct, frozen=True):
    """What one profile has found."""

    fleet: str
    process: str
    """The worker, or the number of the process."""
    seconds: float
    loop_cpu_s: float
    """Processor time of the event loop, where all agents of the process are stepped."""
    cpu_s: float
    """And of all threads."""
    events: int
    phases: list[PhaseTime]
    handlers: list[HandlerTime]
    flash: list[WrittenBytes]
    """What disks were given, by cause; empty where the system does not say it."""
    contents: list[WrittenBytes]
    """Of commits and snapshots."""
    source: str
    """Where the stacks are from: `py-spy`, or `counters`."""
    why: str
    """Why not from py-spy."""
    stacks: dict[str, int]
    """Frames from the outermost to the innermost, with `;` between them: samples of py-spy, or microseconds."""


def by_cause(by_thread: Mapping[str, int]) -> dict[str, int]:
    """What threads have written, by what they write."""
    found = dict.fromkeys((*THREADS.values(), "other"), 0)
    for name, size_bytes in by_thread.items():
        found[next((cause for start, cause in THREADS.items() if name.startswith(start)), "other")] += size_bytes
    return found


def listed(found: Mapping[str, int], seconds: float) -> list[WrittenBytes]:
    """The most first."""
    causes = sorted(found, key=lambda cause: -found[cause])
    return [WrittenBytes(one, found[one], round(found[one] * 3600 / seconds)) for one in causes if found[one] > 0]


def counted_stacks(phases: Sequence[PhaseTime], handlers: Sequence[HandlerTime]) -> dict[str, int]:
    """What was counted in the form of stacks, for where none could be seen."""
    spent = {one.phase: round(one.seconds * 1e6) for one in phases}
    found = {f"event loop;{phase}": spent[phase] for phase in ("seal", "release", "other")}
    found |= {"event loop;step": spent["step"], "event loop;step;decode": spent["decode"]}
    for one in handlers:
        found[f"event loop;step;decide;{one.kind};{one.role} {one.handler}"] = round(one.seconds * 1e6)
    found |= {"write": max(0, spent["write"] - spent["sync"]), "write;sync": spent["sync"]}
    return {stack: weight for stack, weight in found.items() if weight > 0}
