"""`stigmergy profile` of real nodes: on SQLite and in segments, with a broker, compiled; what it prints and draws."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from stigmergy.cli.display.flame import draw_flames
from stigmergy.testing.brokers import Broker
from tests.cli.conftest import Folder
from tests.cli.in_process import Here

BUSY = """
import stigmergy as st


class Measured(st.Event):
    level: float


class Gauge(st.Agent):
    level: float = 0.0
    count: int = 0

    @st.evolve
    def measured(self, event: Measured) -> None:
        self.level = event.level
        self.count += 1


fleet = st.Fleet("busy", agents=[Gauge]{options})


@fleet.sensor(Gauge, every_s=0.01, agents=["a", "b"])
async def read(name: str) -> Measured:
    return Measured(level=1.0)
"""


VIEW = """class Levels(st.View):
    level: st.Key[int]
    count: int = 0

    @st.project(key=lambda event: int(event.level))
    def measured(self, event: Measured) -> None:
        self.count += 1


"""


@pytest.fixture
def busy(disk_path: Path) -> Iterator[Folder]:
    """On a disk: what is written to memory does not go to flash."""
    (disk_path / "busy.py").write_text(BUSY.replace("{options}", ""), encoding="utf-8")
    folder = Here(disk_path)
    yield folder
    folder.close()


def check(found: dict[str, Any], handler: str = "measured") -> None:
    """What is there whatever the node runs on."""
    assert found["events"] > 0
    phases = {one["phase"]: one["seconds"] for one in found["phases"]}
    assert {"decode", "decide", "step", "seal", "release", "other", "write", "sync"} == set(phases)
    assert all(phases[name] > 0 for name in ("decide", "step", "seal", "release", "write"))
    (counted,) = [one for one in found["handlers"] if one["handler"] == handler]
    assert counted["kind"] == "Gauge"
    assert counted["calls"] > 0
    assert counted["seconds"] > 0
    assert found["loop_cpu_s"] <= found["cpu_s"] + 0.01
    assert any(one["cause"].startswith("Gauge ") for one in found["contents"])
    assert found["source"] in ("py-spy", "counters")
    assert found["stacks"]


@pytest.mark.parametrize("journal", ["sqlite:busy.db", "segments:busy"])
def test_a_profile_says_where_time_and_bytes_go(busy: Folder, journal: str) -> None:
    node = busy.start("busy:fleet", "--journal", journal)
    found = busy.json("profile", "--for", "1s", "--journal", journal)
    check(found)
    assert found["process"] == f"process {node.process.pid}"
    if found["flash"]:  # a file system in memory writes nothing
        flash = {one["cause"]: one["bytes"] for one in found["flash"]}
        content = sum(one["bytes"] for one in found["contents"])
        assert flash["journal: commits"] >= content, "in whole pages"
    done = busy.cli("profile", "--for", "500ms", "--journal", journal)
    assert done.returncode == 0, done
    for word in ("ON THE LOOP", "Gauge.measured", "evolve", "CONTENT", "Gauge Measured@1", "profile.svg"):
        assert word in done.stdout
    drawn = ElementTree.parse(busy.path / "profile.svg")
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}rect")) > 3
    assert node.end()[0] == 0


def test_the_sample_of_the_manual_prints_what_the_manual_shows(busy: Folder) -> None:
    page = Path(__file__).resolve().parents[2].joinpath("docs", "profiling.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"<!-- output of .* -->\n\n((?:    .*\n|\n)*)", page)
    (busy.path / "survey.py").write_text(code, encoding="utf-8")
    busy.start("survey:fleet", "--journal", "survey.db")
    printed = busy.cli("profile", "--for", "2s", "--journal", "survey.db").stdout

    def names(text: str) -> set[str]:
        """What is in the first columns, and the headings; figures differ."""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return {re.split(r"  +", line)[0] for line in lines if not line.startswith("event loop")}

    rare = {"journal: checkpoints and spare files", "journal: snapshots", "other", "TO FLASH", "journal: commits"}
    assert names(shown) - rare == names(printed) - rare - {"shard SignerEnrolled@1"}


def test_views_and_snapshots_are_causes_of_their_own(busy: Folder) -> None:
    often = "st.Settings(snapshots=st.Snapshots(every_events=20, tail_ratio=0.0, share_max=1.0))"
    code = BUSY.replace("{options}", f", views=[Levels], settings={often}").replace("fleet = ", f"{VIEW}fleet = ", 1)
    (busy.path / "busy.py").write_text(code, encoding="utf-8")
    busy.start("busy:fleet", "--journal", "busy.db")
    found = busy.json("profile", "--for", "3s", "--journal", "busy.db")
    assert {one["cause"] for one in found["contents"]} >= {"snapshots", "Gauge Measured@1"}
    if found["flash"]:
        assert {one["cause"] for one in found["flash"]} >= {"journal: commits", "journal: snapshots", "views"}


def test_a_node_with_a_broker(busy: Folder, mosquitto: Broker) -> None:
    busy.start("busy:fleet", "--journal", "busy.db", "--bus", mosquitto.url)
    check(busy.json("profile", "--for", "1s", "--journal", "busy.db"))


def test_a_compiled_kind_is_one_handler(busy: Folder) -> None:
    (busy.path / "busy.py").write_text(BUSY.replace("{options}", ", compiled=True"), encoding="utf-8")
    busy.start("busy:fleet", "--journal", "segments:busy")
    check(busy.json("profile", "--for", "1s", "--journal", "segments:busy"), "(compiled)")


def test_what_cannot_be_is_refused_in_a_sentence(busy: Folder) -> None:
    assert "no node is running here" in busy.cli("profile").stderr
    busy.start("busy:fleet", "--journal", "busy.db")
    for arguments, said in (
        (("--for", "51s"), "a profile of 51 s: give 0.1 to 50 s"),
        (("--for", "soon"), "'soon': give a time like 10s"),
        (("--worker", "w1"), "--worker is for a fleet on workers"),
        (("--for", "100ms", "--flame", "nowhere/x.svg"), "nowhere/x.svg' cannot be written"),
    ):
        done = busy.cli("profile", *arguments)
        assert done.returncode == 2, done
        assert said in done.stderr
    assert busy.json("profile", "--for", "0.1", code=0)["seconds"] < 10


def test_a_flame_graph_shows_each_call_as_wide_as_its_weight() -> None:
    drawn = draw_flames({"a;<b>": 30, "a": 10, "c;rare": 1, "c": 59}, "a & b")
    root = ElementTree.fromstring(drawn)
    frames = {one.attrib["data-n"]: float(one.attrib["data-w"]) for one in root.iter("{http://www.w3.org/2000/svg}g")}
    assert frames["all"] == pytest.approx(1200.0)
    assert frames["c"] == pytest.approx(720.0)
    assert frames["a"] == pytest.approx(480.0)
    assert frames["<b>"] == pytest.approx(360.0)
    assert re.search(r"<title>&lt;b&gt;: 30, 30.0 %</title>", drawn)
    assert not re.search(r"(href|src)=|@import|url\(", drawn), "nothing is loaded from anywhere"
    assert ElementTree.fromstring(draw_flames({}, "nothing")) is not None
