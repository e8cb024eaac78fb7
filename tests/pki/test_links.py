"""Links that show an identity: to real brokers and servers, and to our own API."""

import asyncio
import contextlib
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.base.errors import ConfigError, NoAnswer, NotRunning
from stigmergy.base.tls import RenewingContext, follow_as_client, server_context
from stigmergy.bus.port import BusMessage
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.configuration import ServerTlsFiles
from stigmergy.pki.enrolment import read_identity
from stigmergy.pki.identity import with_identity
from stigmergy.serve.listener import HttpListener, read_address
from stigmergy.testing.brokers import Broker, TlsFiles, start_mosquitto, start_nats
from stigmergy.testing.bus_rig import HandlerLog, wait_until
from stigmergy.testing.nats import start_single
from tests.bus.test_mqtt import QUICK, is_misconfigured, opened
from tests.clients.rig import SCHEMES, Cart, Drive, warehouse_served
from tests.pki.members import LOOPBACK, Members


@pytest.mark.parametrize("name", ["nats", "mosquitto"])
async def test_mqtt(tmp_path: Path, name: str, mosquitto: Broker) -> None:
    town, village = Members(tmp_path / "town"), Members(tmp_path / "village")
    lamp, stranger = town.issue("device", "lamp"), village.issue("device", "lamp")
    start = start_nats if name == "nats" else start_mosquitto
    with start(tmp_path / "broker", tls=town.server()) as broker:
        heard = HandlerLog()
        async with opened(with_identity(broker.url, lamp), "a") as bus:
            await bus.subscribe("a", heard)
            await bus.publish(BusMessage("a", b"light"))
            await wait_until(lambda: len(heard.messages) == 1)
        mixed = f"{broker.url}?ca={town.ca}&cert={stranger}/identity.pem&key={stranger}/identity.pem&{QUICK}"
        async with opened(mixed, "b", up=False) as bus:
            await is_misconfigured(bus, "cert=")
        async with opened(with_identity(f"{broker.url}?{QUICK}", stranger), "c", up=False) as bus:
            await is_misconfigured(bus, "not trusted")
        async with opened(f"{broker.url.replace('mqtts:', 'mqtt:')}?{QUICK}", "d", up=False) as bus:
            await wait_until(lambda: "write mqtts:// and --identity" in str(bus.last_error))


async def test_mosquitto_refuses_who_is_on_the_list(tmp_path: Path, mosquitto: Broker) -> None:
    """From its next SIGHUP on; docs/certificates.md says that open links stay."""
    town = Members(tmp_path / "town")
    files, lamp, other = town.server(), town.issue("device", "lamp"), town.issue("device", "other")
    listed = str(town.folder / "ca" / "ca.crl")
    with start_mosquitto(tmp_path / "broker", tls=TlsFiles(files.cert, files.key, files.ca, listed)) as broker:
        async with opened(with_identity(broker.url, lamp), "a"):
            pass
        town.authority.revoke("lamp")
        os.kill(broker.pid, signal.SIGHUP)

        async def is_refused() -> bool:
            async with opened(with_identity(f"{broker.url}?{QUICK}", lamp), "a", up=False) as bus:
                await wait_until(lambda: bus.is_up or "not connected yet" not in str(bus.last_error))
                return isinstance(bus.last_error, ConfigError)

        async with asyncio.timeout(240):
            while not await is_refused():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
        async with opened(with_identity(broker.url, other), "b") as bus:
            assert bus.is_up, "nobody else is hurt"


async def why_not(url: str) -> str:
    with pytest.raises(ConfigError) as refused:
        await NatsLink.open(parse_address(url), name="refused", within_s=30)
    return str(refused.value)


async def test_nats(tmp_path: Path) -> None:
    town, village = Members(tmp_path / "town"), Members(tmp_path / "village")
    north, files = town.issue("node", "north"), town.server()
    tls = ServerTlsFiles(files.cert, files.key, files.ca)
    with start_single(tmp_path / "server", tls=tls) as cluster:
        url = cluster.url.replace("nats:", "tls:")
        link = await NatsLink.open(parse_address(with_identity(url, north)), name="north")
        assert link.is_up
        await link.close()
        assert "write tls://" in await why_not(cluster.url)
        assert "certificate" in await why_not(with_identity(url, village.issue("node", "north")))
        assert "encrypted" in await why_not(f"{url}?ca={town.ca}")


async def test_a_renewed_certificate_is_shown_at_the_next_connect(tmp_path: Path) -> None:
    """By the same contexts, at both ends: a node does not restart for it."""
    town = Members(tmp_path)
    files, north = town.server(), town.issue("node", "north")
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peercert")["serialNumber"].lower().lstrip("0"))
        writer.write(b".")
        await writer.drain()
        writer.close()

    served = server_context(files.cert, files.key, files.ca)
    ours = RenewingContext(ssl.PROTOCOL_TLS_CLIENT)
    follow_as_client(ours, town.ca, str(north / "identity.pem"), str(north / "identity.pem"))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=served)

    async def connect() -> str:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=ours)
        assert await reader.read() == b"."
        theirs: str = writer.get_extra_info("peercert")["serialNumber"].lower().lstrip("0")
        writer.close()
        return theirs

    async with server:
        assert await connect() == read_identity(tmp_path / "hub").serial
        town.renew("server", "hub")
        town.renew("node", "north")
        assert await connect() == read_identity(tmp_path / "hub").serial
    assert seen[1] == read_identity(north).serial != seen[0]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_api_lets_in_who_shows_a_certificate(tmp_path: Path, scheme: str) -> None:
    town, village = Members(tmp_path / "town"), Members(tmp_path / "village")
    api, ann, eve = town.issue("node", "api", *LOOPBACK), town.issue("person", "ann"), village.issue("person", "ann")
    async with warehouse_served(tmp_path, identity=api) as urls:
        url = urls[scheme]
        assert url.split("://")[0] == f"{scheme}s"
        async with st.connect(url, fleet="warehouse", identity=ann, within_s=120) as far:
            assert isinstance(await far.send("Cart/c01", Drive(to="dock-1")), st.Accepted)
            assert (await far.query("Cart/c01", Cart)).drives == 1
        for wrong in ({"ca": town.ca}, {"ca": town.ca, "identity": eve}, {"identity": eve}):
            with pytest.raises((ConfigError, NotRunning, NoAnswer)):
                async with st.connect(url, fleet="warehouse", within_s=2, **wrong):
                    pass
        if scheme == "http":
            with pytest.raises(NotRunning, match="identity=DIR"):
                async with st.connect(url, ca=town.ca, within_s=2):
                    pass
            with pytest.raises(NotRunning, match="write https://"):
                async with st.connect(url.replace("https:", "http:"), within_s=2):
                    pass


async def test_the_api_throws_out_who_was_revoked(tmp_path: Path) -> None:
    """Also who is connected: a stream of his ends, and he does not come back; another one's goes on."""
    town = Members(tmp_path / "town")
    pair = town.issue("node", "api", *LOOPBACK) / "identity.pem"
    eve, ann = town.issue("person", "eve"), town.issue("person", "ann")
    listed = town.folder / "ca" / "ca.crl"
    listener = HttpListener(_answers, read_address("127.0.0.1:0", pair, pair, Path(town.ca), listed))
    address = await listener.start()

    async def connected(identity: Path) -> asyncio.StreamReader:
        context = RenewingContext(ssl.PROTOCOL_TLS_CLIENT)
        follow_as_client(context, town.ca, str(identity / "identity.pem"), str(identity / "identity.pem"))
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port, ssl=context)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        writers.append(writer)
        assert (await reader.readline()).startswith(b"HTTP/1.1 204"), "not let in"
        return reader

    writers: list[asyncio.StreamWriter] = []
    try:
        open_link = await connected(eve)
        await connected(ann)
        town.authority.revoke("eve")
        async with asyncio.timeout(240):
            with contextlib.suppress(OSError):
                await open_link.read()  # to its end
        with pytest.raises((OSError, AssertionError)):
            await connected(eve)
        await connected(ann)
    finally:
        for writer in writers:
            writer.transport.abort()
        await listener.close()


async def _answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_what_the_api_cannot_do(tmp_path: Path) -> None:
    town = Members(tmp_path)
    with pytest.raises(ConfigError, match="--identity"):
        read_address("127.0.0.1:0", client_ca=Path(town.ca))
    pair, damaged = town.issue("node", "api", *LOOPBACK) / "identity.pem", tmp_path / "damaged.pem"
    damaged.write_text("nothing")
    with pytest.raises(ConfigError, match="of no use without --client-ca"):
        read_address("127.0.0.1:0", pair, pair, None, damaged)
    with pytest.raises(ConfigError, match="no such file"):
        read_address("127.0.0.1:0", pair, pair, tmp_path / "none.pem")
    listener = HttpListener(None, read_address("127.0.0.1:0", pair, pair, damaged))
    with pytest.raises(ConfigError, match="cannot be used"):
        await listener.start()
