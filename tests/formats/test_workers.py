"""What workers write for each other is what the manual says; and what the manual shows as commands can be typed."""

import re

import pytest
from msgspec import NODEFAULT, Struct, structs

from stigmergy.base.errors import Malformed
from stigmergy.cli.main import build_parser
from stigmergy.cluster.records import (
    Coordinator,
    FleetShape,
    KindFold,
    Owner,
    ShardPlan,
    StandbyRecord,
    WorkerRecord,
    owner_key,
    read_record,
    ready_key,
    worker_key,
    worker_of,
    write_record,
)
from tests.formats.manual import DOCS, tables


@pytest.mark.parametrize("record", [FleetShape, WorkerRecord, KindFold, Coordinator, ShardPlan, Owner, StandbyRecord])
def test_fields_are_those_of_the_manual(record: type[Struct]) -> None:
    rows = tables("formats.md")[record.__name__]
    assert [row[0] for row in rows] == [field.name for field in structs.fields(record)]
    has_default = [
        field.default is not NODEFAULT or field.default_factory is not NODEFAULT for field in structs.fields(record)
    ]
    assert ["(" in row[1] for row in rows] == has_default


def test_bytes_of_a_record_stay_as_they_are() -> None:
    assert write_record(Owner("alpha-1-aa", 41)) == b'{"worker":"alpha-1-aa","claim":41,"format":1}'
    assert write_record(StandbyRecord("alpha-1-aa", 7)) == b'{"worker":"alpha-1-aa","position":7,"format":1}'
    assert read_record(Owner, "owner.3", b'{"worker":"b","claim":2,"later":true}') == Owner("b", 2)
    member = WorkerRecord("a", unfit={3: "no"}, owns=(1, 2), kinds=(KindFold("Drone", 1, "ff"),))
    assert read_record(WorkerRecord, "worker.a", write_record(member)) == member


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"worker":1,"claim":2}', b"\xff", b'{"worker":"a","claim":1,"format":2}']
)
def test_what_is_no_record_is_said_so(value: bytes) -> None:
    with pytest.raises(Malformed, match=r"owner\.3: "):
        read_record(Owner, "owner.3", value)


def test_keys_are_those_of_the_manual() -> None:
    assert (worker_key("a"), owner_key(3), ready_key(4)) == ("worker.a", "owner.3", "ready.4")
    assert (worker_of("worker.a-b"), worker_of("owner.3")) == ("a-b", None)


def test_commands_of_the_page_on_workers_can_be_typed() -> None:
    text = (DOCS / "workers.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ stigmergy (.+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        assert callable(build_parser().parse_args(command.split()).run)
    for option in re.findall(r"`(--[a-z-]+)", text):
        assert option in {"--nats", "--key", "--trust", "--upgrade"}, option
