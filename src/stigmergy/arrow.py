"""The log as Arrow record batches, and record batches as input for compiled agents.

    from stigmergy.arrow import add_table, read_log

    for batch in read_log("segments:telemetry", kind="Drone", type="Positioned"):
        ...                                        # a pyarrow.RecordBatch: agent, time, north_m, …

Importing it needs pyarrow and numpy, which come with `pip install "stigmergy[parquet]"`. Reading a log needs neither
the fleet's classes nor a compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

try:
    from stigmergy.compiled.arrow import ROWS_PER_BATCH, EventBatches, EventFilter, add_table, kind_and_type
    from stigmergy.compiled.arrow_actions import OrderBatches
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'stigmergy.arrow needs {error.name}: pip install "stigmergy[parquet]"', name=error.name
    ) from None
from stigmergy.app.fleet import inspect_all
from stigmergy.audit.export import Export, Selection
from stigmergy.audit.history import read_moment
from stigmergy.base.errors import ConfigError

__all__ = ["add_table", "kind_and_type", "read_log"]


def read_log(
    url: str,
    *,
    kind: str | None = None,
    type: str | None = None,
    agent: str | None = None,
    shard: int | None = None,
    first: int | None = None,
    last: int | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    orders: bool = False,
    rows: int = ROWS_PER_BATCH,
) -> Iterator[Any]:
    """What compiled agents have kept, as record batches of pyarrow; with `orders` their orders to batch actuators.

    A batch is of one event type and one shard, and has about `rows` rows at most; `kind_and_type` tells what it is of.
    Choose by kind, type (with or without its version), agent ('Drone/D-17'), shard, positions and times: both ends are
    inclusive, and times need a zone. `url` is a journal that nobody runs, or `flight:FILE`. What interpreted agents
    have kept has no columns; it is in `stigmergy log export`.
    """
    journal = inspect_all(url)
    try:
        since_ns, until_ns = _time_ns("since", since), _time_ns("until", until)
        selection = Selection(None, None, shard, first, last, since_ns, until_ns)
        wanted = EventFilter(kind, type, agent, since_ns, until_ns)
        export = Export(journal, selection)
        batches = OrderBatches(wanted, rows=rows) if orders else EventBatches(wanted, rows=rows)
        for commit in export.commits():
            yield from batches.take(commit, export.reading(commit))
        yield from batches.rest()
    finally:
        # Not by asyncio.run: the caller may be inside an event loop, and a journal that is only read has nothing to
        # wait for.
        closing = journal.close()
        try:
            closing.send(None)
        except StopIteration:
            pass
        finally:
            closing.close()


def _time_ns(what: str, moment: datetime | str | None) -> int | None:
    if moment is None:
        return None
    found = read_moment(moment if isinstance(moment, str) else moment.isoformat()).time_ns
    if found is None:
        raise ConfigError(f"{what}={moment!r}: give a time with its zone; for positions there are first and last")
    return found
