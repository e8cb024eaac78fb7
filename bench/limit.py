"""What this machine does with compiled agents at best: a bare numba loop, and the same bytes appended and synced.

One thread, one after the other: read a batch of records, fold it into the columns of the drones, count the actions,
write the batch behind the last one into a file that was filled with zeros and synced before, fdatasync. No marks, no
chain, no signature, no effects. The batch is of the size that is best for the limit, not for us: see `best_batch`.

`python -m bench.limit [FOLDER]` tries the sizes. Needs the extra [compiled].
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numba
import numpy as np
from msgspec import Struct

from bench.records import ACKNOWLEDGED, MEASURED, POSITIONED, RECORD_BYTES, Records, records
from bench.workload import ALTITUDE_M_MAX, BATTERY_PERCENT_MIN, DRONES

FILE_BYTES = 256 << 20
ZEROS_BYTES = 4 << 20
STOCK_EVENTS = 1 << 20
BATCHES_EVENTS = tuple(1 << power for power in range(12, 20))
"""The sizes of a batch that are tried: 4,096 to 524,288 records, which is 128 KiB to 16 MiB."""
SEED = 1


class Bare(Struct, frozen=True):
    """One window of the limit."""

    batch_events: int
    events: int
    events_per_s: float
    loop_share: float
    """Of the time, what the loop took; the rest went to the disk."""
    actions: int


@numba.njit(cache=False, nogil=True)
def _fold(batch: Any, north_m: Any, east_m: Any, altitude_m: Any, percent: Any, order: Any) -> int:
    """Folds a batch into the columns; how many actions it causes."""
    actions = 0
    for number in range(batch.shape[0]):
        record = batch[number]
        agent = record.agent
        form = record.form
        if form == POSITIONED:
            north_m[agent] = record.north_m
            east_m[agent] = record.east_m
            altitude_m[agent] = record.altitude_m
            if record.altitude_m > ALTITUDE_M_MAX:
                actions += 1
        elif form == MEASURED:
            percent[agent] = record.percent
            if record.percent < BATTERY_PERCENT_MIN:
                actions += 1
        elif form == ACKNOWLEDGED:
            order[agent] = record.order
    return actions


class Limit:
    """The loop and its file. Making it fills the file and compiles the loop; neither is timed."""

    def __init__(self, path: Path, *, drones: int = DRONES, file_bytes: int = FILE_BYTES) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._file_bytes = file_bytes
        self._offset = 0
        self.columns = (*(np.zeros(drones, np.float64) for _ in range(4)), np.zeros(drones, np.int64))
        fill_with_zeros(self._file, file_bytes)
        _fold(records(SEED, 0), *self.columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def run(self, stock: Records, batch_events: int, seconds: float) -> Bare:
        """Takes batches from the stock, in turn, for about so long."""
        if batch_events * RECORD_BYTES > self._file_bytes or batch_events > len(stock):
            raise ValueError(f"a batch of {batch_events} records is larger than the stock or the file")
        starts = range(0, len(stock) - batch_events + 1, batch_events)
        batches = [stock[start : start + batch_events] for start in starts]
        data = [batch.view(np.uint8).data for batch in batches]
        clock = time.perf_counter
        events = actions = 0
        loop_s = 0.0
        begin_s = now_s = clock()
        while now_s < begin_s + seconds:
            for batch, written in zip(batches, data, strict=True):
                actions += _fold(batch, *self.columns)
                folded_s = clock()
                self._append(written)
                events += batch_events
                loop_s += folded_s - now_s
                now_s = clock()
                if now_s >= begin_s + seconds:
                    break
        took_s = now_s - begin_s
        return Bare(batch_events, events, events / took_s, loop_s / took_s, actions)

    def _append(self, data: memoryview) -> None:
        """Behind the last batch; at the end of the file from its beginning again, which costs the same."""
        if self._offset + data.nbytes > self._file_bytes:
            self._offset = 0
        written = os.pwrite(self._file, data, self._offset)
        if written != data.nbytes:
            raise OSError(f"{written} of {data.nbytes} bytes were written")
        os.fdatasync(self._file)
        self._offset += written


def best_batch(
    limit: Limit, stock: Records, *, seconds: float = 0.3, rounds: int = 3, sizes: Sequence[int] = BATCHES_EVENTS
) -> int:
    """The size of a batch with which the limit is fastest here and now: the median of windows in turn."""
    speeds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            speeds[size].append(limit.run(stock, size, seconds).events_per_s)
    return max(sizes, key=lambda size: statistics.median(speeds[size]))


def fill_with_zeros(file: int, size: int) -> None:
    """Writes and syncs so many zeros, so that what is appended later changes no length and no block map."""
    zeros = bytes(ZEROS_BYTES)
    for start in range(0, size, ZEROS_BYTES):
        os.pwrite(file, zeros[: min(ZEROS_BYTES, size - start)], start)
    os.fsync(file)


def main(arguments: list[str]) -> None:
    """Tries every size and prints what it gives."""
    stock = records(SEED, STOCK_EVENTS)
    folder = tempfile.TemporaryDirectory(prefix="stigmergy-bench-", dir=arguments[0] if arguments else ".")
    with folder as name, Limit(Path(name) / "limit.log") as limit:
        for size in BATCHES_EVENTS:
            windows = [limit.run(stock, size, 1.0) for _ in range(3)]
            middle = sorted(windows, key=lambda window: window.events_per_s)[1]
            share = f"{middle.loop_share:.0%} of the time in the loop"
            print(f"{size:>8,} records a batch: {middle.events_per_s / 1e6:6.1f} M events/s, {share}")


if __name__ == "__main__":
    main(sys.argv[1:])
