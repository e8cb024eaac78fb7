"""`stigmergy policy`: test, sign, show, put."""

import json
from pathlib import Path

import pytest

from tests.cli.in_process import Here
from tests.policy.drones import DATA, REGO

CASES = [
    {
        "name": "charged",
        "allow": True,
        "input": {"message": "StartMission", "fields": {"mission": "M1"}, "state": {"battery": 50}},
    },
    {
        "name": "empty",
        "allow": False,
        "reason": "battery at 3 %, 20 % needed",
        "input": {"message": "StartMission", "fields": {"mission": "M1"}, "state": {"battery": 3}},
    },
    {"name": "by the program", "allow": True, "input": {"kind": "enrolment", "sender": {"how": "program"}}},
]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """A policy with its cases, and a key."""
    folder = Here(tmp_path)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "drones.rego").write_text(REGO)
    (tmp_path / "policy" / "data.json").write_text(DATA)
    (tmp_path / "policy" / "cases.json").write_text(json.dumps(CASES))
    (tmp_path / "policy" / "drones_test.rego").write_text("package stigmergy_test\n\ntest_of_opa if { true }\n")
    folder.json("keys", "new", "ops.key")
    return folder


SIGN = ("policy", "sign", "policy", "--name", "delivery", "--key", "ops.key", "--version")


def test_cases_are_tried(here: Here) -> None:
    tried = here.json("policy", "test", "policy")
    assert (tried["ok"], [one["name"] for one in tried["cases"]]) == (True, ["charged", "empty", "by the program"])
    assert here.json("policy", "test", "policy/drones.rego")["ok"] is True
    cases = [*CASES, {"name": "erased", "allow": True, "input": {"message": "Erase"}}]
    (here.path / "policy" / "cases.json").write_text(json.dumps(cases))
    done = here.cli("policy", "test", "policy")
    assert done.returncode == 1
    assert "erased: it is denied: no rule allows it" in done.stdout
    # What its own cases say is wrong is not signed.
    refused = here.cli(*SIGN, "3")
    assert refused.returncode == 1
    assert "the case 'erased' fails" in refused.stderr


def test_a_case_without_sense_is_refused(here: Here) -> None:
    for cases, why in (
        ([{"name": "a", "allow": True, "input": {"command": "Erase"}}], "'command' is in no input"),
        ([{"name": "a", "input": {}}], "a case has name, input, allow"),
    ):
        (here.path / "policy" / "cases.json").write_text(json.dumps(cases))
        done = here.cli("policy", "test", "policy")
        assert done.returncode == 1
        assert why in done.stderr
    (here.path / "policy" / "cases.json").unlink()
    assert "write cases" in here.cli("policy", "test", "policy").stderr


def test_a_policy_is_signed_shown_and_put(here: Here) -> None:
    signed = here.json(*SIGN, "3", "--note", "M13 is forbidden")
    assert (signed["file"], signed["fleet"], signed["version"]) == ("delivery-3.policy", "delivery", 3)
    assert here.cli(*SIGN, "3").returncode == 2  # a bundle is never replaced
    shown = here.json("policy", "show", "delivery-3.policy")
    assert shown["modules"] == {"drones.rego": REGO}
    assert (shown["data"], shown["note"]) == (DATA, "M13 is forbidden")
    assert shown["signer"] == signed["signer"] == here.json("keys", "show", "ops.key")["public_key"]
    assert "# drones.rego" in here.cli("policy", "show", "delivery-3.policy").stdout
    (here.path / "there").mkdir()
    put = here.json("policy", "put", "delivery-3.policy", "--policy", f"folder:{here.path}/there")
    assert put["file"] == "delivery-3.policy"
    data = (here.path / "delivery-3.policy").read_bytes()
    assert (here.path / "there" / "delivery-3.policy").read_bytes() == data


def test_what_nobody_would_believe_is_not_put(here: Here) -> None:
    here.json(*SIGN, "3")
    path = here.path / "delivery-3.policy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert here.json("policy", "show", "delivery-3.policy")["signer"] is None
    done = here.cli("policy", "put", "delivery-3.policy", "--policy", f"folder:{here.path}")
    assert done.returncode == 1
    assert "its signature is missing or wrong" in done.stderr
