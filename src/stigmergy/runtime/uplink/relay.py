"""What of a node on a bus has to do with uplinks: its own, if it has a rule for one, and those that it collects."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stigmergy.core.uplink import UplinkRule
from stigmergy.ports.bus import Bus
from stigmergy.runtime.host import Host
from stigmergy.runtime.listening import Collect
from stigmergy.runtime.telling import Teller
from stigmergy.runtime.uplink.collector import Collector
from stigmergy.runtime.uplink.names import Sender
from stigmergy.runtime.uplink.sender import Uplink, UplinkStanding


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
    ) -> None:
        settings = host.settings
        self._host = host
        self.uplink = None if rule is None else Uplink(bus, host, me, rule, settings.uplink, run)
        self.collector = Collector(bus, host, me, run, teller, collects, settings.bus) if collects else None

    async def start(self) -> None:
        """After the host has started, and before the bus opens."""
        if self.collector is not None:
            await self.collector.start()
        if self.uplink is not None:
            # From now on retention keeps what is still to be sent.
            self._host.housekeeper.safeguards.uplink = self.uplink
            await self.uplink.start()

    def link(self, up: bool) -> None:
        """The link came up or was lost."""
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

    def standing(self) -> UplinkStanding | None:
        """How the node's own uplink stands; None without one."""
        return None if self.uplink is None else self.uplink.standing()

    @property
    def troubles(self) -> list[str]:
        """Why nothing goes up at present, if somebody has to do something about it."""
        standing = self.standing()
        return [f"uplink: {standing.trouble}"] if standing is not None and standing.trouble else []

    def counters(self) -> dict[str, int]:
        """What was sent up and collected."""
        sent = {} if self.uplink is None else self.uplink.counted()
        return sent if self.collector is None else {**sent, **structs.asdict(self.collector.counters)}
