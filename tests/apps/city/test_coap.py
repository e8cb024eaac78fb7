"""The second door: readings by CoAP."""

from pathlib import Path

import aiocoap

from apps.city.coap import coap_door
from apps.city.fleet import make_fleet
from apps.city.layouts import CHANNELS, LEVEL, READING
from apps.city.sensor import GasSensor, Meter
from stigmergy.testing.brokers import free_port
from stigmergy.testing.bus_rig import WAIT_S, wait_until


async def test_readings_come_in_and_what_is_none_is_refused_and_counted(tmp_path: Path) -> None:
    port = free_port()
    fleet = make_fleet(lambda _: None, (), devices=False)
    raw = READING.write(number=3, **dict.fromkeys(CHANNELS, 1.0))
    running = fleet.running(journal="memory:", ledger=f"sqlite:{tmp_path / 'ledger.db'}")
    async with running as live, coap_door(live, "127.0.0.1", port) as door:
        context = await aiocoap.Context.create_client_context(transports=["udp6"])

        async def put(path: str, payload: bytes) -> aiocoap.Message:
            request = aiocoap.Message(code=aiocoap.PUT, uri=f"coap://127.0.0.1:{port}/{path}", payload=payload)
            return await context.request(request).response

        assert (await put("sensor/g1d1-003/raw", raw)).code == aiocoap.CHANGED
        assert (await put("sensor/g1d1-007/level", LEVEL.write(number=1, value=60.0))).code == aiocoap.CHANGED
        for path, payload, why in (
            ("sensor/g1d1-003/raw", raw[:-1], b"31 bytes"),
            ("sensor/g1d1-003/raw", raw[:4] + b"\x00\x00\xc0\x7f" + raw[8:], b"finite number"),
            ("elsewhere", raw, b"nothing at /elsewhere"),
        ):
            answer = await put(path, payload)
            assert answer.code == aiocoap.BAD_REQUEST
            assert why in answer.payload
        assert (door.taken, door.refused) == (2, 3)

        def numbers() -> tuple[int, int]:
            return live.query("GasSensor/g1d1-003", GasSensor).number, live.query("Meter/g1d1-007", Meter).number

        await wait_until(lambda: numbers() == (3, 1), WAIT_S)  # readings may wait a second for the disk
        await context.shutdown()
