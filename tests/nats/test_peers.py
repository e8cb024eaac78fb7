"""The neighbour port on a real server: the contract, owners that are replaced, links and ends that break or hang."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from rigs.peer_contract import PeerContract, echo, ends
from stigmergy.base.errors import LinkDown
from stigmergy.nats import channels
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import tells_subject
from stigmergy.nats.peers import NatsPeerNetwork
from stigmergy.network.peer_port import PeerChannel, PeerNetwork
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster, start_single
from stigmergy.testing.proxy import LinkProxy

WAIT_S = 240.0
"""Only a broken adapter takes so long."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as single:
        yield single


class NatsRig:
    def __init__(self, url: str, fleet: str) -> None:
        self._url = url
        self._fleet = fleet
        self._links: list[NatsLink] = []

    async def peer_network(self, process: int) -> PeerNetwork:
        self._links.append(await NatsLink.open(parse_address(self._url), name=f"process {process}"))
        return NatsPeerNetwork(self._links[-1], self._fleet, process - 1)

    async def end(self) -> None:
        for link in self._links:
            await link.close()


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> str:
    return f"fleet {request.node.name}"


class TestContract(PeerContract):
    @pytest.fixture
    def rig(self, server: NatsCluster, fleet: str) -> NatsRig:
        return NatsRig(server.url, fleet)


@pytest.fixture
async def link(server: NatsCluster) -> AsyncIterator[NatsLink]:
    link = await NatsLink.open(parse_address(server.url), name="test")
    yield link
    await link.close()


async def reach(near: NatsPeerNetwork) -> PeerChannel:
    """A channel to the owner of shard 1, as soon as there is one: under load a link may break by itself."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await near.connect(2)
            except LinkDown:
                await asyncio.sleep(0.05)


async def said(near: NatsPeerNetwork) -> bytes:
    """What the present owner of shard 1 says."""
    channel = await reach(near)
    try:
        async with asyncio.timeout(WAIT_S):
            return await channel.receive()
    finally:
        channel.close()


def owner(link: NatsLink, fleet: str, epoch: int) -> NatsPeerNetwork:
    return NatsPeerNetwork(link, fleet, 1, lambda: epoch)


async def listen(owner: NatsPeerNetwork, name: bytes) -> None:
    async def say(channel: PeerChannel) -> None:
        await channel.send(name)
        await echo(channel)

    await owner.open(say)


async def test_a_newer_owner_silences_the_old_one_and_breaks_its_channels(link: NatsLink, fleet: str) -> None:
    near, old, new = NatsPeerNetwork(link, fleet, 0), owner(link, fleet, 3), owner(link, fleet, 4)
    await listen(old, b"old")
    channel = await near.connect(2)
    assert await channel.receive() == b"old"
    await listen(new, b"new")
    await ends(channel)
    for _ in range(20):
        assert await said(near) == b"new"
    await new.close()
    with pytest.raises(LinkDown):
        await near.connect(2)
    for one in (near, old):
        await one.close()


async def test_an_old_owner_that_comes_back_late_falls_silent(server: NatsCluster, link: NatsLink, fleet: str) -> None:
    """It was cut off while the other one began, and so has not heard of it. When it is back it says that it is there,
    and is told who has replaced it: from then on it answers nobody, also none who never heard of the new one."""
    epochs: list[int] = []

    async def overhear(message: Msg) -> None:
        if isinstance(heard := channels.decode_message(message.data), channels.OwnerAnnounced):
            epochs.append(heard.epoch)

    unsubscribe = await link.subscribe(tells_subject(fleet, 1), overhear)
    proxy = LinkProxy(server.servers[0].plan.port)
    port = await proxy.start()
    away = await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="away", within_s=WAIT_S)
    near, old, new = NatsPeerNetwork(link, fleet, 0), owner(away, fleet, 3), owner(link, fleet, 4)
    await listen(old, b"old")
    assert await said(near) == b"old"
    proxy.cut()
    await listen(new, b"new")
    await wait_until(lambda: 4 in epochs)
    epochs.clear()
    proxy.restore()
    # Calls come to the old owner behind the announcement: the server sends what it takes in one order to all.
    await wait_until(lambda: 3 in epochs and 4 in epochs[epochs.index(3) :])
    for _ in range(20):
        stranger = NatsPeerNetwork(link, fleet, 0)
        assert await said(stranger) == b"new"
        await stranger.close()
    await new.close()
    for one in (near, stranger := NatsPeerNetwork(link, fleet, 0)):
        with pytest.raises(LinkDown):
            await one.connect(2)
    await unsubscribe()
    for one in (near, stranger, old):
        await one.close()
    await away.close()
    await proxy.close()


async def test_a_cut_link_ends_channels_at_both_sides_and_the_next_call_succeeds(
    server: NatsCluster, link: NatsLink, fleet: str
) -> None:
    proxy = LinkProxy(server.servers[0].plan.port)
    port = await proxy.start()
    away = await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="away")
    over = asyncio.Event()

    async def serve(channel: PeerChannel) -> None:
        try:
            await echo(channel)
        finally:
            over.set()

    near, far = NatsPeerNetwork(away, fleet, 0), NatsPeerNetwork(link, fleet, 1)
    await far.open(serve)
    channel = await reach(near)
    await channel.send(b"here?")
    assert await channel.receive() == b"here?"
    proxy.cut()
    await ends(channel)
    async with asyncio.timeout(WAIT_S):
        await over.wait()
    proxy.restore()
    await away.wait_up(WAIT_S)
    channel = await reach(near)
    await channel.send(b"again?")
    assert await channel.receive() == b"again?"
    for one in (near, far):
        await one.close()
    await away.close()
    await proxy.close()


async def test_one_who_was_cut_off_for_a_moment_tells_whom_it_has_lost(
    server: NatsCluster, link: NatsLink, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would wait for it as long as they wait for the dead."""
    monkeypatch.setattr(channels, "SILENCE_S_MAX", 1_000.0)
    proxy = LinkProxy(server.servers[0].plan.port)
    port = await proxy.start()
    away = await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="away")
    near, far = NatsPeerNetwork(link, fleet, 0), NatsPeerNetwork(away, fleet, 1)
    await far.open(echo)
    channel = await reach(near)
    proxy.drop()
    await ends(channel)
    for one in (near, far):
        await one.close()
    await away.close()
    await proxy.close()


async def test_a_link_that_says_nothing_any_more_is_noticed_within_bounds(
    server: NatsCluster, link: NatsLink, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "SILENCE_S_MAX", 1.5)
    proxy = LinkProxy(server.servers[0].plan.port)
    port = await proxy.start()
    away = await NatsLink.open(parse_address(f"nats://127.0.0.1:{port}"), name="away")
    near, far = NatsPeerNetwork(link, fleet, 0), NatsPeerNetwork(away, fleet, 1)
    await far.open(echo)
    channel = await reach(near)
    proxy.stall()
    await ends(channel)
    with pytest.raises(LinkDown):
        await near.connect(2)
    proxy.cut()
    for one in (near, far):
        await one.close()
    await away.close()
    await proxy.close()


NEIGHBOUR = """
import asyncio, sys
from stigmergy.nats import channels
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.peers import NatsPeerNetwork
from rigs.peer_contract import echo

async def main():
    link = await NatsLink.open(parse_address(sys.argv[1]), name="other")
    await NatsPeerNetwork(link, sys.argv[2], 1).open(echo)
    print("listens", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_is_killed_or_stopped_is_noticed(
    end: signal.Signals,
    server: NatsCluster,
    link: NatsLink,
    fleet: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "SILENCE_S_MAX", 1.5)
    script = tmp_path / "other.py"
    await asyncio.to_thread(script.write_text, NEIGHBOUR)
    other = await asyncio.create_subprocess_exec(sys.executable, str(script), server.url, fleet, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        async with asyncio.timeout(WAIT_S):
            assert await other.stdout.readline() == b"listens\n"
        near = NatsPeerNetwork(link, fleet, 0)
        channel = await near.connect(2)
        await channel.send(b"here?")
        assert await channel.receive() == b"here?"
        os.kill(other.pid, end)
        await ends(channel)
        with pytest.raises(LinkDown):
            await near.connect(2)
        await near.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            other.kill()
        await other.communicate()  # `wait` alone leaves the pipe open
