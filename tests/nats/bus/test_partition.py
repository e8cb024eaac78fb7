"""Commands and inputs by shard: sorted by the server, moved where its hash misses, in order when owners change."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from stigmergy.base.errors import ConfigError, NotOwned
from stigmergy.bus.port import Bus, BusMessage, Gate
from stigmergy.bus.topics import Channel, Topics
from stigmergy.nats.address import parse_address
from stigmergy.nats.bus.partition import Partition
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import parted_stream
from stigmergy.shard.homes import shard_of
from stigmergy.testing.bus_rig import HandlerLog, Marking, publish_surely, wait_until
from stigmergy.testing.nats import NatsCluster, start_single
from tests.nats.bus.opening import Buses, hear

SHARDS = 4
LARGE_BYTES = 64 * 1024
NAMES = [f"D-{number}" for number in range(24)]


def commands_of(topics: Topics, address: str) -> str:
    return topics.of_agent(address, Channel.COMMANDS)


async def test_each_shard_gets_the_commands_of_its_agents_and_all_hear_the_rest(
    server: NatsCluster, buses: Buses
) -> None:
    topics = Topics("sorted", "north")
    link = await NatsLink.open(parse_address(server.url), name="worker")
    heard, presence = [], []
    for shard in range(SHARDS):
        bus = await buses.nats(server.url, f"sorted:north:shard-{shard}", link=link, partition=Partition(shard, SHARDS))
        heard.append(await hear(bus, topics.agents_pattern(Channel.COMMANDS)))
        presence.append(await hear(bus, topics.nodes_pattern(Channel.PRESENCE)))
    sender, device = await buses.nats(server.url, "sorted:north:operator"), await buses.mqtt(server, "device")
    for number, name in enumerate(NAMES):
        operator: Bus = sender if number % 2 else device
        await operator.publish(BusMessage(commands_of(topics, f"Drone/{name}"), name.encode()))
    await sender.publish(BusMessage(topics.of_node("operator", Channel.PRESENCE), b"here"))
    await wait_until(lambda: sum(len(one.payloads) for one in heard) >= len(NAMES))
    await wait_until(lambda: all(one.payloads == [b"here"] for one in presence))
    for shard in range(SHARDS):
        mine = {name for name in NAMES if shard_of(f"Drone/{name}", SHARDS) == shard}
        assert {payload.decode() for payload in heard[shard].payloads} == mine
        assert {message.topic for message in heard[shard].messages} == {
            commands_of(topics, f"Drone/{name}") for name in mine
        }
    await buses.close()
    await link.close()


async def test_what_the_hash_misses_is_moved_in_order(server: NatsCluster, buses: Buses) -> None:
    """By a key function, and for a name with a dot, which topics escape."""
    topics = Topics("zoned", "north")

    def zone_of(address: str) -> int:
        return 1 if address.endswith("-") else shard_of(address, 2)

    markings: dict[tuple[int, str], Marking] = {}

    async def take(shard: int, message: BusMessage) -> None:
        await markings.setdefault((shard, message.topic), Marking())(message)

    for shard in range(2):
        bus = await buses.nats(server.url, f"zoned:north:shard-{shard}", partition=Partition(shard, 2, zone_of))
        await bus.subscribe(topics.agents_pattern(Channel.INPUTS), partial(take, shard))
    sender = await buses.nats(server.url, "zoned:north:operator")
    agents = [f"Drone/D{number}{end}" for number in range(4) for end in ("-", ".7", "")]
    for number in range(1, 21):
        await asyncio.gather(
            *(sender.publish(BusMessage(topics.of_agent(one, Channel.INPUTS), b"%d" % number)) for one in agents)
        )
    where = {(zone_of(one), topics.of_agent(one, Channel.INPUTS)) for one in agents}
    await wait_until(lambda: sum(len(one.taken) for one in markings.values()) >= 20 * len(agents))
    assert set(markings) == where
    assert all(marking.taken == [*range(1, 21)] for marking in markings.values())


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_stream_that_was_left_without_its_source_is_fed_again(
    server: NatsCluster, buses: Buses, *, is_alone: bool
) -> None:
    """Whoever wakes a source takes it away first, and may be killed before it gives it back; also if nobody else is
    there, and all begins with the next one."""
    fleet = f"starved-{is_alone}"
    topics = Topics(fleet, "north")
    bus = await buses.nats(server.url, f"{fleet}:north:shard-0", partition=Partition(0, 1))
    heard = await hear(bus, topics.agents_pattern(Channel.INPUTS))
    sender = await buses.nats(server.url, f"{fleet}:north:operator")
    topic = topics.of_agent("Drone/1", Channel.INPUTS)
    await sender.publish(BusMessage(topic, b"before"))
    await wait_until(lambda: heard.payloads == [b"before"])
    link = await NatsLink.open(parse_address(server.url), name="killed")
    if is_alone:
        await bus.close()
    stream = parted_stream(fleet, 1)
    config = (await link.api(f"STREAM.INFO.{stream}"))["config"]
    await link.api(f"STREAM.UPDATE.{stream}", {**config, "sources": []})
    await sender.publish(BusMessage(topic, b"after"))
    if is_alone:
        bus = await buses.nats(server.url, f"{fleet}:north:shard-0", partition=Partition(0, 1))
        await bus.subscribe(topics.agents_pattern(Channel.INPUTS), heard)
    await wait_until(lambda: len(heard.payloads) > 1)
    assert heard.payloads == [b"before", b"after"]
    await link.close()


async def test_the_largest_message_is_moved_too(tmp_path: Path, buses: Buses) -> None:
    """With one header more it would be over the server's limit, and the server ends the link of who sends that."""
    topics = Topics("large", "north")
    with start_single(tmp_path, max_payload_bytes=LARGE_BYTES) as server:
        heard = []
        for shard in range(2):
            bus = await buses.nats(server.url, f"large:north:shard-{shard}", partition=Partition(shard, 2, lambda _: 1))
            heard.append(await hear(bus, topics.agents_pattern(Channel.INPUTS)))
        sender = await buses.nats(server.url, "large:north:operator")
        names = [f"Drone/D{number}" for number in range(4)]
        assert {shard_of(name, 2) for name in names} == {0, 1}
        for name in names:
            topic = topics.of_agent(name, Channel.INPUTS)
            for payload in (bytes(LARGE_BYTES), bytes(LARGE_BYTES - 20), b"small"):
                await sender.publish(BusMessage(topic, payload))
        await wait_until(lambda: len(heard[1].payloads) >= 3 * len(names))
        for name in names:
            topic = topics.of_agent(name, Channel.INPUTS)
            sizes = [len(message.payload) for message in heard[1].messages if message.topic == topic]
            assert sizes == [LARGE_BYTES, LARGE_BYTES - 20, 5]
        assert heard[0].payloads == []
        await buses.close()


async def test_shard_goes_on_in_order_with_its_next_owner(server: NatsCluster, buses: Buses) -> None:
    """Owners change under load: the new one while the old one still reads, and only the new one gets any more."""
    topics, taken = Topics("moving", "north"), Marking()
    topic = commands_of(topics, "Drone/D-1")
    shard = Partition(shard_of("Drone/D-1", SHARDS), SHARDS)
    sender = await buses.nats(server.url, "moving:north:operator")
    owner = await buses.nats(server.url, "moving:north:shard", partition=shard, epoch=1)
    await owner.subscribe(topics.agents_pattern(Channel.COMMANDS), taken)
    publishing = asyncio.ensure_future(publish_surely(sender, topic, range(1, 401)))
    for epoch in range(2, 6):
        count = len(taken.taken)
        await wait_until(lambda: len(taken.taken) >= min(400, count + 30))  # noqa: B023 - waited for at once
        following = await buses.nats(server.url, "moving:north:shard", partition=shard, epoch=epoch)
        await following.subscribe(topics.agents_pattern(Channel.COMMANDS), taken)
        await wait_until(lambda: isinstance(owner.last_error, ConfigError))  # noqa: B023 - waited for at once
        owner = following
    await publishing
    await wait_until(lambda: len(taken.taken) >= 400)
    assert taken.taken == [*range(1, 401)]


async def test_unacknowledged_messages_of_an_owner_that_is_cut_off_come_to_the_next(
    server: NatsCluster, buses: Buses
) -> None:
    topics, stuck = Topics("cut", "north"), asyncio.Event()
    shard = Partition(shard_of("Drone/D-1", SHARDS), SHARDS)
    begun: list[bytes] = []

    async def hang(message: BusMessage) -> None:
        begun.append(message.payload)
        await stuck.wait()

    first = await buses.nats(server.url, "cut:north:shard", partition=shard, epoch=1)
    await first.subscribe(topics.agents_pattern(Channel.COMMANDS), hang)
    sender = await buses.nats(server.url, "cut:north:operator")
    for number in range(10):
        await sender.publish(BusMessage(commands_of(topics, "Drone/D-1"), b"%d" % number))
    await wait_until(lambda: len(begun) >= 10)
    second = await buses.nats(server.url, "cut:north:shard", partition=shard, epoch=2)
    heard = await hear(second, topics.agents_pattern(Channel.COMMANDS))
    await wait_until(lambda: heard.payloads == [b"%d" % number for number in range(10)])
    stuck.set()


async def test_what_every_shard_hears_is_left_to_the_owner_of_the_agent(server: NatsCluster, buses: Buses) -> None:
    topics, heard = Topics("shared", "north"), HandlerLog()
    bus = await buses.nats(server.url, "shared:north:shard-0", partition=Partition(0, 2))

    async def take(message: BusMessage) -> None:
        if message.payload == b"another's":
            raise NotOwned("it lives elsewhere")
        await heard(message)

    await bus.subscribe("shared/north/agents/+/+/events/#", take)
    for payload in (b"another's", b"mine"):
        await bus.publish(BusMessage(topics.events("Drone/D-1", "battery"), payload))
    await wait_until(lambda: heard.payloads == [b"mine"])


async def test_what_a_gate_passes_over_is_settled_on_arrival(server: NatsCluster, buses: Buses) -> None:
    """Every shard gets all messages of devices: those of other shards must not cost a call and a place in the queue."""
    heard = HandlerLog()
    bus = await buses.nats(server.url, "gated:north:shard-0", partition=Partition(0, 2))

    def admit(source: str, message: BusMessage, open_count: int, open_all_count: int) -> bool:
        return message.payload == b"mine"

    await bus.subscribe("gated/soil/+", Gate(lambda topic: topic, admit, heard))
    for payload in (b"another's", b"mine"):
        await bus.publish(BusMessage("gated/soil/7", payload))
    await wait_until(lambda: heard.payloads == [b"mine"])
    assert (bus.receipts.shed, bus.receipts.taken) == (1, 1)
