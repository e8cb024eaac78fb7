"""The library `bytewax`: a dataflow with a stateful map by drone, and recovery snapshots in its SQLite store.

What its durability promises: at the end of an epoch the changed states and the place of the source are written into
the recovery store, and synced (it opens SQLite in WAL with synchronous=FULL). Events are not kept; whoever runs it
needs a source that can be read again, such as Kafka, and pays for that one beside it, which is not counted here. After
a crash it goes on from the last whole epoch and handles what came after it a second time: outputs may be repeated, and
they leave before the epoch behind them is on disk.

An epoch lasts 10 s by default. The strongest that it offers is an epoch of no length, which ends behind each batch of
the source: nothing is further behind than 1,000 events. Both are run. Each window is one run of the flow on an empty
store, which returns when the last epoch is on disk; so resuming, 0.1 s for 5,000 states, is not held against it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from bytewax import operators
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main

from bench.contestants import BATCHED, Acted
from bench.contestants.plain_drone import State, decode, fold, new_state
from bench.workload import BATCH_EVENTS, Report

Row = tuple[str, bytes]
DEFAULT_EPOCH_S = 10.0


class BytewaxFlow:
    """Makes a flow for each window and runs it in this thread: more workers would share one interpreter."""

    def __init__(self, folder: Path, epoch_s: float) -> None:
        self._folder = folder
        self._epoch = timedelta(seconds=epoch_s)

    def prepare(self, reports: Sequence[Report]) -> Any:
        """A flow that reads these events, where its actions will be, and an empty store."""
        store = self._folder / "recovery"
        if store.exists():
            shutil.rmtree(store)
        store.mkdir()
        init_db_dir(store, 1)
        acted: list[Acted] = []
        rows: list[Row] = [(report.address, report.body) for report in reports]
        flow = Dataflow("drones")
        stream = operators.input("events", flow, TestingSource(rows, batch_size=BATCH_EVENTS))
        actions = operators.stateful_map("drone", stream, _step)
        some = operators.filter("some", actions, lambda pair: pair[1] is not None)
        operators.output("actions", some, TestingSink(acted))
        return flow, RecoveryConfig(store), acted

    def take(self, prepared: Any) -> list[Acted]:
        """Runs the flow to its end."""
        flow, recovery, acted = prepared
        run_main(flow, epoch_interval=self._epoch, recovery_config=recovery)
        return list(acted)

    def close(self) -> None:
        """Nothing is open between windows."""


def _step(state: State | None, body: bytes) -> tuple[State, str | None]:
    if state is None:
        state = new_state()
    return state, fold(state, decode(body))


def enter(folder: Path, variant: str) -> BytewaxFlow:
    """With an epoch for each batch, or with the default ones."""
    return BytewaxFlow(folder, 0.0 if variant == BATCHED else DEFAULT_EPOCH_S)
