"""What every mesh must do, as tests: inherit them to prove your own adapter. Needs only pytest.

    class TestMyMesh(MeshContract):
        @pytest.fixture
        def rig(self, tmp_path):
            return MyRig(tmp_path)

A rig stands for one fresh network without deliberate loss: see MeshRig. A mesh may lose anything, so the suite repeats
what must arrive; it never asserts that a datagram arrives at the first try. Test how an adapter finds its peers, and
whom it believes, in its own suite.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import pytest

from stigmergy.base.errors import Bug, Malformed, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.membership.mesh import BYTES_MIN, CONTACT_BYTES_MAX, Mesh
from stigmergy.testing.bus_rig import wait_until

NODES = ("alpha", "beta-2", "Gamma_3.x")
"""The nodes that the suite uses. Each must have a way to each, from the beginning."""
STRANGER = "stranger"
"""Nobody is called so."""
AGAIN_S = 0.05
"""How often the suite repeats what must arrive."""
QUIET_S = 0.3
"""How long the suite watches for what must not happen."""
BURST_COUNT = 2_000


class MeshRig(Protocol):
    """A network for one test. All is done within one event loop."""

    async def mesh(self, node: str) -> Mesh:
        """A mesh of one of NODES, not opened yet. Asked again after the first is closed: the node's next life."""
        ...

    async def end(self) -> None:
        """The test is over. The suite has closed the meshes."""
        ...


class HeardDatagrams:
    """Remembers what was heard."""

    def __init__(self) -> None:
        self.datagrams: list[tuple[str, bytes]] = []

    def __call__(self, sender: str, body: bytes) -> None:
        self.datagrams.append((sender, body))


class MeshScene:
    """A rig in use: closes what a test has opened."""

    def __init__(self, rig: MeshRig) -> None:
        self._rig = rig
        self._meshes: list[Mesh] = []

    async def closed(self, node: str) -> Mesh:
        """A mesh that is not open yet."""
        mesh = await self._rig.mesh(node)
        self._meshes.append(mesh)
        return mesh

    async def hearing(self, node: str) -> tuple[Mesh, HeardDatagrams]:
        """An open mesh, and what it hears."""
        mesh, heard = await self.closed(node), HeardDatagrams()
        await mesh.open(heard)
        return mesh, heard

    async def end(self) -> None:
        """Closes all."""
        for mesh in self._meshes:
            await mesh.close()
        await self._rig.end()


SceneTest = Callable[[Any, MeshScene], Coroutine[Any, Any, None]]


def on_a_mesh(test: SceneTest) -> Callable[[Any, MeshRig], None]:
    """Runs an async test under plain pytest, with everything closed afterwards."""

    async def play(contract: Any, rig: MeshRig) -> None:
        scene = MeshScene(rig)
        try:
            await test(contract, scene)
        finally:
            await scene.end()

    @functools.wraps(test)
    def run(self: Any, rig: MeshRig) -> None:
        asyncio.run(play(self, rig))

    # Pytest reads the arguments of a test from what it wraps; here it must see those of the wrapper.
    del run.__dict__["__wrapped__"]
    return run


async def send_until(mesh: Mesh, to: str, body: bytes, arrived: Callable[[], bool]) -> None:
    """Sends the same again and again until it has arrived, as all who use a mesh do."""

    async def repeat() -> None:
        while True:
            mesh.send_nowait(to, body)
            await asyncio.sleep(AGAIN_S)

    repeating = asyncio.ensure_future(repeat())
    try:
        await wait_until(arrived)
    finally:
        await end_tasks(repeating)


class MeshContract:
    """Every sentence of the port's docstring, one test or more each."""

    @pytest.fixture
    def rig(self) -> MeshRig:
        """The network of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture rig: see the module's docstring")

    # Datagrams.

    @on_a_mesh
    async def test_datagram_arrives_as_it_was_sent_and_names_its_sender(self, scene: MeshScene) -> None:
        (one, _), (other, heard) = await scene.hearing(NODES[0]), await scene.hearing(NODES[1])
        for body in (bytes(range(256)), b"", b"x" * one.bytes_max):
            await send_until(one, NODES[1], body, lambda body=body: (NODES[0], body) in heard.datagrams)  # type: ignore[misc]
        assert all(type(body) is bytes for _, body in heard.datagrams)
        assert other.counters.received_count == len(heard.datagrams)

    @on_a_mesh
    async def test_only_the_one_it_is_for_hears_it(self, scene: MeshScene) -> None:
        boxes = {node: await scene.hearing(node) for node in NODES}
        for sender, (mesh, _) in boxes.items():
            for to, (_, heard) in boxes.items():
                if to != sender:
                    body = f"{sender} to {to}".encode()
                    await send_until(mesh, to, body, lambda h=heard, b=body: b in [d[1] for d in h.datagrams])  # type: ignore[misc]
        await asyncio.sleep(QUIET_S)
        for to, (_, heard) in boxes.items():
            assert {body for _, body in heard.datagrams} == {f"{s} to {to}".encode() for s in NODES if s != to}
            assert all(body.startswith(sender.encode()) for sender, body in heard.datagrams)

    @on_a_mesh
    async def test_mesh_says_who_it_is_and_what_it_carries(self, scene: MeshScene) -> None:
        mesh, _ = await scene.hearing(NODES[2])
        assert mesh.node == NODES[2]
        assert mesh.bytes_max >= BYTES_MIN
        assert len(mesh.contact.encode()) <= CONTACT_BYTES_MAX

    @on_a_mesh
    async def test_what_could_never_be_sent_is_refused(self, scene: MeshScene) -> None:
        mesh, _ = await scene.hearing(NODES[0])
        with pytest.raises(TooLarge):
            mesh.send_nowait(NODES[1], bytes(mesh.bytes_max + 1))
        for name in ("", "a/b", "a b", "#", "é", "x" * 65, "a\n"):
            with pytest.raises(Malformed):
                mesh.send_nowait(name, b"")
        assert (mesh.counters.sent_count, mesh.counters.dropped_count) == (0, 0)

    # What cannot be sent is dropped and counted.

    @on_a_mesh
    async def test_nothing_is_sent_to_oneself(self, scene: MeshScene) -> None:
        mesh, heard = await scene.hearing(NODES[0])
        mesh.send_nowait(NODES[0], b"to myself")
        await asyncio.sleep(QUIET_S)
        assert not heard.datagrams
        assert (mesh.counters.sent_count, mesh.counters.dropped_count) == (0, 1)

    @on_a_mesh
    async def test_stranger_gets_nothing_and_harms_nobody(self, scene: MeshScene) -> None:
        (one, _), (_, heard) = await scene.hearing(NODES[0]), await scene.hearing(NODES[1])
        for _ in range(50):
            one.send_nowait(STRANGER, b"x")
        await send_until(one, NODES[1], b"y", lambda: bool(heard.datagrams))
        assert {body for _, body in heard.datagrams} == {b"y"}

    @on_a_mesh
    async def test_before_it_is_open_and_after_it_is_closed_everything_is_dropped(self, scene: MeshScene) -> None:
        mesh = await scene.closed(NODES[0])
        mesh.send_nowait(NODES[1], b"early")
        assert mesh.counters.dropped_count == 1
        _, heard = await scene.hearing(NODES[1])
        await mesh.open(HeardDatagrams())
        await send_until(mesh, NODES[1], b"in time", lambda: bool(heard.datagrams))
        await mesh.close()
        dropped = mesh.counters.dropped_count
        mesh.send_nowait(NODES[1], b"late")
        await asyncio.sleep(QUIET_S)
        assert mesh.counters.dropped_count == dropped + 1
        assert {body for _, body in heard.datagrams} == {b"in time"}

    @on_a_mesh
    async def test_node_that_is_not_there_yet_is_reached_once_it_is(self, scene: MeshScene) -> None:
        mesh, heard_back = await scene.hearing(NODES[0])
        for number in range(20):
            mesh.send_nowait(NODES[1], b"%d" % number)
        await asyncio.sleep(QUIET_S)
        other, heard = await scene.hearing(NODES[1])
        await send_until(mesh, NODES[1], b"now", lambda: (NODES[0], b"now") in heard.datagrams)
        await send_until(other, NODES[0], b"back", lambda: (NODES[1], b"back") in heard_back.datagrams)

    @on_a_mesh
    async def test_burst_is_sent_or_counted_and_what_arrives_is_whole(self, scene: MeshScene) -> None:
        (one, _), (_, heard) = await scene.hearing(NODES[0]), await scene.hearing(NODES[1])
        await send_until(one, NODES[1], b"first", lambda: bool(heard.datagrams))
        await asyncio.sleep(QUIET_S)
        already = one.counters.sent_count + one.counters.dropped_count + one.counters.overflowed_count
        bodies = [b"%d." % number + b"x" * 500 for number in range(BURST_COUNT)]
        for body in bodies:
            one.send_nowait(NODES[1], body)
        await wait_until(lambda: len(heard.datagrams) > 20)
        await send_until(one, NODES[1], b"last", lambda: (NODES[0], b"last") in heard.datagrams)
        counters = one.counters
        asked = counters.sent_count + counters.dropped_count + counters.overflowed_count - already
        lasts = asked - BURST_COUNT
        assert lasts >= 1  # all of the burst is accounted for, and what came after it
        assert counters.sent_bytes >= sum(map(len, bodies)) * (counters.sent_count - already - lasts) // BURST_COUNT
        assert {body for _, body in heard.datagrams} <= {b"first", b"last", *bodies}

    # Hearing.

    @on_a_mesh
    async def test_hear_is_not_called_from_within_a_send_and_may_send_itself(self, scene: MeshScene) -> None:
        one, other = await scene.closed(NODES[0]), await scene.closed(NODES[1])
        within, bounced = [False], [0, 0]

        def bounce(mesh: Mesh, to: str, number: int) -> Callable[[str, bytes], None]:
            def hear(_: str, body: bytes) -> None:
                assert not within[0]
                bounced[number] += 1
                within[0] = True
                mesh.send_nowait(to, body)
                within[0] = False

            return hear

        await one.open(bounce(one, NODES[1], 0))
        await other.open(bounce(other, NODES[0], 1))
        await send_until(one, NODES[1], b"ball", lambda: min(bounced) > 20)

    @on_a_mesh
    async def test_hearer_that_raises_is_told_of_and_the_mesh_goes_on(self, scene: MeshScene) -> None:
        failures: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context.get("exception") or Bug(str(context)))
        )
        heard = HeardDatagrams()

        def hear(sender: str, body: bytes) -> None:
            heard(sender, body)
            if body == b"bad":
                raise ZeroDivisionError

        (one, _), other = await scene.hearing(NODES[0]), await scene.closed(NODES[1])
        await other.open(hear)
        await send_until(one, NODES[1], b"bad", lambda: bool(failures))
        await send_until(one, NODES[1], b"good", lambda: (NODES[0], b"good") in heard.datagrams)
        assert {type(failure) for failure in failures} == {ZeroDivisionError}

    # Its life.

    @on_a_mesh
    async def test_closed_mesh_hears_nothing_more(self, scene: MeshScene) -> None:
        (one, _), (other, heard) = await scene.hearing(NODES[0]), await scene.hearing(NODES[1])
        await send_until(one, NODES[1], b"x", lambda: bool(heard.datagrams))
        for _ in range(20):
            one.send_nowait(NODES[1], b"late")
        await other.close()
        count = len(heard.datagrams)
        for _ in range(20):
            one.send_nowait(NODES[1], b"too late")
        await asyncio.sleep(QUIET_S)
        assert len(heard.datagrams) == count
        await other.close()

    @on_a_mesh
    async def test_mesh_that_was_never_opened_can_be_closed(self, scene: MeshScene) -> None:
        mesh = await scene.closed(NODES[0])
        await mesh.close()
        await mesh.close()

    @on_a_mesh
    async def test_it_is_opened_once(self, scene: MeshScene) -> None:
        mesh, _ = await scene.hearing(NODES[0])
        with pytest.raises(Bug):
            await mesh.open(HeardDatagrams())
        await mesh.close()
        with pytest.raises(Bug):
            await mesh.open(HeardDatagrams())

    @on_a_mesh
    async def test_node_comes_back_under_its_name(self, scene: MeshScene) -> None:
        (one, heard_back), (other, heard) = await scene.hearing(NODES[0]), await scene.hearing(NODES[1])
        await send_until(one, NODES[1], b"x", lambda: bool(heard.datagrams))
        await other.close()
        other, heard = await scene.hearing(NODES[1])
        await send_until(one, NODES[1], b"again", lambda: (NODES[0], b"again") in heard.datagrams)
        await send_until(other, NODES[0], b"back", lambda: (NODES[1], b"back") in heard_back.datagrams)

    @on_a_mesh
    async def test_introductions_of_any_kind_do_no_harm(self, scene: MeshScene) -> None:
        (one, _), (other, heard) = await scene.hearing(NODES[0]), await scene.hearing(NODES[1])
        for contact in ("", "nonsense", "\x00", "127.0.0.1:1", "x" * 10_000, other.contact):
            one.introduce(STRANGER, contact)
            one.introduce(NODES[0], contact)
        one.introduce(NODES[1], other.contact)
        await send_until(one, NODES[1], b"x", lambda: bool(heard.datagrams))
