"""The shell of membership: what it tells, asks of its mesh and says of itself; and a real fleet over UDP."""

import asyncio

import pytest

from stigmergy.agents.messages import Event
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.bus.presence import Member, MemberJoined, MemberLeft, MembersReset
from stigmergy.membership.mesh import MEMBERSHIP, Mesh, MeshChannels
from stigmergy.membership.packets import ABOUT_BYTES_MAX, MemberStatus, SwimUpdate
from stigmergy.membership.service import Membership, _member, write_about
from stigmergy.membership.settings import SwimSettings
from stigmergy.membership.udp import UdpMesh, UdpOptions
from stigmergy.sim.loop import SimEntropy, run
from stigmergy.sim.network import Network
from stigmergy.testing.bus_rig import wait_until

QUICK = SwimSettings(probe_s=0.1, ack_s=0.04, sync_s=0.5)
SECRET = b"a secret of thirty-two bytes, or more"


class Node:
    """Membership, and what it told."""

    def __init__(
        self, mesh: Mesh, *, seeds: tuple[str, ...] = (), settings: SwimSettings = QUICK, **about: object
    ) -> None:
        self.told: list[Event] = []
        self.mesh = mesh
        me = Member(node=mesh.node, run="", **about)  # type: ignore[arg-type]
        self.membership = Membership(
            mesh,
            me,
            self.told.append,
            SystemClock(),
            SystemEntropy(),
            fleet="fleet",
            seeds=seeds,
            settings=settings,
        )

    @property
    def names(self) -> list[str]:
        return [member.node for member in self.membership.members()]


def udp(name: str, seed_port: int = 0, port: int = 0) -> UdpMesh:
    peers = (("seed", "127.0.0.1", seed_port),) if seed_port else ()
    return UdpMesh(UdpOptions("127.0.0.1", port, peers, SECRET), name, SystemClock())


async def test_fleet_over_udp_knows_one_seed_and_finds_all() -> None:
    seed = Node(udp("seed"), kinds=("Gateway",), actions=("Land",), version="7")
    await seed.membership.start()
    port = int(seed.mesh.contact.rpartition(":")[2])
    nodes = [seed] + [Node(udp(f"n{number}", port), seeds=("seed",), kinds=("Drone",)) for number in range(5)]
    for node in nodes[1:]:
        await node.membership.start()
    everybody = ["n0", "n1", "n2", "n3", "n4", "seed"]
    await wait_until(lambda: all(node.names == everybody for node in nodes))
    assert nodes[1].told[0] == MembersReset()
    assert MemberJoined(node="seed", kinds=("Gateway",), actions=("Land",)) in nodes[1].told
    assert nodes[1].membership.members()[-1].version == "7"

    await nodes[2].membership.kill()
    rest = [node for node in nodes if node is not nodes[2]]
    await wait_until(lambda: all("n1" not in node.names for node in rest))
    left = MemberLeft(node="n1", because="it did not answer, neither to us nor to others")
    assert all(left in node.told for node in rest)

    again = Node(udp("n1", port), seeds=("seed",))  # under its name, at another port
    await again.membership.start()
    rest.append(again)
    await wait_until(lambda: all(node.names == everybody for node in rest))

    await rest[2].membership.stop()
    gone = rest.pop(2)
    await wait_until(lambda: all(MemberLeft(node=gone.mesh.node, because="it said so") in node.told for node in rest))
    assert all(node.membership.conflict == "" for node in rest)
    assert all(node.membership.counters()["membership_refused_count"] == 0 for node in rest)
    for node in rest:
        await node.membership.kill()


def test_before_the_start_and_on_a_shared_mesh() -> None:
    async def main() -> None:
        network = Network(1)
        nodes = [Node(MeshChannels(network.mesh(name)).channel(MEMBERSHIP), seeds=("a",)) for name in "ab"]
        assert nodes[0].names == ["a"]
        assert nodes[0].membership.conflict == ""
        assert nodes[0].membership.counters() == {}
        with pytest.raises(RuntimeError):
            nodes[0].membership.suspects()
        await nodes[0].membership.stop()
        nodes[0] = Node(MeshChannels(network.mesh("a")).channel(MEMBERSHIP))
        for node in nodes:
            await node.membership.start()
            assert node.membership.suspects() == []
        await wait_until(lambda: nodes[0].names == nodes[1].names == ["a", "b"])
        await nodes[1].membership.stop()
        await wait_until(lambda: nodes[0].names == ["a"])
        await nodes[0].membership.kill()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_about_is_cut_to_what_fits() -> None:
    me = Member(
        node="a",
        run="",
        version="1.2",
        kinds=("Drone",),
        actions=("Land",),
        agents=tuple(f"Drone/{number}" for number in range(50)),
    )
    assert b"Land" in write_about(me)
    assert b"Drone/1" not in write_about(me)
    wide = Member(
        node="a", run="", version="1.2", kinds=("Drone",), actions=tuple("action" + "x" * 30 for _ in range(9))
    )
    assert b"Drone" in write_about(wide)
    assert b"action" not in write_about(wide)
    wider = Member(node="a", run="", version="1.2", kinds=tuple("kind" + "x" * 30 for _ in range(9)))
    assert b"1.2" in write_about(wider)
    assert b"kind" not in write_about(wider)
    widest = Member(node="a", run="", version="é" * 300)
    assert len(write_about(widest)) <= ABOUT_BYTES_MAX


@pytest.mark.parametrize("about", [b"\xc1", b"\x91\xa1\xff", b"\x91\x01"])
def test_about_that_cannot_be_read_leaves_the_name(about: bytes) -> None:
    assert _member(SwimUpdate("a", 1, MemberStatus.ALIVE, b"12345678", "", about)) == Member(
        node="a", run=b"12345678".hex()
    )


def test_chance_comes_from_the_entropy_that_is_given() -> None:
    async def main(stream: str) -> int:
        node = Node(Network(1).mesh("a"))
        node.membership._entropy = SimEntropy(1, stream)
        await node.membership.start()
        sequence = node.membership.swim._sequence
        await node.membership.kill()
        return sequence

    assert run(main("a"), seed=1) == run(main("a"), seed=2) != run(main("b"), seed=1)
