"""From where a drone's program reads and flies its aircraft: over UDP in a process of its own, or simulated on board.

Over UDP the aircraft goes on existing when the program is killed, as aircraft do. EDGE_AIRFRAME=127.0.0.1:14610 says
where it is; without it one is simulated in the program itself, and is gone with it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

import msgspec
from msgspec import Struct

from apps.edge_agent.airframe import Airframe, Mode, Seen

STEP_S = 0.02
FRESH_S = 0.5
"""What the aircraft said so long ago counts no more."""
WHERE = "EDGE_AIRFRAME"


class Call(Struct, frozen=True):
    """One datagram to the aircraft."""

    do: str
    key: str = ""
    thrust: float = 0.0
    speed_m_s: float = 0.0


class Cockpit(Protocol):
    """What the fleet needs of an aircraft; opened and closed with the node."""

    async def open(self) -> None:
        """Connects."""
        ...

    async def close(self) -> None:
        """Lets go."""
        ...

    def seen(self) -> Seen | None:
        """What the aircraft said last; None if that was not lately."""
        ...

    def is_in(self, *modes: Mode) -> bool:
        """Whether it is known to be in one of these modes."""
        ...

    def take_off(self, key: str) -> None:
        """Asks it to let itself be flown."""
        ...

    def drive(self, thrust: float, speed_m_s: float) -> None:
        """Flies it."""
        ...

    def land(self) -> None:
        """Has it come down."""
        ...


class OnBoard:
    """An aircraft that is simulated in this program."""

    def __init__(self, airframe: Airframe | None = None) -> None:
        self.airframe = airframe or Airframe()
        self.is_silent = False
        """Whether its instruments are broken, for tests."""
        self._flying: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._flying is None:
            self._flying = asyncio.ensure_future(self._fly())

    async def close(self) -> None:
        if self._flying is not None:
            self._flying.cancel()
            await asyncio.gather(self._flying, return_exceptions=True)
            self._flying = None

    def seen(self) -> Seen | None:
        return None if self.is_silent else self.airframe.seen()

    def is_in(self, *modes: Mode) -> bool:
        return self.airframe.mode in modes

    def take_off(self, key: str) -> None:
        self.airframe.take_off(key)

    def drive(self, thrust: float, speed_m_s: float) -> None:
        self.airframe.drive(thrust, speed_m_s)

    def land(self) -> None:
        self.airframe.land()

    async def _fly(self) -> None:
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            await asyncio.sleep(STEP_S)
            now_s = loop.time()
            self.airframe.step(now_s - last_s)
            last_s = now_s


class Radio(asyncio.DatagramProtocol):
    """An aircraft on the other side of UDP. Datagrams may be lost: who asks for something looks whether it is so."""

    def __init__(self, host: str, port: int) -> None:
        self._place = (host, port)
        self._transport: asyncio.DatagramTransport | None = None
        self._calling: asyncio.Task[None] | None = None
        self._seen: tuple[Seen, float] | None = None
        self._decoder = msgspec.json.Decoder(Seen)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=self._place)
        self._calling = asyncio.ensure_future(self._call())

    async def close(self) -> None:
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.gather(self._calling, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: object) -> None:
        """The aircraft speaks."""
        try:
            self._seen = (self._decoder.decode(data), asyncio.get_running_loop().time())
        except msgspec.DecodeError:
            return

    def error_received(self, exc: Exception) -> None:
        """Nobody is there: what was seen grows old."""

    def seen(self) -> Seen | None:
        if self._seen is None or asyncio.get_running_loop().time() - self._seen[1] > FRESH_S:
            return None
        return self._seen[0]

    def is_in(self, *modes: Mode) -> bool:
        seen = self.seen()
        return seen is not None and seen.mode in modes

    def take_off(self, key: str) -> None:
        self._send(Call("take_off", key=key))

    def drive(self, thrust: float, speed_m_s: float) -> None:
        self._send(Call("drive", thrust=thrust, speed_m_s=speed_m_s))

    def land(self) -> None:
        self._send(Call("land"))

    def _send(self, call: Call) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(msgspec.json.encode(call))

    async def _call(self) -> None:
        """Says where to answer to, again and again: the aircraft may have started after us."""
        while True:
            self._send(Call("hello"))
            await asyncio.sleep(0.2)


def find_cockpit() -> Cockpit:
    """The aircraft that the environment names, or one on board."""
    where = os.environ.get(WHERE)
    if where is None:
        return OnBoard()
    host, _, port = where.rpartition(":")
    return Radio(host, int(port))
