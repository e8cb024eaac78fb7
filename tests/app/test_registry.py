"""A node refuses to start if another node that is here runs one of its agents; in memory and on a real Mosquitto."""

from collections.abc import Iterator

import pytest

from stigmergy import Agent, Event, Fleet, Settings, evolve
from stigmergy.app.registry import certain_overlap
from stigmergy.base.errors import ConfigError
from stigmergy.bus.memory import forget_broker
from stigmergy.bus.presence import Member
from stigmergy.node.settings import BusSettings
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_rig import wait_until


class Seen(Event):
    by: str


class Cart(Agent):
    seen: tuple[str, ...] = ()

    @evolve
    def saw(self, event: Seen) -> None:
        self.seen = (*self.seen, event.by)


@pytest.fixture(params=["memory", "mosquitto"])
def bus(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        yield "memory:registry"
        forget_broker("registry")
        return
    broker: Broker = request.getfixturevalue("mosquitto")
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
            await wait_until(lambda: any("node 'a' runs Cart/c1" in trouble for trouble in b.standing().troubles))
    # The one that is gone has said so.
    async with fleet.running(journal="memory:", bus=bus, node="b", agents=["Cart/c1"]) as b:
        await wait_until(lambda: b.standing().link.link == "up")


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
