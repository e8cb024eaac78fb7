"""A link to real servers that are killed, paused and cut off: every request ends, what was given up never happens."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from stigmergy.base.errors import ConfigError, LinkDown, TooLarge
from stigmergy.nats import link as link_module
from stigmergy.nats.address import parse_address
from stigmergy.nats.client import HEADERS_KNOWN_MAX, NatsConnection
from stigmergy.nats.errors import STREAM_NOT_FOUND, JetStreamRefused, NoResponders, Unanswered
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.configuration import User
from stigmergy.nats.servers.server import free_ports
from stigmergy.nats.streams import ensure_stream, find_stream
from stigmergy.testing.nats import NatsCluster, start_single
from stigmergy.testing.proxy import LinkProxy

WAIT_S = 240.0


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs is noticed in parts of a second."""
    monkeypatch.setattr(link_module, "PING_EVERY_S", 0.2)


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not check():  # noqa: ASYNC110 - what is looked at tells nobody
            await asyncio.sleep(0.02)


async def answered(ask: Callable[[], Awaitable[object]]) -> None:
    """Repeats until it is answered."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await ask()
            except LinkDown:
                await asyncio.sleep(0.05)
            else:
                return


async def stored(link: NatsLink, stream: str) -> int:
    found = await find_stream(link, stream)
    assert found is not None
    return int(found.state["messages"])


class TestOpening:
    async def test_nobody_there_is_a_link_that_is_down(self) -> None:
        (port,) = free_ports(1)
        before = asyncio.all_tasks()
        with pytest.raises(LinkDown, match=rf"nats://127.0.0.1:{port}.*check the URL, and that the server runs"):
            await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="test", within_s=0.5)
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == before, "what tried to connect is left behind"

    async def test_a_wrong_password_is_said_at_once(self, tmp_path: Path) -> None:
        with start_single(tmp_path, users=(User("worker", "right"),)) as server:
            host = server.url.removeprefix("nats://")
            await (await NatsLink.open(parse_address(f"nats://worker:right@{host}"), name="test")).close()
            began_s = time.monotonic()
            with pytest.raises(ConfigError, match="does not let us in; check user and password") as refused:
                await NatsLink.open(parse_address(f"nats://worker:wrong@{host}"), name="test", within_s=WAIT_S)
            assert time.monotonic() - began_s < WAIT_S / 2, "waiting does not make a password right"
            assert "wrong" not in str(refused.value)

    async def test_a_server_without_jetstream(self, tmp_path: Path) -> None:
        with start_single(tmp_path, has_jetstream=False) as server:
            with pytest.raises(ConfigError, match=r"without JetStream.*`stigmergy cluster config` writes one"):
                await NatsLink.open(parse_address(server.url), name="test")
            link = NatsLink(parse_address(server.url), name="test")
            link.start()
            await link.wait_up(WAIT_S)
            with pytest.raises(ConfigError, match="without JetStream"):
                await link.api("INFO")
            await link.close()

    async def test_a_server_without_tls(self, server: NatsCluster) -> None:
        with pytest.raises(ConfigError, match=r"no encrypted connection.*check tls://"):
            await NatsLink.open(parse_address(server.url.replace("nats:", "tls:")), name="test", within_s=WAIT_S)

    async def test_a_certificate_that_is_not_there(self, server: NatsCluster) -> None:
        url = server.url.replace("nats:", "tls:") + "?ca=nowhere.pem"
        with pytest.raises(ConfigError, match=r"cannot be read.*check ca, cert, key"):
            await NatsLink.open(parse_address(url), name="test", within_s=WAIT_S)

    async def test_somebody_else_listens_there(self) -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(LinkDown, match="check the URL"):
            await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="test", within_s=0.5)
        listener.close()
        await listener.wait_closed()

    async def test_one_that_comes_later(self, own_server: NatsCluster) -> None:
        own_server.kill(0)
        link = NatsLink(parse_address(own_server.url), name="test")
        heard: list[bool] = []
        link.on_link(heard.append)
        link.start()
        with pytest.raises(LinkDown):
            await link.wait_up(0.3)
        with pytest.raises(LinkDown, match="nothing was sent"):
            await link.request("a", b"")
        assert not link.is_up
        await asyncio.get_running_loop().run_in_executor(None, own_server.start_again, 0)
        await link.wait_up(WAIT_S)
        assert (link.is_up, heard, link.last_error) == (True, [True], None)
        await link.close()
        await link.close()
        assert heard == [True, False]


class TestAsking:
    async def test_an_answer(self, link: NatsLink) -> None:
        async def answer(message: Msg) -> None:
            await link.tell(message.reply, message.data + b"!", headers={"Kind": "echo"})

        end = await link.subscribe("ask.>", answer)
        await link.flush()
        answered = await link.request("ask.me", b"hello", {"X": "y"})
        assert (answered.data, answered.headers) == (b"hello!", {"Kind": "echo"})
        await end()
        await link.flush()
        with pytest.raises(NoResponders, match=r"nobody answers on ask\.me"):
            await link.request("ask.me", b"hello")

    async def test_no_answer_in_time(self, link: NatsLink) -> None:
        async def silent(message: Msg) -> None:
            pass

        end = await link.subscribe("silent", silent)
        await link.flush()
        with pytest.raises(Unanswered, match=r"no answer .* in 0\.1 s; it may have arrived"):
            await link.request("silent", b"", within_s=0.1)
        assert not link._waiting
        await end()

    async def test_jetstream_answers_and_refuses(self, link: NatsLink) -> None:
        await ensure_stream(link, "ASKED", {"subjects": ["asked.>"]})
        first = await link.publish("asked.a", b"1", {"Nats-Msg-Id": "one"})
        again = await link.publish("asked.a", b"1", {"Nats-Msg-Id": "one"})
        assert (first.stream, first.sequence, first.is_duplicate) == ("ASKED", 1, False)
        assert (again.sequence, again.is_duplicate) == (1, True)
        with pytest.raises(JetStreamRefused) as refused:
            await link.publish("asked.a", b"2", {"Nats-Expected-Last-Sequence": "7"})
        assert refused.value.is_fence
        assert not refused.value.is_full
        assert not refused.value.is_passing
        with pytest.raises(JetStreamRefused) as refused:
            await link.api("STREAM.INFO.NOWHERE")
        assert refused.value.code == STREAM_NOT_FOUND

    async def test_an_answer_that_is_no_json(self, link: NatsLink) -> None:
        async def babble(message: Msg) -> None:
            await link.tell(message.reply, b"\xff{")

        end = await link.subscribe("babble", babble)
        await link.flush()
        with pytest.raises(Unanswered, match="the answer is not JetStream"):
            await link.publish("babble", b"")
        await end()

    async def test_a_payload_over_the_limit_is_not_sent(self, link: NatsLink) -> None:
        await ensure_stream(link, "LARGE", {"subjects": ["large"]})
        with pytest.raises(TooLarge, match="raise max_payload in its configuration, or send less"):
            await link.publish("large", bytes(link.max_payload_bytes + 1))
        await link.publish("large", bytes(link.max_payload_bytes))
        assert await stored(link, "LARGE") == 1

    async def test_a_full_stream(self, link: NatsLink) -> None:
        await ensure_stream(link, "FULL", {"subjects": ["full"], "max_msgs": 1, "discard": "new"})
        await link.publish("full", b"1")
        with pytest.raises(JetStreamRefused) as refused:
            await link.publish("full", b"2")
        assert refused.value.is_full

    async def test_many_answers(self, link: NatsLink) -> None:
        await ensure_stream(link, "MANY", {"subjects": ["many.*"], "allow_direct": True})
        for number in range(5):
            await link.publish(f"many.{number}", b"%d" % number)
        found = await link.collect("$JS.API.DIRECT.GET.MANY", b'{"batch":10,"next_by_subj":"many.*","seq":2}', 10)
        assert [message.data for message in found] == [b"1", b"2", b"3", b"4"]
        some = await link.collect("$JS.API.DIRECT.GET.MANY", b'{"batch":2,"next_by_subj":"many.*","seq":1}', 2)
        assert len(some) == 2
        assert await link.collect("$JS.API.DIRECT.GET.MANY", b'{"batch":2,"next_by_subj":"many.*","seq":99}', 2) == []
        with pytest.raises(NoResponders):
            await link.collect("$JS.API.DIRECT.GET.NOWHERE", b'{"batch":2,"next_by_subj":">","seq":1}', 2)

    async def test_a_subject_that_cannot_be(self, link: NatsLink) -> None:
        async def never(message: Msg) -> None:
            raise AssertionError

        with pytest.raises(ConfigError, match="is not a subject"):
            await link.subscribe("a b", never)
        with pytest.raises(ConfigError, match="is not a subject"):
            await link.subscribe("", never)
        assert not link._subscriptions, "it would break the next connection"
        await link.api("INFO")

    async def test_what_a_listener_raises_ends_nothing(self, link: NatsLink) -> None:
        heard: list[bytes] = []

        async def stumble(message: Msg) -> None:
            heard.append(message.data)
            raise ValueError("over its own feet")

        end = await link.subscribe("stumble", stumble)
        await link.flush()
        await link.tell("stumble", b"1")
        await link.tell("stumble", b"2")
        await until(lambda: len(heard) == 2)
        assert "over its own feet" in str(link.last_error)
        await end()


class TestTrouble:
    async def test_a_killed_server_ends_what_waits_at_once(self, own_server: NatsCluster) -> None:
        link = await NatsLink.open(parse_address(own_server.url), name="test")
        up: list[bool] = []
        link.on_link(up.append)

        async def silent(message: Msg) -> None:
            pass

        await link.subscribe("silent", silent)
        await link.flush()
        waiting = asyncio.ensure_future(link.request("silent", b"", within_s=WAIT_S))
        many = asyncio.ensure_future(link.collect("silent", b"", 3, within_s=WAIT_S))
        await asyncio.sleep(0.05)
        began_s = time.monotonic()
        own_server.kill(0)
        for one in (waiting, many):
            with pytest.raises(Unanswered, match="may have arrived"):
                await one
        assert time.monotonic() - began_s < WAIT_S / 2
        await until(lambda: up == [False])
        with pytest.raises(LinkDown, match="nothing was sent"):
            await link.publish("x", b"")
        own_server.start_again(0)
        await link.wait_up(WAIT_S)
        assert up == [False, True]
        await link.close()

    async def test_what_was_given_up_does_not_happen_later(self, own_server: NatsCluster) -> None:
        link = await NatsLink.open(parse_address(own_server.url), name="test")
        await ensure_stream(link, "ONCE", {"subjects": ["once"]})
        own_server.kill(0)
        refused = 0
        for _ in range(50):
            try:
                await link.publish("once", b"given up", within_s=0.2)
            except LinkDown as error:
                refused += not isinstance(error, Unanswered)
            await asyncio.sleep(0.01)
        assert refused > 30, "without a connection a request fails at once"
        own_server.start_again(0)
        await link.wait_up(WAIT_S)
        await link.flush()
        assert await stored(link, "ONCE") == 0
        await link.close()

    async def test_subscriptions_come_back(self, own_server: NatsCluster) -> None:
        link = await NatsLink.open(parse_address(own_server.url), name="test")
        heard: list[bytes] = []

        async def take(message: Msg) -> None:
            heard.append(message.data)

        await link.subscribe("news", take)
        own_server.kill(0)
        await until(lambda: not link.is_up)
        await link.subscribe("news.late", take)
        own_server.start_again(0)
        await link.wait_up(WAIT_S)
        await link.flush()
        await link.tell("news", b"one")
        await link.tell("news.late", b"two")
        await until(lambda: heard == [b"one", b"two"])
        await link.close()

    async def test_a_cut_link_heals(self, own_server: NatsCluster) -> None:
        proxy = LinkProxy(own_server.servers[0].plan.port)
        port = await proxy.start()
        link = await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="test")
        await ensure_stream(link, "CUT", {"subjects": ["cut"]})
        for number in range(3):
            await answered(lambda: link.publish("cut", b"x"))
            proxy.cut()
            await until(lambda: not link.is_up)
            with pytest.raises(LinkDown):
                await link.publish("cut", b"y")
            proxy.restore()
            await link.wait_up(WAIT_S)
            assert await stored(link, "CUT") == number + 1
        await link.close()
        await proxy.close()

    async def test_a_silent_link_is_given_up(self, own_server: NatsCluster, quick_pings: None) -> None:
        """Nothing is closed, and nothing comes: only pings notice."""
        proxy = LinkProxy(own_server.servers[0].plan.port)
        port = await proxy.start()
        link = await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="test")
        proxy.stall()
        with pytest.raises(Unanswered):
            await link.api("INFO", within_s=0.3)
        await until(lambda: not link.is_up)
        proxy.restore()
        await answered(lambda: link.api("INFO"))  # a busy machine may miss such quick pings once more
        await link.close()
        await proxy.close()

    async def test_closing_ends_what_waits(self, server: NatsCluster) -> None:
        before = asyncio.all_tasks()
        link = await NatsLink.open(parse_address(server.url), name="test")

        async def silent(message: Msg) -> None:
            pass

        await link.subscribe("silent", silent)
        await link.flush()
        waiting = asyncio.ensure_future(link.request("silent", b"", within_s=WAIT_S))
        await asyncio.sleep(0.02)
        await link.close()
        with pytest.raises(Unanswered, match="was closed"):
            await waiting
        with pytest.raises(LinkDown):
            await link.request("silent", b"")
        await asyncio.sleep(0.05)
        gc.collect()
        assert asyncio.all_tasks() == before


class TestCluster:
    async def test_a_paused_server_with_much_unsent_is_left_for_another(
        self, tmp_path_factory: pytest.TempPathFactory, quick_pings: None
    ) -> None:
        """What is in the socket's buffer cannot go out; ending that connection must not wait for it."""
        with NatsCluster.start(tmp_path_factory.mktemp("cluster"), nodes=3) as cluster:
            link = await NatsLink.open(parse_address(cluster.url), name="test")
            await ensure_stream(link, "PAUSED", {"subjects": ["paused"], "num_replicas": 3})
            await answered(lambda: link.publish("paused", b"0"))  # our server may hear of the stream a moment later
            number = cluster.number_of(link.server_name)
            cluster.pause(number)
            writes = [link.publish("paused", bytes(500_000), within_s=1.0) for _ in range(24)]
            ended = await asyncio.gather(*writes, return_exceptions=True)
            assert all(isinstance(one, LinkDown) for one in ended)
            await until(lambda: link.is_up and link.server_name != cluster.servers[number].plan.name)
            await answered(lambda: link.publish("paused", b"1"))
            counted: list[int] = []

            async def count() -> None:
                counted.append(await stored(link, "PAUSED"))

            await answered(count)
            cluster.resume(number)
            await asyncio.sleep(1.0)
            assert counted[0] >= 2
            await link.close()


async def test_connection_that_was_closed_connects_to_nobody_any_more(server: NatsCluster) -> None:
    """Also if what connects again has missed that it was cancelled: it would live on, with all its subscriptions."""
    link = await NatsLink.open(parse_address(server.url), name="over")
    client = link.client
    await link.close()
    with pytest.raises(asyncio.CancelledError):
        await client._select_next_server()


async def test_what_the_library_cancels_within_does_not_end_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, calls = NatsConnection.connect, []

    async def cancelled_at_first(client: NatsConnection, **options: Any) -> None:
        calls.append(client)
        if len(calls) < 3:
            raise asyncio.CancelledError
        await connect(client, **options)

    monkeypatch.setattr(NatsConnection, "connect", cancelled_at_first)
    with start_single(tmp_path) as server:
        link = NatsLink(parse_address(server.url), name="test")
        link.start()
        await link.wait_up(10.0)
        assert len(calls) == 3
        await link.close()


async def test_headers_that_come_again_are_read_the_same_and_belong_to_their_message() -> None:
    client = NatsConnection()
    plain, status = b"NATS/1.0\r\nA: 1\r\nB: x y\r\n\r\n", b"NATS/1.0 404 No Messages\r\n\r\n"
    for raw, said in ((plain, {"A": "1", "B": "x y"}), (status, {"Status": "404", "Description": "No Messages"})):
        for _ in range(3):
            headers = await client._process_headers(raw)
            assert headers == said
            headers["A"] = "changed"
    assert await client._process_headers(b"") is None
    for number in range(1_000):
        assert await client._process_headers(b"NATS/1.0\r\nA: %d\r\n\r\n" % number) == {"A": str(number)}
    assert len(client._headers_known) <= HEADERS_KNOWN_MAX
