"""A fleet in this program that shows its page: `stigmergy.serve.embedded`."""

from pathlib import Path

import httpx
import pytest

from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.base.errors import ConfigError
from stigmergy.serve.embedded import ServedFleet


class Moved(Event):
    x: float


class Cart(Agent):
    x: float = 0.0

    @evolve
    def moved(self, event: Moved) -> None:
        self.x = event.x


def declare() -> Fleet:
    fleet = Fleet("carts", agents=[Cart])
    fleet.map(Cart, at=lambda cart: (cart.x, 0.0), plane="xy")
    return fleet


async def test_program_serves_its_fleet(tmp_path: Path) -> None:
    running = declare().running(journal=f"sqlite:{tmp_path / 'carts.db'}")
    async with running as live:
        await live.observe("Cart/a", Moved(x=4.0))
        async with ServedFleet(running, live) as served, httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/v1/map")).json()["x"] == [4.0]
            assert (await client.get("/v1/page")).json()["fleet"] == "carts"
            url = served.url
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{url}/v1/map")
        assert live.query("Cart/a", Cart).x == 4.0, "the fleet goes on"


async def test_others_are_not_let_in_without_tokens() -> None:
    running = declare().running(journal="memory:")
    async with running as live:
        with pytest.raises(ConfigError, match="there is no valid token"):
            ServedFleet(running, live, "0.0.0.0:0")
