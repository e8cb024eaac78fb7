"""The swarm on a cluster: how it is brought up, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from apps.drones.__main__ import main, read_faults
from apps.drones.area import Area
from apps.drones.cluster import ClusterSwarm
from apps.drones.drone import Drone
from apps.drones.faults import impossible
from apps.drones.fleet import WORLD, make_cluster_fleet
from apps.drones.messages import Commission, Fix, Land, Site
from apps.drones.plan import make_plan
from apps.drones.run import ROOT, Options, environment
from stigmergy import SafeActionTaken
from stigmergy.testing import given


async def test_a_worker_without_a_world_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORLD, raising=False)
    (world,) = make_cluster_fleet().attachments
    with pytest.raises(ValueError, match=f"{WORLD} is not set.*--by-hand"):
        await world.open()
    monkeypatch.setenv(WORLD, "tcp://127.0.0.1:1")
    (world,) = make_cluster_fleet().attachments
    await world.open()  # it is waited for
    await world.close()


def test_a_worker_has_imported_what_computes_before_it_joins() -> None:
    """With the first job all workers lost their leases: the import of scipy took their event loops for seconds."""
    opened = (
        "import asyncio, sys\n"
        "from apps.drones.fleet import make_cluster_fleet\n"
        "(world,) = make_cluster_fleet().attachments\n"
        "early = {'scipy.optimize', 'shapely'} & set(sys.modules)\n"
        "asyncio.run(world.open())\n"
        "print(sorted(early), sorted({'scipy.optimize', 'shapely'} & set(sys.modules)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", opened],
        cwd=ROOT,
        env=environment(**{WORLD: "tcp://127.0.0.1:1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "[] ['scipy.optimize', 'shapely']\n", ended.stderr


def test_a_log_that_elects_a_leader_grounds_nobody() -> None:
    """A server of a cluster was killed, its logs took nothing for 5 s, and all drones of two zones landed at once."""
    home = Site(90.0, 90.0)
    safe = Land(reason="its own sensors are silent")
    drone = given(Drone, id="r1-0000-000").when(Commission(area=Area(2, 1, 1440.0, 2), home=home))
    drone.when(Fix(t=1.0, x=90.0, y=90.0, z=0.0, vx=0, vy=0, vz=0, battery=90.0, down=True)).later(seconds=13)
    drone.then_nothing()
    drone.later(seconds=3).then(safe, SafeActionTaken(action="Land", because="no Fix for 15 s"))


def test_a_plan_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRONES_FOLDER", str(tmp_path))
    with pytest.raises(ValueError, match=r"DRONES_FOLDER is .*, which has no plan"):
        make_cluster_fleet()


def test_by_hand_is_for_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--by-hand"]) == 2
    assert "add --cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--faults", "worker,zone"], "worker: add --cluster"),
        (["--faults", "cut,zone", "--cluster"], "cut: a cluster has frozen, worker, server instead"),
    ],
)
def test_a_fault_that_there_cannot_be_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert why in capsys.readouterr().err
    assert not impossible(read_faults("all"), is_cluster=True)
    assert not impossible(read_faults("all"), is_cluster=False)


def test_what_starts_the_cluster_can_be_typed(tmp_path: Path) -> None:
    swarm = ClusterSwarm(make_plan(4, 1, 0.0), tmp_path, Options(), lambda _: None)
    swarm.url = "http://127.0.0.1:8080"
    words = " ".join(swarm.command())
    assert words == (
        f"up apps.drones.fleet:fleet --data {tmp_path}/cluster --nodes 3 --workers 2 --serve 127.0.0.1:8080"
    )
    swarm.world.close()
