"""What stands around the host of one shard, and its life in order: neighbours, devices, bus, company, control.

Made before the host starts, which releases then what is still owed. Whatever is missing is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from stigmergy.core.errors import StigmergyError
from stigmergy.ports.bus import Bus
from stigmergy.ports.following import ShardLog
from stigmergy.runtime.cluster.leased_host import LeasedHost
from stigmergy.runtime.company import Companions
from stigmergy.runtime.devices import Devices
from stigmergy.runtime.link import BusLink
from stigmergy.runtime.live import Live
from stigmergy.runtime.neighbours import Neighbours


class Door(Protocol):
    """Where operators ask the host of a shard."""

    async def start(self) -> None:
        """Begins to answer."""
        ...

    async def close(self) -> None:
        """Answers nobody any more."""
        ...


class House:
    """The surroundings of one host."""

    def __init__(
        self,
        *,
        neighbours: Neighbours | None = None,
        devices: Devices | None = None,
        link: BusLink | None = None,
        bus: Bus | None = None,
        companions: Companions | None = None,
        door: Callable[[Live], Door] | None = None,
    ) -> None:
        self.neighbours = neighbours
        self.devices = devices
        self.link = link
        self._bus = bus
        """The connection of the link, which is closed whatever way it ends."""
        self.companions = companions
        self._make_door = door
        self._door: Door | None = None
        self._started: list[Neighbours | Devices | BusLink | Companions] = []

    async def start(self, live: Live) -> None:
        """Right behind the start of the host, before its first turn. Raises, with all of it ended again."""
        live.neighbours, live.link, live.companions = self.neighbours, self.link, self.companions
        try:
            # Side by side: each way to the servers and back is time in which the shard has no owner.
            await asyncio.gather(self._meet_neighbours(), self._open_door(live))
            if self.devices is not None:
                self._started.append(self.devices)
                self.devices.start()
            if self.link is not None:
                self._started.append(self.link)
                await self.link.start()
            if self.companions is not None:
                self._started.append(self.companions)
                await self.companions.start()
        except BaseException:
            await self.kill()
            raise

    async def _meet_neighbours(self) -> None:
        if self.neighbours is not None:
            self._started.append(self.neighbours)
            await self.neighbours.start()

    async def _open_door(self, live: Live) -> None:
        if self._make_door is not None:
            self._door = self._make_door(live)
            await self._door.start()

    async def stop(self) -> None:
        """Before the host stops: nothing more is taken, what is owed leaves if it can."""
        leaving = [part for part in self._started if isinstance(part, Neighbours)]
        await asyncio.gather(self._close_door(), *(part.stop() for part in leaving))
        for part in _in_order(self._started, (Devices, Companions, BusLink)):
            await part.stop()
        self._started.clear()

    async def kill(self) -> None:
        """Ends all of it as it is, without a word to anybody."""
        await self._close_door()
        for part in _in_order(self._started, (Devices, Companions, BusLink, Neighbours)):
            with contextlib.suppress(StigmergyError):
                await (part.stop() if isinstance(part, Neighbours) else part.kill())
        self._started.clear()
        if self._bus is not None:
            with contextlib.suppress(StigmergyError):
                await self._bus.close()

    async def _close_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            with contextlib.suppress(StigmergyError):
                await door.close()


Part = Neighbours | Devices | BusLink | Companions


def _in_order(parts: Sequence[Part], kinds: Sequence[type[Part]]) -> list[Part]:
    return [part for kind in kinds for part in parts if isinstance(part, kind)]


class Estate(Protocol):
    """What a worker needs of the world for a shard; the composition root gives it."""

    async def open_log(self, shard: int) -> ShardLog:
        """The log of a shard, made if there is none. Raises LinkDown, JournalForeign, ConfigError."""
        ...

    def furnish(self, host: LeasedHost, shard: int, claim: int) -> House:
        """What stands around the host of a shard, not yet started. `claim` is the number by which we own it."""
        ...
