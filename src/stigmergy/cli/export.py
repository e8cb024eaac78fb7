"""`stigmergy log export`: the log for other tools, or the log itself as a file that proves itself.

JSON lines, CloudEvents and Parquet say what happened; a flight log (`--flight`) is the commits themselves, sealed, for
`stigmergy log verify FILE`. A file is written completely or not at all. No classes are needed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import msgspec
from msgspec import structs

from stigmergy.app.fleet import NewFile, default_key_path, inspect_all, inspect_journal, load_signer
from stigmergy.audit.export import Export, Selection, flat_row
from stigmergy.audit.flight import FlightSelection, check_sealing, commits_in, make_flight
from stigmergy.audit.history import read_moment
from stigmergy.audit.listing import LogEntry, list_commit
from stigmergy.base.errors import ConfigError
from stigmergy.bus.cloudevents import JSON, CloudEvent, write_structured
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, NAME, Output, Progress, counted, json_line, printable_json, shown_bytes
from stigmergy.cli.display.places import add_place, ask_stream, closing_journal, config_of, find_journal, find_running
from stigmergy.control.protocol import ExportRequest, FlightRequest
from stigmergy.control.replies import filled
from stigmergy.control.router import read_item
from stigmergy.journal.port import Journal
from stigmergy.shard.commit import Commit

if TYPE_CHECKING:
    from stigmergy.compiled.arrow import EventFilter


# `stigmergy log export --format parquet`: one table of all entries, or a folder with a typed one for each event type.
#
# In a folder, events of compiled agents go from their bytes into columns without an object for each of them:
# `Drone.Positioned.parquet` has agent, shard, position, index, time, source and the event's own fields. Orders to batch
# actuators are in `Drone.Land.orders.parquet`, everything else in `log.parquet`. Each file is written completely or not
# at all.

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

    def add(self, entry: LogEntry) -> None:
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


def write_entries(entries: Iterable[LogEntry], stream: BinaryIO) -> int:
    """All entries in one table; returns how many."""
    with EntryTable(stream) as table:
        for entry in entries:
            table.add(entry)
    return table.count


class TableFolder:
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
        from stigmergy.compiled.arrow_actions import OrderBatches

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


def _wanted(selection: Selection) -> EventFilter:
    from stigmergy.compiled.arrow import EventFilter

    return EventFilter(
        type=selection.type, agent=selection.agent, since_ns=selection.since_ns, until_ns=selection.until_ns
    )


FORMATS = ("jsonl", "cloudevents", "parquet")


def add_action(actions: Any) -> None:
    """Adds `log export`."""
    parser = actions.add_parser("export", run=run, help="to JSON lines, CloudEvents, Parquet, a flight log")
    parser.add_argument("agent", metavar="KIND/NAME", nargs="?", help="only this agent's")
    parser.add_argument("--format", choices=FORMATS, help="what to write (jsonl)")
    parser.add_argument("--to", dest="file", metavar="FILE|FOLDER/", help="where to; else stdout")
    parser.add_argument("--flight", metavar="FILE", type=Path, help="a sealed flight log instead; see log verify FILE")
    parser.add_argument(
        "--key", metavar="KEY", type=Path, help="what to seal a flight log with; else the journal's key"
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="what a flight log is made for; it is in the file")
    parser.add_argument("--type", metavar="TAG", help="only events and commands of this type")
    parser.add_argument("--since", metavar="TIME", help="from this time on, such as 2026-11-15T08:00:00Z")
    parser.add_argument("--until", metavar="TIME", help="up to this time")
    parser.add_argument("--from", dest="first", metavar="P", type=int, help="from this position on")
    parser.add_argument("--upto", dest="last", metavar="P", type=int, help="up to this position")
    parser.add_argument("--shard", metavar="N", type=int, help="only this shard's")
    add_place(parser, fleet=False, nats=True)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Exports."""
    if arguments.agent is not None and not all(arguments.agent.partition("/")):
        raise ConfigError(f"{arguments.agent!r} is no agent; write it like Drone/D-17, or leave it out to export all")
    if arguments.flight is not None:
        return _export_flight(arguments, output)
    arguments.format = arguments.format or "jsonl"
    if arguments.file is None and arguments.format == "parquet":
        raise ConfigError("a Parquet file is not written to a terminal or a pipe; give --to FILE or --to FOLDER/")
    if arguments.file is not None:
        folder = arguments.file.endswith("/") or Path(arguments.file).is_dir()
        arguments.file = Path(arguments.file)
        if folder:
            return _export_folder(arguments, output)
    if arguments.file is None and output.json:
        raise ConfigError("stdout is either the export or --json; give --to FILE as well")
    with Progress(output, "exporting", "commits") as progress:
        entries = _entries(arguments, progress)
        target: AbstractContextManager[Any] = nullcontext() if arguments.file is None else NewFile(arguments.file)
        with target as opened:
            stream = sys.stdout.buffer if opened is None else opened.file
            count = _WRITERS[arguments.format](entries, stream)
    if not count:
        output.note("nothing in the log is like that")
    if arguments.file is None:
        sys.stdout.buffer.flush()
        return exits.OK
    size = arguments.file.stat().st_size
    output.document(_described(arguments.file, arguments.format, count, size))
    output.line(("exported", GOOD), f"  {counted(count, 'entry', 'entries')}  ", _file(arguments.file, size))
    return exits.OK


def _export_folder(arguments: argparse.Namespace, output: Output) -> int:
    """A table for each type of event, with typed columns."""
    if arguments.format != "parquet":
        raise ConfigError(f"{arguments.file} is a folder: only --format parquet writes into one; name a file")
    folder, selection = TableFolder(arguments.file), _selection(arguments)
    with Progress(output, "exporting", "commits") as progress, _opened_journal(arguments, progress) as journal:
        export = Export(journal, selection)
        for _ in folder.write(export, selection):
            progress.show(export.commits_read, export.commits_expected)
    files = [
        {"file": str(arguments.file / name), "rows": rows, "bytes": (arguments.file / name).stat().st_size}
        for name, rows in sorted(folder.rows.items())
    ]
    count, size = sum(folder.rows.values()), sum(one["bytes"] for one in files)
    output.document({**_described(arguments.file, "parquet", count, size), "files": files})
    if not files:
        output.note("nothing in the log is like that")
    for one in files:
        output.line(("exported", GOOD), f"  {counted(one['rows'], 'row')}  ", _file(Path(one["file"]), one["bytes"]))
    return exits.OK


@contextmanager
def _opened_journal(arguments: argparse.Namespace, progress: Progress) -> Iterator[Journal]:
    """The journal of a stopped node; of a running one, a copy of the part that is wanted, which it gives out."""
    path = find_running(arguments)
    if path is None:
        with closing_journal(inspect_all(find_journal(arguments))) as journal:
            yield journal
        return
    request = filled(FlightRequest, _cut(arguments, "exported"))
    with tempfile.TemporaryDirectory(prefix="stigmergy-export-", dir=arguments.file.parent) as folder:
        copied = Path(folder) / "copy.flight"
        with copied.open("wb") as file:
            for item in ask_stream(path, request):
                file.write(item.data)
                progress.show(item.commits, item.of)
        with closing_journal(inspect_journal(f"flight:{copied}")) as journal:
            yield journal


def _described(path: Path, form: str, entries: int, size: int) -> dict[str, Any]:
    return {"file": str(path), "format": form, "entries": entries, "bytes": size, "flight": form == "flight"}


def _file(path: Path, size: int) -> tuple[str, str]:
    return (f"{path} ({shown_bytes(size)})", NAME)


# ---------------------------------------------------------------------- entries


class _Described(msgspec.Struct, frozen=True):
    """An entry with the journal that it is from."""

    fleet: str
    incarnation: int
    entry: LogEntry


def _selection(arguments: argparse.Namespace) -> Selection:
    return filled(Selection, arguments, **_times_ns(arguments))


def _times_ns(arguments: argparse.Namespace) -> dict[str, int | None]:
    times: dict[str, int | None] = {}
    for name in ("since", "until"):
        text = getattr(arguments, name)
        times[f"{name}_ns"] = found = None if text is None else read_moment(text).time_ns
        if text is not None and found is None:
            raise ConfigError(
                f"--{name} {text}: give a time, such as 2026-11-15T08:00:00Z; for positions there is --from"
            )
    return times


def _entries(arguments: argparse.Namespace, progress: Progress) -> Iterator[_Described]:
    selection = _selection(arguments)
    path = find_running(arguments)
    if path is not None:
        request = filled(ExportRequest, selection)
        whose = ("", 0)
        for item in ask_stream(path, request):
            found = read_item(item, LogEntry)
            if isinstance(found, LogEntry):
                yield _Described(*whose, found)
            else:
                progress.show(found.commits, found.of)
                whose = (found.fleet or "", found.incarnation or 0)
        return
    with closing_journal(inspect_all(find_journal(arguments))) as journal:
        export = Export(journal, selection)
        for entry in export.entries():
            progress.show(export.commits_read, export.commits_expected)
            if entry is not None:
                yield _Described(journal.identity.fleet, journal.identity.incarnation, entry)


def _write_jsonl(entries: Iterable[_Described], stream: BinaryIO) -> int:
    count = 0
    for described in entries:
        stream.write(json_line(described.entry))
        count += 1
    return count


def _write_cloudevents(entries: Iterable[_Described], stream: BinaryIO) -> int:
    """Events that were kept, one structured CloudEvent a line. Answers and effects are no events."""
    count = 0
    for described in entries:
        if described.entry.kind == "event":
            stream.write(printable_json(write_structured(cloud_event(described))) + b"\n")
            count += 1
    return count


def cloud_event(described: _Described) -> CloudEvent:
    """A kept event for others. Its id is its place in the log, the same in every export."""
    entry = described.entry
    extensions = {"shard": str(entry.shard), "position": str(entry.position), "commandid": entry.cause.command_id}
    return CloudEvent(
        id=f"{described.incarnation}.{entry.shard}.{entry.position}.{entry.index}",
        source=f"/{described.fleet}/agents/{entry.agent}"
        if entry.agent
        else f"/{described.fleet}/shards/{entry.shard}",
        type=entry.type,
        subject=entry.agent,
        time=entry.time,
        datacontenttype=JSON,
        data=entry.fields,
        extensions={name: value for name, value in extensions.items() if value},
    )


def _write_parquet(entries: Iterable[_Described], stream: BinaryIO) -> int:
    return write_entries((described.entry for described in entries), stream)


_WRITERS: dict[str, Callable[[Iterable[_Described], BinaryIO], int]] = {
    "jsonl": _write_jsonl,
    "cloudevents": _write_cloudevents,
    "parquet": _write_parquet,
}


# ---------------------------------------------------------------------- flight log


def _export_flight(arguments: argparse.Namespace, output: Output) -> int:
    given = [name for name in ("type", "first", "last", "shard", "file") if getattr(arguments, name) is not None]
    if given:
        raise ConfigError(
            "a flight log holds whole commits, so that they can be verified: choose by agent, --since and --until"
        )
    if arguments.format is not None:
        raise ConfigError("a flight log has a form of its own; give either --flight or --format")
    cut, commits = _cut(arguments, arguments.reason), 0
    with Progress(output, "exporting", "commits") as progress, NewFile(arguments.flight) as file:
        for commits, of, piece in _flight_pieces(arguments, cut):
            file.write(piece)
            progress.show(commits, of)
    size = arguments.flight.stat().st_size
    output.document(_described(arguments.flight, "flight", commits, size))
    output.line(("exported", GOOD), f"  {counted(commits, 'commit')}  ", _file(arguments.flight, size))
    output.note(f"check it anywhere with: stigmergy log verify {arguments.flight}")
    return exits.OK


def _cut(arguments: argparse.Namespace, reason: str) -> FlightSelection:
    return filled(FlightSelection, arguments, agent=arguments.agent or "", reason=reason, **_times_ns(arguments))


def _flight_pieces(arguments: argparse.Namespace, cut: FlightSelection) -> Iterator[tuple[int, int, bytes]]:
    """Commits so far, of how many, and the next bytes."""
    path = find_running(arguments)
    if path is not None:
        if arguments.key is not None:
            raise ConfigError("a running node seals a flight log with its own key; leave --key out, or stop the node")
        for item in ask_stream(path, filled(FlightRequest, cut)):
            yield item.commits, item.of, item.data
        return
    url = find_journal(arguments)
    signer = load_signer(_sealing_key(arguments, url), create=False)
    with closing_journal(inspect_journal(url)) as journal:
        check_sealing(journal, signer, cut)
        of, pieces = commits_in(journal, cut), make_flight(journal, signer, cut, time.time_ns())
        for number, piece in enumerate(pieces):
            yield min(number, of), of, piece


def _sealing_key(arguments: argparse.Namespace, url: str) -> Path:
    config = config_of(arguments)
    path = arguments.key or (Path(config.fleet.key) if config.fleet.key else default_key_path("", url))
    if path is None or not path.exists():
        raise ConfigError("a flight log is sealed, and the key for that is not here; give it with --key FILE")
    return Path(path)
