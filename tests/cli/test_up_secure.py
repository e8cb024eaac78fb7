"""`stigmergy up --secure`: every link by mutual TLS, with one flag from an empty folder."""

import asyncio
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.pki.identity import with_identity
from stigmergy.testing.bus_rig import HandlerLog, wait_until
from tests.cli.in_process import Here
from tests.cli.test_up import FLEET, PROGRAM, Up, eventually

CA = "stigmergy-cluster/ca"
IDENTITIES = Path("stigmergy-cluster/identities")


class Secure:
    """A secure cluster with one server and one worker."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.here = Here(folder)
        self.up = Up(self.here, "drone:fleet", "--nodes", "1", "--workers", "1", *arguments)
        self.begun = self.up.wait_event("begun")
        self.url, self.mqtt = self.begun["nats"], self.begun["mqtt"][0]
        self.up.wait_said("worker-1", "joined")

    def identity(self, name: str) -> Path:
        return self.here.path / IDENTITIES / name

    def shown_by(self, name: str) -> str:
        """The URL of the servers, with an identity of the cluster."""
        return with_identity(self.url, self.identity(name))

    def issue(self, kind: str, name: str) -> Path:
        self.here.json("ca", "issue", kind, name, "--ca", CA)
        return self.here.path / name

    def send(self, mission: str) -> Any:
        place = ("--nats", self.url, "--fleet", "drone:fleet", "--identity", str(self.identity("operator")))
        return self.here.json("send", "Drone/D-1", "StartMission", f"mission={mission}", *place)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Secure]]:
    (tmp_path / "drone.py").write_text(FLEET, encoding="utf-8")
    begun: list[Secure] = []

    def start(*arguments: str) -> Secure:
        begun.append(Secure(tmp_path, *arguments))
        return begun[-1]

    yield start
    for one in begun:
        one.up.close()


def test_agents_run_unchanged_and_nobody_needs_a_password(begin: Callable[..., Secure]) -> None:
    cluster = begin("--secure", "--serve", ":0")
    assert cluster.url.startswith("tls://")
    assert cluster.send("M1")["accepted"]
    for name in ("n1", "worker-1", "api"):
        command = Path(f"/proc/{cluster.up.pid_of(name)}/cmdline").read_text()
        passwords = json.loads((cluster.here.path / "stigmergy-cluster" / "up.json").read_text())["passwords"]
        assert not any(word in command for word in passwords.values())
        assert "@" not in command
    texts = [path.read_text() for path in (cluster.here.path / "stigmergy-cluster").glob("*.conf")]
    assert not any('password: "' in text for text in texts)
    urls = (cluster.here.path / "stigmergy-cluster" / "urls.txt").read_text()
    assert "@" not in urls
    assert cluster.here.json("cluster", "check", "--urls", "stigmergy-cluster/urls.txt")["ok"]
    url = cluster.up.wait_said("api", "serving")["said"]["url"]
    assert url.startswith("https://")

    async def ask() -> Any:
        async with st.connect(url, identity=cluster.identity("operator"), within_s=120) as far:
            return await far.query("Drone/D-1")

    assert asyncio.run(ask())["mission"] == "M1"
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(url.replace("https:", "http:"), timeout=60)
    # Once secure, always: a start without the flag does not open it again.
    assert cluster.up.end() == 0
    again = begin()
    assert again.url == cluster.url
    assert again.send("M2")["accepted"]
    assert again.up.end() == 0


def test_who_has_no_certificate_or_was_revoked_is_out(begin: Callable[..., Secure]) -> None:
    cluster = begin("--secure")
    lamp, worker = cluster.issue("device", "lamp"), cluster.issue("node", "extra")
    cluster.here.json("ca", "init", "delivery", "--ca", "other")
    cluster.here.json("ca", "issue", "node", "north", "--ca", "other")

    async def refused(url: str) -> str:
        with pytest.raises(StigmergyError) as why:
            await NatsLink.open(parse_address(url), name="refused", within_s=30)
        return str(why.value)

    async def live() -> None:
        assert "write tls://" in await refused(cluster.url.replace("tls:", "nats:"))
        assert "certificate" in await refused(with_identity(cluster.url, cluster.here.path / "north"))
        assert "does not let our certificate in" in await refused(with_identity(cluster.url, lamp))
        # A server is no client either: what it shows is for other servers.
        assert "does not let our certificate in" in await refused(cluster.shown_by("n1"))
        heard = HandlerLog()
        link = NatsLink(parse_address(with_identity(cluster.url, worker)), name="extra")
        link.start()
        bus = open_bus(with_identity(f"{cluster.mqtt}?reconnect_s_max=0.1", lamp), "a:b:lamp", SystemEntropy())
        await bus.open()
        try:
            # Both were issued while the servers ran, who hear of it by themselves.
            await link.wait_up(240)
            await wait_until(lambda: bus.is_up)
            await bus.subscribe("light", heard)
            await bus.publish(BusMessage("light", b"on"))
            await wait_until(lambda: len(heard.messages) == 1)
            cluster.here.json("ca", "revoke", "lamp", "--ca", CA)
            cluster.here.json("ca", "revoke", "extra", "--ca", CA)
            # Their open links end, and no new one comes up.
            await wait_until(lambda: isinstance(bus.last_error, ConfigError))
            await wait_until(lambda: not link.is_up and isinstance(link.last_error, ConfigError))
        finally:
            await bus.close()
            await link.close()
        assert "does not let our certificate in" in await refused(with_identity(cluster.url, worker))

    asyncio.run(live())
    assert cluster.send("M1")["accepted"], "nobody else is hurt"
    assert cluster.up.end() == 0


def test_a_certificate_that_ends_is_renewed_while_all_runs(begin: Callable[..., Secure], tmp_path: Path) -> None:
    """Links that are open stay open, those that come show the new one."""
    from stigmergy.pki.authority import AuthorityFolder
    from stigmergy.pki.enrolment import install, read_identity, request_for

    cluster = begin("--secure")
    before = {name: read_identity(cluster.identity(name)).serial for name in ("n1", "operator")}
    for name in before:  # one that has hardly any life left
        own = read_identity(cluster.identity(name))
        authority = AuthorityFolder(cluster.here.path / CA)
        request = request_for(cluster.identity(name), own.subject)
        install(cluster.identity(name), authority.renew(request, days=0.01), authority.certificate)

    def is_renewed() -> bool:
        found = {name: read_identity(cluster.identity(name)) for name in before}
        return all(one.until_s - one.from_s > 80 * 86_400 for one in found.values())

    eventually(is_renewed)
    assert cluster.send("M1")["accepted"]
    assert any('"members-changed"' in line and "renewed" in line for line in cluster.up.log)
    assert cluster.up.end() == 0


def test_a_worker_renews_its_own_certificate(begin: Callable[..., Secure]) -> None:
    """One that `up` has not started: over the servers, by the key that it has."""
    from stigmergy.pki.authority import AuthorityFolder
    from stigmergy.pki.enrolment import install, read_identity, request_for
    from stigmergy.pki.names import subject_of

    cluster = begin("--secure")
    key, extra = cluster.here.path / "stigmergy-cluster" / "fleet.key", cluster.here.path / "extra"
    authority = AuthorityFolder(cluster.here.path / CA)
    request = request_for(extra, subject_of("delivery", "node", "extra"), key)
    before = install(extra, authority.issue(request, days=0.01), authority.certificate)
    options = ["--nats", cluster.url, "--key", str(key), "--identity", str(extra), "--json"]
    worker = subprocess.Popen(
        [*PROGRAM, "worker", "drone:fleet", *options],
        cwd=cluster.here.path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: read_identity(extra).until_s > before.until_s + 80 * 86_400)
        assert worker.poll() is None
        assert read_identity(extra).signing_key == before.signing_key
        assert "ask later" in cluster.here.error(
            "ca", "renew", "extra", "--nats", cluster.url, "--key", str(key), code=4
        )
    finally:
        worker.kill()
        worker.wait()
    assert cluster.up.end() == 0


def test_what_would_not_be_encrypted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "drone.py").write_text(FLEET, encoding="utf-8")
    here = Here(tmp_path)
    assert "--gateway" in here.error("up", "drone:fleet", "--secure", "--gateway", "north", code=2)
    assert "leave it out" in here.error("up", "drone:fleet", "--secure", "--identity", "x", code=2)
    assert not (tmp_path / "stigmergy-cluster").exists()
