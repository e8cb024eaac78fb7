"""Channels between neighbouring processes: frames over Unix sockets, and the same in memory."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from stigmergy.adapters.memory_neighbours import MemoryStreet
from stigmergy.adapters.neighbours import SocketNeighbourhood
from stigmergy.core.errors import ConfigError, JournalLocked, LinkDown, TooLarge
from stigmergy.ports.neighbour import FRAME_BYTES_MAX, Channel, Neighbourhood

Make = Callable[[int], Neighbourhood]


@pytest.fixture(params=["sockets", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "memory":
        street = MemoryStreet()
        return street.neighbourhood
    return lambda process: SocketNeighbourhood(process, lambda number: tmp_path / f"{number}.tells")


@contextlib.asynccontextmanager
async def listening(make: Make, serve: Callable[[Channel], Awaitable[None]]) -> AsyncIterator[Neighbourhood]:
    listener = make(2)
    await listener.open(serve)
    try:
        yield make(1)
    finally:
        await listener.close()


async def echo(channel: Channel) -> None:
    while True:
        await channel.send(await channel.receive())


async def test_frames_arrive_whole_and_in_order(make: Make) -> None:
    frames = [b"", b"a", bytes(FRAME_BYTES_MAX), *(b"%d" % number for number in range(100))]
    async with listening(make, echo) as near:
        channel = await near.connect(2)
        sending = asyncio.ensure_future(_send_all(channel, frames))
        assert [await channel.receive() for _ in frames] == frames
        await sending
        channel.close()
        channel.close()
        with pytest.raises(LinkDown):
            await channel.send(b"late")


async def _send_all(channel: Channel, frames: list[bytes]) -> None:
    for frame in frames:
        await channel.send(frame)


async def test_too_long_a_frame_is_refused(make: Make) -> None:
    async with listening(make, echo) as near:
        channel = await near.connect(2)
        with pytest.raises(TooLarge, match=str(FRAME_BYTES_MAX)):
            await channel.send(bytes(FRAME_BYTES_MAX + 1))
        await channel.send(b"still there")
        assert await channel.receive() == b"still there"
        channel.close()


async def test_one_who_does_not_read_is_waited_for(make: Make) -> None:
    go_on = asyncio.Event()

    async def slow(channel: Channel) -> None:
        await go_on.wait()
        await echo(channel)

    async with listening(make, slow) as near:
        channel = await near.connect(2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_send_all(channel, [bytes(64 * 1024)] * 10_000), 0.3)
        channel.close()
        go_on.set()


async def test_nobody_there_is_a_link_that_is_down(make: Make) -> None:
    with pytest.raises(LinkDown, match="process 2 does not answer"):
        await make(1).connect(2)
    async with listening(make, echo) as near:
        channel = await near.connect(2)
    with pytest.raises(LinkDown):
        await channel.receive()
    channel.close()
    with pytest.raises(LinkDown):
        await near.connect(2)


async def test_one_who_leaves_is_heard_of(make: Make) -> None:
    async def leave(channel: Channel) -> None:
        await channel.receive()
        channel.close()

    async with listening(make, leave) as near:
        channel = await near.connect(2)
        await channel.send(b"go")
        with pytest.raises(LinkDown):
            await channel.receive()
        channel.close()


async def test_socket_is_for_its_owner_only_and_goes_with_its_process(tmp_path: Path) -> None:
    near = SocketNeighbourhood(1, lambda number: tmp_path / f"{number}.tells")
    await near.open(echo)
    assert stat.S_IMODE(os.stat(tmp_path / "1.tells").st_mode) == 0o600
    with pytest.raises(JournalLocked):
        await SocketNeighbourhood(1, lambda number: tmp_path / f"{number}.tells").open(echo)
    await near.close()
    await near.close()
    assert not os.listdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be made"):
        await SocketNeighbourhood(1, lambda _: tmp_path / "nowhere" / "1.tells").open(echo)


async def test_length_that_cannot_be_ends_the_connection(tmp_path: Path) -> None:
    refused: list[Exception] = []

    async def listen(channel: Channel) -> None:
        try:
            await channel.receive()
        except TooLarge as error:
            refused.append(error)

    near = SocketNeighbourhood(1, lambda number: tmp_path / f"{number}.tells")
    await near.open(listen)
    reader, writer = await asyncio.open_unix_connection(tmp_path / "1.tells")
    writer.write(b"\xff\xff\xff\xff")
    assert await reader.read() == b""
    writer.close()
    await near.close()
    assert len(refused) == 1
