"""`stigmergy workflows` on a running node: all runs, pages, one run step by step; and `send` to runs."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.cli.api.workflows import _happened
from tests.cli.conftest import Folder
from tests.cli.in_process import Here

WAIT_S_MAX = 240.0
FLEET = Path(__file__).parents[1] / "workflows" / "delivery.py"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """J-1 waits for its drone to arrive, J-2 was undone, J-3 waits behind an obstacle."""
    path = tmp_path_factory.mktemp("workflows")
    (path / "drone.py").write_text(FLEET.read_text(encoding="utf-8"), encoding="utf-8")
    folder = Here(path)
    running = folder.start()
    for name, parcel in (("1", "P1"), ("2", "stuck"), ("3", "P3")):
        folder.ask(do="send", agent=f"Delivery/J-{name}", command="Deliver", fields={"drone": name, "parcel": parcel})
        wait(folder, f"Delivery/J-{name}", "running", "FlyTo", 1)
    folder.ask(do="observe", agent="Drone/2", event="Arrived", fields={})
    wait(folder, "Delivery/J-2", "undone")
    folder.ask(do="observe", agent="Drone/3", event="ObstacleDetected", fields={"what": "crane"})
    wait(folder, "Delivery/J-3", "running", "FlyTo", 2)
    yield folder
    running.end()


def wait(folder: Folder, run: str, status: str, step: str = "", attempt: int = 0) -> None:
    deadline_s, state = time.monotonic() + WAIT_S_MAX, {}
    while time.monotonic() < deadline_s:
        state = folder.ask(do="state", agent=run)["state"]
        its: dict[str, Any] = state["steps"].get(step, {"state": "begun", "attempt": 0})
        if (state["status"], its["state"], its["attempt"]) == (status, "begun", attempt):
            return
    raise AssertionError(f"{run} is {state}")


def test_all_runs_and_where_they_stand(node: Folder) -> None:
    found = node.json("workflows")
    assert [(one["run"], one["status"], one["reason"]) for one in found["runs"]][:3] == [
        ("Delivery/J-1", "running", ""),
        ("Delivery/J-2", "undone", "ReleaseParcel: refused: the hook does not open"),
        ("Delivery/J-3", "running", ""),
    ]
    (step,) = found["runs"][2]["steps"]
    assert (step["step"], step["state"], step["attempt"], step["to"]) == ("FlyTo", "begun", 2, "Drone/3")
    assert found["runs"][2]["since"] == step["since"] > found["runs"][0]["since"]
    assert (found["next"], found["missing"]) == (None, [])
    shown = node.cli("workflows")
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[0].split() == ["RUN", "STATUS", "STEP", "SINCE", "TRY", "REASON"]
    assert shown.stdout.splitlines()[3].split() == ["Delivery/J-3", "running", "FlyTo", step["since"], "2"]


def test_some_of_them_page_by_page(node: Folder) -> None:
    assert node.json("workflows", "Delivery", "--status", "undone")["runs"][0]["run"] == "Delivery/J-2"
    assert node.json("workflows", "--status", "stuck")["runs"] == []
    assert "no such runs" in node.cli("workflows", "--status", "stuck").stderr
    first = node.json("workflows", "--limit", "2")
    assert first["next"] == "Delivery/J-2"
    assert [one["run"] for one in first["runs"]] == ["Delivery/J-1", "Delivery/J-2"]
    assert node.json("workflows", "--after", first["next"])["runs"][0]["run"] == "Delivery/J-3"


def test_one_run_step_by_step(node: Folder) -> None:
    found = node.json("workflows", "Delivery/J-2")
    assert {one["step"]: (one["state"], one["reason"]) for one in found["steps"]} == {
        "PlanRoute": ("done", ""),
        "TakeOff": ("undone", ""),
        "FlyTo": ("done", ""),
        "ReleaseParcel": ("failed", "refused: the hook does not open"),
        "undo TakeOff": ("done", ""),
    }
    events = [(one["event"], one["fields"].get("step", "")) for one in found["history"]]
    assert events[0] == ("stigmergy.RunBegan.Deliver", "")
    assert events[-3:] == [
        ("stigmergy.StepDone", "undo TakeOff"),
        ("stigmergy.StepUndone", "TakeOff"),
        ("stigmergy.RunEnded", ""),
    ]
    assert sorted(one["time"] for one in found["history"]) == [one["time"] for one in found["history"]]
    shown = node.cli("workflows", "Delivery/J-2").stdout
    assert "Delivery/J-2  undone  version 1  ReleaseParcel: refused: the hook does not open" in shown
    assert 'StepFailed        step=ReleaseParcel attempt=1 reason="refused: the hook does not open"\n' in shown


def test_a_choice_says_which_way_the_run_went() -> None:
    shown = [_happened({"time": "", "event": "stigmergy.BranchTaken", "fields": {"branch": "late", "holds": holds}})
             for holds in (False, True)]  # fmt: skip
    assert ["holds=false" in str(one[2]) for one in shown] == [True, False]
    assert "holds=true" in str(shown[1][2])


def test_the_log_knows_the_framework_s_events_by_their_short_names(node: Folder) -> None:
    def types(*words: str) -> set[str]:
        return {entry["type"] for entry in node.lines("log", "show", *words)}

    assert types("--type", "RunBegan") == types("--type", "stigmergy.RunBegan") == {"stigmergy.RunBegan.Deliver@1"}
    assert types("Delivery/J-2", "--type", "UndoBegan") == {"stigmergy.UndoBegan@1"}
    assert types("--type", "Nothing") == types("--type", "Began") == set()


def test_what_is_no_run(node: Folder) -> None:
    other = node.cli("workflows", "Drone/1")
    assert (other.returncode, "'Drone' is no workflow here; there are Delivery" in other.stderr) == (2, True)
    nobody = node.cli("workflows", "Delivery/none")
    assert (nobody.returncode, "Delivery/none has not begun" in nobody.stderr) == (1, True)


def test_runs_take_the_commands_of_people(node: Folder) -> None:
    for command, fields in (("ApproveStep", ["step=FlyTo"]), ("DenyStep", ["step=FlyTo"]), ("RetryUndo", [])):
        refused = node.cli("send", "Delivery/J-1", command, *fields)
        assert refused.returncode == 1, command
        assert "Delivery/J-1" in refused.stdout
    node.json("send", "Delivery/J-4", "Deliver", "drone=4", "parcel=P4")
    assert node.json("send", "Delivery/J-4", "CancelRun", "reason=rain")["accepted"] is True
    wait(node, "Delivery/J-4", "undone")
    assert node.json("workflows", "Delivery/J-4")["reason"] == "cancelled: rain"
