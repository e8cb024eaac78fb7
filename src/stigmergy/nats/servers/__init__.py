"""The NATS servers behind a cluster, for the command line: the layer above the adapters that names them.

Modules that need the client library are imported where they are used: `cluster config` and `up` without a fleet do not
need it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from stigmergy.base.errors import ConfigError, LinkDown, NotRunning
from stigmergy.nats.address import NatsAddress, parse_address
from stigmergy.nats.servers.configuration import (
    DEVICE,
    DURABLE_LINES,
    FLEET,
    GATEWAY,
    SYSTEM,
    Passwords,
    Secured,
    ServerPlan,
    ServerTlsFiles,
    parse_hosts,
    plan_hosts,
    plan_local,
    urls_of,
    write_configuration,
)
from stigmergy.nats.servers.server import NatsServer, find_program, free_ports, last_error_in, look_at, needs_restart

if TYPE_CHECKING:
    from stigmergy.nats.link import NatsLink
    from stigmergy.nats.servers.status import ClusterStatus

ResultT = TypeVar("ResultT")
PASSWORD_BYTES = 24
LOOK_S_MAX = 15.0

__all__ = [
    "DEVICE",
    "DURABLE_LINES",
    "FLEET",
    "GATEWAY",
    "SYSTEM",
    "NatsAddress",
    "NatsServer",
    "Passwords",
    "Secured",
    "ServerPlan",
    "ServerTlsFiles",
    "draw_passwords",
    "find_program",
    "free_ports",
    "last_error_in",
    "look_at",
    "look_once",
    "needs_restart",
    "on_cluster",
    "parse_address",
    "parse_hosts",
    "plan_hosts",
    "plan_local",
    "urls_of",
    "write_configuration",
]


def draw_passwords() -> Passwords:
    """Draws random passwords."""
    return Passwords(*(secrets.token_urlsafe(PASSWORD_BYTES) for _ in range(5)))


async def on_cluster(
    address: NatsAddress, work: Callable[[NatsLink], Awaitable[ResultT]], *, name: str, within_s: float = 3.0
) -> ResultT:
    """Runs `work` with its own connection to the first server that answers, even if earlier ones hang. Raises
    ConfigError, also if the client library is missing, and LinkDown."""
    try:
        from stigmergy.nats import link as links
    except ModuleNotFoundError:
        raise ConfigError('the NATS client is not installed; pip install "stigmergy[nats]" brings it') from None
    link = links.NatsLink(address, name=name)
    link.start()
    try:
        await link.wait_up(max(within_s, (links.CONNECT_S + links.RECONNECT_PAUSE_S) * len(address.servers)))
        return await work(link)
    finally:
        await link.close()


def look_once(address: NatsAddress, fleet: str) -> ClusterStatus:
    """Inspects a cluster over its own connection. Raises NotRunning if nobody answers."""

    async def look(link: NatsLink) -> ClusterStatus:
        from stigmergy.nats.servers import status

        return await status.look(link, fleet)

    async def work() -> ClusterStatus:
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                return await on_cluster(address, look, name="stigmergy status")
        except (LinkDown, TimeoutError) as error:
            why = str(error) or f"no answer in {LOOK_S_MAX:g} s"
            raise NotRunning(f"no server of the cluster answers: {why}") from None

    return asyncio.run(work())
