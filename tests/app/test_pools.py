"""Carts on two nodes that share three docks through one ledger, as users write it: any of them, and bound orders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stigmergy import (
    Action,
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Fence,
    Fleet,
    Granted,
    Order,
    Ordered,
    Released,
    evolve,
    ordered,
    pool,
    react,
)
from stigmergy.sim import ALL, World, simulate
from stigmergy.testing import given
from stigmergy.testing.nats import start_single

WITHIN_S = 240.0
DOCKS = ("dock-1", "dock-2", "dock-3")


class Low(Event):
    wait_s: float = 60.0


class Full(Event):
    pass


class Plug(Action):
    dock: str


class Cart(Agent):
    dock: Ordered[Claim] = ordered(of=pool(*DOCKS))
    said: str = ""

    @react
    def ask(self, event: Low) -> Effects:
        yield self.dock.claim(for_s=60, wait_s=event.wait_s)

    @react
    def leave(self, event: Full) -> Effects:
        yield self.dock.release()

    @react
    def plug(self, verdict: Granted) -> Effects:
        yield Plug(dock=verdict.resource, valid_while=self.dock)

    @evolve
    def hear(self, verdict: Granted | Denied | Released) -> None:
        self.said = f"{type(verdict).__name__} {verdict.resource}"


def make_fleet(plugged: list[str]) -> Fleet:
    fleet = Fleet("docks", agents=[Cart])
    fence = Fence(of=DOCKS)

    @fleet.actuator(Plug)
    def plug(order: Order[Plug]) -> None:
        fence.admit(order)
        assert order.claim is not None
        assert order.claim.resource == order.effect.dock
        plugged.append(f"{order.agent} {order.effect.dock}")

    return fleet


@contextlib.contextmanager
def ledger_at(folder: Path, kind: str) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:{folder}/ledger.db"
        return
    with start_single(folder / "server") as server:
        yield server.url


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["sqlite", "nats"])
async def test_four_carts_on_two_nodes_share_three_docks(tmp_path: Path, kind: str) -> None:
    plugged: list[str] = []
    with ledger_at(tmp_path, kind) as url:
        key = str(tmp_path / "node.key")
        at_a = make_fleet(plugged).running(journal=f"sqlite:{tmp_path}/a.db", node="a", ledger=url, key=key)
        at_b = make_fleet(plugged).running(journal=f"sqlite:{tmp_path}/b.db", node="b", ledger=url, key=key)
        async with at_a as a, at_b as b:
            homes = {"Cart/1": a, "Cart/2": b, "Cart/3": a, "Cart/4": b}

            def said(name: str) -> str:
                return homes[name].query(name, Cart).said

            for name, docked in zip(("Cart/1", "Cart/2", "Cart/3"), DOCKS, strict=True):
                await homes[name].observe(name, Low())
                await wait_until(lambda name=name: bool(said(name)))  # type: ignore[misc]
                assert said(name) == f"Granted {docked}"
            await b.observe("Cart/4", Low())
            await a.observe("Cart/5", Low(wait_s=0.0))
            homes["Cart/5"] = a
            await wait_until(lambda: bool(said("Cart/5")))
            assert said("Cart/5") == "Denied dock-1|dock-2|dock-3"
            await b.observe("Cart/2", Full())
            await wait_until(lambda: said("Cart/4") == "Granted dock-2")
            await wait_until(lambda: "Cart/4 dock-2" in plugged)
    assert plugged == ["Cart/1 dock-1", "Cart/2 dock-2", "Cart/3 dock-3", "Cart/4 dock-2"]


def test_a_pool_in_tests_of_agents() -> None:
    there = given(Cart).when(Low())
    asked = there.agent.dock.claim(for_s=60, wait_s=60)
    there.then(asked)
    there.when(Granted(claim="dock", resource="dock-2", token=9, for_s=60.0))
    there.state(dock=True, said="Granted dock-2")
    dock = there.agent.dock
    assert (dock.resource, dock.of) == ("dock-2", "dock-1|dock-2|dock-3")
    there.when(Full()).then(dock.release())


carts = Fleet("sim-docks", agents=[Cart])


@carts.actuator(Plug)
def plug(order: Order[Plug]) -> None:
    assert order.claim is not None
    assert order.claim.resource == order.effect.dock


@simulate(carts, agents=5, nodes=3, seeds=4, faults=ALL, for_s=30.0)
def test_docks_are_shared_whatever_breaks(world: World) -> None:
    """The simulator watches that no two believe to hold the same dock, and that tokens only grow."""
    world.every(1.0, lambda: world.observe(world.chance.choice(world.agents), Low(wait_s=10.0)))
    world.every(1.5, lambda: world.observe(world.chance.choice(world.agents), Full()))
    world.eventually(world.converged, within_s=110)
    world.eventually(lambda: len({order.effect.dock for order in world.orders(Plug)}) == len(DOCKS), within_s=110)
