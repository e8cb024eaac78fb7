"""What breaks a bus on NATS or makes it useless: servers that die, hang or keep nothing, rights, room, others."""

import asyncio
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from stigmergy.base.errors import ConfigError, LinkDown, Malformed, TooLarge
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.nats.address import parse_address
from stigmergy.nats.bus import open_bus
from stigmergy.nats.bus.options import read_options
from stigmergy.nats.bus.outlet import Outlet
from stigmergy.nats.errors import Unanswered
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import bus_stream
from stigmergy.nats.servers.configuration import User
from stigmergy.testing.bus_rig import Marking, publish_surely, wait_until
from stigmergy.testing.nats import NatsCluster, start_single
from stigmergy.testing.proxy import LinkProxy
from tests.nats.bus.opening import Buses, hear


async def publish_often(bus: Bus, message: BusMessage) -> None:
    for _ in range(1000):
        await bus.publish(message)


async def test_killed_server_loses_nothing_and_keeps_the_order(own_server: NatsCluster, buses: Buses) -> None:
    sender = await buses.nats(own_server.url, "f:north:sender")
    receiver, marking = await buses.nats(own_server.url, "f:north:receiver"), Marking()
    await receiver.subscribe("f/a", marking)
    publishing = asyncio.ensure_future(publish_surely(sender, "f/a", range(1, 301)))
    for _ in range(2):
        count = len(marking.taken)
        await wait_until(lambda: len(marking.taken) >= min(300, count + 50))  # noqa: B023 - waited for at once
        own_server.kill(0)
        await wait_until(lambda: not sender.is_up and not receiver.is_up)
        own_server.start_again(0)
    await publishing
    await wait_until(lambda: len(marking.taken) >= 300)
    assert marking.taken == [*range(1, 301)]


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing is noticed sooner."""
    monkeypatch.setattr("stigmergy.nats.link.PING_EVERY_S", 1)


@pytest.mark.usefixtures("quick_pings")
async def test_server_that_hangs_is_noticed_and_taken_up_again(own_server: NatsCluster, buses: Buses) -> None:
    bus = await buses.nats(own_server.url, "f:north:node")
    heard = await hear(bus, "f/a")
    own_server.pause(0)
    waiting = asyncio.ensure_future(bus.publish(BusMessage("f/a", b"maybe")))
    await wait_until(lambda: not bus.is_up)
    with pytest.raises(LinkDown):
        await waiting
    assert isinstance(bus.last_error, LinkDown)
    own_server.resume(0)
    await wait_until(lambda: bus.is_up)
    await bus.publish(BusMessage("f/a", b"surely"))
    await wait_until(lambda: b"surely" in heard.payloads)


@pytest.mark.usefixtures("quick_pings")
async def test_link_on_which_nothing_comes_is_given_up(server: NatsCluster, buses: Buses) -> None:
    proxy = LinkProxy(server.servers[0].plan.port)
    port = await proxy.start()
    bus = await buses.nats(f"nats://127.0.0.1:{port}", "silent:north:node")
    heard = await hear(bus, "silent/a")
    proxy.mute_server()
    await wait_until(lambda: not bus.is_up)
    proxy.cut()
    proxy.restore()
    await wait_until(lambda: bus.is_up)
    await bus.publish(BusMessage("silent/a", b"1"))
    await wait_until(lambda: heard.payloads == [b"1"])
    await buses.close()
    await proxy.close()


async def test_server_without_jetstream_is_no_bus(tmp_path: Path, buses: Buses) -> None:
    with start_single(tmp_path, has_jetstream=False) as plain:
        bus = await buses.nats(plain.url, "f:north:node", up=False)
        await wait_until(lambda: isinstance(bus.last_error, ConfigError))
        assert "JetStream" in str(bus.last_error)
        with pytest.raises(LinkDown):
            await bus.publish(BusMessage("f/a", b""))
        await buses.close()


async def test_missing_rights_are_named(tmp_path: Path, buses: Buses) -> None:
    users = (
        User("mute", "word", denied=("f.secret",)),
        User("shut", "word", denied=("$JS.API.STREAM.>",)),
        User("whole", "word"),
    )
    with start_single(tmp_path, users=users) as guarded:
        port = guarded.servers[0].plan.port
        bus = await buses.nats(f"nats://mute:word@127.0.0.1:{port}", "f:north:mute")
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(Malformed, match=r"f\.secret"):
            await bus.publish(BusMessage("f/secret", b""))
        assert asyncio.get_running_loop().time() - began_s < 4.0, "an answer was waited for that cannot come"
        await bus.publish(BusMessage("f/public", b""))
        shut = await buses.nats(f"nats://shut:word@127.0.0.1:{port}", "f:north:shut", up=False)
        await wait_until(lambda: isinstance(shut.last_error, ConfigError))
        assert "ermission" in str(shut.last_error)
        wrong = await buses.nats(f"nats://whole:other@127.0.0.1:{port}", "f:north:wrong", up=False)
        await wait_until(lambda: isinstance(wrong.last_error, ConfigError))
        await buses.close()


async def test_full_store_is_told_and_mends(tmp_path: Path, buses: Buses) -> None:
    with start_single(tmp_path, file_bytes=100 * 1024 * 1024) as small:
        bus = await buses.nats(f"{small.url}?stored_mb=16", "f:north:node")
        link = await NatsLink.open(parse_address(small.url), name="other")
        await link.api("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other"]})
        piece = bytes(1000 * 1024)
        for _ in range(103):
            await link.request("other", piece)
        with pytest.raises(LinkDown, match="room"):
            await publish_often(bus, BusMessage("f/a", piece))
        await wait_until(lambda: isinstance(bus.last_error, ConfigError) and "room" in str(bus.last_error))
        for _ in range(20):
            await asyncio.sleep(0.02)
            assert not bus.is_up
        await link.api("STREAM.DELETE.OTHER")
        await link.close()
        await wait_until(lambda: bus.is_up)
        await bus.publish(BusMessage("f/a", b"again"))
        await buses.close()


async def test_message_over_the_servers_limit_is_too_large(own_server: NatsCluster, buses: Buses) -> None:
    bus = await buses.nats(own_server.url, "f:north:node")
    with pytest.raises(TooLarge, match="max_payload"):
        await bus.publish(BusMessage("f/a", bytes(1024 * 1024), properties=(("a", "b"),)))
    await bus.publish(BusMessage("f/a", b""))
    assert bus.is_up


async def test_stream_that_was_made_otherwise_is_left_alone(server: NatsCluster, buses: Buses) -> None:
    await buses.nats(f"{server.url}?stored_mb=16", "other:north:first")
    second = await buses.nats(f"{server.url}?stored_mb=17", "other:north:second", up=False)
    await wait_until(lambda: isinstance(second.last_error, ConfigError))
    assert "max_bytes" in str(second.last_error)


async def test_what_another_fleet_has_captured_is_heard_there(server: NatsCluster, buses: Buses) -> None:
    """The same devices' topics, and the topics of a fleet that has not come yet."""
    first, second = await buses.nats(server.url, "one:x:first"), await buses.nats(server.url, "two:x:second")
    by_first, by_second = await hear(first, "gauges/+"), await hear(second, "gauges/7")
    of_others = await hear(second, "three/+/uplink/+")
    await first.publish(BusMessage("gauges/7", b"1"))
    await second.publish(BusMessage("three/x/uplink/node/marks", b"3"))
    third = await buses.nats(server.url, "three:x:third")
    marks = await hear(third, "three/x/uplink/node/marks")
    await third.publish(BusMessage("three/x/uplink/node", b"2"))
    await second.publish(BusMessage("three/x/uplink/node/marks", b"4"))
    await wait_until(lambda: (by_first.payloads, by_second.payloads) == ([b"1"], [b"1"]))
    await wait_until(lambda: (of_others.payloads, marks.payloads) == ([b"2"], [b"4"]))


async def test_topics_that_another_stream_has_in_part_are_refused(server: NatsCluster, buses: Buses) -> None:
    first, second = await buses.nats(server.url, "four:x:first"), await buses.nats(server.url, "five:x:second")
    await hear(first, "meters/+/low")
    with pytest.raises(Malformed, match="another stream"):
        await hear(second, "meters/#")
    heard = await hear(second, "five/a")
    await second.publish(BusMessage("five/a", b"1"))
    await wait_until(lambda: heard.payloads == [b"1"])
    again = await buses.nats(server.url, "five:x:again", up=False)
    for pattern in ("meters/#", "five/b"):
        await again.subscribe(pattern, heard)
    await wait_until(lambda: again.is_up)
    assert "another stream" in again.receipts.last_failure


async def test_nodes_that_widen_the_stream_at_once_do_not_undo_each_other(server: NatsCluster, buses: Buses) -> None:
    nodes = [await buses.nats(server.url, f"wide:x:node-{number}") for number in range(6)]
    await asyncio.gather(*(hear(bus, f"wide-{number}/#") for number, bus in enumerate(nodes)))
    link = await NatsLink.open(parse_address(server.url), name="look")
    info = await link.api(f"STREAM.INFO.{bus_stream('wide')}")
    assert {f"wide-{number}.>" for number in range(6)} <= set(info["config"]["subjects"])
    await link.close()


async def test_stream_that_was_deleted_begins_anew_and_loses_nothing_new(server: NatsCluster, buses: Buses) -> None:
    """Its numbers begin anew, too; they say nothing about what was taken before."""
    bus = await buses.nats(server.url, "gone:x:node")
    heard = await hear(bus, "gone/a")
    for number in range(5):
        await bus.publish(BusMessage("gone/a", b"%d" % number))
    await wait_until(lambda: len(heard.payloads) == 5)
    link = await NatsLink.open(parse_address(server.url), name="vandal")
    await link.api(f"STREAM.DELETE.{bus_stream('gone')}")
    await link.close()
    await publish_surely(bus, "gone/a", range(5, 15))
    await wait_until(lambda: bus.is_up and len(heard.first_payloads) == 15)


async def test_second_process_with_our_id_takes_the_session(
    server: NatsCluster, buses: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stigmergy.nats.bus.bus.LOOK_S", 0.5)
    first = await buses.nats(server.url, "twin:x:node")
    before = await hear(first, "twin/a")
    await first.publish(BusMessage("twin/a", b"0"))
    await wait_until(lambda: before.payloads == [b"0"])
    second = await buses.nats(server.url, "twin:x:node")
    heard = await hear(second, "twin/a")
    await wait_until(lambda: isinstance(first.last_error, ConfigError))
    assert "our id" in str(first.last_error)
    await first.close()
    await wait_until(lambda: second.is_up)
    await second.publish(BusMessage("twin/a", b"1"))
    await wait_until(lambda: heard.payloads == [b"1"])


async def test_new_program_gets_nothing_of_what_came_before_it_listened(server: NatsCluster, buses: Buses) -> None:
    bus = await buses.nats(server.url, "older:x:node")
    first = await hear(bus, "older/a")
    for topic in ("older/a", "older/b"):
        await bus.publish(BusMessage(topic, topic.encode()))
    await wait_until(lambda: first.payloads == [b"older/a"])
    await bus.close()
    newer = await buses.nats(server.url, "older:x:node")
    heard = await hear(newer, "older/#")
    await newer.publish(BusMessage("older/b", b"new"))
    await wait_until(lambda: b"new" in heard.payloads)
    assert heard.payloads == [b"new"]


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("nats://", "server"),
        ("nats://h?replicas=2", "replicas"),
        ("nats://h?stored_mb=none", "stored_mb"),
        ("nats://h?age_s=0", "age_s"),
        ("nats://h?mqtt=maybe", "mqtt"),
        ("nats://h?topics=a/%23/b", "topics"),
        ("nats://h?topics=%23", "topics"),
        ("nats://h?colour=red", "colour"),
    ],
)
def test_url_that_makes_no_sense_is_refused(url: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        open_bus(url, "f:x:y", SystemEntropy())


def test_fleet_is_the_path_or_the_beginning_of_the_client_id() -> None:
    assert read_options("nats://h", "delivery:north:node").fleet == "delivery"
    assert read_options("nats://h/other", "delivery:north:node").fleet == "other"
    with pytest.raises(ConfigError, match="client id"):
        read_options("nats://h", "")


@pytest.mark.parametrize("said", [b"{}", b'{"ok": true}', b'{"stream": "S"}', b'{"seq": 4}', b"[]", b"taken"])
async def test_only_an_acknowledgement_of_jetstream_is_one(own_server: NatsCluster, said: bytes) -> None:
    """Otherwise a message is taken for kept because any program listens on its subject and answers."""
    link = await NatsLink.open(parse_address(own_server.url), name="test")

    async def answer(message: Msg) -> None:
        await link.tell(message.reply, said)

    await link.subscribe("no.stream", answer)
    outlet = Outlet(link, "_INBOX.outlet")
    await outlet.open()
    with pytest.raises(Unanswered, match="not JetStream's"):
        await (await outlet.post("no.stream", b"x", None))
    await outlet.close()
    await link.close()
