"""`stigmergy cluster config --secure`: servers that know everybody by certificate."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import StigmergyError
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.configuration import ServerPlan, ServerTlsFiles, write_configuration
from stigmergy.nats.servers.server import find_program, free_ports
from stigmergy.pki.enrolment import read_identity
from stigmergy.pki.identity import with_identity
from stigmergy.testing.bus_rig import wait_until
from tests.cli.in_process import Here
from tests.cli.test_cluster import Servers, free_bases
from tests.cli.test_up import eventually


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def made(here: Here, count: int, *options: str) -> list[dict[str, Any]]:
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_bases(count))
    store = str(here.path / "data")
    given = ("--hosts", hosts, "--to", "conf", "--store", store, "--name", "town", "--secure", *options)
    servers: list[dict[str, Any]] = here.json("cluster", "config", *given)["servers"]
    return servers


def rogue(folder: Path, identity: Path, port: int, how: str) -> str:
    """Starts a server with the certificate of somebody else, and waits until it is turned away; what it has logged."""
    own, files = free_ports(2), [str(identity / name) for name in ("identity.pem", "identity.pem", "ca.pem")]
    plan = ServerPlan(name="rogue", store=str(folder / f"rogue-{how}"), port=own[0])
    text = write_configuration(plan)
    tls = f'tls {{ cert_file: "{files[0]}", key_file: "{files[1]}", ca_file: "{files[2]}" }}'
    if how == "route":
        routes = f'["nats-route://127.0.0.1:{port}"]'
        text += f'cluster {{ name: "town", listen: "127.0.0.1:{own[1]}", {tls}, routes: {routes} }}\n'
    else:
        text += f'leafnodes {{ reconnect: 1s, remotes: [{{ urls: ["nats-leaf://127.0.0.1:{port}"], {tls} }}] }}\n'
    (folder / "rogue.conf").write_text(text)
    log = folder / f"rogue-{how}.log"
    with log.open("wb") as out:
        running = subprocess.Popen([find_program(), "-c", str(folder / "rogue.conf")], stdout=out, stderr=out)
    try:
        eventually(lambda: "Authorization Violation" in log.read_text())
    finally:
        running.kill()
        running.wait()
    return log.read_text()


def test_three_servers_and_who_may_come(here: Here) -> None:
    told = made(here, 3)
    conf = here.path / "conf"
    texts = [path.read_text() for path in conf.glob("*.conf")]
    assert not any('password: "' in text for text in texts)
    assert "@" not in (conf / "urls.txt").read_text()
    here.json("ca", "issue", "device", "lamp", "--ca", "conf/ca")
    here.json("ca", "issue", "node", "north", "--ca", "conf/ca")
    north, url = here.path / "north", f"tls://127.0.0.1:{told[0]['port']}"
    servers = Servers(here)
    try:
        for server in told:
            servers.start(server["name"])
        servers.wait(servers="ok")
        assert "Route Error" not in (here.path / f"{told[0]['name']}.log").read_text()
        # The certificate of a device opens neither of the ways by which servers come.
        rogue(here.path, here.path / "lamp", told[0]["cluster_port"], "route")
        rogue(here.path, here.path / "lamp", told[0]["leaf_port"], "leaf")

        async def live() -> None:
            with pytest.raises(StigmergyError, match="does not let our certificate in"):
                await NatsLink.open(parse_address(with_identity(url, north)), name="north", within_s=30)
            assert here.json("cluster", "users", "--to", "conf")["users"] == 4
            pid = servers._running[told[0]["name"]].pid
            os.kill(pid, signal.SIGHUP)
            link = NatsLink(parse_address(with_identity(url, north)), name="north")
            link.start()
            await link.wait_up(240)
            here.json("ca", "revoke", "north", "--ca", "conf/ca")
            here.json("cluster", "users", "--to", "conf")
            os.kill(pid, signal.SIGHUP)
            await wait_until(lambda: "does not let our certificate in" in str(link.last_error))
            assert not link.is_up
            await link.close()

        asyncio.run(live())
    finally:
        servers.close()


def test_a_server_more(here: Here) -> None:
    made(here, 3)
    (port,) = free_bases(1)
    (added,) = here.json("cluster", "config", "--join", f"127.0.0.1:{port}", "--to", "conf")["servers"]
    assert read_identity(here.path / "conf" / added["name"]).hosts == ("localhost", "127.0.0.1")
    assert str(port) in (here.path / "conf" / "urls.txt").read_text()


def test_keys_of_other_hosts_are_made_there(here: Here) -> None:
    done = here.cli("cluster", "config", "--hosts", "hub-1,hub-2,hub-3", "--to", "conf", "--name", "town", "--secure")
    assert done.returncode == 0
    conf = here.path / "conf"
    assert {path.name for path in conf.iterdir() if path.is_dir()} == {"ca", "operator", "root"}
    assert 'cert_file: "/etc/stigmergy/identity/identity.pem"' in (conf / "hub-2.conf").read_text()
    line = next(one for one in done.stdout.splitlines() if one.startswith("hub-2: "))
    # What it says to do is what works.
    asks, gives, _ = line.removeprefix("hub-2: ").split("; ")
    here.json(*asks.replace("/etc/stigmergy/identity", "far").split()[1:])
    here.json(*gives.removeprefix("here: ").replace("request.pem", "far/request.pem").split()[1:])
    here.json("ca", "install", "far", "far/request.crt")
    assert read_identity(here.path / "far").hosts == ("hub-2",)


def test_what_is_refused(here: Here) -> None:
    files = ("--tls-cert", "a", "--tls-key", "b")
    assert "leave --tls-cert" in here.error("cluster", "config", "--hosts", "a", "--secure", *files, code=2)
    assert "has no authority" in here.error("cluster", "users", code=2)
    here.json("ca", "init", "village", "--ca", "conf/ca")
    said = here.error("cluster", "config", "--hosts", "a", "--to", "conf", "--secure", "--name", "town", code=2)
    assert "--name village" in said


def test_a_name_is_what_its_kind_may(here: Here, tmp_path: Path) -> None:
    """Of whoever is on the list; nobody else is a user, and an empty list lets nobody in."""
    from stigmergy.nats.servers.configuration import users_of_certificates, write_users
    from stigmergy.pki.holders import Holder, HolderList, Issued

    valid, over = (Issued("1", 0, 2_000),), (Issued("1", 0, 10),)
    kinds = ("node", "person", "device", "admin", "server")
    members = {kind: Holder(kind, valid) for kind in kinds}
    members |= {"late": Holder("node", over), "gone": Holder("node", valid, revoked_s=5)}
    users = {one.name: one for one in users_of_certificates(HolderList("town", members), 1_000.0)}
    assert set(users) == {f"stigmergy://town/{kind}/{kind}" for kind in kinds if kind != "server"}
    assert users["stigmergy://town/admin/admin"].is_system
    device = users["stigmergy://town/device/device"]
    assert device.only_by == ("MQTT",)
    assert "$JS.>" in device.denied
    assert not any(one.password for one in users.values())
    tls = ServerTlsFiles("c", "k", "a", maps=True)
    text = write_configuration(ServerPlan(name="n", store=str(tmp_path), tls=tls, users_file="users.conf"))
    assert "verify_and_map: true" in text
    assert "accounts {" in write_users(())
