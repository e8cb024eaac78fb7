"""What of a node on a bus has to do with uplinks: its own, if it has a rule for one, and those that it collects.

A gateway stands between two levels: its own uplink may leave by another bus than the one that its site is on, and those
of whole sites may come in by a third one. Without them all of it is on the node's bus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct, structs

from stigmergy.core.errors import ConfigError
from stigmergy.core.uplink import UplinkRule
from stigmergy.ports.bus import Bus
from stigmergy.runtime.host import Host
from stigmergy.runtime.listening import COLLECT_ALL, Collect
from stigmergy.runtime.telling import Teller
from stigmergy.runtime.uplink.collector import Basin, Collector
from stigmergy.runtime.uplink.names import Sender
from stigmergy.runtime.uplink.sender import Uplink, UplinkStanding

ANY_SITE = "+"


@runtime_checkable
class Counting(Protocol):
    """A bus that counts something of its own."""

    def counted(self) -> dict[str, int]:
        """By name."""
        ...


class Levels(Struct, frozen=True):
    """The buses to the levels above and below, where they are not the node's own."""

    above: Bus | None = None
    """By which its uplink leaves."""
    below: Bus | None = None
    """By which uplinks of all sites come in."""

    @property
    def buses(self) -> list[Bus]:
        """Those that there are."""
        return [bus for bus in (self.above, self.below) if bus is not None]


class Relay:
    """Both directions, and their life as part of the node's link."""

    def __init__(
        self,
        bus: Bus,
        host: Host,
        me: Sender,
        run: str,
        teller: Teller,
        rule: UplinkRule | None,
        collects: Sequence[Collect],
        levels: Levels | None = None,
    ) -> None:
        settings = host.settings
        self._host = host
        self.levels = levels or Levels()
        self.uplink = None if rule is None else Uplink(self.levels.above or bus, host, me, rule, settings.uplink, run)
        basins = [Basin(bus, me.site)] if collects else []
        if self.levels.below is not None:
            basins.append(Basin(self.levels.below, ANY_SITE))
            collects = (*collects, COLLECT_ALL)
        self.collector = Collector(basins, host, me, run, teller, collects, settings.bus) if basins else None
        if self.levels.above is not None:
            self.levels.above.on_link(self._heard_above)

    async def start(self) -> None:
        """After the host has started, and before the bus opens."""
        if self.collector is not None:
            await self.collector.start()
        if self.uplink is not None:
            # From now on retention keeps what is still to be sent.
            self._host.housekeeper.safeguards.uplink = self.uplink
            await self.uplink.start()
        for bus in self.levels.buses:
            await bus.open()

    def link(self, up: bool) -> None:
        """The node's own link came up or was lost."""
        if self.uplink is not None and self.levels.above is None:
            self.uplink.link(up)

    def _heard_above(self, up: bool) -> None:
        if self.uplink is not None:
            self.uplink.link(up)

    def close(self) -> None:
        """Collects nothing more."""
        if self.collector is not None:
            self.collector.close()

    async def stop(self) -> None:
        """Sends nothing more."""
        if self.uplink is not None:
            await self.uplink.stop()
        for bus in self.levels.buses:
            await bus.close()

    @property
    def is_cut_off(self) -> bool:
        """Whether the level above is out of reach, over the bus of its own that leads there."""
        return self.levels.above is not None and not self.levels.above.is_up

    @property
    def why_cut_off(self) -> str:
        """What keeps a level out of reach, if it has a bus of its own."""
        errors = [str(bus.last_error) for bus in self.levels.buses if bus.last_error is not None]
        return errors[0] if errors else ""

    def standing(self) -> UplinkStanding | None:
        """How the node's own uplink stands; None without one."""
        return None if self.uplink is None else self.uplink.standing()

    @property
    def troubles(self) -> list[str]:
        """Why nothing goes up at present, if somebody has to do something about it."""
        standing = self.standing()
        found = [f"uplink: {standing.trouble}"] if standing is not None and standing.trouble else []
        errors = (bus.last_error for bus in self.levels.buses)
        return [*found, *(str(error) for error in errors if isinstance(error, ConfigError))]

    def counters(self) -> dict[str, int]:
        """What was sent up and collected, and what the buses between levels have counted themselves."""
        found = {} if self.uplink is None else self.uplink.counted()
        if self.collector is not None:
            found |= structs.asdict(self.collector.counters)
        for bus in self.levels.buses:
            if isinstance(bus, Counting):
                found |= bus.counted()
        return found
