"""Frames between processes: whole, in order, bounded; and what becomes of work that fails beside."""

import asyncio
import os
import signal

import msgspec
import pytest

from rigs.node_process import (
    FRAME_BYTES_MAX,
    Broken,
    Channel,
    Confirm,
    Deliver,
    Delivered,
    Stop,
    ToldNode,
    socket_pair,
)
from stigmergy.base.errors import TooLarge
from stigmergy.control.live import Live

ToNode = Deliver | Confirm | Stop
FromNode = Delivered | Broken
to_node: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)
from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)


def pair() -> tuple[Channel[FromNode], Channel[ToNode]]:
    ours, theirs = socket_pair()
    return Channel(ours, from_node), Channel(theirs, to_node)


def test_frames_arrive_whole_and_in_order() -> None:
    world, node = pair()
    assert node.receive() is None
    frames = [Deliver(number, bytes([number]) * 1000) for number in range(20)]
    for frame in frames:
        world.send(frame)
    assert [node.receive() for _ in frames] == frames
    assert node.receive() is None
    world.close()
    with pytest.raises(EOFError):
        node.receive()
    with pytest.raises(BrokenPipeError):
        node.send(Delivered(1))
    node.close()


def test_a_frame_has_a_bound() -> None:
    world, node = pair()
    with pytest.raises(TooLarge, match="say less at once"):
        world.send(Deliver(1, b"x" * FRAME_BYTES_MAX))
    assert node.receive() is None
    world.close()
    node.close()


def rest_of(world: Channel[FromNode]) -> list[int]:
    """What a process that is gone has said."""
    heard: list[int] = []
    while True:
        try:
            frame = world.receive()
        except EOFError:
            return heard
        assert isinstance(frame, Delivered)
        heard.append(frame.last)


def test_a_full_channel_waits_for_room_and_a_killed_process_leaves_whole_frames() -> None:
    world, node = pair()
    pid = os.fork()
    if pid == 0:
        try:
            world.close()
            number = 0
            while True:
                number += 1
                node.send(Delivered(number))
        finally:
            os._exit(0)
    node.close()
    heard: list[int] = []
    while len(heard) < 2000:
        frame = world.receive()
        if frame is not None:
            assert isinstance(frame, Delivered)
            heard.append(frame.last)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    heard += rest_of(world)
    assert heard == list(range(1, len(heard) + 1))
    world.close()


class Taker:
    """As much of a running fleet as a told node uses: it takes what is not empty."""

    async def deliver(self, envelope: bytes) -> None:
        if not envelope:
            raise ValueError("an empty envelope")


async def attend(world: Channel[FromNode], node: Channel[ToNode], *frames: ToNode) -> list[FromNode]:
    """What a node says to these frames, until it stops."""

    async def nothing(frame: ToNode) -> None:
        raise AssertionError(frame)

    told = ToldNode(node, nothing)
    live: Live = Taker()  # type: ignore[assignment]
    task = asyncio.ensure_future(told.attend(live))
    confirmed = asyncio.ensure_future(told.wait_confirmed("k1", Delivered(0)))
    for frame in frames:
        world.send(frame)
    async with asyncio.timeout(240):
        await task
    assert confirmed.done() is (Confirm("k1") in frames)
    confirmed.cancel()
    said = []
    while (heard := world.receive()) is not None:
        said.append(heard)
    return said


async def test_a_told_node_delivers_confirms_and_stops() -> None:
    world, node = pair()
    loop = asyncio.get_running_loop()
    loop.call_later(0.2, world.send, Stop())
    said = await attend(world, node, Deliver(3, b"abc"), Confirm("k1"), Confirm("k2"))
    assert said == [Delivered(0), Delivered(3)]
    world.close()
    node.close()


async def test_work_that_fails_is_told_and_ends_the_node() -> None:
    world, node = pair()
    assert await attend(world, node, Deliver(1, b"")) == [Delivered(0), Broken("ValueError: an empty envelope")]
    world.close()
    node.close()


async def test_a_node_whose_world_has_gone_stops() -> None:
    world, node = pair()

    async def nothing(_: ToNode) -> None:
        return

    asyncio.get_running_loop().call_later(0.05, world.close)
    live: Live = Taker()  # type: ignore[assignment]
    async with asyncio.timeout(240):
        await ToldNode(node, nothing).attend(live)
    node.close()
