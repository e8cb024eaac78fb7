"""Both sides of a ring are killed with SIGKILL again and again, and nothing that was put is lost, torn or out of order.

A message's bytes follow from its number, so that the consumer can tell what should be there. The producer notes the
number of each `put` that has returned and how much it was told is durable; the consumer notes what it has kept before
it says so. These notes are in memory that this process shares with both: they survive a kill, as a journal would.

    python -m proofs.ring_kill --kills 1000 [--seed N]

It forks, so it must run in a process without threads; tests start it as a program.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.ring import is_as_put, parts_of
from proofs.report import Proof
from stigmergy.base.errors import Overloaded
from stigmergy.ring import open_blocking_consumer, open_blocking_producer

CAPACITY_BYTES = 64 * 1024
LARGE_BYTES_MAX = CAPACITY_BYTES // 2 - 16
KILLS = 2_000
KILLS_QUICK = 60
LIFE_S_MAX = 0.03
FINISH_S_MAX = 120.0
WORKING_SHARE = 0.5
"""So many kills wait until messages have been kept since the last one; the others come at any moment."""
WORK_COUNT = 50
PUT, ACKNOWLEDGED, KEPT, TAKEN_AGAIN, FULL = range(5)


class Violation(Exception):
    """A promise was broken; the side that saw it ends with this."""


class Figures(Struct):
    """How much was tried."""

    kills: int = 0
    killed_producers: int = 0
    killed_consumers: int = 0
    messages: int = 0
    taken_again: int = 0
    """Messages that a consumer got although one before it had them: it died between taking and marking."""
    waits_for_room: int = 0
    kills_with_messages_waiting: int = 0


def size_of(number: int) -> int:
    """Of sixteen, four have nothing but their number, eleven are small, and one takes up to half a ring."""
    drawn = number * 2_654_435_761 % (1 << 32)
    kind, rest = drawn % 16, drawn >> 4
    if kind < 4:
        return 8
    return 8 + rest % (2000 if kind < 15 else LARGE_BYTES_MAX - 8)


def produce(path: Path, notes: memoryview) -> None:
    """Puts messages until it is killed, going on behind the last one that the ring has."""
    ring = open_blocking_producer(path, capacity_bytes=CAPACITY_BYTES)
    number = ring.written
    if number < notes[PUT]:
        raise Violation(f"message {notes[PUT]} was put, the ring has {number} only")
    while True:
        try:
            put = ring.put(*parts_of(number + 1, size_of(number + 1)), within_s=0.002)
        except Overloaded:
            notes[FULL] += 1
            continue
        number += 1
        if put != number:
            raise Violation(f"message {number} was given the number {put}")
        notes[PUT] = number
        notes[ACKNOWLEDGED] = ring.durable()


def consume(path: Path, notes: memoryview) -> None:
    """Takes and keeps messages until it is killed. Several share one mark, as several share one write to a journal."""
    ring = open_blocking_consumer(path, capacity_bytes=CAPACITY_BYTES)
    number = ring.durable()
    if number > notes[KEPT]:
        raise Violation(f"message {number} counts as durable, kept are {notes[KEPT]} only")
    while True:
        ring.wait_ready()
        for _ in range(1 + number % 40):
            message = ring.take_nowait()
            if message is None:
                break
            number += 1
            if message.number != number:
                raise Violation(f"message {message.number} came where {number} should be")
            if len(message.body) != size_of(number) or not is_as_put(message):
                raise Violation(f"message {number} is not what was put")
            if number <= notes[KEPT]:
                notes[TAKEN_AGAIN] += 1
            else:
                notes[KEPT] = number
        ring.mark_durable(number)


class Siege:
    """Runs and kills the two sides of one ring."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.figures = Figures()
        self.violations: list[str] = []
        self._path = folder / "ring"
        self._said = folder / "said"
        self._said.touch()
        self._chance = random.Random(seed)
        self._notes = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._lives: dict[str, int] = {}

    def run(self, kills: int) -> Proof:
        """Kills so many times, then lets the consumer finish."""
        try:
            while self.figures.kills < kills and not self.violations:
                before = self._notes[KEPT]
                self._begin_missing()
                time.sleep(self._chance.random() * LIFE_S_MAX)
                if self._chance.random() < WORKING_SHARE:
                    self._wait_for_work(before)
                for side in self._chance.choice((["producer"], ["consumer"], ["producer", "consumer"])):
                    self._kill(side)
                self._check()
            self._begin_missing()
            time.sleep(LIFE_S_MAX)
            self._kill("producer")
            self._check()
            self._wait_for_the_rest()
        finally:
            for side in list(self._lives):
                self._kill(side)
        self._check()
        self.figures.messages = self._notes[KEPT]
        self.figures.taken_again = self._notes[TAKEN_AGAIN]
        self.figures.waits_for_room = self._notes[FULL]
        return Proof(
            name="ring_kill",
            promise="whichever side is killed: what was put arrives whole and in order, and is freed only when kept",
            cases=self.figures.kills,
            violations=self.violations,
            figures=msgspec.structs.asdict(self.figures),
        )

    def _begin_missing(self) -> None:
        sides: tuple[tuple[str, Callable[[Path, memoryview], None]], ...] = (
            ("producer", produce),
            ("consumer", consume),
        )
        for side, work in sides:
            if side not in self._lives:
                self._lives[side] = os.fork() or self._live(side, work)

    def _live(self, side: str, work: Callable[[Path, memoryview], None]) -> int:
        """In the child: works until it is killed. Ends by itself only if something is wrong, and says what."""
        try:
            work(self._path, self._notes)
        except BaseException as error:
            text = str(error) if isinstance(error, Violation) else traceback.format_exc()
            with self._said.open("a") as said:
                said.write(f"{side}: {text}\n")
        os._exit(1)

    def _kill(self, side: str) -> None:
        pid = self._lives.pop(side)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.figures.kills += 1
        if side == "producer":
            self.figures.killed_producers += 1
        else:
            self.figures.killed_consumers += 1
        self.figures.kills_with_messages_waiting += self._notes[PUT] > self._notes[KEPT]

    def _check(self) -> None:
        if self._notes[ACKNOWLEDGED] > self._notes[KEPT]:
            self._note(f"{self._notes[ACKNOWLEDGED]} was acknowledged, {self._notes[KEPT]} is kept")
        for line in self._said.read_text().splitlines():
            self._note(line)

    def _wait_for_work(self, before: int) -> None:
        """On a busy machine both sides would be killed before their first message, again and again."""
        deadline_s = time.monotonic() + FINISH_S_MAX
        while self._notes[KEPT] < before + WORK_COUNT and not self.violations and time.monotonic() < deadline_s:
            time.sleep(0.001)

    def _wait_for_the_rest(self) -> None:
        deadline_s = time.monotonic() + FINISH_S_MAX
        while self._notes[KEPT] < self._notes[PUT] and time.monotonic() < deadline_s:
            time.sleep(0.005)
        if self._notes[KEPT] < self._notes[PUT]:
            self._note(f"{self._notes[PUT]} messages were put, {self._notes[KEPT]} came")

    def _note(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)


def prove(*, quick: bool = False, kills: int | None = None, seed: int = 1) -> Proof:
    """The proof as `make prove` runs it."""
    with tempfile.TemporaryDirectory() as folder:
        return Siege(Path(folder), seed).run(kills or (KILLS_QUICK if quick else KILLS))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m proofs.ring_kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    proof = prove(kills=options.kills, seed=options.seed)
    print(msgspec.json.encode(proof).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
