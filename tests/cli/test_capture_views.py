"""`stigmergy capture --view` beside real nodes and a real PostgreSQL: killed, stopped, its code changed; a cluster."""

from __future__ import annotations

import signal
import time

import psycopg
import pytest

from stigmergy.testing.nats import NatsCluster
from tests.cli.conftest import VIEWS, Folder
from tests.cli.test_capture import capturing, ended, send, wait_until, worker

VIEW = ("--view", "Missions")
ANSWER_S_MAX = 120.0


@pytest.fixture
def viewed(folder: Folder) -> Folder:
    path = folder.path / "drone.py"
    path.write_text(path.read_text(encoding="utf-8") + VIEWS, encoding="utf-8")
    return folder


def is_there(url: str, sent: list[str]) -> bool:
    """Whether each mission counts once."""
    with psycopg.connect(url) as connection:
        try:
            found: dict[str, int] = dict(
                connection.execute('SELECT mission, started FROM delivery."Missions"').fetchall()
            )
        except psycopg.errors.UndefinedTable:
            return False
    return found == {mission: sent.count(mission) for mission in sent}


class Sending:
    """Missions that were sent, five drones in turn."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.all: list[str] = []

    def give(self, count: int, *place: str) -> None:
        for _ in range(count):
            number = len(self.all)
            drone, mission = f"Drone/D-{number % 5}", f"M{number % 3}"
            if place:
                self._send_to_cluster(f"id-{number}", drone, "StartMission", f"mission={mission}", *place)
            else:
                send(self._folder, mission, drone)
            self.all.append(mission)

    def _send_to_cluster(self, command_id: str, *words: str) -> None:
        """Until there is an answer: a worker that was killed, or is slow to begin, leaves the outcome unknown."""
        end_s = time.monotonic() + ANSWER_S_MAX
        while (sent := self._folder.cli("send", *words, "--command-id", command_id)).returncode == 3:
            assert time.monotonic() < end_s, sent.stdout + sent.stderr
        assert sent.returncode == 0, sent.stdout + sent.stderr


def test_capture_and_node_are_killed_and_stopped(viewed: Folder, postgres: str) -> None:
    sending = Sending(viewed)
    node = viewed.start()
    sending.give(7)
    for _ in range(3):
        with capturing(viewed, postgres, *VIEW):  # killed at its end
            sending.give(4)
            wait_until(lambda: is_there(postgres, sending.all))
            sending.give(3)
    with capturing(viewed, postgres, *VIEW) as process:
        sending.give(2)
        node.end(signal.SIGKILL)
        wait_until(lambda: is_there(postgres, sending.all))
        node = viewed.start_beside_capture()
        sending.give(5)
        node.end()
        wait_until(lambda: is_there(postgres, sending.all))
        assert ended(process)["event"] == "captured"
    node = viewed.start()
    sending.give(3)
    node.end()
    done = viewed.lines("capture", "drone:fleet", "--to", postgres, "--once", *VIEW)
    assert [(one["event"], one["view"]) for one in done] == [("captured", "Missions")]
    assert is_there(postgres, sending.all)


def test_a_new_field_is_a_new_column(viewed: Folder, postgres: str) -> None:
    sending = Sending(viewed)
    node = viewed.start()
    sending.give(9)
    node.end()
    once = ("capture", "drone:fleet", "--to", postgres, "--once", "--view", "Missions")
    viewed.lines(*once)
    path = viewed.path / "drone.py"
    text = path.read_text(encoding="utf-8")
    grown = text.replace("    started: int = 0\n", "    started: int = 0\n    twice: int = 0\n", 1)
    path.write_text(grown.replace("self.started += 1", "self.started += 1; self.twice += 2"), encoding="utf-8")
    viewed.lines(*once)
    with psycopg.connect(postgres) as connection:
        found = connection.execute('SELECT mission, started, twice FROM delivery."Missions" ORDER BY 1').fetchall()
    assert found == [("M0", 3, 6), ("M1", 3, 6), ("M2", 3, 6)]


def test_a_cluster_whose_worker_is_killed(viewed: Folder, postgres: str, nats_server: NatsCluster) -> None:
    sending = Sending(viewed)
    place = ("--nats", nats_server.url, "--fleet", "drone:fleet")
    with worker(viewed, nats_server) as first:
        sending.give(6, *place)
        with capturing(viewed, postgres, *VIEW, "--nats", nats_server.url):
            wait_until(lambda: is_there(postgres, sending.all))
            first.kill()
            with worker(viewed, nats_server):
                sending.give(6, *place)
                wait_until(lambda: is_there(postgres, sending.all))


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--view", "Nothing"], "--view Nothing: the fleet has the views Missions", 2),
        (["--view", "Missions", "--only", "MissionStarted"], "run one capture for each", 2),
        (["--view", "Missions"], "delivery.db", 2),
    ],
)
def test_what_cannot_work_is_refused_at_once(viewed: Folder, arguments: list[str], said: str, code: int) -> None:
    assert said in viewed.error("capture", "drone:fleet", "--to", "postgresql://127.0.0.1:1/x", *arguments, code=code)


def test_a_server_that_is_not_there_at_the_start_is_refused(viewed: Folder) -> None:
    viewed.start().end()
    said = viewed.error(
        "capture", "drone:fleet", "--to", "postgresql://127.0.0.1:1/x", "--view", "Missions", "--once", code=3
    )
    assert "PostgreSQL" in said
