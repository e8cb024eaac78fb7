"""What a hub's first line tells: whether a gateway can have it."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.gateway.hub import GREETING_BYTES_MAX, greet, read_greeting, split_hub
from stigmergy.nats.servers.server import free_ports
from stigmergy.testing.nats import start_single


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"220 mail ready\r\n", "not a NATS server"),
        (b"INFO {nonsense\r\n", "not a NATS server that we know"),
        (b'INFO {"jetstream": true, "domain": "hub", "client_ip": "10.0.0.1"}', "clients connect here"),
        (b'INFO {"server_name": "hub"}', "without JetStream"),
        (b'INFO {"server_name": "hub", "jetstream": true}', "has no domain"),
    ],
)
def test_a_hub_that_no_gateway_can_have_is_told_what_it_lacks(line: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_greeting("hub:7422", line)


def test_a_hub_tells_its_domain() -> None:
    line = b'INFO {"server_name": "h", "jetstream": true, "domain": "hub", "proto": 3} \r\n'
    assert read_greeting("hub:7422", line).domain == "hub"


@pytest.mark.parametrize(
    ("hub", "place"),
    [
        ("hub", ("hub", 7422)),
        ("hub:1", ("hub", 1)),
        ("me:word@hub:2", ("hub", 2)),
        ("[::1]:3", ("::1", 3)),
    ],
)
def test_where_a_hub_is(hub: str, place: tuple[str, int]) -> None:
    assert split_hub(hub) == place


@pytest.mark.parametrize("hub", ["", ":", "hub:x", "hub:0", "hub:70000", ":7422"])
def test_a_hub_that_is_none(hub: str) -> None:
    with pytest.raises(ConfigError, match="leaf listener"):
        split_hub(hub)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"has_jetstream": False}, "without JetStream"), ({}, "has no domain"), (None, "clients connect")],
)
async def test_real_servers_say_what_they_lack(tmp_path: Path, settings: dict[str, Any] | None, why: str) -> None:
    with start_single(tmp_path, leaf=True, **(settings or {})) as hub:
        plan = hub.servers[0].plan
        port = plan.port if settings is None else plan.leaf_port
        with pytest.raises(ConfigError, match=why):
            await greet((f"127.0.0.1:{port}",))


async def test_the_first_hub_that_answers_is_asked(tmp_path: Path) -> None:
    with start_single(tmp_path, leaf=True, domain="hub") as hub:
        (nobody,) = free_ports(1)
        found = await greet((f"127.0.0.1:{nobody}", f"127.0.0.1:{hub.servers[0].plan.leaf_port}"))
        assert found.domain == "hub"


async def test_somebody_who_says_too_much_is_no_hub() -> None:
    async def shout(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(4 * GREETING_BYTES_MAX))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    with pytest.raises(ConfigError, match="not a NATS server"):
        await greet((f"127.0.0.1:{server.sockets[0].getsockname()[1]}",))
    server.close()


async def test_nobody_there_or_somebody_who_says_nothing_is_a_link_that_is_down() -> None:
    (nobody,) = free_ports(1)
    with pytest.raises(LinkDown, match="trying again"):
        await greet((f"127.0.0.1:{nobody}",))
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(LinkDown, match="no hub answers"):
        await greet((f"127.0.0.1:{silent.getsockname()[1]}",), within_s=0.2)
