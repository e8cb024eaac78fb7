"""Channels of a mesh: they do not hear each other, and what is for nobody is refused."""

import asyncio

import pytest

from stigmergy.base.errors import Bug
from stigmergy.membership.mesh import BYTES_MIN, MEMBERSHIP, REPLICAS, MeshChannels
from stigmergy.sim.loop import run
from stigmergy.sim.network import Network


def test_channels_do_not_hear_each_other() -> None:
    async def main() -> None:
        network = Network(1)
        heard: dict[int, list[tuple[str, bytes]]] = {MEMBERSHIP: [], REPLICAS: []}
        one, other = MeshChannels(network.mesh("a")), MeshChannels(network.mesh("b"))
        senders = [one.channel(number) for number in heard]
        listeners = [other.channel(number) for number in heard]
        opening = [sender.open(lambda *_: None) for sender in senders]
        opening += [
            listener.open(lambda sender, body, into=heard[listener.number]: into.append((sender, body)))  # type: ignore[misc]
            for listener in listeners
        ]
        await asyncio.gather(*opening)
        for sender in senders:
            sender.send_nowait("b", b"%d" % sender.number)
        one.mesh.send_nowait("b", b"")
        one.mesh.send_nowait("b", b"\x07 nobody's")
        await asyncio.sleep(1)
        assert heard == {MEMBERSHIP: [("a", b"1")], REPLICAS: [("a", b"2")]}
        assert other.mesh.counters.refused_count == 2
        await listeners[0].close()
        senders[0].send_nowait("b", b"late")
        senders[1].send_nowait("b", b"still")
        await asyncio.sleep(1)
        assert heard[MEMBERSHIP] == [("a", b"1")]
        assert heard[REPLICAS][-1] == ("a", b"still")
        await one.close()
        senders[1].send_nowait("b", b"closed below")
        assert senders[1].counters.dropped_count == 1

    run(main(), seed=1)


def test_what_cannot_be_is_a_bug() -> None:
    async def main() -> None:
        channels = MeshChannels(Network(1).mesh("a"))
        for number in (-1, 16):
            with pytest.raises(Bug, match="there are"):
                channels.channel(number)
        await channels.channel(1).open(lambda *_: None)
        with pytest.raises(Bug, match="taken"):
            await channels.channel(1).open(lambda *_: None)
        with pytest.raises(Bug, match="cannot be shared"):
            MeshChannels(Network(1, bytes_max=BYTES_MIN).mesh("a"))

    run(main(), seed=1)
