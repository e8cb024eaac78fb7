"""The limit of compiled agents in its process, so that its windows and those of the host can take turns.

`python -m bench.columns.bare FOLDER FILE_BYTES` reads one request a line and answers with one window.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct

from bench.limit import BATCHES_EVENTS, SEED, STOCK_EVENTS, Bare, Limit, best_batch
from bench.records import RECORD_BYTES, records
from bench.subjects import serve

MODULE = "bench.columns.bare"


class RunBare(Struct, frozen=True):
    """One window of about so long."""

    seconds: float
    batch_events: int = 0
    """0 for the size with which the limit is fastest here, found out at the first such request."""


def main(arguments: list[str]) -> None:
    """Runs the limit."""
    folder, file_bytes = arguments
    stock = records(SEED, STOCK_EVENTS)
    best = 0
    with Limit(Path(folder) / "limit.log", file_bytes=int(file_bytes)) as limit:

        def run(request: RunBare) -> Bare:
            nonlocal best
            if not request.batch_events and not best:
                fitting = [size for size in BATCHES_EVENTS if size * RECORD_BYTES <= int(file_bytes)]
                best = best_batch(limit, stock, seconds=request.seconds / 2, sizes=fitting)
            return limit.run(stock, min(request.batch_events, len(stock)) or best, request.seconds)

        serve(RunBare, run)


if __name__ == "__main__":
    main(sys.argv[1:])
