"""`stigmergy capture` beside real nodes and a real PostgreSQL: running, stopped, killed, away for a while."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from rigs.postgres import NoPostgres, start_postgres
from stigmergy.testing.nats import NatsCluster
from tests.cli.conftest import Folder
from tests.conftest import without
from tests.warm import Warm

WAIT_S_MAX = 240.0


def missions(url: str, schema: str = "delivery") -> list[str]:
    """What is captured, in the order of the log."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            f"SELECT mission FROM {schema}.mission_started ORDER BY log_position, log_index".encode()
        )
        return [row[0] for row in found.fetchall()]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def send(folder: Folder, mission: str, agent: str = "Drone/D-17") -> None:
    folder.ask(do="send", agent=agent, command="StartMission", fields={"mission": mission})


@contextlib.contextmanager
def capturing(folder: Folder, url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `stigmergy capture` in a process of its own."""
    command, pipe = ["capture", "drone:fleet", "--to", url, *arguments, "--json"], subprocess.PIPE
    process = Warm(*command, cwd=folder.path, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S_MAX)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Ends a capture as its users do; what it said last."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_S_MAX)
    assert process.returncode == 0, (out, err)
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    return last


def test_what_was_kept_and_what_is_kept_while_it_runs(here: Folder, postgres: str) -> None:
    here.start()
    send(here, "M1")
    with capturing(here, postgres) as process:
        wait_until(lambda: "delivery" in schemas(postgres) and missions(postgres) == ["M1"])
        send(here, "M2")
        wait_until(lambda: missions(postgres) == ["M1", "M2"])
        assert ended(process)["event"] == "captured"
    send(here, "M3")
    done = here.lines("capture", "drone:fleet", "--to", postgres, "--once")
    assert [one["event"] for one in done] == ["captured"]
    assert missions(postgres) == ["M1", "M2", "M3"]


def schemas(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'capture_positions'")
        return [row[0] for row in found.fetchall()]


def test_a_node_that_stops_starts_and_stops_again(here: Folder, postgres: str) -> None:
    node = here.start()
    send(here, "M1")
    with capturing(here, postgres) as process:
        wait_until(lambda: "delivery" in schemas(postgres) and missions(postgres) == ["M1"])
        send(here, "M2")
        node.end(signal.SIGKILL)
        wait_until(lambda: missions(postgres) == ["M1", "M2"])
        node = here.start_beside_capture()
        send(here, "M3")
        node.end()
        wait_until(lambda: missions(postgres) == ["M1", "M2", "M3"])
        here.start_beside_capture()
        send(here, "M4")
        wait_until(lambda: missions(postgres) == ["M1", "M2", "M3", "M4"])
        assert process.poll() is None


def test_a_server_that_was_away_gets_what_it_missed(here: Folder) -> None:
    try:
        server = start_postgres()
    except NoPostgres as missing:
        without(str(missing), "NOT TESTED ON POSTGRESQL")
    with server:
        url = server.new_database()
        here.start()
        send(here, "M1")
        with capturing(here, url) as process:
            wait_until(lambda: "delivery" in schemas(url) and missions(url) == ["M1"])
            server.kill()
            send(here, "M2")
            assert process.stdout is not None
            troubled = json.loads(process.stdout.readline())
            assert troubled["event"] == "troubled"
            assert troubled["reason"].startswith("waits: PostgreSQL is not available: ")
            server.start()
            wait_until(lambda: missions(url) == ["M1", "M2"])


def test_only_some_events_into_a_schema_of_their_own(here: Folder, postgres: str) -> None:
    node = here.start()
    send(here, "M1")
    here.ask(do="observe", agent="Drone/D-17", event="BatteryMeasured", fields={"percent": 50.0})
    node.end()
    here.lines("capture", "drone:fleet", "--to", postgres, "--once", "--only", "BatteryMeasured", "--schema", "power")
    with psycopg.connect(postgres) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'power' ORDER BY 1").fetchall()
        assert connection.execute("SELECT percent FROM power.battery_measured").fetchall() == [(50.0,)]
        assert connection.execute("SELECT count(*) FROM power.other_events").fetchone() == (0,)
    assert [name for (name,) in tables] == ["battery_measured", "capture_positions", "capture_source", "other_events"]


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--to", "mysql://db/x"], "give a PostgreSQL server, such as postgresql://", 2),
        (["--to", "postgresql://127.0.0.1:1/x", "--only", "Nothing"], "--only Nothing: the fleet has no such event", 2),
    ],
)
def test_what_cannot_work_is_refused_at_once(here: Folder, arguments: list[str], said: str, code: int) -> None:
    assert said in here.error("capture", "drone:fleet", *arguments, code=code)


def test_a_server_that_is_not_there_at_the_start_is_refused(shared: Folder) -> None:
    said = shared.error("capture", "drone:fleet", "--to", "postgresql://127.0.0.1:1/x", code=3)
    assert "PostgreSQL is not available: " in said


def test_without_a_journal_there_is_nothing_to_capture(here: Folder, postgres: str) -> None:
    assert "delivery.db" in here.error("capture", "drone:fleet", "--to", postgres, code=2)
    assert not schemas(postgres)


def test_the_journal_of_another_fleet_is_refused(here: Folder, postgres: str) -> None:
    here.start()
    (here.path / "other.py").write_text(
        (here.path / "drone.py").read_text(encoding="utf-8").replace('Fleet("delivery"', 'Fleet("other"'),
        encoding="utf-8",
    )
    said = here.error("capture", "other:fleet", "--journal", "delivery.db", "--to", postgres, code=4)
    assert "is of the fleet 'delivery', not of 'other'" in said


def test_a_journal_on_nats_that_a_node_has(here: Folder, postgres: str, nats_server: NatsCluster) -> None:
    node = here.start("drone:fleet", "--journal", nats_server.url)
    send(here, "M1")
    with capturing(here, postgres, "--journal", nats_server.url):
        wait_until(lambda: "delivery" in schemas(postgres) and missions(postgres) == ["M1"])
        send(here, "M2")
        wait_until(lambda: missions(postgres) == ["M1", "M2"])
    send(here, "M3")
    node.end()
    here.lines("capture", "drone:fleet", "--to", postgres, "--once", "--journal", nats_server.url)
    assert missions(postgres) == ["M1", "M2", "M3"]


def test_a_cluster_whose_worker_is_killed(here: Folder, postgres: str, nats_server: NatsCluster) -> None:
    path = here.path / "drone.py"
    text = path.read_text(encoding="utf-8").replace("agents=[Drone]", "agents=[Drone], shards=3")
    path.write_text(text, encoding="utf-8")
    sent: list[str] = []

    def give(count: int) -> None:
        for _ in range(count):
            mission, place = f"M{len(sent)}", ("--nats", nats_server.url, "--fleet", "drone:fleet", "--command-id")
            send = ("send", f"Drone/D-{len(sent) % 5}", "StartMission", f"mission={mission}", *place, mission)
            # A worker that was just started, or has to take over, may take longer than a command waits.
            wait_until(lambda send=send: here.cli(*send).returncode == 0)  # type: ignore[misc]
            sent.append(mission)

    with worker(here, nats_server) as first:
        give(6)
        with capturing(here, postgres, "--nats", nats_server.url) as process:
            wait_until(lambda: "delivery" in schemas(postgres) and len(missions(postgres)) == 6)
            first.kill()
            with worker(here, nats_server):
                give(6)
                wait_until(lambda: len(missions(postgres)) == 12)
                assert sorted(ended(process)["positions"]) == ["0", "1", "2"]
    assert sorted(missions(postgres)) == sorted(sent)


@contextlib.contextmanager
def worker(folder: Folder, cluster: NatsCluster) -> Iterator[subprocess.Popen[str]]:
    with (folder.path / "worker.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stigmergy", "worker", "drone:fleet", "--nats", cluster.url, "--json"],
            cwd=folder.path,
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(WAIT_S_MAX)
