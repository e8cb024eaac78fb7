"""The port of runtimes: what loads the payload of a bundle and answers batches of rows. Pure.

    runtime = find_runtime(bundle.manifest.runtime)        # stigmergy.models.runtimes
    loaded = runtime.load(bundle, threads=1)
    outputs = loaded.run([pack_row([1200.0, 830.0, 21.5])])[0]
    loaded.close()

Order: `run` answers row for row, outputs in the manifest's order.
Values: NaN and infinity are not refused; what the model makes of them is the answer.
Batches: a row's answer depends on that row only. Where a runtime adds up in another order for another batch size, it
differs by at most `CONTRACT_TOLERANCE`, relative or absolute.
Concurrency: everything blocks, and a loaded model is used by one thread at a time. It may be another thread each time.
Memory: a row is at most `INPUTS_COUNT_MAX` numbers, a batch at most `ROWS_COUNT_MAX` rows.
Errors: `load` raises ModelRefused (damaged, of another kind, not what the manifest says, its package is missing): this
bundle is of no use here. `run` raises ModelFailed (a wrong number of rows or bytes, closed, the library gave up): this
batch has no answer. Nothing else leaves a runtime. `close` may be called twice.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Protocol

from stigmergy.base.errors import ModelFailed
from stigmergy.models.bundle import Bundle

FLOAT_BYTES: Final = 4
ROWS_COUNT_MAX: Final = 4_096
CONTRACT_TOLERANCE: Final = 1e-5


class LoadedModel(Protocol):
    """A model that is ready to run."""

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, measured or estimated; at least the size of its weights."""
        ...

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        """The outputs of each row; a row is its inputs as little-endian float32. Raises ModelFailed."""
        ...

    def close(self) -> None:
        """Gives the memory back. A second call does nothing."""
        ...


class ModelRuntime(Protocol):
    """Loads payloads of one kind."""

    @property
    def name(self) -> str:
        """What a manifest calls it."""
        ...

    def load(self, bundle: Bundle, threads: int = 1) -> LoadedModel:
        """Makes a model ready, with so many threads for one run. Raises ModelRefused."""
        ...


@lru_cache(256)
def floats_of(count: int) -> struct.Struct:
    """How so many numbers are written as a row."""
    return struct.Struct(f"<{count}f")


def pack_row(numbers: Sequence[float]) -> bytes:
    """Inputs as a row. What float32 does not hold becomes infinity, as in a sensor's own arithmetic."""
    try:
        return floats_of(len(numbers)).pack(*numbers)
    except OverflowError:
        return b"".join(_pack_one(number) for number in numbers)


def unpack_row(row: bytes) -> tuple[float, ...]:
    """The inputs of a row."""
    return floats_of(len(row) // FLOAT_BYTES).unpack(row)


def is_finite(row: bytes) -> bool:
    """Whether no input of a row is NaN or infinite."""
    # The highest byte of each number holds seven of the eight bits of its exponent, which are all set in those.
    highest = row[FLOAT_BYTES - 1 :: FLOAT_BYTES]
    return (b"\x7f" not in highest and b"\xff" not in highest) or math.isfinite(sum(unpack_row(row)))


def check_rows(rows: Sequence[bytes], row_bytes: int) -> None:
    """Every runtime asks this before it runs. Raises ModelFailed."""
    if len(rows) > ROWS_COUNT_MAX:
        raise ModelFailed(f"{len(rows)} rows at once; run at most {ROWS_COUNT_MAX} in a batch")
    for index, row in enumerate(rows):
        if len(row) != row_bytes:
            raise ModelFailed(
                f"row {index} has {len(row)} bytes, the model takes {row_bytes} "
                f"({row_bytes // FLOAT_BYTES} float32); ask with as many numbers as the manifest names"
            )


def _pack_one(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", float("inf") if number > 0 else float("-inf"))
