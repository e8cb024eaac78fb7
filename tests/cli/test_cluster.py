"""`stigmergy cluster`: files that real servers start from and find together by; one of them lost, and replaced."""

import asyncio
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from stigmergy.cli.cluster import described
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.inspection import ServersSeen
from stigmergy.nats.servers.server import find_program
from stigmergy.nats.servers.status import ClusterStatus
from stigmergy.nats.streams import ensure_stream
from tests.cli.conftest import Folder
from tests.cli.in_process import Here
from tests.cli.test_documented import documented

WAIT_S = 240.0
SHIFTS = (0, 2000, 3200, 4000, 1883 - 4222)


def free_bases(count: int) -> list[int]:
    """Ports of loopback whose neighbours, as `cluster config` counts them, are free too."""
    found: list[int] = []
    base = 20_000 + (time.monotonic_ns() // 1000) % 20_000
    while len(found) < count:
        base += 1
        with contextlib.ExitStack() as stack:
            try:
                for shift in SHIFTS:
                    stack.enter_context(contextlib.closing(socket.socket())).bind(("127.0.0.1", base + shift))
            except OSError:
                continue
            found.append(base)
    return found


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


class Servers:
    """Servers that run from the files, as on hosts of their own."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> Path:
        return self.folder.path / "conf" / "urls.txt"

    @property
    def fleet_url(self) -> str:
        (url,) = [line for line in self.urls.read_text(encoding="utf-8").splitlines() if "//fleet:" in line]
        return url

    def start(self, name: str) -> None:
        with (self.folder.path / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [find_program(), "-c", str(self.folder.path / "conf" / f"{name}.conf")], stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running.pop(name).wait()

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def checks(self) -> dict[str, str]:
        """What `cluster check` finds, by its name; the worst of each."""
        done = self.folder.cli("cluster", "check", "--urls", str(self.urls), "--json")
        found: dict[str, str] = {}
        for one in json.loads(done.stdout).get("checks", ()):
            found[one["check"]] = max(found.get(one["check"], ""), one["level"], key=["", "ok", "warn", "fail"].index)
        return found

    def wait(self, **levels: str) -> dict[str, str]:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            found = self.checks()
            if all(found.get(name) == level for name, level in levels.items()):
                return found
            assert time.monotonic() < deadline_s, (found, levels)
            time.sleep(0.2)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, list[str]]]:
    folder = Here(tmp_path_factory.mktemp("cluster"))
    hosts = [f"127.0.0.1:{port}" for port in free_bases(4)]
    folder.json(
        "cluster", "config", "--hosts", ",".join(hosts[:3]), "--to", "conf", "--store", str(folder.path / "data")
    )
    servers, names = Servers(folder), [host.replace(":", "-") for host in hosts]
    try:
        for name in names[:3]:
            servers.start(name)
        yield servers, [*names, hosts[1], hosts[3]]
    finally:
        servers.close()


def test_servers_find_together_by_the_files_and_a_lost_one_is_replaced(servers: tuple[Servers, list[str]]) -> None:
    """In one go, because each step begins where the one before has ended."""
    cluster, (first, second, third, fourth, lost_host, new_host) = servers
    folder = cluster.folder
    found = cluster.wait(servers="ok", replicas="ok")
    assert found == dict.fromkeys(("servers", "versions", "sync", "store", "clocks", "replicas"), "ok")

    async def write() -> None:
        link = await NatsLink.open(parse_address(cluster.fleet_url), name="test", within_s=WAIT_S)
        await ensure_stream(link, "KEPT", {"subjects": ["kept"], "num_replicas": 3})
        for _ in range(20):
            await link.publish("kept", b"x")
        await link.close()

    asyncio.run(write())

    status = folder.json("status", "--nats", cluster.fleet_url)
    assert status["quorum"] is True
    assert {server["name"] for server in status["servers"]} == {first, second, third}
    assert {server["sync"] for server in status["servers"]} == {"always"}
    assert "password" not in json.dumps(status)
    (stream,) = status["streams"]
    assert (stream["name"], stream["replicas"], stream["last_sequence"]) == ("KEPT", 3, 20)

    urls = ("--urls", str(cluster.urls))
    assert f"{second} is up; a server that runs is not lost" in folder.error(
        "cluster", "replace", second, *urls, code=2
    )
    assert "no server is called 'hub-9'" in folder.error("cluster", "replace", "hub-9", *urls, code=2)

    cluster.kill(second)
    assert cluster.wait(servers="warn", replicas="warn")["sync"] == "ok"
    assert "start one that joins" in folder.error("cluster", "replace", second, *urls, "--within", "5", code=2)

    joined = folder.json("cluster", "config", "--join", new_host, "--instead-of", lost_host, "--to", "conf")
    assert [server["name"] for server in joined["servers"]] == [fourth]
    cluster.start(fourth)
    done = retried(lambda: folder.cli("cluster", "replace", second, *urls, "--json"))
    assert done["streams"] == [{"stream": "KEPT", "servers": sorted([first, third, fourth])}]
    assert done["forgotten"] is True
    assert cluster.wait(servers="ok", replicas="ok")
    status = folder.json("status", "--nats", cluster.fleet_url)
    assert {server["name"] for server in status["servers"]} == {first, third, fourth}
    assert status["streams"][0]["last_sequence"] == 20

    cluster.kill(first)
    cluster.kill(third)
    assert cluster.wait(servers="fail")
    gone = folder.json("status", "--nats", cluster.fleet_url, code=3)
    assert gone["quorum"] is False
    assert "majority of the servers is gone" in gone["trouble"]
    assert "majority" in folder.error("cluster", "replace", first, *urls, code=3)


def retried(call: Any) -> Any:
    """A server that has just started is not known to all at once."""
    deadline_s = time.monotonic() + WAIT_S
    while (done := call()).returncode != 0:
        assert time.monotonic() < deadline_s, done
        time.sleep(0.3)
    return json.loads(done.stdout)


def test_encrypted_servers_find_together(tmp_path: Path) -> None:
    """Routes, clients and what they show each other: all from the files."""
    authority, folder = trustme.CA(), Here(tmp_path)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    files = {name: str(tmp_path / file) for name, file in (("cert", "both.pem"), ("key", "both.pem"), ("ca", "ca.pem"))}
    options = [text for name, file in files.items() for text in (f"--tls-{name}", file)]
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_bases(3))
    store = str(tmp_path / "data")
    made = folder.json("cluster", "config", "--hosts", hosts, "--to", "conf", "--store", store, *options)
    servers = Servers(folder)
    try:
        for server in made["servers"]:
            servers.start(server["name"])
        assert servers.fleet_url.startswith("tls://")
        url = servers.fleet_url + "".join(f"&{name}={file}" for name, file in files.items())
        deadline_s = time.monotonic() + WAIT_S
        while (done := folder.cli("cluster", "check", "--nats", url, "--json")).returncode != 0:
            assert time.monotonic() < deadline_s, done
            time.sleep(0.2)
        assert "no encrypted connection" in folder.error(
            "cluster", "check", "--nats", url.replace("tls://", "nats://"), code=2
        )
    finally:
        servers.close()


class TestConfig:
    def test_people_read_what_matters(self, here: Here) -> None:
        done = here.cli("cluster", "config", "--hosts", "hub-1,hub-2,hub-3")
        assert done.returncode == 0
        assert "cluster-config/hub-2.conf" in done.stdout
        assert "sync_interval: always" in done.stdout
        assert "nats-server -c hub-1.conf" in done.stdout
        for name in ("hub-1.conf", "urls.txt", "cluster.json"):
            path = here.path / "cluster-config" / name
            assert path.stat().st_mode & 0o777 == 0o600
        secret = json.loads((here.path / "cluster-config" / "cluster.json").read_text())["passwords"]["fleet"]
        assert len(secret) >= 32
        assert secret not in done.stdout

    def test_nothing_is_written_over(self, here: Here) -> None:
        here.json("cluster", "config", "--hosts", "a,b,c", "--to", "conf")
        before = (here.path / "conf" / "a.conf").read_text()
        said = here.error("cluster", "config", "--hosts", "a,b,c", "--to", "conf", code=2)
        assert "is there already" in said
        assert (here.path / "conf" / "a.conf").read_text() == before
        assert "one of this cluster's hosts already" in here.error(
            "cluster", "config", "--join", "b", "--to", "conf", code=2
        )

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (("--hosts", "a,b"), "two hosts have no majority"),
            (("--hosts", "a b"), "is not a host"),
            ((), "give --hosts A,B,C for a new cluster, or --join"),
            (("--join", "d"), "there is no nowhere/cluster.json"),
            (("--hosts", "a,b,c", "--tls-cert", "x"), "--tls-cert and --tls-key belong together"),
            (("--hosts", "a,b,c", "--store-gib", "0"), "how many GiB"),
        ],
    )
    def test_what_is_refused(self, here: Here, options: tuple[str, ...], says: str) -> None:
        assert says in here.error("cluster", "config", *options, "--to", "nowhere", code=2)
        assert not (here.path / "nowhere").exists()

    def test_one_server_is_said_to_be_one(self, here: Here) -> None:
        assert "keeps everything once" in here.cli("cluster", "config", "--hosts", "a").stderr
        assert "4 servers survive no more" in here.cli("cluster", "config", "--hosts", "a,b,c,d", "--to", "x").stderr


class TestAsking:
    def test_nobody_there(self, here: Here) -> None:
        assert "no server of the cluster answers" in here.error("status", "--nats", "nats://127.0.0.1:1", code=3)

    def test_what_is_refused(self, here: Here) -> None:
        assert "give a URL like nats://hub:4222" in here.error("status", "--nats", "hub", code=2)
        assert "which cluster?" in here.error("cluster", "check", code=2)
        assert "cannot be read" in here.error("cluster", "check", "--urls", "nowhere", code=2)
        (here.path / "empty.txt").write_text("# nothing\n")
        assert "no URL of the user fleet" in here.error("cluster", "check", "--urls", "empty.txt", code=2)
        assert "NAME and --watch are for a cluster" in here.error("status", "--watch", code=2)


def test_keys_are_in_the_manual(here: Here) -> None:
    written = here.json("cluster", "config", "--hosts", "a,b,c")
    assert documented("cluster config") == set(written)
    assert documented("cluster check") == {"ok", "worst", "checks"}
    assert documented("cluster replace") == {"server", "forgotten", "streams"}
    servers = ServersSeen(servers=(), has_quorum=True)
    assert documented("status --nats URL") == set(described(ClusterStatus(url="", at_s=0.0, servers=servers)))
