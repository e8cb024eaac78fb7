"""A grid on one node or on several in this program, each with its own journal and key, and the traffic between them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType

from apps.traffic.city import Roadside, make_fleet
from apps.traffic.grid import grid
from apps.traffic.intersection import Intersection
from apps.traffic.messages import Survey
from apps.traffic.phases import Geometry, Phase
from apps.traffic.traffic import Rates, Traffic
from stigmergy import Fleet, Live, Settings
from stigmergy.serve.embedded import Running, ServedFleet

NARROW = Geometry(width_m=5.0, speed_m_s=13.9, block_m=140.0)
"""A small intersection: its clearances are short, so that more happens in a minute."""
SITE = "town"


class Town:
    """Nodes that run; leave it and they stop. The roadside is there before and after."""

    def __init__(
        self,
        rows: int,
        columns: int,
        folder: Path,
        *,
        nodes: int = 1,
        bus: str | None = None,
        memory: bool = False,
        seed: int = 1,
        rates: Rates | None = None,
        geometry: Geometry = NARROW,
        kind: type[Intersection] = Intersection,
        settings: Settings | None = None,
        serve: str | None = None,
    ) -> None:
        """`serve` is where the page of the first node is shown, HOST:PORT."""
        self.url = ""
        """Of the page, once it is shown."""
        self._serve = serve
        self.rows, self.columns = rows, columns
        self.names = grid(rows, columns)
        self._folder = folder
        self._bus = bus
        self._memory = memory
        self._seed = seed
        self._rates = rates
        self._geometry = geometry
        self._kind = kind
        self._settings = settings
        self.roadside = Roadside(geometry)
        self.placement = {f"node-{number + 1}": self.names[number::nodes] for number in range(nodes)}
        self.lives: dict[str, Live] = {}
        self._stack = contextlib.AsyncExitStack()
        self._clocks: asyncio.Task[None] | None = None
        self._traffic: Traffic | None = None

    @property
    def traffic(self) -> Traffic:
        """The vehicles."""
        if self._traffic is None:
            raise RuntimeError("the town does not run yet; enter it first")
        return self._traffic

    def address(self, name: str) -> str:
        """The address of an intersection."""
        return f"{self._kind.__name__}/{name}"

    def state(self, name: str) -> Intersection:
        """What an intersection has on its disk."""
        node = next(node for node, names in self.placement.items() if name in names)
        return self.lives[node].query(self.address(name), self._kind)

    async def __aenter__(self) -> Town:
        self._traffic = self.roadside.traffic(self.rows, self.columns, self._seed, self._rates)
        self._clocks = asyncio.ensure_future(self.roadside.run(self._traffic))
        try:
            for node, names in self.placement.items():
                running = self._running(node, names)
                self.lives[node] = await self._stack.enter_async_context(running)
                if self._serve is not None and not self.url:
                    served = await self._stack.enter_async_context(ServedFleet(running, self.lives[node], self._serve))
                    self.url = served.url
                for name in names:
                    await self._survey(self.lives[node], name)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if self._clocks is not None:
            self._clocks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clocks

    def make_fleet(self, roadside: Roadside) -> Fleet:
        """The fleet of a node."""
        return make_fleet(roadside, self._kind, self.rows, self.columns)

    def _running(self, node: str, names: list[str]) -> Running:
        return self.make_fleet(self.roadside).running(
            journal="memory:" if self._memory else f"sqlite:{self._folder / node}.db",
            key=self._folder / f"{node}.key",
            settings=self._settings,
            agents=[self.address(name) for name in names],
            bus=self._bus,
            site=SITE,
            node=node,
        )

    async def _survey(self, live: Live, name: str) -> None:
        """Tells an intersection how large it is; one that is at work already knows it."""
        if live.query(self.address(name), self._kind).phase is Phase.ALL_RED:
            size = self._geometry
            await live.send(self.address(name), Survey(size.width_m, size.speed_m_s, size.block_m))
