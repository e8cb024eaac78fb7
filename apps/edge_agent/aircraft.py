"""The simulated aircraft in a process of its own, on UDP: `python -m apps.edge_agent.aircraft --port 14610`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

import msgspec

from apps.edge_agent.airframe import Airframe
from apps.edge_agent.cockpit import STEP_S, Call

LOOPBACK = "127.0.0.1"


class Aircraft(asyncio.DatagramProtocol):
    """Obeys whoever speaks to it, and tells the last one who did how it is."""

    def __init__(self, airframe: Airframe) -> None:
        self._airframe = airframe
        self._decoder = msgspec.json.Decoder(Call)
        self._partner: tuple[str, int] | None = None
        self.transport: asyncio.DatagramTransport | None = None

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Somebody speaks; what is no call is passed over."""
        try:
            call = self._decoder.decode(data)
        except msgspec.DecodeError:
            return
        self._partner = addr
        match call.do:
            case "take_off":
                self._airframe.take_off(call.key)
            case "drive":
                self._airframe.drive(call.thrust, call.speed_m_s)
            case "land":
                self._airframe.land()
            case _:
                pass

    def error_received(self, exc: Exception) -> None:
        """The partner is gone; another will come."""

    async def fly(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            await asyncio.sleep(STEP_S)
            now_s = loop.time()
            self._airframe.step(now_s - last_s)
            last_s = now_s
            if self.transport is not None and self._partner is not None:
                self.transport.sendto(msgspec.json.encode(self._airframe.seen()), self._partner)


async def run(port: int, airframe: Airframe) -> None:
    """Flies until the process ends."""
    aircraft = Aircraft(airframe)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: aircraft, local_addr=(LOOPBACK, port)
    )
    aircraft.transport = transport
    print(f"listening on {LOOPBACK}:{transport.get_extra_info('sockname')[1]}", flush=True)
    try:
        await aircraft.fly()
    finally:
        transport.close()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=14610, help="of loopback; 0 for a free one")
    parser.add_argument("--seed", type=int, default=1, help="of the gauge's noise")
    parser.add_argument("--battery", type=float, default=100.0, help="the charge to begin with")
    parser.add_argument("--pace", type=float, default=1.0, help="fly so many times faster")
    options = parser.parse_args()
    airframe = Airframe(seed=options.seed, battery=options.battery, pace=options.pace)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options.port, airframe))


if __name__ == "__main__":
    main()
