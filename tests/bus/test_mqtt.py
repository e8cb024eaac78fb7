"""The MQTT bus against real brokers: what is particular to MQTT, and what brokers and networks do to it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import trustme
from paho.mqtt.enums import CallbackAPIVersion

from stigmergy.base.errors import ConfigError, LinkDown, Overloaded
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.mqtt import MqttBus, open_bus
from stigmergy.bus.mqtt import bus as bus_module
from stigmergy.bus.mqtt import link as link_module
from stigmergy.bus.port import PAYLOAD_BYTES_MAX, BusMessage
from stigmergy.testing.brokers import Broker, NoBroker, TlsFiles, start_mosquitto, start_nats
from stigmergy.testing.bus_rig import HandlerLog, Marking, publish_surely, wait_until
from stigmergy.testing.proxy import LinkProxy

STARTERS: dict[str, Callable[..., Broker]] = {"nats": start_nats, "mosquitto": start_mosquitto}
QUICK = "reconnect_s_max=0.1"


@pytest.fixture(params=["nats", "mosquitto"])
def broker_name(request: pytest.FixtureRequest, mosquitto: Broker) -> str:
    """Each broker in turn; that of the fixture is there to say loudly when Mosquitto is missing."""
    name: str = request.param
    return name


@pytest.fixture(params=["nats", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found


@contextlib.asynccontextmanager
async def opened(url: str, client_id: str, *, up: bool = True) -> AsyncIterator[MqttBus]:
    bus = open_bus(url, client_id, SystemEntropy())
    await bus.open()
    try:
        if up:
            await wait_until(lambda: bus.is_up)
        yield bus
    finally:
        await bus.close()


@contextlib.asynccontextmanager
async def proxied(broker: Broker) -> AsyncIterator[LinkProxy]:
    proxy = LinkProxy(broker.port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def at(proxy: LinkProxy, *options: str) -> str:
    return f"mqtt://127.0.0.1:{proxy.port}?{'&'.join((QUICK, *options))}"


class Nonsense(asyncio.Protocol):
    """Gives one answer to whatever it is told, and hangs up a moment later."""

    port = 0
    connections = 0
    open_count = 0

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def __call__(self) -> asyncio.Protocol:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.connections += 1
        self.open_count += 1
        transport.write(self.answer)
        asyncio.get_running_loop().call_later(0.02, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_count -= 1


@contextlib.asynccontextmanager
async def nonsense_server(answer: bytes) -> AsyncIterator[Nonsense]:
    nonsense = Nonsense(answer)
    server = await asyncio.get_running_loop().create_server(nonsense, "127.0.0.1", 0)
    nonsense.port = server.sockets[0].getsockname()[1]
    try:
        yield nonsense
    finally:
        server.close()
        await wait_until(lambda: nonsense.open_count == 0)
        await server.wait_closed()


async def is_misconfigured(bus: MqttBus, *words: str) -> None:
    await wait_until(lambda: isinstance(bus.last_error, ConfigError))
    assert not bus.is_up
    for word in words:
        assert word in str(bus.last_error)


# Who may come.


async def test_wrong_password_is_told_and_a_right_one_is_taken(tmp_path: Path, broker_name: str) -> None:
    with STARTERS[broker_name](tmp_path / "broker", users={"node": "s3/cret"}) as broker:
        place = broker.url.removeprefix("mqtt://")
        async with opened(f"mqtt://node:wrong@{place}?{QUICK}", "a", up=False) as bus:
            await is_misconfigured(bus, "password")
            assert "wrong" not in str(bus.last_error)
        async with opened(f"mqtt://{place}?{QUICK}", "b", up=False) as bus:
            await is_misconfigured(bus)
        async with opened(f"mqtt://node:s3%2Fcret@{place}", "c") as bus:
            await bus.publish(BusMessage("a", b""))
        (tmp_path / "word").write_text("s3/cret\n")
        async with opened(f"mqtt://node@{place}?password_file={tmp_path / 'word'}", "d"):
            pass


async def test_broker_that_is_mended_is_found_by_itself(tmp_path: Path, mosquitto: Broker) -> None:
    """Somebody sets the password right on the broker; nobody touches the node."""
    with start_mosquitto(tmp_path / "broker", users={"node": "old"}) as broker:
        url = f"mqtt://node:new@{broker.url.removeprefix('mqtt://')}?{QUICK}"
        async with opened(url, "a", up=False) as bus:
            await is_misconfigured(bus)
            broker.stop()
            configuration = tmp_path / "broker" / "mosquitto.conf"
            lines = [line for line in configuration.read_text().splitlines() if not line.startswith("password_file")]
            configuration.write_text("\n".join(lines).replace("anonymous false", "anonymous true") + "\n")
            broker.start()
            await wait_until(lambda: bus.is_up)
            assert bus.last_error is None


async def test_version_that_a_broker_does_not_speak_is_told(nats: Broker) -> None:
    async with opened(f"{nats.url}?version=5&{QUICK}", "a", up=False) as bus:
        await is_misconfigured(bus, "version=3.1.1")


async def test_two_clients_of_one_id_are_told() -> None:
    """Only version 5 can say it, and not every broker does; with 3.1.1 both just lose their links in turn."""
    async with (
        nonsense_server(b"\x20\x03\x00\x00\x00\xe0\x02\x8e\x00") as server,
        opened(f"mqtt://127.0.0.1:{server.port}?version=5&{QUICK}", "a", up=False) as bus,
    ):
        await is_misconfigured(bus, "another client")


class Certificates:
    """A certificate authority, a broker's certificate, and one of a node."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.broker = self._issue(folder, "broker", "127.0.0.1")
        self.node = self._issue(folder, "node", "node-1")

    def _issue(self, folder: Path, name: str, identity: str) -> tuple[str, str]:
        issued = self.authority.issue_cert(identity, common_name=identity)
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        for number, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(str(cert), append=number > 0)
        issued.private_key_pem.write_to_path(str(key))
        return str(cert), str(key)


async def test_tls_both_ways(tmp_path: Path, broker_name: str) -> None:
    ours, others = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")
    cert, key = ours.broker
    with STARTERS[broker_name](tmp_path / "broker", tls=TlsFiles(cert, key, ours.ca)) as broker:
        mine, not_mine = (f"cert={found.node[0]}&key={found.node[1]}" for found in (ours, others))
        heard = HandlerLog()
        async with opened(f"{broker.url}?ca={ours.ca}&{mine}", "a") as bus:
            await bus.subscribe("a", heard)
            for number in range(20):
                await bus.publish(BusMessage("a", b"%d" % number + bytes(50_000)))
            await wait_until(lambda: len(heard.messages) == 20)
        async with opened(f"{broker.url}?ca={others.ca}&{mine}&{QUICK}", "b", up=False) as bus:
            await is_misconfigured(bus, "certificate", "ca=")
        async with opened(f"{broker.url}?ca={ours.ca}&{not_mine}&{QUICK}", "c", up=False) as bus:
            await is_misconfigured(bus, "cert=")
        plain = broker.url.replace("mqtts:", "mqtt:")
        async with opened(f"{plain}?{QUICK}", "d", up=False) as bus:
            await wait_until(lambda: "not connected yet" not in str(bus.last_error))
            assert not bus.is_up


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # paho leaves the socket to the collector
async def test_tls_to_a_broker_without_it_is_told(nats: Broker) -> None:
    async with opened(f"{nats.url.replace('mqtt:', 'mqtts:')}?{QUICK}", "a", up=False) as bus:
        await wait_until(lambda: "not connected yet" not in str(bus.last_error))
        assert not bus.is_up


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://host", "mqtt://"),
        ("mqtt://", "no host"),
        ("mqtt://host/path", "path"),
        ("mqtt://host:99999", "Port"),
        ("mqtt://host?verson=5", "verson"),
        ("mqtt://host?version=4", "3.1.1"),
        ("mqtt://host?version=5&version=5", "twice"),
        ("mqtt://host?keepalive_s=often", "number"),
        ("mqtt://host?keepalive_s=0", "keepalive_s"),
        ("mqtt://host?keepalive_s=nan", "keepalive_s"),
        ("mqtt://host?ca=ca.pem", "mqtts"),
        ("mqtts://host?ca=not-there.pem", "not-there.pem"),
        ("mqtts://host?key=not-there.pem", "cert"),
        ("mqtt://:secret@host", "user"),
        ("mqtt://user:secret@host?password_file=x", "one of them"),
        ("mqtt://user@host?password_file=not-there", "not-there"),
    ],
)
def test_wrong_url_is_refused_without_the_password(url: str, word: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_bus(url, "a", SystemEntropy())
    assert word in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("client_id", ["", "a\nb", "x" * 201])
def test_wrong_client_id_is_refused(client_id: str) -> None:
    with pytest.raises(ConfigError):
        open_bus("mqtt://host", client_id, SystemEntropy())


def test_broken_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no PEM")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        open_bus(f"mqtts://host?ca={tmp_path / 'ca.pem'}", "a", SystemEntropy())


# What networks do.


async def test_link_that_hangs_is_noticed_and_made_anew(broker: Broker) -> None:
    async with proxied(broker) as proxy, opened(at(proxy, "keepalive_s=1"), "a") as bus:
        proxy.stall()
        publishing = asyncio.ensure_future(bus.publish(BusMessage("a", b"")))
        with pytest.raises(LinkDown):
            await publishing
        assert not bus.is_up
        proxy.drop()
        proxy.restore()
        await wait_until(lambda: bus.is_up)
        await bus.publish(BusMessage("a", b""))


async def test_link_that_is_closed_half_way_is_made_anew(broker: Broker) -> None:
    async with proxied(broker) as proxy, opened(at(proxy), "a") as bus:
        changes: list[bool] = []
        bus.on_link(changes.append)
        proxy.half_close()
        await wait_until(lambda: changes == [False, True])
        await bus.publish(BusMessage("a", b""))


async def test_lost_acknowledgements_repeat_the_message(broker: Broker) -> None:
    async with (
        proxied(broker) as proxy,
        opened(at(proxy), "sender") as sender,
        opened(broker.url, "receiver") as receiver,
    ):
        heard = HandlerLog()
        await receiver.subscribe("a", heard)
        proxy.mute_server()
        publishing = asyncio.ensure_future(sender.publish(BusMessage("a", b"1")))
        await wait_until(lambda: heard.payloads == [b"1"])
        assert not publishing.done()
        proxy.cut()
        with pytest.raises(LinkDown):
            await publishing
        proxy.restore()
        await wait_until(lambda: sender.is_up)
        await sender.publish(BusMessage("a", b"1"))
        await wait_until(lambda: heard.payloads == [b"1", b"1"])


async def test_acknowledgement_that_the_broker_missed_is_given_on_the_next_link(mosquitto: Broker) -> None:
    """A handler finishes while the link is down; the program must not get its message for ever."""
    async with proxied(mosquitto) as proxy, opened(mosquitto.url, "sender") as sender:
        go_on, calls = asyncio.Event(), []

        async def handle(message: BusMessage) -> None:
            calls.append(message.payload)
            await go_on.wait()

        async with opened(at(proxy), "receiver") as receiver:
            await receiver.subscribe("a", handle)
            await sender.publish(BusMessage("a", b"1"))
            await wait_until(lambda: calls == [b"1"])
            proxy.cut()
            await wait_until(lambda: not receiver.is_up)
            go_on.set()
            await asyncio.sleep(0.05)
            proxy.restore()
            await wait_until(lambda: receiver.is_up)
            await asyncio.sleep(0.3)
            assert len(calls) <= 2
        async with opened(at(proxy), "receiver") as receiver:
            heard = HandlerLog()
            await receiver.subscribe("a", heard)
            await asyncio.sleep(0.3)
            assert heard.payloads == []


async def test_message_that_still_waits_here_is_not_doubled_by_a_cut(mosquitto: Broker) -> None:
    async with proxied(mosquitto) as proxy, opened(mosquitto.url, "sender") as sender:
        go_on, calls = asyncio.Event(), []

        async def handle(message: BusMessage) -> None:
            calls.append(message.payload)
            await go_on.wait()

        async with opened(at(proxy), "receiver") as receiver:
            await receiver.subscribe("a", handle)
            for number in (b"1", b"2"):
                await sender.publish(BusMessage("a", number))
            await wait_until(lambda: calls == [b"1", b"2"])
            proxy.drop()
            await wait_until(lambda: receiver.receipts.repeated == 2)
            go_on.set()
            await sender.publish(BusMessage("a", b"3"))
            await wait_until(lambda: b"3" in calls)
            assert calls == [b"1", b"2", b"3"]


async def test_broker_that_crashes_is_found_again(broker: Broker) -> None:
    """What a crash makes of a broker's sessions is its own affair."""
    async with opened(f"{broker.url}?{QUICK}", "a") as bus, opened(f"{broker.url}?{QUICK}", "b") as other:
        heard = HandlerLog()
        await other.subscribe("a", heard)
        broker.kill()
        await wait_until(lambda: not bus.is_up and not other.is_up)
        broker.start()
        await wait_until(lambda: bus.is_up and other.is_up)
        await bus.publish(BusMessage("a", b"1"))
        await wait_until(lambda: heard.payloads == [b"1"])


async def test_no_packet_ids_of_a_forgotten_session_are_acknowledged(mosquitto: Broker) -> None:
    """The broker forgets everything; its ids begin anew, and an old acknowledgement would take a new message away."""
    async with (
        opened(f"{mosquitto.url}?{QUICK}", "receiver") as receiver,
        opened(f"{mosquitto.url}?{QUICK}", "s") as sender,
    ):
        go_on, calls = asyncio.Event(), []

        async def handle(message: BusMessage) -> None:
            calls.append(message.payload)
            await go_on.wait()

        await receiver.subscribe("a", handle)
        await sender.publish(BusMessage("a", b"old"))
        await wait_until(lambda: calls == [b"old"])
        mosquitto.kill()
        for file in (mosquitto.folder / "data").iterdir():
            file.unlink()
        await wait_until(lambda: not receiver.is_up)
        mosquitto.start()
        await wait_until(lambda: receiver.is_up and sender.is_up)
        await sender.publish(BusMessage("a", b"new"))
        await wait_until(lambda: calls == [b"old", b"new"])
        go_on.set()
        await wait_until(lambda: receiver.receipts.taken == 2)
        assert receiver._backlog_count == 0


async def test_close_does_not_wait_for_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "DISCONNECT_S_MAX", 60.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        loop = asyncio.get_running_loop()
        for port in (silent.getsockname()[1], 1):
            bus = open_bus(f"mqtt://127.0.0.1:{port}", "a", SystemEntropy())
            await bus.open()
            await asyncio.sleep(0.05)
            began_s = loop.time()
            await bus.close()
            assert loop.time() - began_s < link_module.DISCONNECT_S_MAX
            assert isinstance(bus.last_error, LinkDown)


async def test_wait_before_a_new_try_is_drawn_from_a_growing_bounded_span() -> None:
    class Highest:
        def token(self, size_bytes: int) -> bytes:
            return b"\xff" * size_bytes

    bus = open_bus("mqtt://host?reconnect_s_max=7", "a", Highest())
    waits = [bus._wait_s(tries) for tries in range(1, 1_000)]
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits == sorted(waits)
    assert max(waits) < 7.0
    drawn = [open_bus("mqtt://host", "a", SystemEntropy())._wait_s(9) for _ in range(100)]
    assert max(drawn) - min(drawn) > 5.0


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x20\x00",
        b"\x20\x02\x00\x00\x20\x02\x00\x00",
        b"\x20\x02\x00\x00\x30\x00",
        b"\x20\x02\x00\x00\x32\x05\x00\x09abc",
        b"\x20\x02\x00\x00\x32\x03\x00\x01\xff",
        b"\x20\x02\x00\x00\x90\x01\x00",
        b"\x20\x02\x00\x00\x40\x02\xff\xff\x62\x02\xff\xff\x70\x02\xff\xff\xf0\x00",
        b"\x20\x02\x00\x00\xff\xff\xff\xff\xff\xff",
    ],
)
@pytest.mark.parametrize("version", ["3.1.1", "5"])
async def test_nonsense_from_a_broker_ends_the_link_and_nothing_else(answer: bytes, version: str) -> None:
    async with (
        nonsense_server(answer) as server,
        opened(f"mqtt://127.0.0.1:{server.port}?{QUICK}&version={version}", "a", up=False) as bus,
    ):
        await bus.subscribe("a", HandlerLog())
        await wait_until(lambda: server.connections >= 3)
        assert bus.last_error is not None


async def test_certificate_that_vanishes_and_returns(tmp_path: Path, nats: Broker) -> None:
    """Whoever renews certificates may take the file away for a moment: that must not be the end of the link."""
    files = Certificates(tmp_path / "files")
    with start_nats(tmp_path / "tls", tls=TlsFiles(*files.broker)) as broker:
        async with proxied(broker) as proxy:
            url = f"mqtts://127.0.0.1:{proxy.port}?ca={files.ca}&{QUICK}"
            async with opened(url, "a") as bus:
                os.rename(files.ca, tmp_path / "away")
                proxy.drop()
                await is_misconfigured(bus, "ca=")
                os.rename(tmp_path / "away", files.ca)
                await wait_until(lambda: bus.is_up)


# Bounds.


async def test_publishes_under_way_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(broker.url, "a") as bus:
        link = bus._link
        assert link is not None
        publishing = [asyncio.ensure_future(bus.publish(BusMessage("a", b"%d" % number))) for number in range(500)]
        most = 0
        while not all(task.done() for task in publishing):
            most = max(most, len(link._publishing))
            await asyncio.sleep(0)
        assert 1 < most <= link_module.WINDOW_COUNT_MAX


async def test_nothing_more_is_read_while_too_much_waits(
    tmp_path: Path, mosquitto: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "BACKLOG_COUNT_MAX", 10)
    with start_mosquitto(tmp_path / "wide", inflight_count_max=1_000) as broker:
        async with opened(broker.url, "sender") as sender, opened(broker.url, "receiver") as receiver:
            go_on, marking = asyncio.Event(), Marking()

            async def handle(message: BusMessage) -> None:
                await go_on.wait()
                await marking(message)

            await receiver.subscribe("a", handle)
            # The others are sent when nothing is read any more: a busy machine reads several messages at once.
            await publish_surely(sender, "a", range(1, 12))
            await wait_until(lambda: receiver._backlog_count > 10)
            await publish_surely(sender, "a", range(12, 301))
            await asyncio.sleep(0.2)
            assert receiver._backlog_count < 100, "next to nothing of the other 289"
            go_on.set()
            await wait_until(lambda: len(marking.taken) == 300)
            await wait_until(lambda: receiver._backlog_count == 0)


async def test_handler_may_publish_although_too_much_waits(
    tmp_path: Path, mosquitto: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "BACKLOG_COUNT_MAX", 4)
    with start_mosquitto(tmp_path / "wide", inflight_count_max=1_000) as broker:
        async with opened(broker.url, "sender") as sender, opened(broker.url, "receiver") as receiver:
            answers = HandlerLog()
            await sender.subscribe("answers", answers)

            async def answer(message: BusMessage) -> None:
                await receiver.publish(BusMessage("answers", message.payload))

            await receiver.subscribe("a", answer)
            await publish_surely(sender, "a", range(1, 41))
            await wait_until(lambda: len(answers.messages) >= 40)


async def test_broker_that_does_not_answer_is_given_up(nats: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "ANSWER_S_MAX", 0.5)
    async with proxied(nats) as proxy, opened(at(proxy), "a") as bus:
        proxy.mute_server()
        with pytest.raises(LinkDown):
            await asyncio.wait_for(bus.publish(BusMessage("a", b"")), 60)
        assert not bus.is_up


# What others send.


async def test_devices_that_know_no_quality_of_service_are_heard(broker: Broker) -> None:
    async with opened(broker.url, "a") as bus:
        heard = HandlerLog()
        await bus.subscribe("plain/#", heard)
        device = paho.Client(CallbackAPIVersion.VERSION2, "device")

        def talk() -> None:
            device.connect("127.0.0.1", broker.port)
            device.loop_start()
            device.publish("plain/at-most-once", b"0", qos=0).wait_for_publish(5)
            device.publish("plain/exactly-once", b"2", qos=2).wait_for_publish(5)
            device.disconnect()
            device.loop_stop()

        await asyncio.to_thread(talk)
        await wait_until(lambda: sorted(heard.payloads) == [b"0", b"2"])


async def test_message_that_is_too_large_is_refused_and_counted(tmp_path: Path, mosquitto: Broker) -> None:
    async with opened(mosquitto.url, "a") as bus:
        heard = HandlerLog()
        await bus.subscribe("plain", heard)
        device = paho.Client(CallbackAPIVersion.VERSION2, "device")

        def talk() -> None:
            device.connect("127.0.0.1", mosquitto.port)
            device.loop_start()
            device.publish("plain", bytes(PAYLOAD_BYTES_MAX + 1), qos=1).wait_for_publish(5)
            device.publish("plain", b"small", qos=1).wait_for_publish(5)
            device.disconnect()
            device.loop_stop()

        await asyncio.to_thread(talk)
        await wait_until(lambda: heard.payloads == [b"small"])
        assert bus.receipts.refused == 1


async def test_link_without_all_subscriptions_is_not_up(tmp_path: Path) -> None:
    """Else the node would be told nothing of what the broker refused, for ever and in silence."""
    with start_nats(tmp_path / "nats", ack_pending_max=30_000) as broker:  # room for two subscriptions of a session
        bus = open_bus(broker.url, "a", SystemEntropy())
        for pattern in ("one/+", "two/+", "three/+"):
            await bus.subscribe(pattern, HandlerLog())
        await bus.open()
        try:
            await wait_until(lambda: isinstance(bus.last_error, ConfigError))
            assert "1 of 3 subscriptions, 'three/+' first" in str(bus.last_error)
            assert "max_ack_pending" in str(bus.last_error)
            assert not bus.is_up
        finally:
            await bus.close()


async def test_refusal_to_take_holds_the_broker_back(mosquitto: Broker) -> None:
    """What a node cannot take stays with the broker, within the broker's window, and comes when it can."""
    async with opened(mosquitto.url, "sender") as sender, opened(mosquitto.url, "receiver") as receiver:
        is_full, marking, calls = True, Marking(), 0

        async def handle(message: BusMessage) -> None:
            nonlocal calls
            calls += 1
            if is_full:
                raise Overloaded("full")
            await marking(message)

        await receiver.subscribe("a", handle)
        await publish_surely(sender, "a", range(1, 201))
        await asyncio.sleep(0.3)
        assert receiver._backlog_count <= 20
        assert calls < 20
        is_full = False
        await wait_until(lambda: len(marking.taken) == 200)


def test_missing_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STIGMERGY_MOSQUITTO", str(tmp_path / "not-there"))
    with pytest.raises(NoBroker, match="apt install"):
        start_mosquitto(tmp_path)
