"""`stigmergy view` on a running node: rows, pages, read-your-writes, and refusals that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import DRONE, Folder
from tests.cli.in_process import Here

VIEWS = """

from stigmergy import Key, Origin, View, project


class Missions(View):
    mission: Key[str]
    started: int = 0
    priority: float = 0.0
    last: str | None = None

    @project
    def began(self, event: MissionStarted, origin: Origin) -> None:
        self.started += 1
        self.priority = max(self.priority, event.priority)
        self.last = origin.agent


fleet = Fleet("delivery", agents=[Drone], views=[Missions], shards=2)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("views")
    (path / "drone.py").write_text(DRONE + VIEWS, encoding="utf-8")
    folder = Here(path)
    running = folder.start()
    for number in range(6):
        fields = {"mission": f"M{number % 3}", "priority": number}
        folder.ask(do="send", agent=f"Drone/D-{number}", command="StartMission", fields=fields)
    yield folder
    running.end()


def up_to_date(node: Folder) -> list[str]:
    """Waits for a command of ours, and for everything before it in all shards."""
    answer = node.json("send", "Drone/D-9", "StartMission", "mission=M9")
    heads = [f"{head['shard']}:{head['position']}" for head in node.json("status")["heads"]]
    after = [f"Drone/D-9:{answer['position']}", *heads]
    return [text for one in after for text in ("--after", one)] + ["--within", "50"]


def test_rows_of_a_running_node(node: Folder) -> None:
    seen = up_to_date(node)
    found = node.json("view", "Missions", "mission=M1", *seen)
    assert found["rows"] == [{"mission": "M1", "started": 2, "priority": 4.0, "last": found["rows"][0]["last"]}]
    assert {name.partition("@")[0] for name in found["positions"]} == {"delivery/0", "delivery/1"}
    after = [f"--after={name}:{at}" for name, at in found["positions"].items()]
    assert node.json("view", "Missions", *after)["rows"]
    assert found["next"] is None
    shown = node.cli("view", "Missions", "started>=2", "mission<M9", "--order=-priority", *seen).stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["MISSION", "M2", "M1", "M0"]
    first = node.json("view", "Missions", "--order", "mission", "--limit", "2")
    second = node.json("view", "Missions", "--order", "mission", "--cursor", first["next"])
    assert [row["mission"] for row in first["rows"] + second["rows"]] == ["M0", "M1", "M2", "M9"]
    assert node.json("view", "Missions", "last=null")["rows"] == []


def test_the_views_there_are(node: Folder) -> None:
    node.json("view", "Missions", *up_to_date(node))
    (view,) = node.json("view")["views"]
    assert (view["view"], view["keys"], view["building"], view["trouble"]) == ("Missions", ["mission"], False, "")
    assert view["fields"] == {"mission": "str", "started": "int", "priority": "float", "last": "None | str"}
    assert "Missions" in node.cli("view").stdout


@pytest.mark.parametrize(
    ("asked", "why", "kind"),
    [
        (["Nothing"], "there is no view 'Nothing' here; there are Missions", "ConfigError"),
        (["Missions", "zone=7"], "Missions has no field 'zone'; it has mission, started", "Malformed"),
        (["Missions", "started=many"], "Missions.started: 'many' does not fit", "Malformed"),
        (["Missions", "started"], "write FIELD=VALUE", "Malformed"),
        (["Missions", "--order", "last"], "cannot be ordered by last", "Malformed"),
        (["Missions", "--limit", "0"], "limit 0: give 1 to 10000", "Malformed"),
        (["Missions", "--cursor", "abc"], "begin again without one", "ConfigError"),
        (["Missions", "--after", "x"], "give the `after` of a command", "Malformed"),
        (["Missions", "--after", "delivery/1@abc:1"], "is of the log abc, and this view reads", "ConfigError"),
        (["Missions", "--after", "0@abc:1"], "ask the node that has that log, or name it with of_node", "ConfigError"),
        (["Missions", "--after", "1:99999", "--within", "0.2"], "not so far within 0.2 s", "ViewBehind"),
        (["Missions", "--within", "900"], "give 0 to 50 seconds", "ConfigError"),
    ],
)
def test_what_cannot_be_asked_is_refused(node: Folder, asked: list[str], why: str, kind: str) -> None:
    done = node.cli("view", *asked, "--json")
    assert done.returncode in (1, 2, 3)
    assert why in done.stdout
    assert f'"kind":"{kind}"' in done.stdout.replace(" ", "")


def test_a_fleet_without_views_says_so(tmp_path: Path) -> None:
    (tmp_path / "drone.py").write_text(DRONE, encoding="utf-8")
    folder = Here(tmp_path)
    node = folder.start()
    done = folder.cli("view", "Missions")
    assert done.returncode == 2
    assert "no views are kept here: list them in Fleet(…, views=[…])" in done.stderr
    node.end()
