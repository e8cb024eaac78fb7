"""The link to a vehicle: datagrams or a serial line, heartbeats out, frames in. It mends itself and never raises.

udpin://0.0.0.0:14540         waits for the vehicle, and answers where it speaks from
udpout://192.168.1.10:14555   speaks first
serial:///dev/ttyACM0?baud=57600
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
from collections.abc import Callable
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from stigmergy.adapters.mavlink.frames import Frame, Parser
from stigmergy.core.errors import ConfigError, LinkDown

REOPEN_S = 1.0
"""How long a serial line that is gone is left alone before it is opened again."""
READ_BYTES_MAX = 4096
PARTNER_S = 5.0
"""So long an address that has spoken keeps the link to itself."""

Heard = Callable[[Frame], None]


class Link(Protocol):
    """A way to a vehicle."""

    parser: Parser

    async def open(self) -> None:
        """Opens it; raises ConfigError if that can never work."""
        ...

    def send(self, data: bytes) -> None:
        """Sends a frame, or raises LinkDown if there is no way to send it. That it arrives nobody knows."""
        ...

    async def close(self) -> None:
        """Closes it."""
        ...


class UdpLink(asyncio.DatagramProtocol):
    """Datagrams. Listening, it speaks to whoever has spoken last, but to one partner at a time."""

    def __init__(self, url: str, host: str, port: int, heard: Heard, *, listens: bool) -> None:
        self.parser = Parser()
        self._url = url
        self._place = (host, port)
        self._heard = heard
        self._listens = listens
        self._transport: asyncio.DatagramTransport | None = None
        self._partner: tuple[str, int] | None = None
        self._partner_until_s = 0.0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        here, there = (self._place, None) if self._listens else (None, self._place)
        try:
            opened = await loop.create_datagram_endpoint(lambda: self, local_addr=here, remote_addr=there)
        except OSError as error:
            raise ConfigError(f"vehicle {self._url!r}: cannot be opened: {error}") from None
        self._transport = opened[0]

    @property
    def port(self) -> int:
        """Where we listen."""
        return 0 if self._transport is None else int(self._transport.get_extra_info("sockname")[1])

    def send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise LinkDown(f"vehicle {self._url!r}: the link is closed")
        if self._listens and self._partner is None:
            raise LinkDown(f"vehicle {self._url!r}: nobody has spoken yet, so there is nobody to answer")
        self._transport.sendto(data, self._partner if self._listens else None)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await asyncio.sleep(0)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._listens and addr != self._partner and now_s < self._partner_until_s:
            return
        for frame in (*self.parser.feed(data), *self.parser.finish()):
            # Only who speaks our language becomes our partner.
            self._partner, self._partner_until_s = addr, now_s + PARTNER_S
            self._heard(frame)

    def error_received(self, exc: Exception) -> None:
        """The other side is not there: its silence says as much."""


class SerialLink:
    """A serial line, as flight controllers have them. Unplugged, it is looked for again."""

    def __init__(self, url: str, path: str, baud: int, heard: Heard) -> None:
        self.parser = Parser()
        self._url = url
        self._path = path
        self._speed = getattr(termios, f"B{baud}", None)
        self._heard = heard
        self._file: int | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        if self._speed is None:
            raise ConfigError(f"vehicle {url!r}: {baud} baud is no speed of a serial line here; 57600 is usual")

    async def open(self) -> None:
        self._closed = False
        self._open()

    def send(self, data: bytes) -> None:
        if self._file is None:
            raise LinkDown(f"vehicle {self._url!r}: the line is not there")
        try:
            os.write(self._file, data)
        except BlockingIOError:
            raise LinkDown(f"vehicle {self._url!r}: the line takes nothing at the moment") from None
        except OSError as error:
            self._lost()
            raise LinkDown(f"vehicle {self._url!r}: {error.strerror}") from None

    async def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        self._lost()

    def _open(self) -> None:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                settings = termios.tcgetattr(file)
                flags = termios.CS8 | termios.CREAD | termios.CLOCAL
                raw = [0, 0, flags, 0, self._speed, self._speed, settings[6]]
                termios.tcsetattr(file, termios.TCSANOW, raw)
            except BaseException:
                os.close(file)
                raise
        except (OSError, termios.error):
            self._look_again()
            return
        self._file = file
        asyncio.get_running_loop().add_reader(file, self._readable)

    def _readable(self) -> None:
        assert self._file is not None
        try:
            data = os.read(self._file, READ_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for frame in self.parser.feed(data):
            self._heard(frame)

    def _lost(self) -> None:
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
        self._look_again()

    def _look_again(self) -> None:
        if not self._closed:
            self._again = asyncio.get_running_loop().call_later(REOPEN_S, self._open)


def link_of(url: str, heard: Heard) -> UdpLink | SerialLink:
    """The link that a URL names; raises ConfigError for one that names none."""
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        if parts.scheme in {"udpin", "udpout"} and parts.hostname and parts.port is not None and not options:
            return UdpLink(url, parts.hostname, parts.port, heard, listens=parts.scheme == "udpin")
        if parts.scheme == "serial" and parts.path and set(options) <= {"baud"}:
            return SerialLink(url, parts.path, int(options.get("baud", ["57600"])[0]), heard)
    except ValueError:
        pass
    raise ConfigError(
        f"vehicle {url!r}: give udpin://0.0.0.0:14540, udpout://host:14555 or serial:///dev/ttyACM0?baud=57600"
    )
