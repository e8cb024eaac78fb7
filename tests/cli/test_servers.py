"""The watch over a server of `up`: one that keeps nothing is restarted when its disk has room, less often each time."""

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.tasks import end_tasks
from stigmergy.cli import children as servers
from stigmergy.cli import up
from stigmergy.cli.children import (
    PAUSE_S_MAX,
    RESTARTS_MAX,
    RESTARTS_WITHIN_S,
    Child,
    Restarts,
    ServerWatch,
)
from stigmergy.cli.up import _Cluster
from stigmergy.nats.servers import ServerPlan, last_error_in, needs_restart

OFF = "JetStream not enabled (10076)"
WAIT_S = 60.0


class Health:
    """What a server says of its health, over HTTP."""

    def __init__(self) -> None:
        health = self
        self.error = ""

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                said = {"status": "unavailable", "error": health.error} if health.error else {"status": "ok"}
                self.send_response(503 if health.error else 200)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def health() -> Iterator[Health]:
    health = Health()
    yield health
    health.close()


class Watched:
    """A process that stands for a server, watched; and what is said of it."""

    def __init__(self, health: Health, folder: Path) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        command = [sys.executable, "-c", "import time; time.sleep(3600)"]
        self.child = Child("n1", "server", command, folder / "n1.log", lambda *_: None, speaks=False)
        plan = ServerPlan(name="n1", store=str(folder), http_port=health.port)
        self.watch = ServerWatch(self.child, plan, folder / "n1.log", lambda _c, e, _t, _s, f: self.said.append((e, f)))
        self.child.begin()
        self._task = asyncio.ensure_future(self.watch.run())

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.said]

    async def until(self, *events: str, state: str = "") -> None:
        """Waits until this was said last, and the process is in this state."""
        async with asyncio.timeout(WAIT_S):
            while self.events[len(self.events) - len(events) :] != list(events) or state not in self.child.state:
                assert not self._task.done()
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.child.kill()
        await self.child.wait_end(WAIT_S)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "WELL_EVERY_S", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "error", [OFF, "JetStream stream 'FLEET > T' write error: write 1.blk: no space left on device"]
)
async def test_it_is_restarted_once_and_told_to_be_well(health: Health, tmp_path: Path, error: str) -> None:
    watched = Watched(health, tmp_path)
    await watched.until(state="up")
    health.error = error
    await watched.until("stuck", "restarting")
    health.error = ""
    await watched.until("stuck", "restarting", "well")
    assert watched.child.starts == 2
    assert watched.said[0] == ("stuck", {"error": error, "waits_for": None})
    await watched.close()


@pytest.mark.usefixtures("quick")
async def test_a_restart_that_does_not_help_is_waited_for_longer(
    health: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MEND_PAUSE_S", 3600.0)
    monkeypatch.setattr(servers, "MEND_PAUSE_S_MAX", 3600.0)
    health.error = OFF
    watched = Watched(health, tmp_path)
    await watched.until("stuck", "restarting", "stuck")
    await asyncio.sleep(0.5)
    assert watched.events == ["stuck", "restarting", "stuck"]
    assert "the restart before did not help" in watched.said[-1][1]["waits_for"]
    assert watched.watch.is_stuck
    assert "waits for" in watched.child.detail
    await watched.close()


@pytest.mark.usefixtures("quick")
async def test_without_room_it_waits_and_says_for_what(
    health: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ROOM_BYTES_MIN", 2**62)
    watched = Watched(health, tmp_path)
    await watched.until(state="up")
    health.error = OFF
    await watched.until("stuck")
    await asyncio.sleep(0.5)
    assert watched.events == ["stuck"]
    assert f"room on the disk of {tmp_path}" in watched.said[-1][1]["waits_for"]
    monkeypatch.setattr(servers, "ROOM_BYTES_MIN", 0)
    await watched.until("stuck", "restarting")
    await watched.close()


@pytest.mark.usefixtures("quick")
async def test_what_passes_by_itself_is_no_reason(health: Health, tmp_path: Path) -> None:
    watched = Watched(health, tmp_path)
    await watched.until(state="up")
    health.error = "JetStream stream 'FLEET > T' is not current: group node unhealthy"
    await watched.until(state="not well")
    await asyncio.sleep(0.5)
    assert (watched.events, watched.child.starts) == ([], 1)
    await watched.close()


def test_why_it_went_off_is_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    assert last_error_in(log) == ""
    log.write_text(
        "[7] 2026/01/02 03:04:05.678 [INF] Server is ready\n"
        "[7] 2026/01/02 03:04:06.678 [ERR] JetStream stream 'T' critical write error: no space left on device\n"
        "[7] 2026/01/02 03:04:06.679 [ERR] JetStream out of File resources, will be DISABLED\n"
        '[7] 2026/01/02 03:04:07.678 [WRN] Healthcheck failed: "JetStream not enabled (10076)"\n'
    )
    assert last_error_in(log) == "JetStream stream 'T' critical write error: no space left on device"
    with log.open("a") as file:
        file.write(
            "[77] 2026/11/16 04:00:00.000000 [ERR] Error applying stream entries to 'F > T': last sequence mismatch\n"
        )
    assert "no space left on device" in last_error_in(log), "the cause, not what follows from it"
    assert needs_restart(OFF)
    assert not needs_restart("JetStream has not established contact with a meta leader")


class TestRestarts:
    def test_pause_grows_and_too_often_is_too_often(self) -> None:
        restarts = Restarts()
        pauses = [restarts.died(float(number)) for number in range(RESTARTS_MAX + 1)]
        assert pauses[:3] == [0.1, 0.2, 0.4], "not the pauses of the watch over servers"
        assert pauses[-1] is None
        assert pauses[:-1] == sorted(pauses[:-1], key=lambda pause: pause or 0.0)

    def test_one_that_dies_now_and_then_goes_on_for_ever(self) -> None:
        restarts = Restarts()
        for number in range(100):
            pause_s = restarts.died(number * RESTARTS_WITHIN_S / 2)
            assert pause_s is not None
            assert pause_s <= PAUSE_S_MAX


async def test_processes_that_do_not_end_at_sigterm_are_killed_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hung workers took twice the time that the manual gives all of them together."""
    heard = asyncio.Semaphore(0)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(99)"

    def child(name: str) -> Child:
        def tell(_: Child, event: str, _fields: dict[str, Any]) -> None:
            if event == "said":
                heard.release()

        return Child(name, "worker", [sys.executable, "-c", deaf], tmp_path / f"{name}.log", tell, speaks=True)

    children = [child(f"worker-{number}") for number in range(3)]
    for one in children:
        one.begin()
    async with asyncio.timeout(WAIT_S):
        for _ in children:
            await heard.acquire()
    cluster = object.__new__(_Cluster)
    cluster._stopping = asyncio.Event()
    cluster._workers, cluster._gateways, cluster._servers, cluster._watching = children, [], [], []
    cluster._apis, cluster._projectors = [], []
    monkeypatch.setattr(up, "WORKERS_END_S_MAX", 2.0)
    begun_s = time.monotonic()
    await cluster._end()
    assert time.monotonic() - begun_s < 3 * 2.0, "one after the other"
    assert [one.pid for one in children] == [0, 0, 0]


async def test_a_worker_that_runs_and_is_no_member_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "WELL_EVERY_S", 0.02)
    monkeypatch.setattr(servers, "MEMBER_S_MAX", 0.5)
    started, heard = asyncio.Event(), asyncio.Queue[str]()
    command = [sys.executable, "-c", "import time; time.sleep(99)"]
    child = Child("worker-2", "worker", command, tmp_path / "w.log", lambda *_: started.set(), speaks=False)
    watching = asyncio.ensure_future(servers.watch_members([child], lambda _c, _e, text, _f: heard.put_nowait(text)))
    child.begin()
    async with asyncio.timeout(WAIT_S):
        await started.wait()
        child.ready("w2-1")
        while not heard.empty():  # on a busy machine it may have taken long to start
            heard.get_nowait()
        await asyncio.sleep(1.0)
        assert heard.empty()
        for _ in range(2):
            child.unready(servers.JOINING, "our lease could not be renewed for 2 s")
            text = await heard.get()
            assert f"worker-2, pid {child.pid}, has not been a member of the fleet for" in text
            assert text.endswith("our lease could not be renewed for 2 s")
            await asyncio.sleep(0.2)
            assert heard.empty()
            child.ready("w2-2")
            await asyncio.sleep(0.2)
    await end_tasks(watching)
    child.kill()
    await child.wait_end(WAIT_S)


async def test_a_worker_that_has_not_joined_yet_is_starting_before_it_is_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "WELL_EVERY_S", 0.02)
    monkeypatch.setattr(servers, "MEMBER_S_MAX", 0.2)
    monkeypatch.setattr(servers, "START_S_MAX", 4.0)
    heard = asyncio.Queue[tuple[str, str]]()
    command = [sys.executable, "-c", "import time; time.sleep(99)"]
    child = Child("worker-1", "worker", command, tmp_path / "w.log", lambda *_: None, speaks=False)
    watching = asyncio.ensure_future(
        servers.watch_members([child], lambda _c, e, text, _f: heard.put_nowait((e, text)))
    )
    child.begin()
    async with asyncio.timeout(WAIT_S):
        said = [await heard.get(), await heard.get()]
    assert [event for event, _ in said] == ["still starting", "no member"]
    assert f"worker-1, pid {child.pid}, is still starting after" in said[0][1]
    await end_tasks(watching)
    child.kill()
    await child.wait_end(WAIT_S)
