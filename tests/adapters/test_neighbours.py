"""Channels between neighbouring processes: frames over Unix sockets, and the same in memory."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from rigs.memory_peers import MemoryPeerHub
from rigs.peer_contract import PeerContract, echo
from stigmergy.base.errors import ConfigError, JournalLocked, TooLarge
from stigmergy.network.peer_port import PeerChannel, PeerNetwork
from stigmergy.network.unix_peers import SocketPeerNetwork


class SocketRig:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def peer_network(self, process: int) -> PeerNetwork:
        return SocketPeerNetwork(process, lambda number: self._folder / f"{number}.tells")

    async def end(self) -> None:
        pass


class MemoryRig:
    def __init__(self) -> None:
        self._street = MemoryPeerHub()

    async def peer_network(self, process: int) -> PeerNetwork:
        return self._street.peer_network(process)

    async def end(self) -> None:
        pass


class TestSockets(PeerContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> SocketRig:
        return SocketRig(tmp_path)


class TestMemory(PeerContract):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()


async def test_socket_is_for_its_owner_only_and_goes_with_its_process(tmp_path: Path) -> None:
    near = SocketPeerNetwork(1, lambda number: tmp_path / f"{number}.tells")
    await near.open(echo)
    assert stat.S_IMODE(os.stat(tmp_path / "1.tells").st_mode) == 0o600
    with pytest.raises(JournalLocked):
        await SocketPeerNetwork(1, lambda number: tmp_path / f"{number}.tells").open(echo)
    await near.close()
    await near.close()
    assert not os.listdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot be made"):
        await SocketPeerNetwork(1, lambda _: tmp_path / "nowhere" / "1.tells").open(echo)


async def test_length_that_cannot_be_ends_the_connection(tmp_path: Path) -> None:
    refused: list[Exception] = []

    async def listen(channel: PeerChannel) -> None:
        try:
            await channel.receive()
        except TooLarge as error:
            refused.append(error)

    near = SocketPeerNetwork(1, lambda number: tmp_path / f"{number}.tells")
    await near.open(listen)
    reader, writer = await asyncio.open_unix_connection(tmp_path / "1.tells")
    writer.write(b"\xff\xff\xff\xff")
    assert await reader.read() == b""
    writer.close()
    await near.close()
    assert len(refused) == 1
