"""What every neighbourhood must do, as tests: inherit them to prove an adapter of your own. Needs pytest only.

    class TestMine(PeerContract):
        @pytest.fixture
        def rig(self, tmp_path):
            return MyRig(tmp_path)

A rig stands for one street that has just been built, with nobody in it: see PeerRig.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import pytest

from stigmergy.base.errors import LinkDown, TooLarge
from stigmergy.network.peer_port import FRAME_BYTES_MAX, Answer, PeerChannel, PeerNetwork

BLOCKED_S = 0.3
"""Who can send for so long without waiting waits for nobody."""
ENDS_S_MAX = 120.0
"""Only a broken adapter takes so long."""


class PeerRig(Protocol):
    """A street for one test. All is done within one event loop."""

    async def peer_network(self, process: int) -> PeerNetwork:
        """The street as one process sees it. Asked again after the first is closed: its next life."""
        ...

    async def end(self) -> None:
        """The test is over. The suite has closed what it was given."""
        ...


class Street:
    """A rig in use: closes what a test has opened."""

    def __init__(self, rig: PeerRig) -> None:
        self._rig = rig
        self._known: list[PeerNetwork] = []

    async def at(self, process: int) -> PeerNetwork:
        """One who does not listen yet."""
        self._known.append(await self._rig.peer_network(process))
        return self._known[-1]

    async def listening(self, answer: Answer, process: int = 2) -> PeerNetwork:
        """One who does."""
        listener = await self.at(process)
        await listener.open(answer)
        return listener

    async def end(self) -> None:
        """Closes all."""
        for one in self._known:
            await one.close()
        await self._rig.end()


StreetTest = Callable[[Any, Street], Coroutine[Any, Any, None]]


def on_a_street(test: StreetTest) -> Callable[[Any, PeerRig], None]:
    """Runs an async test under plain pytest, with everything closed afterwards."""

    async def play(contract: Any, rig: PeerRig) -> None:
        street = Street(rig)
        try:
            await test(contract, street)
        finally:
            await street.end()

    @functools.wraps(test)
    def run(self: Any, rig: PeerRig) -> None:
        asyncio.run(play(self, rig))

    # Pytest reads the arguments of a test from what it wraps; here it must see those of the wrapper.
    del run.__dict__["__wrapped__"]
    return run


async def echo(channel: PeerChannel) -> None:
    """Sends everything back."""
    try:
        while True:
            await channel.send(await channel.receive())
    except LinkDown:
        return


async def send_all(channel: PeerChannel, frames: list[bytes]) -> None:
    """Sends frames one after the other."""
    for frame in frames:
        await channel.send(frame)


async def ends(channel: PeerChannel) -> None:
    """Waits until a channel says that it is over."""
    async with asyncio.timeout(ENDS_S_MAX):
        while True:
            try:
                await channel.receive()
            except LinkDown:
                break


class PeerContract:
    """The suite."""

    @on_a_street
    async def test_frames_arrive_whole_and_in_order(self, street: Street) -> None:
        frames = [b"", b"a", bytes(FRAME_BYTES_MAX), *(b"%d" % number for number in range(300))]
        await street.listening(echo)
        channel = await (await street.at(1)).connect(2)
        sending = asyncio.ensure_future(send_all(channel, frames))
        assert [await channel.receive() for _ in frames] == frames
        await sending
        channel.close()
        channel.close()
        with pytest.raises(LinkDown):
            await channel.send(b"late")

    @on_a_street
    async def test_several_channels_do_not_mix(self, street: Street) -> None:
        await street.listening(echo)
        near = await street.at(1)
        channels = [await near.connect(2) for _ in range(5)]
        for number, channel in enumerate(channels):
            await send_all(channel, [b"%d" % number] * 20)
        channels[0].close()
        for number, channel in enumerate(channels[1:], start=1):
            assert [await channel.receive() for _ in range(20)] == [b"%d" % number] * 20
            channel.close()

    @on_a_street
    async def test_too_long_a_frame_is_refused(self, street: Street) -> None:
        await street.listening(echo)
        channel = await (await street.at(1)).connect(2)
        with pytest.raises(TooLarge, match=str(FRAME_BYTES_MAX)):
            await channel.send(bytes(FRAME_BYTES_MAX + 1))
        await channel.send(b"still there")
        assert await channel.receive() == b"still there"
        channel.close()

    @on_a_street
    async def test_one_who_does_not_read_is_waited_for(self, street: Street) -> None:
        go_on = asyncio.Event()

        async def slow(channel: PeerChannel) -> None:
            await go_on.wait()
            await echo(channel)

        await street.listening(slow)
        channel = await (await street.at(1)).connect(2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send_all(channel, [bytes(64 * 1024)] * 10_000), BLOCKED_S)
        channel.close()
        go_on.set()

    @on_a_street
    async def test_one_who_reads_late_gets_everything(self, street: Street) -> None:
        got: list[bytes] = []
        done = asyncio.Event()

        async def late(channel: PeerChannel) -> None:
            await asyncio.sleep(BLOCKED_S)
            while len(got) < 400:
                got.append(await channel.receive())
            done.set()

        await street.listening(late)
        channel = await (await street.at(1)).connect(2)
        frames = [b"%d" % number * 5_000 for number in range(400)]
        async with asyncio.timeout(ENDS_S_MAX):
            await send_all(channel, frames)
            await done.wait()
        assert got == frames
        channel.close()

    @on_a_street
    async def test_nobody_there_is_a_link_that_is_down(self, street: Street) -> None:
        near = await street.at(1)
        with pytest.raises(LinkDown, match="process 2 does not answer"):
            await near.connect(2)
        far = await street.listening(echo)
        channel = await near.connect(2)
        await far.close()
        await ends(channel)
        channel.close()
        with pytest.raises(LinkDown):
            await near.connect(2)

    @on_a_street
    async def test_one_who_comes_back_is_reached_again(self, street: Street) -> None:
        near = await street.at(1)
        for _ in range(2):
            far = await street.listening(echo)
            channel = await near.connect(2)
            await channel.send(b"here?")
            assert await channel.receive() == b"here?"
            await far.close()
            await ends(channel)
            channel.close()

    @on_a_street
    async def test_one_who_leaves_is_heard_of(self, street: Street) -> None:
        async def leave(channel: PeerChannel) -> None:
            await channel.receive()
            await channel.send(b"goodbye")
            channel.close()

        await street.listening(leave)
        channel = await (await street.at(1)).connect(2)
        await channel.send(b"go")
        assert await channel.receive() == b"goodbye", "what was said before the end arrives"
        await ends(channel)
        channel.close()

    @on_a_street
    async def test_a_channel_is_closed_when_its_answer_is_done(self, street: Street) -> None:
        async def short(channel: PeerChannel) -> None:
            await channel.receive()

        await street.listening(short)
        channel = await (await street.at(1)).connect(2)
        await channel.send(b"go")
        await ends(channel)
        channel.close()

    @on_a_street
    async def test_closing_twice_does_nothing(self, street: Street) -> None:
        far = await street.listening(echo)
        await far.close()
        await far.close()
