"""The checker of the city finds what is wrong."""

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from rigs.city_checker import (
    Findings,
    Journal,
    Leak,
    Opened,
    check_exposure,
    check_incidents,
    check_keys,
    check_notices,
    check_wires,
)

LEAK = Leak("leak-0", "co", "g1d1", 100.0, 150.0)


def opened(position: int = 1, incident: str = "I-1", sensor: str = "g1d1-003", since_s: float = 110.0) -> Opened:
    return Opened(position, incident, "opened", "CO_leak", sensor, "g1", since_s, "", 2, since_s + 0.1)


def found_in(journals: list[Journal], leaks: list[Leak]) -> dict[str, Any]:
    found = Findings()
    check_incidents(found, leaks, journals)
    return {key: value for key, value in msgspec.to_builtins(found).items() if value and key != "details"}


def test_a_good_run_has_no_findings() -> None:
    journals = [Journal("g1", [opened()], [("I-1", 110.0)]), Journal("g2", [opened()], [])]
    assert found_in(journals, [LEAK]) == {"leaks": 1, "incidents": 1}


@pytest.mark.parametrize(
    ("journals", "what"),
    [
        ([Journal("g1", [], [])], "lost"),
        ([Journal("g1", [opened()], [("I-1", 1.0), ("I-2", 2.0)])], "lost"),
        ([Journal("g1", [opened(), opened(2, "I-2", "g1d1-004")], [])], "doubled"),
        ([Journal("g1", [opened(), opened(2)], [])], "doubled"),
        ([Journal("g1", [opened(), opened(2, "I-2", "g2d1-004")], [])], "false_incidents"),
        ([Journal("g1", [opened()], []), Journal("g2", [opened(2, "I-9")], [])], "orders_differ"),
        ([Journal("g1", [opened(), opened(2, "I-2", "g3d1-001")], [("I-2", 1.0), ("I-1", 2.0)])], "out_of_order"),
    ],
)
def test_what_is_wrong_with_the_ledger_is_found(journals: list[Journal], what: str) -> None:
    assert found_in(journals, [LEAK])[what] >= 1


def signed(position: int, proposer: str, key: str, at_s: float) -> Opened:
    return structs.replace(opened(position), proposer=proposer, key=key, at_s=at_s)


def keys_found(journals: list[Journal]) -> tuple[int, int]:
    found = Findings()
    check_keys(found, journals, [{"fact": "emptied", "gateway": "g2", "at_s": 200.0}])
    return found.foreign_keys, found.rejoined


def test_keys_that_are_shared_or_changed_are_found_and_who_takes_part_again() -> None:
    first = [signed(1, "Desk/g1", "aa", 110.0), signed(2, "Desk/g2", "bb", 120.0)]
    assert keys_found([Journal("g1", first)]) == (0, 0)
    again = [*first, signed(3, "Desk/g2", "bb", 210.0)]
    assert keys_found([Journal("g1", again)]) == (0, 1)
    assert keys_found([Journal("g1", [*again, signed(4, "Desk/g2", "aa", 220.0)])]) == (2, 1)
    late = [structs.replace(one, at_s=300.0) for one in first]
    assert keys_found([Journal("g1", first), Journal("g2", late)]) == (0, 0), "it only reads what was there"


def test_raw_readings_on_a_wire_are_found_wherever_they_begin(tmp_path: Path) -> None:
    raw = struct.pack("<2f", 1234.5, 987.25)
    (tmp_path / "raw.bin").write_bytes(struct.pack("<2f", 1.5, 2.5) + raw)
    for wire, count in ((b"probably 0.97", 0), (b"abc" + raw + b"z", 8), (b"\xcb" + struct.pack(">d", 1234.5), 8)):
        (tmp_path / "g1.wire").write_bytes(wire)
        found = Findings()
        check_wires(found, tmp_path)
        assert found.raw_bytes_left_device == count


def test_notices_that_are_missing_or_acted_on_twice_are_found(tmp_path: Path) -> None:
    told = [{"mark": "I-1:2", "first": True}, {"mark": "I-1:2", "first": True}, {"mark": "I-1:2", "first": False}]
    (tmp_path / "webhook.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told), encoding="utf-8")
    found = Findings()
    check_notices(found, tmp_path, [opened(), opened(2, "I-2")])
    assert (found.not_notified, found.notified_twice, found.repeated_notices) == (1, 1, 1)


def test_counters_that_differ_or_lack_something_are_found(tmp_path: Path) -> None:
    journals = [Journal("g1", [], []), Journal("g2", [], [])]
    journals[0].exposed["g1d1/co"] = 5
    for name, count in (("g1", 5), ("g2", 4)):
        (tmp_path / f"{name}.exposure").write_text(json.dumps({"exposure": {"g1d1/co": count}}), encoding="utf-8")
    found = Findings()
    check_exposure(found, tmp_path, journals)
    assert (found.exposure_diverged, found.exposure_lost) == (1, 1)
