"""A vehicle over real UDP: what it says, what it does, what it refuses, and a radio that loses, doubles and delays."""

import asyncio
import contextlib
import math
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pymavlink import mavutil  # type: ignore[import-untyped]

from stigmergy.base.errors import ConfigError, DeviceRefused, LinkDown, Overloaded
from stigmergy.devices.mavlink import Autopilot, Landed, MavResult, Vehicle
from stigmergy.devices.mavlink import vehicle as link_module
from stigmergy.devices.mavlink import vehicle as vehicle_module
from stigmergy.devices.mavlink.messages import (
    CommandAck,
    CommandLong,
    Heartbeat,
    MavCommand,
    MavParser,
    MavWriter,
    SysStatus,
)
from stigmergy.testing.vehicle import SimulatedVehicle

HOME = (47.3977, 8.5456)


@contextlib.asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Vehicle, SimulatedVehicle]]:
    """A vehicle of ours and the simulated one that it speaks to; they have heard each other."""
    ours = Vehicle("udpin://127.0.0.1:0", **{name: options.pop(name) for name in ("fresh_s",) if name in options})
    await ours.open()
    try:
        async with SimulatedVehicle("127.0.0.1", ours.port, **{"pace": 30.0, **options}) as simulated:
            await until(lambda: ours.is_connected and ours.position() is not None and ours.battery() is not None)
            yield ours, simulated
    finally:
        await ours.close()


async def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


async def test_what_a_vehicle_says_about_itself() -> None:
    async with pair() as (vehicle, simulated):
        simulated.battery_percent = 63.0
        await until(lambda: (battery := vehicle.battery()) is not None and battery.percent == 63.0)
        battery, position, status = vehicle.battery(), vehicle.position(), vehicle.status()
        assert battery is not None
        assert battery.volts == pytest.approx(12.42)
        assert position is not None
        assert (position.latitude, position.longitude) == pytest.approx(HOME)
        assert (position.altitude_m, position.height_m) == (488.0, 0.0)
        assert status is not None
        assert (status.armed, status.autopilot) == (False, Autopilot.PX4)
        await until(vehicle.is_landed)
        await until(lambda: simulated.partner_heartbeats > 0, 3.0)


async def test_what_a_vehicle_does_not_tell_by_itself_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vehicle_module, "HEARTBEAT_S", 0.05)
    async with pair(taciturn=True) as (vehicle, simulated):
        simulated.deaf_for[MavCommand.SET_MESSAGE_INTERVAL] = 5
        await until(vehicle.is_landed)
        asked = [one for one in simulated.heard if isinstance(one, CommandLong)]
        assert {one.param1 for one in asked} == {33.0, 245.0, 147.0, 1.0}
        await asyncio.sleep(0.3)
        settled = len(simulated.heard)
        await asyncio.sleep(0.3)
        assert len(simulated.heard) == settled, "nobody asks for what is told"


async def test_a_vehicle_that_does_not_say_whether_it_stands_is_down_when_disarmed() -> None:
    async with pair() as (vehicle, simulated):
        simulated.landed = Landed.UNDEFINED
        await until(lambda: (status := vehicle.status()) is not None and status.landed is Landed.UNDEFINED)
        assert vehicle.is_landed()
        await vehicle.arm()
        await until(vehicle.is_armed)
        assert not vehicle.is_landed()


@pytest.mark.parametrize("autopilot", [Autopilot.PX4, Autopilot.ARDUPILOT, Autopilot.GENERIC])
async def test_a_flight(autopilot: Autopilot) -> None:
    async with pair(autopilot=autopilot) as (vehicle, simulated):
        await vehicle.arm()
        await until(vehicle.is_armed)
        await vehicle.take_off(12.0)
        await until(vehicle.is_flying)
        assert simulated.height_m == pytest.approx(12.0, abs=0.2)
        assert simulated.mode == (4 if autopilot is Autopilot.ARDUPILOT else 0)
        place = (HOME[0] + 0.001, HOME[1] + 0.001)
        assert not vehicle.is_at(*place)
        await vehicle.go_to(*place, 20.0)
        await until(lambda: vehicle.is_at(*place, within_m=1.0) and abs(simulated.height_m - 20) < 0.5)
        await vehicle.return_home()
        await until(lambda: vehicle.is_landed() and not vehicle.is_armed())
        assert vehicle.is_at(*HOME)
        assert simulated.battery_percent < 100


async def test_what_is_so_already_is_not_asked_for_again() -> None:
    async with pair() as (vehicle, simulated):
        await until(vehicle.is_landed)
        await vehicle.land()
        await vehicle.return_home()
        await vehicle.disarm()
        await vehicle.arm()
        await until(vehicle.is_armed)
        await vehicle.arm()
        await vehicle.take_off(5.0)
        await until(vehicle.is_flying)
        await vehicle.take_off(5.0)
        wanted = [order for order in simulated.acted if order is not MavCommand.SET_MESSAGE_INTERVAL]
        assert wanted == [MavCommand.ARM, MavCommand.TAKE_OFF]


@pytest.mark.parametrize("result", [MavResult.DENIED, MavResult.UNSUPPORTED, MavResult.FAILED, 99])
async def test_a_refusal_is_final_and_says_why(result: Any) -> None:
    async with pair() as (vehicle, simulated):
        simulated.refuse[MavCommand.ARM] = result
        with pytest.raises(DeviceRefused, match="ARM was refused"):
            await vehicle.arm()
        assert len([one for one in simulated.heard if one.command == MavCommand.ARM]) == 1  # type: ignore[attr-defined]
        assert vehicle.counters.refusals == 1


async def test_what_the_vehicle_says_to_people_is_the_reason() -> None:
    async with pair() as (vehicle, simulated):
        simulated.battery_percent = 5.0
        with pytest.raises(DeviceRefused, match=r"ARM was refused \(denied\): PreArm: battery low"):
            await vehicle.arm()
        simulated.battery_percent = 50.0
        with pytest.raises(DeviceRefused, match=r"TAKE_OFF was refused \(denied\): Take-off denied: not armed"):
            await vehicle.take_off(5.0)
        with pytest.raises(DeviceRefused, match="is no place"):
            await vehicle.go_to(91.0, 0.0, 5.0)


@pytest.mark.parametrize("height_m", [math.nan, math.inf, -5.0, 0.0, 1e39])
async def test_a_height_that_is_none_never_leaves(height_m: float) -> None:
    async with pair() as (vehicle, simulated):
        await vehicle.arm()
        before = len(simulated.heard)
        with pytest.raises(DeviceRefused, match="is no height to climb to"):
            await vehicle.take_off(height_m)
        assert [one for one in simulated.heard[before:] if getattr(one, "command", None) == MavCommand.TAKE_OFF] == []
        if height_m not in (-5.0, 0.0):  # A place may lie below where it started.
            with pytest.raises(DeviceRefused, match="is no place"):
                await vehicle.go_to(0.0, 0.0, height_m)


async def test_not_now_is_another_answer_than_never() -> None:
    async with pair() as (vehicle, simulated):
        simulated.refuse[MavCommand.ARM] = MavResult.TEMPORARILY_REJECTED
        with pytest.raises(Overloaded, match="ARM was temporarily rejected"):
            await vehicle.arm()
        del simulated.refuse[MavCommand.ARM]
        await vehicle.arm()


async def test_a_command_is_repeated_and_counts_how_often() -> None:
    async with pair() as (vehicle, simulated):
        simulated.deaf_for[MavCommand.ARM] = 2
        await vehicle.arm()
        confirmations = [
            one.confirmation
            for one in simulated.heard
            if isinstance(one, CommandLong) and one.command == MavCommand.ARM
        ]
        assert confirmations == [0, 1, 2]
        assert simulated.acted.count(MavCommand.ARM) == 1
        assert vehicle.counters.repeats == 2


async def test_what_is_never_acknowledged_is_a_lost_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vehicle_module, "ACK_S", 0.05)
    async with pair() as (vehicle, simulated):
        simulated.deaf_for[MavCommand.LAND] = 100
        await vehicle.arm()
        await until(vehicle.is_armed)
        with pytest.raises(LinkDown, match="LAND: sent 5 times and not acknowledged"):
            await vehicle.land()


async def test_a_command_in_progress_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vehicle_module, "PROGRESS_S", 0.2)
    async with pair() as (vehicle, simulated):
        simulated.refuse[MavCommand.ARM] = MavResult.IN_PROGRESS
        arming = asyncio.ensure_future(vehicle.arm())
        await until(lambda: any(one.command == MavCommand.ARM for one in simulated.heard))  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        assert not arming.done()
        vehicle._acknowledged(CommandAck(command=MavCommand.ARM, result=MavResult.ACCEPTED))
        await arming
        with pytest.raises(LinkDown, match="begun, but nothing was heard of it"):
            await vehicle.arm()


async def test_silence_makes_every_reading_unknown_and_commands_fail() -> None:
    async with pair(fresh_s=0.3) as (vehicle, simulated):
        simulated.faults.silent = True
        await until(lambda: not vehicle.is_connected)
        await until(lambda: vehicle.battery() is None and vehicle.position() is None)
        assert vehicle.status() is None
        assert not (vehicle.is_armed())
        assert not (vehicle.is_landed())
        assert not (vehicle.is_flying())
        assert not (vehicle.is_at(*HOME))
        with pytest.raises(LinkDown, match="has not said lately where it is"):
            await vehicle.go_to(*HOME, 10.0)
        simulated.faults.silent = False
        await until(lambda: vehicle.is_connected and vehicle.battery() is not None)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_flight_over_a_bad_radio(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vehicle_module, "ACK_S", 0.1)
    async with pair(seed=seed) as (vehicle, simulated):
        simulated.faults.drop, simulated.faults.double, simulated.faults.delay = 0.25, 0.25, 0.25

        async def insist(act: Callable[[], Awaitable[None]], done: Callable[[], bool]) -> None:
            for _ in range(20):
                with contextlib.suppress(LinkDown):
                    await act()
                with contextlib.suppress(AssertionError):
                    await until(done, 2.0)
                    return
            raise AssertionError("it did not come to pass")

        await insist(vehicle.arm, vehicle.is_armed)
        await insist(lambda: vehicle.take_off(6.0), vehicle.is_flying)
        await insist(vehicle.land, vehicle.is_landed)
        assert not simulated.armed
        assert simulated.landed is Landed.ON_GROUND


async def test_any_bytes_from_the_radio_do_no_harm() -> None:
    chance = random.Random(7)
    async with pair() as (vehicle, simulated):
        for _ in range(500):
            noise = bytearray(chance.randbytes(chance.choice((0, 1, 9, 60, 300))))
            if noise:
                noise[0] = chance.choice((0xFD, 0xFE, noise[0]))
            simulated.send_raw(bytes(noise))
        whole = bytearray(MavWriter(1, 1).frame(SysStatus(battery_remaining=1)))
        for _ in range(500):
            broken = bytearray(whole)
            broken[chance.randrange(len(broken))] ^= chance.randint(1, 255)
            simulated.send_raw(bytes(broken))
        await asyncio.sleep(0.3)
        await vehicle.arm()
        battery = vehicle.battery()
        assert battery is not None
        assert battery.percent == 100.0, "nothing damaged was believed"
        assert vehicle.frames.bad_bytes > 1_000


async def test_others_on_the_link_are_not_our_vehicle() -> None:
    async with pair() as (vehicle, simulated):
        for system in range(2, 60):
            simulated.send_raw(MavWriter(system, 1).frame(SysStatus(battery_remaining=3)))
            simulated.send_raw(MavWriter(system, 1).frame(Heartbeat(autopilot=3, base_mode=128)))
        simulated.send_raw(MavWriter(1, 154).frame(Heartbeat(autopilot=Autopilot.NONE, base_mode=128)))
        await until(lambda: vehicle.counters.strangers >= 116)
        battery = vehicle.battery()
        assert battery is not None
        assert battery.percent == 100.0
        assert not vehicle.is_armed()


async def test_a_second_sender_cannot_take_the_link_over() -> None:
    async with pair() as (vehicle, simulated), SimulatedVehicle("127.0.0.1", vehicle.port, pace=30.0) as thief:
        thief.battery_percent = 1.0
        await asyncio.sleep(0.6)
        battery = vehicle.battery()
        assert battery is not None
        assert battery.percent == 100.0
        await vehicle.arm()
        assert simulated.armed
        assert not thief.armed


async def test_before_anybody_has_spoken_nothing_can_be_sent() -> None:
    vehicle = Vehicle("udpin://127.0.0.1:0")
    with pytest.raises(LinkDown, match="the link is closed"):
        await vehicle.land()
    await vehicle.open()
    with pytest.raises(LinkDown, match="nobody has spoken yet"):
        await vehicle.land()
    await vehicle.close()


async def test_it_can_speak_first() -> None:
    other = Vehicle("udpin://127.0.0.1:0")
    await other.open()
    first = Vehicle(f"udpout://127.0.0.1:{other.port}")
    await first.open()
    await until(lambda: other.frames.frames > 0)
    await first.close()
    await other.close()


async def test_a_port_that_is_taken_is_said_at_once() -> None:
    one = Vehicle("udpin://127.0.0.1:0")
    await one.open()
    with pytest.raises(ConfigError, match="cannot be opened"):
        await Vehicle(f"udpin://127.0.0.1:{one.port}").open()
    await one.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "udpin://",
        "udpin://0.0.0.0",
        "udpin://0.0.0.0:99999",
        "udpin://0.0.0.0:1?baud=1",
        "tcp://127.0.0.1:5760",
        "serial:///dev/x?speed=1",
        "serial:///dev/x?baud=fast",
        "serial:///dev/x?baud=12345",
        "serial://",
    ],
)
def test_urls_that_name_no_vehicle(url: str) -> None:
    with pytest.raises(ConfigError, match="vehicle"):
        Vehicle(url)


class Line:
    """A serial line whose other end is ours: a pseudo-terminal."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.path = os.ttyname(slave)
        os.close(slave)
        os.set_blocking(self.master, False)
        self.parser = MavParser()

    def read(self) -> list[Any]:
        try:
            return [frame.message for frame in self.parser.feed(os.read(self.master, 4096))]
        except OSError:
            return []


async def test_a_serial_line_is_a_link_too_and_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(link_module, "REOPEN_S", 0.05)
    place = tmp_path / "ttyACM0"
    vehicle = Vehicle(f"serial://{place}?baud=57600")
    await vehicle.open()
    with pytest.raises(LinkDown, match="the line is not there"):
        await vehicle.land()
    for life in (1, 2):
        line = Line()
        place.unlink(missing_ok=True)
        place.symlink_to(line.path)
        heard: list[Any] = []
        writer = MavWriter(1, 1)
        for _ in range(400):
            os.write(line.master, writer.frame(Heartbeat(type=2, autopilot=12)))
            os.write(line.master, b"\n" + writer.frame(SysStatus(battery_remaining=40 + life)))
            await asyncio.sleep(0.01)
            heard += line.read()
            battery = vehicle.battery()
            if battery is not None and battery.percent == 40 + life and any(type(one) is Heartbeat for one in heard):
                break
        else:
            raise AssertionError("it was not heard")
        os.close(line.master)
        await asyncio.sleep(0.02)
    await vehicle.close()


async def test_pymavlink_flies_our_simulated_vehicle() -> None:
    """That it speaks the real protocol is not for us to say."""
    station = mavutil.mavlink_connection("udpin:127.0.0.1:0", source_system=255, dialect="common")
    station.port.setblocking(False)
    port = station.port.getsockname()[1]
    async with SimulatedVehicle("127.0.0.1", port, pace=30.0) as simulated:

        async def hear(name: str, accept: Callable[[Any], bool] = lambda _: True) -> Any:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                await asyncio.sleep(0.002)
                message = station.recv_match(type=name, blocking=False)
                if message is not None and accept(message):
                    return message
            raise AssertionError(f"no {name}")

        beat = await hear("HEARTBEAT")
        assert (beat.type, beat.autopilot) == (2, 12)
        station.mav.command_long_send(1, 1, 400, 0, 1, 0, 0, 0, 0, 0, 0)
        assert (await hear("COMMAND_ACK")).result == 0
        station.mav.command_long_send(1, 1, 22, 0, 0, 0, 0, 0, 0, 0, 498.0)
        assert (await hear("COMMAND_ACK")).command == 22
        await hear("GLOBAL_POSITION_INT", lambda message: message.relative_alt > 9_500)
        station.mav.command_long_send(1, 1, 21, 0, 0, 0, 0, 0, 0, 0, 0)
        await hear("EXTENDED_SYS_STATE", lambda message: message.landed_state == 1)
        assert (await hear("BATTERY_STATUS")).battery_remaining >= 90
        assert not simulated.armed
        station.mav.command_long_send(1, 1, 31000, 0, 0, 0, 0, 0, 0, 0, 0)
        assert (await hear("COMMAND_ACK", lambda message: message.command == 31000)).result == 3
    station.close()
