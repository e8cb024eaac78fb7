"""What docs/cli.md says about the keys of --json is what there is; docs/control.md knows every request and its keys."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stigmergy.app.config import FleetConfig
from stigmergy.claims.service import ClaimsStatus
from stigmergy.control import protocol
from stigmergy.crdt.anti_entropy.context import SharedStatus
from tests.cli.conftest import DRONE, Folder
from tests.cli.in_process import Here
from tests.formats.manual import tables


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("documented")
    (path / "drone.py").write_text(DRONE, encoding="utf-8")
    folder = Here(path)
    node = folder.start()
    folder.ask(do="send", agent="Drone/D-0", command="StartMission", fields={"mission": "M1"})
    node.end()
    return folder


def documented(command: str) -> set[str]:
    """The keys in the row of this command; what is inside them is in brackets."""
    rows = {row[0]: " ".join(row[1:]) for row in tables("cli.md")["Output"]}
    (text,) = [text for names, text in rows.items() if f"`{command}`" in names]
    outside = re.sub(r"\([^)]*\)", "", text)
    return {name for name in re.findall(r"`([a-z_]+)`", outside) if not name.startswith("-")}


def test_keys(stopped: Folder) -> None:
    found: dict[str, Any] = {
        "replay": stopped.json("replay", "drone:fleet"),
        "log export": stopped.json("log", "export", "--to", "x.jsonl"),
        "log hold set": stopped.json("log", "hold", "set", "--reason", "a test"),
        "log hold list": stopped.json("log", "hold", "list"),
    }
    for command, document in found.items():
        assert documented(command) == set(document), command
    assert stopped.cli("doctor", "--json").stdout.startswith('{"ok":')
    assert documented("doctor") == {"ok", "worst", "counts", "checks"}


def test_keys_of_a_verified_flight_log(stopped: Folder) -> None:
    stopped.json("log", "export", "--flight", "x.flight")
    found = stopped.json("log", "verify", "x.flight")
    text = Path(__file__).resolve().parents[2].joinpath("docs", "cli.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"With flight logs it prints one document for each: (.*?);", text, re.DOTALL)
    assert set(re.findall(r"`([a-z_]+)`", sentence)) == set(found)


def test_every_request_is_in_the_manual_with_its_keys() -> None:
    rows = {name: row for row in tables("control.md")["Requests"] for name in re.findall(r"`([a-z_]+)`", row[0])}
    for request in protocol.AnyRequest.__args__:
        config = structs.fields(request)
        tag = str(request.__struct_config__.tag)
        wanted = {field.name: field.required for field in config if field.name != "v"}
        written = {name: bool(star) for star, name in re.findall(r"(\*?)`([a-z_]+)`", rows[tag][1])}
        assert written == wanted, tag


def test_how_a_node_stands_with_others_is_in_the_manual() -> None:
    text = Path(__file__).resolve().parents[2].joinpath("docs", "control.md").read_text(encoding="utf-8")
    (shared,) = re.findall(r"^- `shared`, of a node .*$", text, re.MULTILINE)
    for standing in (SharedStatus, ClaimsStatus):
        for field in structs.fields(standing):
            assert f"`{field.name}`" in shared, field.name


def test_every_place_of_a_fleet_is_in_the_manual() -> None:
    documented = [row[0].strip("`") for row in tables("configuration.md")["Where a fleet runs"]]
    assert sorted(documented) == sorted(field.name for field in structs.fields(FleetConfig))
