"""A flush says that the server has heard what was sent before it: subscriptions most of all."""

from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.testing.nats import NatsCluster

ROUNDS = 150
"""One in fifty went wrong where the machine was busy."""


@pytest.fixture
async def other(server: NatsCluster) -> AsyncIterator[NatsLink]:
    link = await NatsLink.open(parse_address(server.url), name="other")
    yield link
    await link.close()


async def test_whoever_has_flushed_a_subscription_is_reached(link: NatsLink, other: NatsLink) -> None:
    async def answer(message: Msg) -> None:
        await link.tell(message.reply, b"here")

    for number in range(ROUNDS):
        end = await link.subscribe(f"flushed.{number}", answer)
        await link.flush()
        assert (await other.request(f"flushed.{number}", within_s=20.0)).data == b"here"
        await end()


async def test_a_ping_never_overtakes_what_was_sent_before_it(link: NatsLink, monkeypatch: pytest.MonkeyPatch) -> None:
    client, written = link.client, list[bytes]()
    transport = client._transport
    assert transport is not None
    write, writelines = transport.write, transport.writelines

    def hear(data: bytes) -> None:
        written.append(data)
        write(data)

    def hear_all(lines: list[bytes]) -> None:
        written.extend(lines)
        writelines(lines)

    monkeypatch.setattr(transport, "write", hear)
    monkeypatch.setattr(transport, "writelines", hear_all)
    await client.publish("first", b"1")
    await client._send_ping()
    await link.flush()
    said = b"".join(written)
    assert 0 <= said.index(b"PUB first") < said.index(b"PING")
