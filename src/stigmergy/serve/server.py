"""Serves a fleet over HTTP and gRPC: puts both, their gate and the listener together, starts and ends them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from stigmergy.agents.raw import RawGuard
from stigmergy.app.fleet import installed_version
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.withheld import Withholding
from stigmergy.metrics.samples import Collect, SampleSheet
from stigmergy.node.declaration import Declaration
from stigmergy.serve.access import AccessGate, Policy, check_listening
from stigmergy.serve.api import Api
from stigmergy.serve.asker import Asker, WithheldAsker
from stigmergy.serve.blobs import BlobRoutes
from stigmergy.serve.events import EventHub
from stigmergy.serve.figures import FigureHub, FigureRoutes
from stigmergy.serve.fleet_page import FleetPage
from stigmergy.serve.listener import Address, HttpListener
from stigmergy.serve.map import FleetMap, MapRoutes
from stigmergy.serve.metrics import MetricsPage, Targets
from stigmergy.serve.pages import Pages
from stigmergy.serve.streams import Streams
from stigmergy.serve.tokens import Tokens
from stigmergy.store.blobs import Blobs

if TYPE_CHECKING:
    from stigmergy.serve.grpc import GrpcServer


class Serving(Struct, frozen=True):
    """Where to listen, and for whom."""

    address: Address | None
    """For HTTP."""
    tokens: Path
    policy: Policy = Policy()
    insecure: bool = False
    """Whether others may be let in without tokens or TLS."""
    grpc: Address | None = None
    numbers: Path = Path()
    """The file of the field numbers, for gRPC."""

    def check(self, fleet: Declaration) -> None:
        """Raises ConfigError where this must not or cannot be served: to be called before anything is opened."""
        now_s = SystemClock().wall_ns() / 1e9
        for address in (self.address, self.grpc):
            if address is not None:
                _check_listening(address, Tokens(self.tokens), now_s, self)
        if self.grpc is not None:
            from stigmergy.proto.service import open_service

            open_service(fleet, self.numbers)


class ApiServer:
    """The API of a fleet, from `start` to `close`."""

    def __init__(
        self,
        fleet: Declaration,
        asker: Asker,
        serving: Serving,
        blobs: Blobs | None = None,
        collect: Collect | None = None,
        *,
        agents: bool = False,
        raw_may_leave: Sequence[str] | None = None,
    ) -> None:
        """Raises ConfigError where it must not listen. Without `blobs` there are none to put and get. `collect` gives
        what the node in this process measures; without one /metrics tells of this server only. With `agents` it names
        busy agents. `raw_may_leave` are the rules for raw kinds, those of the fleet's settings otherwise."""
        rules = fleet.settings.raw_may_leave if raw_may_leave is None else raw_may_leave
        asker = WithheldAsker(asker, Withholding(fleet.plans, RawGuard(fleet.plans, rules)))
        serving.check(fleet)
        clock, tokens = SystemClock(), Tokens(serving.tokens)
        gate = AccessGate(tokens, serving.policy, lambda: clock.wall_ns() / 1e9, lambda: clock.monotonic_ns() / 1e9)
        self._asker = asker
        self._hub = EventHub(asker, asker.parts(fleet.shards))
        streams = Streams(fleet.plans, gate, self._hub)
        pages = Pages(fleet, installed_version())
        past = asyncio.Lock()
        self._map = FleetMap(fleet.map_layers, asker, asker.parts(fleet.shards))
        self._figures = FigureHub(asker, clock)
        figures = FigureRoutes(self._figures, gate).routes()
        shown = [
            *figures,
            *MapRoutes(self._map, asker, gate, past).routes(),
            *FleetPage(fleet, installed_version(), asker).routes(),
        ]
        stored = [] if blobs is None else BlobRoutes(blobs).routes()
        page = MetricsPage(collect or _alone(fleet.name), agents=agents)
        measured = [*page.routes(), *Targets(asker).routes()]
        self.api = Api(
            fleet, asker, gate, SystemEntropy(), [*streams.routes(), *pages.routes(), *shown, *stored, *measured], past
        )
        page.put = self.api.requests.put
        pages.describe(self.api.routes.all)
        self._listener = None if serving.address is None else HttpListener(self.api, serving.address)
        self._grpc: GrpcServer | None = None
        if serving.grpc is not None:
            from stigmergy.proto.service import open_service
            from stigmergy.serve.grpc import GrpcServer

            proto = open_service(fleet, serving.numbers)
            self._grpc = GrpcServer(fleet, proto, asker, gate, self._hub, past, serving.grpc)

    async def start(self) -> list[str]:
        """Listens; the URLs, that of HTTP first. Raises ConfigError if it cannot."""
        urls: list[str] = []
        if self._listener is not None:
            urls.append((await self._listener.start()).url)
        if self._grpc is not None:
            try:
                await self._grpc.start()
            except BaseException:
                await self.close()
                raise
            urls.append(self._grpc.url)
        return urls

    async def close(self) -> None:
        """Ends streams, answers what is under way, and asks nobody any more."""
        await self._hub.close()
        await self._map.close()
        await self._figures.close()
        if self._listener is not None:
            await self._listener.close()
        if self._grpc is not None:
            await self._grpc.close()
        await self._asker.close()


def _alone(fleet: str) -> Collect:
    """What a server says that runs beside its fleet."""
    sheet = SampleSheet()
    sheet.put("stigmergy_node_info", 1, fleet=fleet, version=installed_version(), role="serve")
    return lambda: [sheet.samples()]


def _check_listening(address: Address, tokens: Tokens, now_s: float, serving: Serving) -> None:
    tls = address.cert is not None
    if why := check_listening(address.host, tokens, now_s, tls=tls, insecure=serving.insecure):
        raise ConfigError(why)
