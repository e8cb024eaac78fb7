"""A session that is given more than it can take at one go, and one that ends while it is woken."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from stigmergy.base import tasks
from stigmergy.base.errors import StigmergyError
from stigmergy.bus.inbox import Reception
from stigmergy.nats.address import parse_address
from stigmergy.nats.bus.session import READ_COUNT_MAX, Session
from stigmergy.nats.link import Headers, NatsLink, Taken

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


class Answering(NatsLink):
    """A link that answers at once. With `swallows`, sending loses a cancellation, as a client library may."""

    def __init__(self, *, swallows: bool = False) -> None:
        super().__init__(parse_address("nats://127.0.0.1:4222"), name="test")
        self._swallows = swallows
        self.sending = asyncio.Event()

    async def api(self, call: str, body: Mapping[str, Any] | None = None, within_s: float = 0.0) -> dict[str, Any]:
        return {"config": {}}

    async def subscribe(
        self, subject: str, taken: Taken, queue: str = "", *, drains: bool = False
    ) -> Callable[[], Awaitable[None]]:
        async def end() -> None:
            pass

        return end

    async def tell(self, subject: str, payload: bytes, reply: str = "", headers: Headers | None = None) -> None:
        self.sending.set()
        if self._swallows:
            self._swallows = False
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def flush(self, within_s: float = 0.0) -> None:
        pass


async def begun(link: Answering) -> Session:
    doubts: list[StigmergyError] = []
    session = Session(link, "S", "c", "owner", Reception(), doubts.append, session_s=60.0)
    await session.begin(["a"], 0)
    await link.sending.wait()
    return session


@pytest.mark.parametrize("turns", range(6))
async def test_a_session_ends_although_it_is_woken_in_the_same_moment(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the last handler ends and the bus is closed at once: the wait is over and cancelled together."""
    monkeypatch.setattr(tasks, "AGAIN_S", 240.0)
    session = await begun(Answering())
    await asyncio.sleep(0.1)
    session._wake.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(120):  # at the first cancellation
        await session.close()


async def test_a_session_ends_although_sending_loses_its_cancellation() -> None:
    session = await begun(Answering(swallows=True))
    async with asyncio.timeout(240):
        await session.close()
