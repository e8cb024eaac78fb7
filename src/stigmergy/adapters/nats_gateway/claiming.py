"""Frees a site at its hub, for a gateway that takes the place of another one."""

from __future__ import annotations

import asyncio

from msgspec import structs

from stigmergy.adapters.nats.address import parse_address
from stigmergy.adapters.nats.errors import JetStreamRefused, NoResponders
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats_gateway.greeting import greet
from stigmergy.adapters.nats_gateway.hub import drop_site
from stigmergy.core.errors import LinkDown

LINK_S = 10.0
"""A leaf needs a moment after its start before it is linked to its hub."""


async def forget_site(leaf: str, hubs: tuple[str, ...], site: str) -> None:
    """Over the leaf at this address. What is in the site's stream at the hub goes; whoever had it sends it again."""
    domain = (await greet(hubs)).domain
    address = structs.replace(parse_address(f"nats://{leaf}"), domain=domain)
    link = NatsLink(address, name=f"{site} takes over")
    link.start()
    try:
        await link.wait_up(LINK_S)
        await _drop(link, site)
    finally:
        await link.close()


async def _drop(link: NatsLink, site: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + LINK_S
    while True:
        try:
            await drop_site(link, site)
        except JetStreamRefused as refused:
            raise LinkDown(f"the hub does not free site {site}: {refused}") from None
        except NoResponders:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
            await asyncio.sleep(0.1)
        else:
            return
