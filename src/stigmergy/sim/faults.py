"""What can go wrong in a simulated fleet: each fault a small named value, drawn from its stated range.

    plan = draw_plan(ALL, chance, nodes, for_ms=30_000)      # what this seed lets go wrong, and when
    plan = [planned for planned in plan if planned.number in (2, 7)]

A plan is numbers only, so it is the same on every machine, can be printed, and can be shrunk. `sim/fleet.py` carries it
out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec import Struct

from stigmergy.base.errors import ConfigError

SPELLS_MAX = 3
"""So often, at most, one fault is drawn for one run, per five nodes."""
NODES_PER_SPELL = 5
HOUR_MS = 3_600_000
JUMPS_MS = (-HOUR_MS, -60_000, -1_000, 1_000, 60_000, HOUR_MS)
SKEW_MS_MAX = 15_000
"""Where state is shared, a clock is set forward by so much at most: what is further ahead is held back by the others
until their own clocks are there, which is as it should be, and is no convergence within a test."""


class Planned(Struct, frozen=True):
    """One thing that goes wrong in one run."""

    number: int
    """From 1 upward, in the order of time: what a reproducing command names it by."""
    fault: str
    at_ms: int
    for_ms: int
    """How long it lasts; 0 for what happens in a moment."""
    node: str
    """The affected node; for a partition, one side of it, joined by commas."""
    amount: int
    """In the fault's own unit."""

    def __str__(self) -> str:
        lasting = f" for {self.for_ms} ms" if self.for_ms else ""
        amount = f" {self.amount}" if self.amount else ""
        return f"{self.fault}{amount} on {self.node}{lasting}"


Draw = Callable[[random.Random], int]


class Fault(Struct, frozen=True):
    """A kind of fault, and the range that it is drawn from."""

    name: str
    about: str
    draw: Draw
    """The amount, in the fault's own unit."""
    lasts: bool = False
    """Whether it is a spell with an end, and not a moment."""
    sides: bool = False
    """Whether it befalls several nodes at once, cut off from the rest."""
    needs: str = ""
    """What a fleet must have for it: `disk`, `versions`, `models`, `liar`. Without, it is not drawn."""

    def __str__(self) -> str:
        return self.name


def _among(*amounts: int) -> Draw:
    return lambda chance: chance.choice(amounts)


def _between(first: int, last: int) -> Draw:
    return lambda chance: chance.randint(first, last)


def _nothing(chance: random.Random) -> int:  # noqa: ARG001 - the signature of all draws
    return 0


LOSS = Fault("loss", "1 to 30 % of a node's messages are lost", _between(10, 300), lasts=True)
DUPLICATION = Fault("duplication", "5 to 50 % of a node's messages come twice", _between(50, 500), lasts=True)
REORDERING = Fault("reordering", "5 to 50 % of a node's messages are overtaken", _between(50, 500), lasts=True)
DELAY = Fault("delay", "messages of a node take 10 ms to 2 s, a few ten times that", _between(10, 2_000), lasts=True)
PARTITION = Fault("partition", "some nodes are cut off from all others, both ways", _nothing, lasts=True, sides=True)
ONE_WAY = Fault("one-way", "some nodes hear the others, and are not heard", _nothing, lasts=True, sides=True)
CRASH = Fault("crash", "a process ends: now, or at one of its next 60 calls to the disk", _between(0, 60))
POWER = Fault("power", "a machine loses power, now or at a call: writes are torn and lost", _between(0, 60))
DISK_FULL = Fault("disk-full", "a disk has room for 0 to 60,000 bytes more", _between(0, 60_000), True, needs="disk")
IO_ERROR = Fault("io-error", "one of the next 60 calls to the disk fails", _between(1, 60), needs="disk")
BIT_FLIP = Fault("bit-flip", "a machine is down, and a bit of its disk is another", _between(0, 1 << 30), needs="disk")
SLOW_DISK = Fault("slow-disk", "a write takes up to 4 s", _between(50, 4_000), lasts=True)
PAUSE = Fault("pause", "a process does not run for a while", _nothing, lasts=True)
CLOCK_JUMP = Fault("clock-jump", "a wall clock is set by up to an hour, or to 1970", _among(*JUMPS_MS, 0))
CLOCK_DRIFT = Fault("clock-drift", "clocks run fast or slow by up to 200 ppm", _between(-200, 200), lasts=True)
DEVICES = Fault("devices", "5 to 40 % of the orders fail at the device, others take 0.5 s", _between(50, 400), True)
MODEL_FAULTS = Fault(
    "models", "5 to 60 % of models' answers are late, fail or are NaN", _between(50, 600), True, needs="models"
)
POLICY_FAULTS = Fault(
    "policy", "5 to 60 % of a policy's rulings are late, or its engine fails", _between(50, 600), True, needs="policy"
)
VERSIONS = Fault("versions", "a node is restarted with another version", _between(0, 1 << 30), needs="versions")
LIAR = Fault("liar", "a replica lies: it signs two changes under one number", _nothing, True, needs="liar")

ALL: tuple[Fault, ...] = (
    LOSS,
    DUPLICATION,
    REORDERING,
    DELAY,
    PARTITION,
    ONE_WAY,
    CRASH,
    POWER,
    DISK_FULL,
    IO_ERROR,
    BIT_FLIP,
    SLOW_DISK,
    PAUSE,
    CLOCK_JUMP,
    CLOCK_DRIFT,
    DEVICES,
    VERSIONS,
    MODEL_FAULTS,
    POLICY_FAULTS,
)
"""Everything that a fleet must survive with all its promises. A liar is asked for by itself: what it has told
two honest nodes stays different, so expectations of one's own about such an object do not hold then."""
EVERY = (*ALL, LIAR)
NONE: tuple[Fault, ...] = ()
BY_NAME = {fault.name: fault for fault in EVERY}
NETWORK = (LOSS, DUPLICATION, REORDERING, DELAY, PARTITION, ONE_WAY)
"""Those of the network alone."""


def read_faults(text: str) -> tuple[Fault, ...]:
    """`all`, `none`, `network`, or names with commas between them, each once and in the order of ALL."""
    groups = {"all": ALL, "none": NONE, "network": NETWORK}
    wanted: dict[str, None] = {}
    for word in (word.strip() for word in text.split(",")):
        if word in groups:
            wanted.update(dict.fromkeys(fault.name for fault in groups[word]))
        elif word in BY_NAME:
            wanted[word] = None
        else:
            known = ", ".join([*groups, *BY_NAME])
            raise ConfigError(f"{word!r} is no fault; there are {known}; write some with commas between them")
    return tuple(fault for fault in EVERY if fault.name in wanted)


def draw_plan(
    faults: Sequence[Fault], chance: random.Random, nodes: Sequence[str], for_ms: int, *, has: Sequence[str] = ()
) -> list[Planned]:
    """What goes wrong in this run. `has` names what the fleet has that some faults need. Ends before `for_ms`."""
    drawn: list[tuple[int, int, str, str, int]] = []
    for fault in faults:
        if fault.needs and fault.needs not in has:
            continue
        most = SPELLS_MAX * (1 + len(nodes) // NODES_PER_SPELL)
        for _ in range(chance.randint(0, most)):
            at_ms = chance.randrange(max(1, for_ms * 9 // 10))
            lasts_ms = chance.randint(max(1, for_ms // 50), max(2, for_ms * 2 // 5)) if fault.lasts else 0
            lasts_ms = min(lasts_ms, for_ms - at_ms)
            amount = fault.draw(chance)
            if fault is CLOCK_JUMP and "replicas" in has:
                amount = min(amount, SKEW_MS_MAX)
            side = chance.sample(nodes, chance.randint(1, max(1, len(nodes) // 2)) if fault.sides else 1)
            drawn.append((at_ms, lasts_ms, fault.name, ",".join(sorted(side)), amount))
    drawn.sort()
    return [
        Planned(number, fault, at_ms, lasts_ms, node, amount)
        for number, (at_ms, lasts_ms, fault, node, amount) in enumerate(drawn, start=1)
    ]
