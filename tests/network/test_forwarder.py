"""Commands for agents on other nodes: a device behind two gateways, links that are never up together, crashes."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stigmergy as st
from stigmergy.base.errors import DefinitionError, NoAnswer, NotAssigned, NotRunning
from stigmergy.bus.memory import memory_broker
from stigmergy.network.level_links import ForwardAnswered, Known, Routes, read_frame, write_frame
from stigmergy.node.settings import CommandSettings, Settings
from stigmergy.testing.bus_rig import wait_until


class Fly(st.Command):
    number: int


class SetRoute(st.Command, expires_s=60, supersedes=True):
    number: int


class Hurry(st.Command, expires_s=0.2):
    number: int


class Soon(st.Command, expires_s=5):
    number: int


class Flown(st.Event):
    number: int


class Drone(st.Agent):
    flown: tuple[int, ...] = ()

    @st.decide
    def fly(self, command: Fly) -> st.Events:
        if command.number < 0:
            st.reject("below ground")
        yield Flown(number=command.number)

    @st.decide
    def route(self, command: SetRoute) -> st.Events:
        yield Flown(number=command.number)

    @st.decide
    def hurry(self, command: Hurry) -> st.Events:
        yield Flown(number=command.number)

    @st.decide
    def soon(self, command: Soon) -> st.Events:
        yield Flown(number=command.number)

    @st.evolve
    def was_flown(self, event: Flown) -> None:
        self.flown = (*self.flown, event.number)


class Site(st.Agent):
    count: int = 0

    @st.decide
    def fly(self, command: Fly) -> st.Events:
        yield Flown(number=command.number)

    @st.evolve
    def was_flown(self, event: Flown) -> None:
        self.count += 1


def fleet() -> st.Fleet:
    return st.Fleet("delivery", agents=[Drone, Site])


class Town:
    """Device, site, region and cloud, each on a bus of its own level; all keep their logs in files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        up = {"uplink": st.UplinkRule(only=("Arrived",))}
        self.levels: dict[str, dict[str, Any]] = {
            "device": {"bus": self.bus("site"), "site": "north", "node": "device", "agents": ["Drone/1"]},
            "gateway": {
                "bus": self.bus("site"),
                "site": "north",
                "node": "gateway",
                "agents": ["Site/north"],
                "uplink_to": self.bus("up1"),
                **up,
            },
            "region": {
                "bus": self.bus("region"),
                "site": "west",
                "node": "region",
                "agents": ["Site/west"],
                "collect_from": self.bus("up1"),
                "uplink_to": self.bus("up2"),
                **up,
            },
            "cloud": {
                "bus": self.bus("cloud"),
                "site": "cloud",
                "node": "cloud",
                "agents": ["Site/cloud"],
                "collect_from": self.bus("up2"),
            },
        }

    def bus(self, which: str) -> str:
        return f"memory:{self.name}-{which}"

    def running(self, level: str, **more: Any) -> Any:
        settings = Settings(drain_s=0.5)  # what is under way at a stop is not waited for
        how = {"journal": f"sqlite:{self.folder / level}.db", "settings": settings, **self.levels[level], **more}
        return self.fleet().running(**how)

    def fleet(self) -> st.Fleet:
        return fleet()

    def cut(self, which: str, client: str) -> None:
        memory_broker(f"{self.name}-{which}").cut(client)

    def restore(self, which: str, client: str) -> None:
        memory_broker(f"{self.name}-{which}").restore(client)

    @asynccontextmanager
    async def all(self) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            yield {level: await stack.enter_async_context(self.running(level)) for level in self.levels}


def is_last_at(live: Any, command_id: str) -> bool:
    """Whether this is the newest command that is on its way at this node."""
    return [one.command_id for one in live.link.forwarder.on_their_way()[-1:]] == [command_id]


def reaches(live: Any, agent: str) -> bool:
    return live.link is not None and live.link.forwarder.way_to(agent)[0] is not None


async def test_a_command_reaches_a_device_behind_two_gateways_and_is_answered(tmp_path: Path) -> None:
    town = Town(tmp_path, "two-gateways")
    async with town.all() as nodes:
        cloud, device = nodes["cloud"], nodes["device"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        answer = await cloud.send("Drone/1", Fly(number=1), command_id="a")
        assert isinstance(answer, st.Accepted)
        assert answer.after.startswith(f"0@{device.host.feed.log}:")
        refused = await cloud.send("Drone/1", Fly(number=-1), command_id="b")
        assert isinstance(refused, st.Refused)
        assert "below ground" in refused.reason
        # Again under the same ids: the same answers, and nothing is done.
        assert await cloud.send("Drone/1", Fly(number=1), command_id="a")
        again = await cloud.send("Drone/1", Fly(number=2), command_id="a")
        assert isinstance(again, st.Refused)
        assert "another command had the id" in again.reason
        assert device.query("Drone/1", Drone).flown == (1,)
        # And up again, from the device, which knows of no level but its own.
        assert await device.send("Site/cloud", Fly(number=1))
        assert cloud.query("Site/cloud", Site).count == 1
        # Nobody on the way made an agent of it.
        assert [nodes[name].agents("Drone") for name in ("cloud", "region", "gateway")] == [[], [], []]


async def test_what_a_node_runs_itself_it_decides_itself(tmp_path: Path) -> None:
    town = Town(tmp_path, "own")
    async with town.all() as nodes:
        assert await nodes["cloud"].send("Site/cloud", Fly(number=1))
        assert nodes["cloud"].query("Site/cloud", Site).count == 1


async def test_links_are_never_up_together_and_every_node_is_started_anew(tmp_path: Path) -> None:
    """Each hop by itself: the cloud hands it to the region, and ends; the region to the gateway; and so on."""
    town = Town(tmp_path, "hops")
    async with town.all() as nodes:
        await wait_until(lambda: reaches(nodes["cloud"], "Drone/1"))
    async with town.running("cloud") as cloud, town.running("region") as region:
        with pytest.raises(NoAnswer, match="on its way"):
            await cloud.send("Drone/1", Fly(number=7), command_id="x", within_s=0.2)
        async with town.running("gateway"):  # so that the region is known to lead there
            await wait_until(lambda: bool(region.link.forwarder.on_their_way()))
    async with town.running("region") as region, town.running("gateway") as gateway:
        await wait_until(lambda: bool(gateway.link.forwarder.on_their_way()))
    async with town.running("gateway") as gateway, town.running("device") as device:
        await wait_until(lambda: device.query("Drone/1", Drone).flown == (7,))
        await wait_until(lambda: not gateway.link.forwarder.on_their_way())
    async with town.running("region") as region, town.running("gateway"):
        await wait_until(lambda: not region.link.forwarder.on_their_way())
    async with town.running("cloud") as cloud, town.running("region"):
        assert await cloud.send("Drone/1", Fly(number=7), command_id="x", within_s=60)
    async with town.running("device") as device:
        assert device.query("Drone/1", Drone).flown == (7,)


async def test_a_cut_link_delays_commands_and_keeps_their_order(tmp_path: Path) -> None:
    town = Town(tmp_path, "order")
    async with town.all() as nodes:
        cloud, device = nodes["cloud"], nodes["device"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        sent = []
        for number in range(12):
            if number % 4 == 1:
                town.cut("site", "delivery:north:device")
                town.cut("up1", "delivery:north:gateway")
            if number % 4 == 3:
                town.restore("up1", "delivery:north:gateway")
                town.restore("site", "delivery:north:device")
            sent.append(asyncio.ensure_future(cloud.send("Drone/1", Fly(number=number), within_s=120)))
            await asyncio.sleep(0.05)
        assert all(await asyncio.gather(*sent))
        assert device.query("Drone/1", Drone).flown == tuple(range(12))


async def test_what_expires_before_it_is_decided_is_refused_and_never_decided(tmp_path: Path) -> None:
    town = Town(tmp_path, "expiry")
    async with town.all() as nodes:
        cloud, device = nodes["cloud"], nodes["device"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        # The gateway has it when the device goes.
        town.cut("site", "delivery:north:device")
        await wait_until(lambda: not reaches(nodes["gateway"], "Drone/1"))
        refused = await cloud.send("Drone/1", Hurry(number=1), within_s=60)
        assert isinstance(refused, st.Refused)
        assert refused.reason.startswith("expired: ")
        town.restore("site", "delivery:north:device")
        assert await cloud.send("Drone/1", Fly(number=2), within_s=60)
        assert device.query("Drone/1", Drone).flown == (2,)


async def test_the_device_itself_refuses_what_came_too_late(tmp_path: Path) -> None:
    """Sent while the device seemed to be there, so the gateway may not say that nobody has it."""
    town = Town(tmp_path, "late")
    async with town.all() as nodes:
        cloud, device, gateway = nodes["cloud"], nodes["device"], nodes["gateway"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        device.link.subscriber.close()  # it takes nothing, and its presence stands
        late = asyncio.ensure_future(cloud.send("Drone/1", Soon(number=1), command_id="late", within_s=240))
        await wait_until(lambda: gateway.standing().counters["forwards_sent"] > 0)
        (waiting,) = gateway.link.forwarder.on_their_way()
        await wait_until(lambda: time.time_ns() > waiting.expires_ns + 1_500_000_000)
        assert not late.done()
        device.link.subscriber._closed = False
        refused = await late
        assert isinstance(refused, st.Refused)
        assert "expired: it was to be decided by" in refused.reason
        assert device.query("Drone/1", Drone).flown == ()


async def test_a_newer_command_cancels_those_on_the_way(tmp_path: Path) -> None:
    town = Town(tmp_path, "superseded")
    async with town.all() as nodes:
        cloud, device = nodes["cloud"], nodes["device"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        town.cut("site", "delivery:north:device")
        await wait_until(lambda: not reaches(nodes["gateway"], "Drone/1"))
        sent = []
        for number in range(3):
            one = cloud.send("Drone/1", SetRoute(number=number), command_id=f"route-{number}", within_s=60)
            sent.append(asyncio.ensure_future(one))
            await wait_until(partial(is_last_at, nodes["gateway"], f"route-{number}"))
        town.restore("site", "delivery:north:device")
        first, second, third = await asyncio.gather(*sent)
        assert third
        for cancelled in (first, second):
            assert isinstance(cancelled, st.Refused)
            assert "superseded by the command 'route-" in cancelled.reason
        assert device.query("Drone/1", Drone).flown == (2,)


async def test_a_restarted_node_answers_for_what_it_sent_before(tmp_path: Path) -> None:
    town = Town(tmp_path, "restart")
    async with town.all() as nodes:
        await wait_until(lambda: reaches(nodes["cloud"], "Drone/1"))
    async with town.running("cloud") as cloud:
        with pytest.raises(NoAnswer) as caught:
            await cloud.send("Drone/1", Fly(number=1), within_s=0.1)
        command_id = caught.value.command_id
    async with town.all() as nodes:
        assert await nodes["cloud"].send("Drone/1", Fly(number=1), command_id=command_id, within_s=60)
        assert nodes["device"].query("Drone/1", Drone).flown == (1,)


async def test_without_a_way_a_command_is_refused_as_before(tmp_path: Path) -> None:
    async with fleet().running(journal="memory:", agents=["Site/x"]) as alone:
        with pytest.raises(NotAssigned, match="does not run on this node"):
            await alone.send("Drone/1", Fly(number=1))
    refusing = Settings(commands=CommandSettings(unclaimed="refuse"))
    town = Town(tmp_path, "refuse")
    async with town.running("cloud", settings=refusing) as cloud:
        with pytest.raises(NotAssigned, match="does not run on this node"):
            await cloud.send("Drone/1", Fly(number=1))


@pytest.mark.parametrize("options", [{"expires_s": 0}, {"expires_s": 90_000}, {"expires_s": "1"}, {"supersedes": 1}])
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):
        types.new_class("Wrong", (st.Command,), options)


def test_only_commands_travel() -> None:
    with pytest.raises(DefinitionError, match="are for commands"):

        class Wrong(st.Event, supersedes=True):
            pass


async def test_commands_leave_one_at_a_time_each_when_the_one_before_was_taken(tmp_path: Path) -> None:
    town = Town(tmp_path, "one-by-one")
    async with town.all() as nodes:
        cloud, region = nodes["cloud"], nodes["region"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        heard: list[int] = []
        served = region.link.forwarder.serve

        def note(agent: str, command: bytes, *rest: Any) -> Any:
            """As a slow link would: what comes is heard, and its receipt does not leave."""
            heard.append(len(heard))
            raise NotRunning("not yet")

        region.link.forwarder.serve = note
        sent = [
            asyncio.ensure_future(cloud.send("Drone/1", Fly(number=number), command_id=f"{number}", within_s=60))
            for number in range(5)
        ]
        await wait_until(lambda: len(cloud.link.forwarder.on_their_way()) == 5 and bool(heard))
        await asyncio.sleep(0.2)
        waiting = [one.standing for one in cloud.link.forwarder.on_their_way()]
        assert [standing.startswith("waiting for") for standing in waiting] == [False, True, True, True, True]
        region.link.forwarder.serve = served
        assert all(await asyncio.gather(*sent))
        assert nodes["device"].query("Drone/1", Drone).flown == tuple(range(5))


async def test_a_command_is_not_sent_back_to_where_it_came_from(tmp_path: Path) -> None:
    """The region has announced an agent that nobody below it knows any more."""
    town = Town(tmp_path, "back")
    async with town.running("cloud") as cloud, town.running("region") as region:
        await wait_until(lambda: reaches(cloud, "Site/west"))
        below = cloud.link.forwarder.links.below["west/region"]
        below.known = Known(Routes(["Drone/lost"], []))
        with pytest.raises(NoAnswer):
            await cloud.send("Drone/lost", Fly(number=1), within_s=2)
        (waiting,) = region.link.forwarder.on_their_way()
        assert waiting.standing == "waiting: no node that is known here says that it runs it"


async def test_a_command_for_the_level_above_is_taken_while_the_link_there_is_down(tmp_path: Path) -> None:
    town = Town(tmp_path, "cut-above")
    async with town.all() as nodes:
        gateway, region = nodes["gateway"], nodes["region"]
        await wait_until(lambda: reaches(gateway, "Site/west"))
        town.cut("up1", "delivery:north:gateway")
        await wait_until(lambda: not reaches(gateway, "Site/west"))
        with pytest.raises(NoAnswer, match="on its way"):
            await gateway.send("Site/west", Fly(number=1), command_id="x", within_s=0.2)
        town.restore("up1", "delivery:north:gateway")
        assert await gateway.send("Site/west", Fly(number=1), command_id="x", within_s=240)
        assert region.query("Site/west", Site).count == 1


def test_answer_of_an_earlier_version_names_no_position() -> None:
    old = msgspec.msgpack.encode([3, "Drone/1", "a", None])
    assert read_frame(old) == ForwardAnswered("Drone/1", "a", None)
    new = write_frame(ForwardAnswered("Drone/1", "a", None, "0@5f3a9c1e:41"))
    assert msgspec.msgpack.decode(new)[:4] == [3, "Drone/1", "a", None]
