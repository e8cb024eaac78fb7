"""The world over TCP: fixes as arrays, orders with answers, links that are cut, and a world that is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from apps.drones import link
from apps.drones.area import Area
from apps.drones.link import RemoteWorld, WorldServer
from apps.drones.messages import BOX_FULL, ArmBox, Fix, Grip, Land, Release, Site, Steer
from apps.drones.physics import FIELDS, Conditions
from apps.drones.world import Frame, World
from stigmergy import (
    Action,
    ActionFailed,
    Agent,
    Command,
    DeviceRefused,
    Effects,
    Event,
    Events,
    Fleet,
    Order,
    Overloaded,
    StaleOrder,
    Unreachable,
    decide,
    evolve,
    react,
)
from stigmergy.testing.proxy import LinkProxy

AREA = Area(columns=2, rows=1, zone_m=3000.0, regions=2)
ONE, OTHER, FAR = "r1-0000-000", "r1-0000-001", "r2-0100-000"
START_T = 1000.0
UP = Steer(500.0, 500.0, 60.0, 15.0)


class Counting(World):
    """Counts what reaches it."""

    reached = 0

    async def order(self, drone: str, action: Action, key: str, token: int) -> None:
        self.reached += 1
        await super().order(drone, action, key, token)


class Rig:
    """A world behind a proxy, and a client in front of it."""

    def __init__(self, prefix: str | None) -> None:
        self.world = Counting(AREA, [ONE, FAR, OTHER], 1, START_T, conditions=Conditions(link_lost_per_h=0.0))
        self.server = WorldServer(self.world)
        self.prefix = prefix

    async def open(self) -> None:
        await self.server.open()
        self.proxy = LinkProxy(link.place_of(self.server.url)[1])
        await self.proxy.start()
        self.remote = RemoteWorld(f"tcp://127.0.0.1:{self.proxy.port}", self.prefix)
        await self.remote.open()
        async with asyncio.timeout(10):
            await self.remote.wait_heard()

    async def close(self) -> None:
        await self.remote.close()
        await self.server.close()
        await self.proxy.close()

    async def advance(self, seconds: float) -> None:
        """Lets time pass, and waits until the client knows."""
        self.world.advance(self.world.now_t() + seconds)
        t, _ = self.world.frame()
        await until(lambda: self.remote.now_t() >= t)


@contextlib.asynccontextmanager
async def linked(prefix: str | None = "") -> AsyncIterator[Rig]:
    rig = Rig(prefix)
    await rig.open()
    try:
        yield rig
    finally:
        await rig.close()


async def crowd(count: int) -> tuple[World, WorldServer, RemoteWorld]:
    """So many drones, with a server and a client that has been told of them."""
    area = Area(columns=13, rows=13, zone_m=3000.0, regions=2)
    names = [f"{zone}-{number:03d}" for number in range(60) for zone in area.zones()][:count]
    world = World(area, names, 1, START_T)
    server = WorldServer(world)
    await server.open()
    remote = RemoteWorld(server.url, "r")
    await remote.open()
    await remote.wait_heard()
    return world, server, remote


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


# ------------------------------------------------------------------ fixes


@pytest.mark.parametrize(
    ("prefix", "names"), [("r1-", (ONE, OTHER)), ("r2-", (FAR,)), ("", (ONE, FAR, OTHER)), (None, ())]
)
async def test_a_client_gets_the_fixes_of_its_drones(prefix: str | None, names: tuple[str, ...]) -> None:
    async with linked(prefix) as rig:
        assert rig.remote.names == names
        assert START_T <= rig.remote.now_t() <= START_T + 0.5
        await rig.remote.order(OTHER, UP, "k", 1)
        await rig.advance(5)
        for name in (ONE, FAR, OTHER):
            assert rig.remote.fix(name) == (rig.world.fix(name) if name in names else None)
        fix = rig.world.fix(OTHER)
        assert fix is not None
        assert not fix.down


async def test_frames_come_as_arrays_with_names_and_silence_is_not_a_number() -> None:
    async with linked("r1-") as rig:
        frames: list[tuple[float, tuple[str, ...], Frame]] = []
        rig.remote.each_frame(lambda t, names, frame: frames.append((t, names, frame)))
        rig.world.fail(OTHER, "motor")
        await rig.advance(1.5)
        await until(lambda: len(frames) == 3)
        assert [t for t, _, _ in frames] == pytest.approx([START_T + 0.5, START_T + 1.0, START_T + 1.5])
        _, names, frame = frames[-1]
        assert names is rig.remote.names
        assert frame.shape == (2, len(FIELDS))
        assert np.array_equal(frame, rig.world.frame()[1][[0, 2]], equal_nan=True)
        assert rig.remote.fix(ONE) is not None
        assert rig.remote.fix(OTHER) is None


async def test_a_fix_that_is_old_is_none_and_a_world_that_was_never_heard_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drone that got its last fix again and again would take itself for well while it flies on, blind."""
    never = RemoteWorld("tcp://127.0.0.1:1")
    with pytest.raises(Unreachable, match="has not been heard yet"):
        never.fix(ONE)
    async with linked("r1-") as rig:
        await rig.advance(0.5)
        assert rig.remote.fix(ONE) is not None
        monkeypatch.setattr(link, "AWAY_S", 0.0)
        await asyncio.sleep(0.01)
        with pytest.raises(Unreachable, match="has said nothing for more than 0 s"):
            rig.remote.fix(ONE)


async def test_the_server_knows_how_far_a_client_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with linked("r1-") as rig:
        await rig.advance(3)
        assert rig.server.behind_s() == 0.0, "it never says what it has dealt with: nobody waits for it"
        rig.remote.took(START_T + 1.0)
        await until(lambda: rig.server.behind_s() == pytest.approx(2.0))
        rig.remote.took(START_T + 3.0)
        await until(lambda: rig.server.behind_s() == 0.0)
        await rig.advance(1)
        assert rig.server.behind_s() == pytest.approx(1.0)
        monkeypatch.setattr(link, "STUCK_S", 0.0)
        assert rig.server.behind_s() == 0.0


async def test_who_is_not_behind_hears_the_last_fixes_again_while_the_world_waits() -> None:
    async with linked("r1-") as rig:
        heard: list[float] = []
        rig.remote.each_frame(lambda t, _names, _frame: heard.append(t))
        await rig.advance(1)
        await until(lambda: heard)
        before = list(heard)
        rig.remote.took(heard[-1] - 0.5)
        await until(lambda: rig.server.behind_s() > 0.0)
        rig.server.repeat()  # it has not dealt with them: nothing more for it
        rig.remote.took(heard[-1])
        await until(lambda: rig.server.behind_s() == 0.0)
        rig.server.repeat()
        await until(lambda: len(heard) > len(before))
        assert heard == [*before, before[-1]]


async def test_a_reader_of_frames_that_fails_is_reported_and_the_link_goes_on() -> None:
    async with linked() as rig:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

        def bad(t: float, names: tuple[str, ...], frame: Frame) -> None:
            raise ZeroDivisionError

        rig.remote.each_frame(bad)
        await rig.advance(1)
        await rig.remote.order(ONE, UP, "k", 1)
        assert [type(one) for one in told] == [ZeroDivisionError] * 2


async def test_time_stands_still_when_the_world_does() -> None:
    async with linked() as rig:
        await asyncio.sleep(0.7)
        assert rig.remote.now_t() == START_T + 0.5
    with pytest.raises(Unreachable, match="not been heard"):
        RemoteWorld("tcp://127.0.0.1:1").now_t()


# ------------------------------------------------------------------ orders


async def test_answers_come_back_as_they_were_given() -> None:
    async with linked() as rig:
        remote = rig.remote
        await remote.order(ONE, UP, "a", 5)
        with pytest.raises(StaleOrder, match="token 4, and 5 was carried out"):
            await remote.order(ONE, UP, "b", 4)
        with pytest.raises(DeviceRefused, match="no drone D-1") as refused:
            await remote.order("D-1", Land(reason=""), "c", 1)
        assert type(refused.value) is DeviceRefused
        with pytest.raises(Unreachable, match="not been armed"):
            await remote.order(ONE, Grip("J", 1), "d", 6)
        box = ArmBox("J", 2, Site(30.0, 30.0), Site(90.0, 30.0), kg=2.0)
        await remote.arm_box(box, "e")
        with pytest.raises(DeviceRefused, match="for token 2 now"):
            await remote.order(ONE, Grip("J", 1), "f", 6)
        with pytest.raises(DeviceRefused, match="not have the parcel"):
            await remote.order(ONE, Release("J", 2), "g", 6)
        with pytest.raises(DeviceRefused, match="cannot ArmBox"):
            await remote.order(ONE, box, "h", 6)
        taken = rig.world.parcels.box("J")
        assert taken is not None
        taken.dropped = (2, ONE)
        with pytest.raises(DeviceRefused, match=BOX_FULL):
            await remote.arm_box(ArmBox("J", 3, Site(30.0, 30.0), Site(90.0, 30.0)), "i")


async def test_a_bug_in_the_world_is_answered_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async with linked() as rig:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        monkeypatch.setattr(rig.world.physics, "set_target", None)
        with pytest.raises(DeviceRefused, match="the world failed: TypeError"):
            await rig.remote.order(ONE, UP, "a", 1)
        assert [type(one) for one in told] == [TypeError]


async def test_an_order_whose_answer_was_lost_is_repeated_and_carried_out_once() -> None:
    async with linked() as rig:
        rig.proxy.mute_server()
        asked = asyncio.ensure_future(rig.remote.order(ONE, UP, "a", 1))
        await until(lambda: rig.world.reached == 1)
        rig.proxy.drop()
        rig.proxy.restore()
        await asked
        assert rig.world.reached == 2
        assert [one.fact for one in rig.world.facts if one.fact == "took_off"] == ["took_off"]
        assert rig.proxy.connections == 2


async def test_orders_given_while_the_link_is_down_for_a_moment_arrive_in_order() -> None:
    async with linked() as rig:
        rig.proxy.cut()
        await until(lambda: not rig.remote.is_connected)
        steers = [Steer(float(i), 500.0, 60.0, 15.0) for i in range(50)]
        asked = [asyncio.ensure_future(rig.remote.order(ONE, one, f"k{i}", i)) for i, one in enumerate(steers)]
        await asyncio.sleep(0.3)
        rig.proxy.restore()
        await asyncio.gather(*asked)
        assert rig.world.physics.target[0, 0] == 49.0
        await rig.advance(1)


async def test_while_the_world_is_away_orders_fail_at_once_and_later_they_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "AWAY_S", 0.3)
    async with linked() as rig:
        rig.proxy.cut()
        await until(lambda: not rig.remote.is_connected)
        await asyncio.sleep(0.7)
        began_s = time.monotonic()
        with pytest.raises(Unreachable, match="is away"):
            await rig.remote.order(ONE, UP, "a", 1)
        assert time.monotonic() - began_s < 0.2
        rig.proxy.restore()
        await until(lambda: rig.remote.is_connected)
        await rig.remote.order(ONE, UP, "a", 1)


async def test_a_world_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ANSWER_S", 0.3)
    monkeypatch.setattr(link, "IN_FLIGHT_MAX", 3)
    async with linked() as rig:
        rig.proxy.stall()
        asked = [asyncio.ensure_future(rig.remote.order(ONE, UP, f"k{i}", i)) for i in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 orders wait"):
            await rig.remote.order(ONE, UP, "k4", 4)
        for one in asked:
            with pytest.raises(Unreachable, match="has not answered"):
                await one
        assert not rig.remote._asked
        rig.proxy.restore()
        await rig.remote.order(ONE, UP, "k5", 5)


async def test_what_waits_fails_when_the_client_is_closed() -> None:
    rig = Rig("")
    await rig.open()
    rig.proxy.stall()
    asked = asyncio.ensure_future(rig.remote.order(ONE, UP, "a", 1))
    await asyncio.sleep(0.05)
    await rig.close()
    with pytest.raises(Unreachable, match="was closed"):
        await asked
    with pytest.raises(Unreachable, match="is away"):
        await rig.remote.order(ONE, UP, "b", 2)


async def test_a_client_may_be_there_before_the_world() -> None:
    async with linked() as rig:
        port = link.place_of(rig.server.url)[1]
        await rig.server.close()
        early = RemoteWorld(f"tcp://127.0.0.1:{port}")
        await early.open()
        await asyncio.sleep(0.3)
        assert not early.names
        again = WorldServer(rig.world, f"tcp://127.0.0.1:{port}")
        await again.open()
        async with asyncio.timeout(10):
            await early.wait_heard()
        await early.order(ONE, UP, "a", 1)
        await early.close()
        await again.close()


@pytest.mark.parametrize(
    "junk", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc", b"\x00\x00\x00\x05\x91\x81\xa1x\x01", b"GET"]
)
async def test_the_server_survives_who_speaks_something_else(junk: bytes) -> None:
    async with linked() as rig:
        reader, writer = await asyncio.open_connection(*link.place_of(rig.server.url))
        writer.write(junk)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await rig.remote.order(ONE, UP, "a", 1)


async def test_a_client_that_does_not_read_is_left_out_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "UNSENT_BYTES_MAX", 1000)
    world, server, remote = await crowd(4000)
    _, writer = await asyncio.open_connection(*link.place_of(server.url), limit=1024)
    writer.write(link.packed([link.Hello("")]))
    await asyncio.sleep(0.05)
    for _ in range(200):
        world.advance(world.now_t() + 0.5)
        await asyncio.sleep(0.001)
        if server.skipped > 3:
            break
    assert server.skipped > 3
    await remote.order(world.names[0], UP, "a", 1)
    await until(lambda: remote.now_t() >= world.now_t())
    writer.close()
    await remote.close()
    await server.close()


@pytest.mark.parametrize("url", ["udp://127.0.0.1:1", "tcp://127.0.0.1", "127.0.0.1:4711"])
def test_an_address_is_checked(url: str) -> None:
    with pytest.raises(ValueError, match="invalid address"):
        RemoteWorld(url)


# ------------------------------------------------------------------ many


async def test_ten_thousand_drones_cost_a_client_little() -> None:
    world, server, remote = await crowd(10_000)
    assert len(remote.names) == 10_000
    body = link._encoder.encode([link.Fixes(START_T + 1, world.frame()[1].tobytes())])
    spent = []
    for _ in range(10):
        began_s = time.thread_time()
        for message in link._to_client.decode(body):
            remote._take(message)
        spent.append(time.thread_time() - began_s)
    assert min(spent) < 0.002, f"{min(spent) * 1000:.2f} ms for a frame of 10,000 fixes"
    steers = [remote.order(name, Steer(0.0, 0.0, 50.0, 15.0), f"k{name}", 1) for name in world.names[:5000]]
    began_s = time.thread_time()
    await asyncio.gather(*steers)
    each_us = (time.thread_time() - began_s) / 5000 * 1e6
    assert each_us < 300, f"{each_us:.0f} us for an order, on both sides"
    await remote.close()
    await server.close()


# ------------------------------------------------------------------ as a device of a fleet


class Fly(Command):
    z: float


class FlightWanted(Event):
    z: float


class HeightSeen(Event):
    z: float


class Pilot(Agent):
    z: float = 0.0
    problem: str = ""

    @decide
    def fly(self, command: Fly) -> Events:
        yield FlightWanted(command.z)

    @react
    def steer(self, event: FlightWanted) -> Effects:
        yield Steer(500.0, 500.0, event.z, 15.0)

    @decide
    def hear(self, event: Fix) -> Events:
        yield HeightSeen(event.z)

    @evolve
    def seen(self, event: HeightSeen) -> None:
        self.z = event.z

    @evolve
    def failed(self, event: ActionFailed) -> None:
        self.problem = event.reason


async def test_it_is_a_device_of_a_fleet() -> None:
    world = World(AREA, [ONE], 1, START_T)
    server = WorldServer(world)
    await server.open()
    fleet = Fleet("pilots", agents=[Pilot])
    remote = fleet.attach(RemoteWorld(server.url, "r1-"))

    @fleet.sensor(Pilot, every_s=0.05)
    async def receiver(name: str) -> Fix | None:
        return remote.fix(name)

    @fleet.actuator(Steer, tries=5, within_s=5.0)
    async def steer(order: Order[Steer]) -> None:
        await remote.order(order.agent.partition("/")[2], order.effect, order.key, order.token)

    async with fleet.running(journal="memory:", agents=[f"Pilot/{ONE}"]) as live:
        await live.send(f"Pilot/{ONE}", Fly(z=60.0))
        await until(lambda: not world.physics.down[0])
        world.advance(START_T + 30)
        await until(lambda: live.query(f"Pilot/{ONE}", Pilot).z > 55.0)
        await live.send(f"Pilot/{ONE}", Fly(z=600.0))
        await until(lambda: "no course" in live.query(f"Pilot/{ONE}", Pilot).problem)
    assert not remote.is_connected
    await server.close()
