"""A hub, sites with leaf servers of their own behind links that can be cut, and nodes on all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from stigmergy import Agent, Event, Fleet, Settings, UplinkRule, UplinkSettings, evolve
from stigmergy.control.live import Live
from stigmergy.nats.gateway.subjects import kept_subjects
from stigmergy.nats.servers.configuration import ServerPlan
from stigmergy.nats.servers.server import LOOPBACK, NatsServer, free_ports
from stigmergy.testing.nats import READY_S_MAX, NatsCluster
from stigmergy.testing.proxy import LinkProxy

WAIT_S_MAX = 240.0
FAST = Settings(
    uplink=UplinkSettings(linger_s=0.05, pass_every_s=0.5, answer_within_s=3.0, pause_s=0.2, pause_s_max=2.0)
)


class Arrived(Event):
    number: int


class Moved(Event):
    number: int


class Drone(Agent):
    """At a site."""

    numbers: tuple[int, ...] = ()

    @evolve
    def arriving(self, event: Arrived) -> None:
        self.numbers = (*self.numbers, event.number)

    @evolve
    def moving(self, event: Moved) -> None:
        pass


class Twin(Agent):
    """What the region knows of a drone: everything in the order in which it came."""

    numbers: tuple[int, ...] = ()

    @evolve
    def arriving(self, event: Arrived) -> None:
        self.numbers = (*self.numbers, event.number)


RULE = UplinkRule(only=("Arrived",))


def delivery() -> Fleet:
    return Fleet("delivery", agents=[Drone])


def ground() -> Fleet:
    fleet = Fleet("ground", agents=[Twin])
    fleet.collect("Drone/{id}", to="Twin/{id}", fleet="delivery", site="+")
    return fleet


class Site:
    """A leaf server behind a link of its own."""

    def __init__(self, folder: Path, name: str, hub_port: int, hubs: tuple[str, ...] = ()) -> None:
        self._hubs = hubs
        self.folder = folder / name
        self.name = name
        self.proxy = LinkProxy(hub_port)
        self.server: NatsServer | None = None

    async def start(self) -> None:
        port, mqtt_port, http_port = free_ports(3)
        link = await self.proxy.start()
        plan = ServerPlan(
            name=f"{self.name}-{port}",
            store=str(self.folder / "store"),
            port=port,
            http_port=http_port,
            mqtt_port=mqtt_port,
            domain=self.name,
            hubs=self._hubs or (f"{LOOPBACK}:{link}",),
            kept_in=kept_subjects(["delivery"]),
            kept_out=kept_subjects(["delivery"]),
            ping_every_s=2.0,
            mqtt_ack_wait_s=1,
        )
        self.server = NatsServer(plan, self.folder)
        self.server.start()
        await asyncio.to_thread(self.server.wait_ready, READY_S_MAX)

    @property
    def leaf(self) -> NatsServer:
        assert self.server is not None
        return self.server

    @property
    def mqtt(self) -> str:
        return f"mqtt://{LOOPBACK}:{self.leaf.plan.mqtt_port}?reconnect_s_max=1"

    @property
    def up(self) -> str:
        return self.up_at(f"{LOOPBACK}:{self.proxy.port}")

    def up_at(self, hubs: str) -> str:
        return f"nats-hub://{self.leaf.plan.host}:{self.leaf.plan.port}?at={hubs}&gateway={self.name}-1"

    def node(self, **more: Any) -> Any:
        given: dict[str, Any] = {"journal": f"sqlite:{self.folder / 'fleet.db'}", "key": self.folder / "fleet.key"}
        given |= {"bus": self.mqtt, "site": self.name, "node": "gateway", "uplink": RULE, "uplink_to": self.up}
        return delivery().running(settings=FAST, **{**given, **more})

    async def stop(self) -> None:
        self.leaf.kill()
        await self.proxy.close()


@contextlib.asynccontextmanager
async def sites(folder: Path, hub: NatsCluster, *names: str, hubs: tuple[str, ...] = ()) -> AsyncIterator[list[Site]]:
    port = hub.servers[0].plan.leaf_port
    found = [Site(folder, name, port, hubs) for name in names]
    try:
        for site in found:
            await site.start()
        yield found
    finally:
        for site in found:
            if site.server is not None:
                await site.stop()


def region(folder: Path, hub: NatsCluster, **more: Any) -> Any:
    collect = hub.url.replace("nats://", "nats-sites://")
    where = {"journal": f"sqlite:{folder / 'region.db'}", "key": folder / "region.key", "collect_from": collect}
    return ground().running(
        settings=FAST, bus=f"memory:{folder.name}", node="region", site="region", **{**where, **more}
    )


async def wait_until(over: Callable[[], bool], within_s: float = WAIT_S_MAX) -> float:
    """Waits for it; how long it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not over():
        if loop.time() - began_s > within_s:
            pytest.fail(f"not within {within_s:g} s: line {over.__code__.co_firstlineno}")
        await asyncio.sleep(0.02)
    return loop.time() - began_s


def numbers(live: Live, name: str) -> tuple[int, ...]:
    found: tuple[int, ...] = live.query(f"Twin/{name}", Twin).numbers
    return found
