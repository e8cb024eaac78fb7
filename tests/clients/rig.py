"""A fleet in this process that serves HTTP and gRPC, and the clients of both."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trustme

import stigmergy as st
from stigmergy.proto.numbers import write_numbers
from stigmergy.proto.service import FleetProto
from stigmergy.serve.asker import Asker, NodeAsker
from stigmergy.serve.listener import read_address
from stigmergy.serve.server import ApiServer, Serving

WAIT_S_MAX = 240.0
"""Only what is broken takes so long."""
SCHEMES = ("http", "grpc")


class Drive(st.Command):
    to: str
    by: bytes = b""
    speed: float | None = None


class Driven(st.Event):
    to: str


class Seen(st.Event):
    by: str


class Parked(st.Event):
    x: float
    y: float


class Cart(st.Agent):
    at: str = ""
    drives: int = 0
    seen: tuple[str, ...] = ()

    @st.decide
    def drive(self, command: Drive) -> st.Events:
        if command.to == "moon":
            st.reject("no track leads there")
        yield Driven(to=command.to)

    @st.evolve
    def driven(self, event: Driven) -> None:
        self.at = event.to
        self.drives += 1

    @st.evolve
    def parked(self, event: Parked) -> None:
        self.at = f"{event.x:g},{event.y:g}"

    @st.evolve
    def saw(self, event: Seen) -> None:
        self.seen = (*self.seen, event.by)


class Board(st.Agent):
    tasks: st.Shared[st.ORSet[str]]


class Dock(st.View):
    to: st.Key[str]
    drives: int = 0
    last: str | None = None

    @st.project
    def driven(self, event: Driven, origin: st.Origin) -> None:
        self.drives += 1
        self.last = origin.agent


warehouse = st.Fleet("warehouse", agents=[Cart, Board], views=[Dock])


class Urls(dict[str, str]):
    """By scheme, without the s."""


@contextlib.asynccontextmanager
async def serving(
    fleet: st.Fleet,
    asker: Asker,
    folder: Path,
    *,
    authority: trustme.CA | None = None,
    identity: Path | None = None,
    ports: tuple[int, int] = (0, 0),
    **options: Any,
) -> AsyncIterator[Urls]:
    """Serves a fleet over both."""
    numbers, cert, key = folder / "numbers", None, None
    numbers.write_bytes(write_numbers(FleetProto(fleet, None).numbers))
    if authority is not None:
        issued = authority.issue_cert("127.0.0.1")
        cert, key = folder / "cert.pem", folder / "key.pem"
        issued.private_key_pem.write_to_path(key)
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    client_ca = None
    if identity is not None:
        cert = key = identity / "identity.pem"
        client_ca = identity / "ca.pem"
    http, grpc = (read_address(f"127.0.0.1:{port}", cert, key, client_ca) for port in ports)
    api = ApiServer(fleet, asker, Serving(http, folder / "tokens", grpc=grpc, numbers=numbers, **options))
    urls = await api.start()
    try:
        yield Urls(zip(SCHEMES, urls, strict=True))
    finally:
        await api.close()


@contextlib.asynccontextmanager
async def warehouse_served(folder: Path, journal: str = "memory:", **options: Any) -> AsyncIterator[Urls]:
    """An embedded node with its API in this process."""
    running = warehouse.running(journal=journal)
    async with (
        running as live,
        serving(warehouse, NodeAsker(running.service(live, "0", lambda: None)), folder, **options) as urls,
    ):
        yield urls


def client(urls: Urls, scheme: str, **options: Any) -> st.Client:
    """A client that is patient."""
    return st.connect(urls[scheme], **{"fleet": "warehouse", "within_s": WAIT_S_MAX, **options})
