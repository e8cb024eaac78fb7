"""Configurations that we write: the real server takes each of them, and does what they say."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
import trustme
from paho.mqtt.enums import CallbackAPIVersion

from stigmergy.base.errors import ConfigError
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.configuration import (
    DURABLE_LINES,
    LOOK_SUBJECT,
    Passwords,
    ServerHost,
    ServerPlan,
    ServerTlsFiles,
    User,
    parse_hosts,
    plan_hosts,
    plan_local,
    server_names,
    urls_of,
    write_configuration,
)
from stigmergy.nats.servers.server import NatsServer, find_program, free_ports
from stigmergy.nats.streams import ensure_stream, find_stream

WAIT_S = 240.0
PASSWORDS = Passwords(fleet='f"\\ @/:', gateway="g", device="d", system="s", routes="r")
CLUSTER: dict[str, Any] = {
    "cluster": "c",
    "cluster_port": 6222,
    "routes": ("127.0.0.1:6222", "127.0.0.1:6223"),
    "route_password": "r",
}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ServerTlsFiles:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(folder / "both.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return ServerTlsFiles(str(folder / "both.pem"), str(folder / "both.pem"), str(folder / "ca.pem"))


def takes(text: str, folder: Path) -> str:
    """What the server says about a configuration; raises if it does not take it."""
    path = folder / "server.conf"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([find_program(), "-t", "-c", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"http_port": 8222, "http_host": "0.0.0.0", "tags": ("zone:north", "disk:ssd"), "ping_every_s": 2.5},
        {"has_jetstream": False},
        {"sync_always": False, "domain": "hub"},
        {"users": (User('a "quoted" \\ name', "pass word"), User("b", "c"))},
        {"users": (User("fleet", "f"), User("system", "s", is_system=True)), "open_to": "fleet"},
        {"users": (User("d", "d", denied=("$JS.>",), only_by=("MQTT", "STANDARD")),), "mqtt_port": 1883},
        CLUSTER,
        {**CLUSTER, "advertised": "hub-1", "leaf_port": 7422, "mqtt_port": 1883},
        {"hubs": ("u:p@hub:7422", "hub-2:7422"), "domain": "site", "kept_in": ("a.>", "b"), "kept_out": ("c",)},
    ],
)
def test_the_server_takes_every_plan(settings: dict[str, Any], tmp_path: Path) -> None:
    takes(write_configuration(ServerPlan(name="s1", store=str(tmp_path / "store"), **settings)), tmp_path)


def test_the_server_takes_tls(tls: ServerTlsFiles, tmp_path: Path) -> None:
    plan = ServerPlan(name="s1", store=str(tmp_path), tls=tls, leaf_port=7422, mqtt_port=1883, **CLUSTER)
    takes(write_configuration(plan), tmp_path)
    leaf = ServerPlan(name="s1", store=str(tmp_path), hubs=("hub:7422",), hub_tls=tls)
    takes(write_configuration(leaf), tmp_path)


def test_a_wrong_one_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        takes("jetstrem { store_dir: x }", tmp_path)


@pytest.mark.parametrize("hosts", ["hub-1,hub-2,hub-3", "10.0.0.1:4222,10.0.0.2:4322,[::1]", "a,b,c,d,e", "hub"])
def test_the_server_takes_what_is_planned_for_hosts(hosts: str, tmp_path: Path) -> None:
    places = parse_hosts(hosts)
    plans = plan_hosts(places, cluster="c", store=str(tmp_path / "store"), passwords=PASSWORDS)
    assert len(plans) == len(places)
    assert len({plan.name for plan in plans}) == len(plans)
    for plan in plans:
        text = write_configuration(plan)
        takes(text, tmp_path)
        for line, _ in DURABLE_LINES:
            assert line in text or (line == "routes:" and len(plans) == 1), line
        assert plan.http_host == "127.0.0.1", "it asks nobody for a password"


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        ("hub-1,hub-2", "two hosts have no majority"),
        ("", "is not a host"),
        ("a,,b", "is not a host"),
        ("a b", "is not a host"),
        ("a:99999", "is not a host"),
        ("a:65000", "is not a host"),
        ("a,b,a", "named twice"),
        (",".join(f"h{n}" for n in range(10)), "at most 9"),
    ],
)
def test_what_is_no_cluster_is_refused_with_a_reason(hosts: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_hosts(hosts)


def test_servers_of_one_host_have_names_of_their_own() -> None:
    assert server_names([ServerHost("a", 4222), ServerHost("b", 4222)]) == ["a", "b"]
    assert server_names([ServerHost("a", 1), ServerHost("a", 2), ServerHost("[::1]", 3)]) == ["a-1", "a-2", "--1"]


def test_urls_can_be_read_again() -> None:
    plans = plan_hosts(parse_hosts("a,b,c"), cluster="c", store="s", passwords=PASSWORDS)
    urls = urls_of(plans, PASSWORDS, None)
    assert list(urls) == ["fleet", "gateway", "system", "device"]
    assert parse_address(urls["fleet"]).replicas == 3
    assert parse_address(urls["fleet"]).password == PASSWORDS.fleet
    assert parse_address(urls["gateway"]).servers == ("nats://a:7422", "nats://b:7422", "nats://c:7422")
    assert urls["device"].startswith("mqtt://device:d@a:1883,")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    folder = tmp_path_factory.mktemp("local")
    ports = dict(zip(("client", "http", "cluster", "leaf", "mqtt"), free_ports(5), strict=True))
    (plan,) = plan_local(str(folder), [ports], PASSWORDS)
    server = NatsServer(plan, folder)
    server.start()
    server.wait_ready()
    yield server
    server.kill()


class TestRunning:
    """A server with all its users, as `stigmergy up` runs it."""

    async def test_who_gives_no_name_is_of_the_fleet_and_sees_the_servers(self, local: NatsServer) -> None:
        link = await NatsLink.open(parse_address(local.url), name="test")
        await ensure_stream(link, "S", {"subjects": ["seen.>"]})
        seen = await link.request(LOOK_SUBJECT)
        assert b'"sync_always":true' in seen.data
        await link.close()

    async def test_the_system_account_is_for_who_knows_its_password(self, local: NatsServer) -> None:
        host = local.url.removeprefix("nats://")
        with pytest.raises(ConfigError, match="does not let us in"):
            await NatsLink.open(parse_address(f"nats://system:wrong@{host}"), name="test", within_s=WAIT_S)
        link = NatsLink(parse_address(f"nats://system:{PASSWORDS.system}@{host}"), name="test")
        link.start()
        await link.wait_up(WAIT_S)
        assert b'"ver":"2.' in (await link.request("$SYS.REQ.SERVER.PING")).data
        await link.close()

    async def test_devices_come_by_mqtt_and_touch_no_stream_of_ours(self, local: NatsServer) -> None:
        link = await NatsLink.open(parse_address(local.url), name="test")
        await ensure_stream(link, "OURS", {"subjects": ["stig.>"]})
        await ensure_stream(link, "THEIRS", {"subjects": ["plant.>"]})
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        device = mqtt.Client(CallbackAPIVersion.VERSION2, "device-1")
        device.username_pw_set("device", PASSWORDS.device)

        def take(*_: object) -> None:
            loop.call_soon_threadsafe(heard.set)

        device.on_message = take
        device.connect("127.0.0.1", local.plan.mqtt_port)
        device.loop_start()
        try:
            device.subscribe("plant/echo", qos=1)
            device.publish("plant/pump", b"1", qos=1).wait_for_publish(WAIT_S)
            device.publish("stig/x", b"1", qos=1).wait_for_publish(WAIT_S)
            async with asyncio.timeout(WAIT_S):
                while not heard.is_set():
                    device.publish("plant/echo", b"1", qos=1)
                    await asyncio.sleep(0.05)
        finally:
            device.disconnect()
            device.loop_stop()
        theirs, ours = await find_stream(link, "THEIRS"), await find_stream(link, "OURS")
        assert theirs is not None
        assert ours is not None
        assert theirs.last_sequence >= 2
        assert ours.last_sequence == 0
        await link.close()

    def test_devices_do_not_come_as_ordinary_clients(self, local: NatsServer) -> None:
        async def try_it() -> None:
            host = local.url.removeprefix("nats://")
            await NatsLink.open(parse_address(f"nats://device:{PASSWORDS.device}@{host}"), name="test", within_s=WAIT_S)

        with pytest.raises(ConfigError, match="does not let us in"):
            asyncio.run(try_it())


async def test_an_encrypted_server(tls: ServerTlsFiles, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = NatsServer(ServerPlan(name="s1", store=str(tmp_path / "store"), port=port, tls=tls), tmp_path)
    server.start()
    server.wait_listening()
    files = f"ca={tls.ca}&cert={tls.cert}&key={tls.key}"
    link = await NatsLink.open(parse_address(f"tls://127.0.0.1:{port}?{files}"), name="test", within_s=WAIT_S)
    await link.api("INFO")
    await link.close()
    for url in (f"nats://127.0.0.1:{port}", f"tls://127.0.0.1:{port}", f"tls://127.0.0.1:{port}?ca={tls.ca}"):
        with pytest.raises(ConfigError, match=r"no encrypted connection|does not let us in"):
            await NatsLink.open(parse_address(url), name="test", within_s=5.0)
    server.kill()
