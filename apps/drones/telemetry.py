"""The sensors of many airframes, as a process of its own: it feeds nodes through rings, hundreds of times a second.

    python -m apps.drones.telemetry --socket r1.sock --ring r1.ring --names r1.names --rate-hz 420 --seconds 30

`--socket`, `--ring` and `--names` are repeated for each node that it feeds. It is also the controller of these
airframes: what it measures depends on what it is ordered. Now and then one begins to resonate, and goes on until it is
told to turn slower; an order that is lost is seen as an airframe that keeps shaking.

Orders come back through a `Board`, memory that the node's actuator writes: for each airframe the last order, and for
all together how old the sample behind each order was. That is the time from an event to its action, of all of them:
from the moment at which the sample was due, so it has the wait in this process and in the ring in it too.

A sensor does not wait. What finds no room in the ring, or would be older than `LATE_S_MAX` when it is sent, is dropped
and counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stigmergy import Live, NotRunning, Overloaded

if TYPE_CHECKING:
    from stigmergy.serve.embedded import Running

ROOT = Path(__file__).resolve().parents[2]
KIND, SAMPLED = "Airframe", "Sampled"
RATE_HZ = 420.0
"""5,000 drones: 2.1 million samples a second."""
TICK_S = 0.01
"""Samples are sent together that are due within this time. Each batch costs a node about a millisecond, whatever its
size: one that also runs thousands of drones is better off with fewer of them, and their samples are older by half."""
LATE_S_MAX = 0.25
SHARDS_MAX, NUMBERS_MAX = 64, 16_384
"""Of a node, and of its airframes in one shard."""
STEPS_PER_DOUBLING, STEPS = 16, 512
"""A step of the histogram is 4 % wide; the last one is after 4,295 s."""
STOCK_SWEEPS = 64
RESONANCE_EVERY_S = 20.0
"""Of one airframe, on average."""
SLOW_S = 3.0
"""How long a controller keeps to an order."""
SETTLE_S = 30.0
MEMORY = "/dev/shm"
HISTOGRAM = np.dtype(("<u8", STEPS))
ROW = np.dtype([("ordered_t", "<f8"), ("share", "<f4"), ("inspect", "<u4")])

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Board:
    """Memory that an actuator writes and a controller reads: a histogram of the age of orders, a row for each airframe.

    One process writes. A reader may see a row half new; it sees all of it the next time. Repeated orders do no harm.
    """

    def __init__(self, path: Path) -> None:
        size = HISTOGRAM.itemsize + SHARDS_MAX * NUMBERS_MAX * ROW.itemsize
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size < size:
                os.ftruncate(file, size)  # it has holes: rows that nobody uses take no space
            self._memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        self.ages: NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64, STEPS)
        """How many orders were so old when they came, by step."""
        self._rows = np.frombuffer(self._memory, ROW, offset=HISTOGRAM.itemsize)

    def slow_down(self, shard: int, numbers: Any, share: Any, sampled_t: Any, now_t: float) -> None:
        """Notes orders that have come now."""
        self._age(sampled_t, now_t)
        rows = shard * NUMBERS_MAX + numbers.astype(np.int64)
        self._rows["share"][rows] = share
        self._rows["ordered_t"][rows] = now_t

    def inspect(self, shard: int, numbers: Any, sampled_t: Any, now_t: float) -> None:
        """Notes airframes that somebody has to look at."""
        self._age(sampled_t, now_t)
        np.add.at(self._rows["inspect"], shard * NUMBERS_MAX + numbers.astype(np.int64), 1)

    def ordered_t(self, rows: Ints) -> Floats:
        """When these airframes were last told to turn slower."""
        return np.asarray(self._rows["ordered_t"][rows])

    def inspections(self, rows: Ints) -> int:
        """How many of these airframes are to be looked at."""
        return int(np.count_nonzero(self._rows["inspect"][rows]))

    def _age(self, sampled_t: Any, now_t: float) -> None:
        age_us = np.maximum((now_t - sampled_t) * 1e6, 1.0)
        steps = np.minimum((np.log2(age_us) * STEPS_PER_DOUBLING).astype(np.int64), STEPS - 1)
        self.ages += np.bincount(steps, minlength=STEPS).astype(np.uint64)


def row_of(shard: int, number: int) -> int:
    """The row of an airframe."""
    return shard * NUMBERS_MAX + number


def percentile_ms(ages: NDArray[np.uint64], share: float) -> float | None:
    """The age that this share of orders does not exceed: the upper end of its step. None without orders."""
    total = int(ages.sum())
    if not total:
        return None
    step = int(np.searchsorted(np.cumsum(ages), max(1, int(np.ceil(share * total)))))
    return round(float(2.0 ** ((step + 1) / STEPS_PER_DOUBLING)) / 1e3, 2)


class Airframes:
    """Some airframes, as one controller simulates them. Pure: it is told the time, and its noise has a seed."""

    def __init__(self, count: int, seed: int, failing: int = 0, seconds: float = 60.0) -> None:
        chance = np.random.default_rng([seed, count])
        noise = chance.normal(0.0, 1.0, (3, STOCK_SWEEPS, count))
        self.count = count
        self._chance = chance
        self._vibration = np.clip(800 + 150 * noise[0], 0, 2_500).astype(np.uint16)
        self._motors = np.clip(1_100 + 60 * noise[1], 0, 3_000).astype(np.uint16)
        self._tilt = (150 * noise[2]).astype(np.int16)
        self._resonates_from_t = np.full(count, np.inf)
        self._slow_until_t = np.zeros(count)
        self._sweeps = 0
        self._fails_after_s = np.full(count, np.inf)
        self._fails_after_s[:failing] = chance.uniform(0.1, 0.5, min(failing, count)) * seconds
        self.resonances = 0

    def step(self, t: float, over_s: float, ordered_t: Floats) -> None:
        """Time goes on: some begin to resonate, and those that were told to turn slower have ceased."""
        told = ordered_t > self._resonates_from_t
        self._slow_until_t[told] = ordered_t[told] + SLOW_S
        self._resonates_from_t[told] = np.inf
        begins = self._chance.random(self.count) < over_s / RESONANCE_EVERY_S
        begins &= np.isinf(self._resonates_from_t) & (self._slow_until_t < t)
        self._resonates_from_t[begins] = t
        self.resonances += int(np.count_nonzero(begins))

    def sweep(self, elapsed_s: float) -> dict[str, Any]:
        """One sample of each."""
        at = self._sweeps % STOCK_SWEEPS
        self._sweeps += 1
        motors = self._motors[at]
        first = np.where(self._fails_after_s < elapsed_s, np.uint16(4_200), motors)
        shaking = ~np.isinf(self._resonates_from_t)
        return {
            "vibration_cm_s2": self._vibration[at] + shaking * np.uint16(3_200),
            "motor_1_ca": first,
            "motor_2_ca": motors[::-1],
            "motor_3_ca": self._motors[at - 1],
            "motor_4_ca": self._motors[at - 2],
            "tilt_cdeg": self._tilt[at],
            "height_dm": np.full(self.count, 750, np.int16),
        }


class FedNode(Struct, frozen=True):
    """A node: its control socket, its ring, and whose airframes are there. The board is beside the ring."""

    socket: Path
    ring: Path
    names: tuple[str, ...]

    @property
    def board(self) -> Path:
        """Where its actuator writes: give this to `airframe.fit`."""
        return board_of(self.ring)


def fed_node(folder: Path, region: str, names: Iterable[str]) -> FedNode:
    """The node of a region whose ring is in this folder, with those of these drones that are at home there."""
    own = tuple(name for name in names if name.startswith(f"{region}-"))
    return FedNode(folder / f"{region}.sock", folder / f"{region}.ring", own)


def ring_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for rings, in memory if there is such a place: elsewhere their pages are written to the disk."""
    return tempfile.TemporaryDirectory(prefix="drones-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)


def board_of(ring: Path) -> Path:
    """The board that belongs to a ring."""
    return ring.with_name(f"{ring.name}.board")


class _Line:
    """The airframes of one node, and what was sent of them."""

    def __init__(self, feed: Any, place: FedNode, seed: int, failing: int, seconds: float) -> None:
        roster = feed.enroll(list(place.names))
        self.feed = feed
        self.board = Board(place.board)
        self.airframes = Airframes(len(place.names), seed, failing, seconds)
        self.rows = np.array([row_of(one.shard, one.number) for one in roster.places], np.int64)
        self.before = self.board.ages.copy()
        self.sent = self.dropped = 0
        self._places = np.arange(len(place.names))
        self._phase_s = self._places / max(1, len(place.names))
        self._blocked = False

    def tick(self, start_t: float, due_t: float, sweeps: int, period_s: float) -> None:
        """Measures what was due until now, and sends it; or drops it where there is no room."""
        count = sweeps * self.airframes.count
        if self._blocked and not self._send():
            self.dropped += count
            return
        self.airframes.step(due_t, sweeps * period_s, self.board.ordered_t(self.rows))
        begin_t = due_t - sweeps * period_s
        made = [self.airframes.sweep(due_t - start_t) for _ in range(sweeps)]
        times = np.concatenate([begin_t + (one + self._phase_s) * period_s for one in range(sweeps)])
        columns = {name: np.concatenate([one[name] for one in made]) for name in made[0]}
        self.feed.add(SAMPLED, np.tile(self._places, sweeps), t=times, **columns)
        self.sent += count
        self._send()

    def _send(self) -> bool:
        try:
            self.feed.send(within_s=0.0)
        except Overloaded:
            self._blocked = True
        else:
            self._blocked = False
        return not self._blocked

    def finish(self) -> None:
        """Sends the rest, and waits until the node has decided on all of it."""
        self.feed.send()
        self.feed.wait_durable(within_s=SETTLE_S)


def feed_nodes(
    places: Sequence[FedNode],
    *,
    rate_hz: float,
    seconds: float,
    seed: int = 7,
    failing: int = 0,
    tick_s: float = TICK_S,
) -> dict[str, Any]:
    """Feeds these nodes for so long, and says what came of it. Blocks."""
    from stigmergy.rings import open_blocking_feed

    with ExitStack() as stack:
        lines = []
        for number, place in enumerate(places):
            feed = open_blocking_feed(place.socket, place.ring, KIND, source=f"sensors-{place.ring.name}")
            stack.enter_context(feed)
            lines.append(_Line(feed, place, seed + number, failing if number == 0 else 0, seconds))
        sweeps = max(1, round(tick_s * rate_hz))
        late_s, elapsed_s = _run(lines, sweeps, 1 / rate_hz, seconds)
    return _figures(lines, late_s, elapsed_s)


def _run(lines: list[_Line], sweeps: int, period_s: float, seconds: float) -> tuple[list[float], float]:
    late_s: list[float] = []
    start_t = time.time()
    for number in range(1, round(seconds / (sweeps * period_s)) + 1):
        due_t = start_t + number * sweeps * period_s
        if (wait_s := due_t - time.time()) > 0:
            time.sleep(wait_s)
        late_s.append(max(0.0, time.time() - due_t))
        for line in lines:
            if late_s[-1] > LATE_S_MAX:
                line.dropped += sweeps * line.airframes.count
            else:
                line.tick(start_t, due_t, sweeps, period_s)
    for line in lines:
        line.finish()
    return late_s, time.time() - start_t


def _figures(lines: list[_Line], late_s: list[float], elapsed_s: float) -> dict[str, Any]:
    ages = sum((line.board.ages - line.before for line in lines), np.zeros(STEPS, np.uint64))
    sent = sum(line.sent for line in lines)
    return {
        "telemetry_drones": sum(line.airframes.count for line in lines),
        "telemetry_events": sent,
        "telemetry_events_per_s": round(sent / elapsed_s),
        "telemetry_dropped": sum(line.dropped for line in lines),
        "telemetry_actions": int(ages.sum()),
        "telemetry_event_to_action_p50_ms": percentile_ms(ages, 0.5),
        "telemetry_event_to_action_p99_ms": percentile_ms(ages, 0.99),
        "telemetry_event_to_action_max_ms": percentile_ms(ages, 1.0),
        "telemetry_resonances": sum(line.airframes.resonances for line in lines),
        "telemetry_inspections": sum(line.board.inspections(line.rows) for line in lines),
        "telemetry_producer_late_p99_ms": round(1e3 * sorted(late_s)[len(late_s) * 99 // 100], 2),
        "telemetry_producer_busy_share": round(time.process_time() / elapsed_s, 3),
    }


@asynccontextmanager
async def listening(running: Running, live: Live, socket: Path) -> AsyncIterator[None]:
    """The control socket of a node that runs in this program: a producer asks there for the numbers of its airframes.

    A node of `stigmergy run` has one anyway.
    """

    def stop() -> None:
        raise NotRunning("this node is part of a program, which ends it")

    server = running.control(running.service(live, "apps.drones", stop), socket)
    await server.start()
    try:
        yield
    finally:
        await server.close()


async def fly_telemetry(
    places: Sequence[FedNode],
    *,
    seconds: float,
    rate_hz: float = RATE_HZ,
    seed: int = 7,
    failing: int = 0,
    tick_s: float = TICK_S,
) -> dict[str, Any]:
    """The same from a process of its own; ends with it, also when it is cancelled. Raises RuntimeError if it fails."""
    words = ["--rate-hz", str(rate_hz), "--seconds", str(seconds), "--seed", str(seed), "--failing", str(failing)]
    words += ["--tick-s", str(tick_s)]
    with tempfile.TemporaryDirectory(prefix="airframes-") as folder:
        for number, place in enumerate(places):
            names = Path(folder) / f"{number}.names"
            names.write_text("\n".join(place.names), encoding="utf-8")  # some kilobytes, once
            words += ["--socket", str(place.socket), "--ring", str(place.ring), "--names", str(names)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "apps.drones.telemetry", *words),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, error = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise RuntimeError(f"the producer of telemetry failed: {error.decode(errors='replace').strip()[-2_000:]}")
    figures: dict[str, Any] = json.loads(out)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Feeds what the command line says, and prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m apps.drones.telemetry", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--socket", type=Path, action="append", required=True, help="control socket of a node")
    parser.add_argument("--ring", type=Path, action="append", required=True, help="its ring; as often as --socket")
    parser.add_argument("--names", type=Path, action="append", default=[], help="file with the names of its drones")
    parser.add_argument("--drones", type=int, default=5_000, help="so many, in all, if there are no --names")
    parser.add_argument("--rate-hz", type=float, default=RATE_HZ)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--failing", type=int, default=0, help="airframes of the first node of which a motor fails")
    parser.add_argument("--tick-s", type=float, default=TICK_S, help="samples of so long are sent together")
    given = parser.parse_args(arguments)
    nodes = len(given.socket)
    if len(given.ring) != nodes or len(given.names) not in (0, nodes):
        parser.error("give --socket, --ring and --names as often as each other")
    if given.names:
        names = [tuple(path.read_text(encoding="utf-8").split()) for path in given.names]
    else:
        names = [tuple(f"r{one + 1}-0000-{n:05d}" for n in range(given.drones // nodes)) for one in range(nodes)]
    places = [FedNode(*one) for one in zip(given.socket, given.ring, names, strict=True)]
    rest = ("rate_hz", "seconds", "seed", "failing", "tick_s")
    print(json.dumps(feed_nodes(places, **{name: getattr(given, name) for name in rest}), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
