"""The drone's program and its aircraft over real UDP: garbage changes nothing, and silence is seen."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from apps.edge_agent import cockpit
from apps.edge_agent.aircraft import LOOPBACK, Aircraft
from apps.edge_agent.airframe import Airframe
from apps.edge_agent.cockpit import OnBoard, Radio, find_cockpit


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():  # noqa: ASYNC110 - the world sets no events
            await asyncio.sleep(0.01)


async def test_the_radio_flies_the_aircraft() -> None:
    airframe = Airframe()
    aircraft = Aircraft(airframe)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: aircraft, local_addr=(LOOPBACK, 0))
    aircraft.transport = transport
    flying = asyncio.ensure_future(aircraft.fly())
    port: int = transport.get_extra_info("sockname")[1]
    radio = Radio(LOOPBACK, port)
    assert radio.seen() is None
    assert not radio.is_in("parked")
    await radio.open()
    try:
        await wait_until(lambda: radio.is_in("parked"))
        radio.take_off("1")
        await wait_until(lambda: radio.is_in("guided"))
        radio.drive(0.9, 5.0)
        await wait_until(lambda: airframe.height_m > 0.2)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for garbage in (b"", b"{", b'{"do": 3}', b'{"do": "explode"}', b"\xff" * 1000):
                stranger.sendto(garbage, (LOOPBACK, port))
        radio.datagram_received(b"nonsense", (LOOPBACK, port))
        radio.land()
        await wait_until(lambda: radio.is_in("landing", "parked"))
        assert airframe.take_offs == 1
    finally:
        flying.cancel()
        await asyncio.gather(flying, return_exceptions=True)
        transport.close()
    await wait_until(lambda: radio.seen() is None)
    radio.drive(0.5, 0.0)
    await radio.close()
    radio.land()


def test_the_environment_says_where_the_aircraft_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cockpit.WHERE, raising=False)
    assert isinstance(find_cockpit(), OnBoard)
    monkeypatch.setenv(cockpit.WHERE, "127.0.0.1:14610")
    assert isinstance(find_cockpit(), Radio)
