"""A session that is given more than it can take at one go."""

import asyncio

from nats.aio.client import Client
from nats.aio.msg import Msg

from stigmergy.base.errors import StigmergyError
from stigmergy.bus.inbox import Reception
from stigmergy.nats.address import parse_address
from stigmergy.nats.bus.session import READ_COUNT_MAX, Session
from stigmergy.nats.link import NatsLink

COUNT = 20 * READ_COUNT_MAX


async def test_others_have_their_turn_while_hundreds_of_messages_come() -> None:
    doubts: list[StigmergyError] = []
    link, reception = NatsLink(parse_address("nats://127.0.0.1:4222"), name="test"), Reception()
    session = Session(link, "S", "c", "owner", reception, doubts.append, session_s=60.0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(count_turns())
    for number in range(1, COUNT + 1):
        await session._arrive(Msg(Client(), subject="a", reply=f"$JS.ACK.S.c.1.{number}.1.0.0", data=b"x"))
    other.cancel()
    assert reception.receipts.unheard == COUNT
    assert turns >= COUNT // READ_COUNT_MAX
    assert not doubts
