"""The program on a journal that NATS keeps: run, send, state, log, verify, replay, a rotated key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.nats.servers.configuration import User
from stigmergy.testing.nats import NatsCluster, start_single
from tests.cli.conftest import Folder


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("nats"), users=(User("drones", "open sesame"),)) as single:
        yield single


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk: the doctor refuses a place in memory for a log."""
    return disk_path


def let_in(server: NatsCluster) -> str:
    return server.url.replace("//", "//drones:open%20sesame@")


def test_a_fleet_runs_and_is_looked_at(here: Folder, server: NatsCluster) -> None:
    url = let_in(server)
    (here.path / "stigmergy.toml").write_text(f'[fleet]\nmodule = "drone:fleet"\njournal = "{url}"\n')
    node = here.start()
    assert node.listening["journal"] == server.url, "without the password"
    here.ask(do="send", agent="Drone/D-17", command="StartMission", fields={"mission": "M1"})
    assert here.json("log", "verify", "--journal", url)["sound"] is True, "also while it runs"
    assert "belongs to process" in here.error("run", "drone:fleet", "--socket", "other.sock", code=3)
    assert node.end()[0] == 0

    verified = here.json("log", "verify", "--key", "delivery.key")
    assert (verified["sound"], verified["commits"]) == (True, 2)
    assert here.lines("log", "show")[-1]["type"] == "MissionStarted@1"
    assert here.json("state", "Drone/D-17", "--at", "1")["state"]["mission"] is None
    assert here.json("state", "Drone/D-17")["state"]["mission"] == "M1"
    assert here.cli("replay").returncode == 0
    assert "a journal that is a file" in here.error("log", "hold", "set", "--reason", "why", code=2)
    looked = {one["check"]: one for one in here.json("doctor", "--key", "delivery.key")["checks"]}
    assert looked["journal.opens"]["level"] == "ok"
    assert "2 commits" in looked["journal.opens"]["what"]

    here.json("keys", "new", "next.key")
    assert here.json("keys", "rotate", "--old", "delivery.key", "--new", "next.key")["enrolled"] is True
    node = here.start("drone:fleet", "--key", "next.key")
    assert node.recovered["commits"] > 2
    assert here.ask(do="state", agent="Drone/D-17")["state"]["mission"] == "M1"
    assert node.end()[0] == 0


def test_wrong_places_are_named(here: Folder, server: NatsCluster) -> None:
    url = let_in(server)
    for arguments, said in (
        (("log", "show", "--journal", url), "no log"),
        (("log", "show", "--journal", f"{url}/nowhere"), "keeps no log of 'nowhere'"),
        (("run", "drone:fleet", "--journal", f"{url}?replicas=3"), "3 replicas"),
        (("run", "drone:fleet", "--journal", server.url), "check user and password"),
    ):
        error = here.error(*arguments, code=2)
        assert said in error
        assert "sesame" not in error
