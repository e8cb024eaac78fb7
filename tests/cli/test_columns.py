"""The `log` commands on a log with records of compiled agents: no classes, no compiler, typed tables."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]
import pytest
from msgspec import structs
from pyarrow import dataset, parquet  # type: ignore[import-untyped,unused-ignore]

from stigmergy.agents.codec import encode
from stigmergy.agents.supervision import ColumnsDeclared
from stigmergy.cli.main import main
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.sqlite import open_journal
from stigmergy.keys.keyfile import PrivateKey, write_private_key
from tests.audit.column_log import FLEET, ColumnLog, a_log, a_run, measured
from tests.formats.golden_columns import LAYOUT, TEMPLATES

Log = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)

    async def make() -> None:
        journal = open_journal("sqlite:columns.db", JournalIdentity(FLEET, 1, 7))
        await another_layout(await a_log(journal))
        await journal.close()

    asyncio.run(make())
    return tmp_path


async def another_layout(log: ColumnLog) -> None:
    """The class has got another field since, and still the same version."""
    (first, *others) = LAYOUT.forms
    layout = structs.replace(LAYOUT, forms=[structs.replace(first, columns=first.columns[:-1]), *others])
    said = ColumnsDeclared(kind="Meter", layout=encode(layout), templates=encode(TEMPLATES))
    record = measured(1, 6.5)[:36] + b"\0" + measured(1, 6.5)[37:]
    await log.add(("", encode(said)), columns=[a_run([record], 0, layout=layout.digest())])


def log(*arguments: str) -> int:
    return main(["log", *arguments, "--journal", "sqlite:columns.db"])


def test_show_verify_and_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert log("verify") == 0
    assert "sound" in capsys.readouterr().out
    assert log("show", "Meter/M-8") == 0
    shown = capsys.readouterr().out
    assert "Measured" in shown
    assert "→ Alarm" in shown
    assert log("export", "Meter/M-1", "--format", "cloudevents", "--to", "cloud.jsonl") == 0
    events = [json.loads(line) for line in (folder / "cloud.jsonl").read_text().splitlines()]
    assert [(one["id"], one["subject"], one["data"]["level"]) for one in events] == [
        ("7.0.4.1", "Meter/M-1", 2.5),
        ("7.0.4.3", "Meter/M-1", 4.5),
    ]
    assert log("export", "--format", "parquet", "--to", "all.parquet") == 0
    table: Any = parquet.read_table(folder / "all.parquet")
    assert table.num_rows == 12


def test_a_folder_has_a_typed_table_for_each_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert log("export", "--format", "parquet", "--to", "tables/", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert {Path(one["file"]).name: one["rows"] for one in said["files"]} == {
        "Meter.Measured.parquet": 5,
        "Meter.Measured.2.parquet": 1,
        "Meter.Alarm.orders.parquet": 1,
        "log.parquet": 7,
    }
    assert (said["entries"], said["format"], said["file"]) == (14, "parquet", "tables")
    assert said["bytes"] == sum(path.stat().st_size for path in (folder / "tables").iterdir())
    table: Any = parquet.read_table(folder / "tables" / "Meter.Measured.parquet")
    assert table.column("level").to_pylist() == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert table.column("agent").to_pylist()[:2] == ["Meter/M-7", "Meter/M-1"]
    assert str(table.schema.field("time").type) == "timestamp[ns, tz=UTC]"
    both: Any = dataset.dataset(sorted((folder / "tables").glob("Meter.Measured*.parquet")), format="parquet")
    assert both.count_rows(filter=arrow.dataset.field("level") > 3) == 4
    rest: Any = parquet.read_table(folder / "tables" / "log.parquet")
    assert rest.column("agent").to_pylist() == ["", "", "", "Drone/D-1", "", "Meter/M-1", ""]


def test_a_folder_is_chosen_from_like_anything_else(folder: Path) -> None:
    def files(name: str, *chosen: str) -> dict[str, int]:
        assert log("export", *chosen, "--format", "parquet", "--to", f"{name}/") == 0
        tables: list[tuple[str, Any]] = [(path.name, parquet.read_table(path)) for path in (folder / name).iterdir()]
        return {where: table.num_rows for where, table in tables}

    assert files("one", "Meter/M-8") == {"Meter.Measured.parquet": 1, "Meter.Alarm.orders.parquet": 1}
    assert files("two", "--type", "Alarm") == {"Meter.Alarm.orders.parquet": 1}
    assert files("three", "--since", "1970-01-01T00:00:05Z", "--upto", "5") == {"Meter.Measured.parquet": 1}
    assert files("four", "--type", "Nothing") == {}


def test_a_folder_that_has_tables_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tables").mkdir()
    assert log("export", "--format", "parquet", "--to", "tables") == 0
    before = {path.name: path.read_bytes() for path in (folder / "tables").iterdir()}
    assert len(before) == 4
    assert log("export", "--format", "parquet", "--to", "tables") == 2
    assert "give an empty folder" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (folder / "tables").iterdir()} == before
    assert log("export", "--to", "tables") == 2
    assert "only --format parquet" in capsys.readouterr().err
    (folder / "file").write_text("")
    assert log("export", "--format", "parquet", "--to", "file/x/") == 2
    assert "give another folder" in capsys.readouterr().err


def test_nothing_is_left_of_an_export_that_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def spoil() -> None:
        journal = open_journal("sqlite:columns.db", JournalIdentity(FLEET, 1, 7))
        spoilt = ColumnLog(journal)
        last = journal.heads()[0]
        spoilt.position, spoilt._previous = last.position, last.digest
        await spoilt.add(columns=[a_run([measured(77, 1.0)], 0)])
        await journal.close()

    asyncio.run(spoil())
    assert log("export", "--format", "parquet", "--to", "tables/") == 4
    assert "agent 77 of Meter was never enrolled" in capsys.readouterr().err
    assert list((folder / "tables").iterdir()) == []
    assert log("verify") == 1


def test_a_cut_of_the_log_is_read_like_the_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_private_key(folder / "columns.key", PrivateKey(bytes(range(32))))
    assert log("export", "--flight", "cut.flight", "--since", "1970-01-01T00:00:05Z", "--key", "columns.key") == 0
    assert main(["log", "verify", "cut.flight"]) == 0
    assert "Meter/M-2 (2)" in capsys.readouterr().out
    assert main(["log", "show", "--journal", "flight:cut.flight"]) == 0
    assert "Meter/M-2" in capsys.readouterr().out
    to = ["--format", "parquet", "--to", "tables/"]
    assert main(["log", "export", *to, "--journal", "flight:cut.flight"]) == 0
    table: Any = parquet.read_table(folder / "tables" / "Meter.Measured.parquet")
    assert table.column("agent").to_pylist() == ["Meter/M-2"]
