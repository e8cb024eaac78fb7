"""A node refuses to start if another node that is here runs one of its agents; in memory and on a real Mosquitto."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stigmergy import Agent, Event, Fleet, Settings, evolve
from stigmergy.app.node_config import NodeConfig, open_bus
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.memory import forget_broker
from stigmergy.bus.port import BusMessage
from stigmergy.bus.presence import Member, certain_overlap
from stigmergy.control.location import locate_agent
from stigmergy.network.bus_link import LinkStatus
from stigmergy.node.settings import BusSettings
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster
from stigmergy.testing.proxy import LinkProxy
from tests.node.fleets import cloud


class Seen(Event):
    by: str


class Cart(Agent):
    seen: tuple[str, ...] = ()

    @evolve
    def saw(self, event: Seen) -> None:
        self.seen = (*self.seen, event.by)


@pytest.fixture(params=["memory", "mosquitto", "nats_server"])
def bus(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        yield "memory:registry"
        forget_broker("registry")
        return
    broker: Broker | NatsCluster = request.getfixturevalue(request.param)
    yield broker.url


async def test_an_agent_that_another_node_runs_is_refused_at_the_start(bus: str) -> None:
    fleet = Fleet("yard", agents=[Cart], settings=Settings(bus=BusSettings(presence_every_s=0.5)))
    async with fleet.running(journal="memory:", bus=bus, node="a", agents=["Cart/c1", "Cart/d*"]) as a:
        await wait_until(lambda: a.standing().link.link == "up")
        async with fleet.running(journal="memory:", bus=bus, node="b", agents=["Cart/c2", "Cart/e*"]) as b:
            await wait_until(lambda: len(b.members()) == 2)
        for agents in (["Cart/c1"], ["Cart/d7"], ["Cart/c2", "Cart/c*"]):
            with pytest.raises(ConfigError, match=r"node 'a', here since .* runs Cart/.*start with --take-over"):
                await fleet.running(journal="memory:", bus=bus, node="b", agents=agents).__aenter__()
        async with fleet.running(journal="memory:", bus=bus, node="g"):
            pass  # a node that runs everything may be a gateway
        async with fleet.running(journal="memory:", bus=bus, node="b", agents=["Cart/c1"], take_over=True) as b:
            await wait_until(lambda: any("node 'a' stays off the bus" in trouble for trouble in b.standing().troubles))
            assert "node 'b', here since" in a.standing().link.why
    # A journal in memory is gone, and its agents with it.
    async with fleet.running(journal="memory:", bus=bus, node="c", agents=["Cart/c1"]) as c:
        await wait_until(lambda: c.standing().link.link == "up")


async def test_a_node_that_starts_hears_of_one_that_stays_off_the_bus_only_while_that_is_there(bus: str) -> None:
    fleet = Fleet("yard", agents=[Cart])

    def running(node: str, agent: str, **more: Any) -> Any:
        return fleet.running(journal="memory:", bus=bus, node=node, agents=[agent], **more)

    def says_off(live: Any) -> bool:
        return any("node 'a' stays off the bus" in one for one in live.standing().troubles)

    async with AsyncExitStack() as rest:
        async with running("a", "Cart/1") as a:
            await wait_until(lambda: a.standing().link.link == "up")
            b = await rest.enter_async_context(running("b", "Cart/1", take_over=True))
            await wait_until(lambda: says_off(b))
            async with running("s", "Cart/2") as s:
                await wait_until(lambda: says_off(s))
        await wait_until(lambda: not says_off(b))
        async with running("t", "Cart/3") as t:
            await wait_until(lambda: not t.link.presence.unheard())
            assert not says_off(t)


async def test_a_name_that_another_node_has_is_refused_at_the_start(bus: str, tmp_path: Path) -> None:
    fleet = Fleet("yard", agents=[Cart])
    async with fleet.running(journal=f"sqlite:{tmp_path}/a.db", bus=bus, node="a") as a:
        await wait_until(lambda: a.standing().link.link == "up")
        with pytest.raises(ConfigError, match=r"another node with another journal calls itself 'a'.* with --node"):
            await fleet.running(journal=f"sqlite:{tmp_path}/b.db", bus=bus, node="a").__aenter__()
        async with fleet.running(journal=f"sqlite:{tmp_path}/b.db", bus=bus, node="b") as b:
            await wait_until(lambda: len(b.members()) == 2)
        assert a.standing().link == LinkStatus("up", members=a.standing().link.members)
    # Also while it is away: what the broker keeps is for it. A journal in memory keeps no name.
    with pytest.raises(ConfigError, match=r"another node with another journal calls itself 'a', which is away"):
        await fleet.running(journal=f"sqlite:{tmp_path}/b.db", bus=bus, node="a").__aenter__()
    async with fleet.running(journal="memory:", bus=bus, node="e"):
        pass
    async with fleet.running(journal=f"sqlite:{tmp_path}/e.db", bus=bus, node="e") as e:
        await wait_until(lambda: e.standing().link.link == "up")
    # Its own journal may come back, under another name too.
    async with fleet.running(journal=f"sqlite:{tmp_path}/a.db", bus=bus, node="c", agents=["Cart/1"]) as c:
        await wait_until(lambda: c.standing().link.link == "up")
    async with fleet.running(journal=f"sqlite:{tmp_path}/a.db", bus=bus, node="d", agents=["Cart/1"]) as d:
        await wait_until(lambda: d.standing().link.link == "up")


async def test_a_node_that_is_away_keeps_its_agents_until_they_are_taken_over(bus: str, tmp_path: Path) -> None:
    fleet = Fleet("yard", agents=[Cart])

    def running(node: str, journal: str, **more: Any) -> Any:
        return fleet.running(journal=f"sqlite:{tmp_path}/{journal}.db", bus=bus, node=node, agents=["Cart/1"], **more)

    async with running("a", "a"):
        pass
    async with running("a", "a") as a:
        await wait_until(lambda: a.standing().link.link == "up")
        first = a.host.shards.first.epoch
    for node, what in (("b", r"node 'a', which is away, runs Cart/1"), ("a", r"another node with another journal")):
        with pytest.raises(ConfigError, match=what):
            await running(node, "b").__aenter__()
    async with running("b", "b", take_over=True) as b:
        await wait_until(lambda: b.standing().link.link == "up")
        assert b.host.shards.first.epoch > first
        with pytest.raises(ConfigError, match=r"node 'b', here since .* runs Cart/1"):
            await running("a", "a").__aenter__()
    with pytest.raises(ConfigError, match=r"node 'b', which is away, runs Cart/1"):
        await running("a", "a").__aenter__()
    async with running("b", "b") as b:
        await wait_until(lambda: b.standing().link.link == "up")


@pytest.mark.parametrize("bus", ["mosquitto", "nats_server"], indirect=True)
async def test_a_node_that_was_cut_off_while_its_agents_were_taken_over_leaves_the_bus(
    bus: str, tmp_path: Path
) -> None:
    near = urlsplit(bus)
    fleet, proxy = Fleet("yard", agents=[Cart]), LinkProxy(near.port or 0)
    far = f"{near.scheme}://127.0.0.1:{await proxy.start()}"
    outside = open_bus(NodeConfig(bus, "local", "outside"), "yard", SystemEntropy())
    assert outside is not None
    await outside.open()

    async def say(number: int) -> None:
        seen = json.dumps(cloud("Seen", {"by": str(number)}, id=str(number))).encode()
        await outside.publish(BusMessage("yard/local/agents/Cart/1/inputs", seen))

    def running(node: str, bus: str, **more: Any) -> Any:
        return fleet.running(journal=f"sqlite:{tmp_path}/{node}.db", bus=bus, node=node, agents=["Cart/1"], **more)

    async with running("a", far) as a:
        await wait_until(lambda: outside.is_up and a.standing().link.link == "up")
        await say(1)
        await wait_until(lambda: a.query("Cart/1", Cart).seen == ("1",))
        proxy.cut()
        await wait_until(lambda: a.standing().link.link == "local-only")
        await say(2)  # the broker keeps it for a
        async with running("b", bus, take_over=True) as b:
            await wait_until(lambda: b.standing().link.link == "up")
            await say(3)
            await wait_until(lambda: b.query("Cart/1", Cart).seen == ("3",))
            proxy.restore()
            await wait_until(lambda: "node 'b', here since" in a.standing().link.why)
            await say(4)
            await wait_until(lambda: b.query("Cart/1", Cart).seen == ("3", "4"))
            await wait_until(lambda: any("node 'a' stays off the bus" in one for one in b.standing().troubles))
            assert a.query("Cart/1", Cart).seen == ("1",)
            await a.observe("Cart/1", Seen(by="its own sensor"))
    await outside.close()
    await proxy.close()


async def test_of_two_that_started_without_the_broker_one_stays_and_everybody_knows(
    mosquitto: Broker, tmp_path: Path
) -> None:
    fleet = Fleet("yard", agents=[Cart])

    def running(node: str, agent: str) -> Any:
        return fleet.running(journal=f"sqlite:{tmp_path}/{node}.db", bus=mosquitto.url, node=node, agents=[agent])

    mosquitto.stop()
    async with running("a", "Cart/1") as a, running("b", "Cart/1") as b, running("s", "Cart/2") as s:
        for live in (a, b, s):
            assert live.standing().link.link == "local-only"
        mosquitto.start()

        def staying() -> list[Any]:
            return [live for live in (a, b) if live.standing().link.link == "up"]

        def says_off(live: Any) -> bool:
            return any("off the bus" in trouble for trouble in live.standing().troubles)

        await wait_until(lambda: len(staying()) == 1 and all(map(says_off, (a, b, s))))

        def names_both(live: Any) -> bool:
            why = locate_agent(live.host, live.link, "Cart/1").why
            return ("node 'a'" in why or live is a) and ("node 'b'" in why or live is b)

        await wait_until(lambda: all(map(names_both, (a, b, s))))


async def test_without_a_link_a_node_starts() -> None:
    fleet = Fleet("yard", agents=[Cart])
    async with fleet.running(journal="memory:", bus="mqtt://127.0.0.1:1", node="a", agents=["Cart/c1"]) as live:
        await live.observe("Cart/c1", Seen(by="me"))
        assert live.standing().link.link == "local-only"


@pytest.mark.parametrize(
    ("mine", "theirs", "both"),
    [
        (("Cart/a",), ("Cart/a",), ["Cart/a"]),
        (("Cart/a",), ("Cart/*",), ["Cart/a"]),
        (("Cart/*",), ("Cart/a",), ["Cart/a"]),
        (("Cart/a*",), ("Cart/a*",), ["Cart/a*"]),
        (("Cart/a*",), ("Cart/*b",), []),  # perhaps nobody fits both
        (("Cart/a",), ("Cart/b",), []),
        (("Cart/a",), (), []),
    ],
)
def test_only_what_is_certain_is_a_conflict(mine: tuple[str, ...], theirs: tuple[str, ...], both: list[str]) -> None:
    assert certain_overlap(mine, Member(node="b", run="1", agents=theirs, everything=not theirs)) == both
