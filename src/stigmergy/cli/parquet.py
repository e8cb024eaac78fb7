"""`stigmergy log export --format parquet`: one table of all entries, or a folder with a typed one for each event type.

In a folder, events of compiled agents go from their bytes into columns without an object for each of them:
`Drone.Positioned.parquet` has agent, shard, position, index, time, source and the event's own fields. What they have
asked batched hands for is in `Drone.Land.orders.parquet`, everything else in `log.parquet`. Each file is there whole or
not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import msgspec
from msgspec import structs

from stigmergy.core.commit import Commit
from stigmergy.core.errors import ConfigError
from stigmergy.runtime.audit.export import Export, Selection, flat_row
from stigmergy.runtime.audit.listing import Entry, list_commit
from stigmergy.wiring import NewFile

if TYPE_CHECKING:
    from stigmergy.compiled.arrow import Wanted

ROWS_PER_GROUP = 20_000
"""So many entries are held in memory before they are written."""
REST = "log.parquet"
_STRANGE = re.compile(r"[^A-Za-z0-9_.@-]")


def arrow_module() -> Any:
    """pyarrow; it is an extra."""
    try:
        import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise ConfigError("Parquet needs packages that are not installed: pip install 'stigmergy[parquet]'") from None
    return arrow


class EntryTable:
    """A table of one row for each entry, in groups of rows, so that memory does not grow with the log."""

    def __init__(self, stream: BinaryIO) -> None:
        self._arrow = arrow = arrow_module()
        texts = ("kind", "agent", "type", "fields", "source", "command", "command_id", "effects", "refused")
        self._schema = arrow.schema(
            [
                *((name, arrow.int64()) for name in ("shard", "position", "index", "time_ns")),
                ("time", arrow.timestamp("us", tz="UTC")),
                *((name, arrow.string()) for name in texts),
            ]
        )
        self._writer = arrow.parquet.ParquetWriter(stream, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self.count = 0

    def add(self, entry: Entry) -> None:
        """One more row."""
        row = flat_row(entry, msgspec.json.encode)
        self._rows.append({**row, "time": row["time_ns"] // 1000})
        self.count += 1
        if len(self._rows) == ROWS_PER_GROUP:
            self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Writes what is left, and the end of the file; also of one that nobody will keep, for its writer's sake."""
        if kind is None and (self._rows or not self.count):
            self._write()
        self._writer.close()

    def _write(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def write_entries(entries: Iterable[Entry], stream: BinaryIO) -> int:
    """All entries in one table; returns how many."""
    with EntryTable(stream) as table:
        for entry in entries:
            table.add(entry)
    return table.count


class Folder:
    """A folder of tables. Files are made when the first row for them comes, and get their names when all are whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrow = arrow_module()
        try:
            from stigmergy.compiled.arrow import kind_and_type
        except ModuleNotFoundError as error:
            raise ConfigError(f"tables by type need {error.name}: pip install 'stigmergy[parquet]'") from None
        self._kind_and_type = kind_and_type
        self._files = ExitStack()
        self._writers: dict[str, tuple[Any, Any]] = {}
        """By name: schema and writer."""
        self._rest: EntryTable | None = None
        self.rows: dict[str, int] = {}

    def write(self, export: Export, selection: Selection) -> Iterator[None]:
        """Writes all of an export; goes on after each commit."""
        from stigmergy.compiled.arrow import EventBatches
        from stigmergy.compiled.arrow_orders import OrderBatches

        self._make_folder()
        wanted = _wanted(selection)
        events, orders = EventBatches(wanted), OrderBatches(wanted)
        with self._files:
            for commit in export.commits():
                reading = export.reading(commit)
                for batch in events.take(commit, reading):
                    self._add(batch, orders=False)
                for batch in orders.take(commit, reading):
                    self._add(batch, orders=True)
                self._add_rest(commit, selection)
                yield
            for batch in events.rest():
                self._add(batch, orders=False)
            for batch in orders.rest():
                self._add(batch, orders=True)

    def _make_folder(self) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            there = next(iter(sorted(self._path.glob("*.parquet"))), None)
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be written: {error.strerror}; give another folder") from None
        if there is not None:
            raise ConfigError(f"{there} is there already, and would be taken for a part of this; give an empty folder")

    def _add(self, batch: Any, *, orders: bool) -> None:
        name = self._name_for(*self._kind_and_type(batch), batch.schema, orders=orders)
        if name not in self._writers:
            self._writers[name] = (batch.schema, self._open(name, batch.schema))
        self._writers[name][1].write_batch(batch)
        self.rows[name] = self.rows.get(name, 0) + len(batch)

    def _name_for(self, kind: str, tag: str, schema: Any, *, orders: bool) -> str:
        """The name of a file; a type whose fields have changed without a new version goes on in another one."""
        name, _, version = tag.partition("@")
        stem = f"{kind}.{name}{'' if version == '1' else f'@{version}'}{'.orders' if orders else ''}"
        stem = _STRANGE.sub("_", stem)
        for number in range(1, len(self._writers) + 2):
            full = f"{stem}.parquet" if number == 1 else f"{stem}.{number}.parquet"
            if full not in self._writers or self._writers[full][0].equals(schema):
                return full
        raise ConfigError(f"{stem}: too many tables")  # pragma: no cover - one of those is free

    def _open(self, name: str, schema: Any) -> Any:
        stream = self._files.enter_context(NewFile(self._path / name)).file
        # What repeats is written once; to try that on measured values would cost more than all the rest.
        coded = [field.name for field in schema if self._arrow.types.is_dictionary(field.type)]
        writer = self._arrow.parquet.ParquetWriter(
            stream,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[*coded, "shard", "position", "time"],
            column_encoding={"index": "DELTA_BINARY_PACKED"},
        )
        return self._files.enter_context(writer)

    def _add_rest(self, commit: Commit, selection: Selection) -> None:
        """What is no record: entries of interpreted agents and of the shard, answers, effects."""
        if not (commit.events or commit.answers or commit.owed):
            return
        for entry in list_commit(structs.replace(commit, columns=[])):
            if selection.takes(entry):
                if self._rest is None:
                    stream = self._files.enter_context(NewFile(self._path / REST)).file
                    self._rest = self._files.enter_context(EntryTable(stream))
                self._rest.add(entry)
                self.rows[REST] = self._rest.count


def _wanted(selection: Selection) -> Wanted:
    from stigmergy.compiled.arrow import Wanted

    return Wanted(type=selection.type, agent=selection.agent, since_ns=selection.since_ns, until_ns=selection.until_ns)
