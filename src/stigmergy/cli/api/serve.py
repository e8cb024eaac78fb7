"""`stigmergy serve`: the API of a running fleet over HTTP and gRPC, and the options of every command that serves it.

`serve` runs beside a node or a fleet on workers; `run --serve` has the API in the node's own process, which is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stigmergy.app.blobs import BlobsAt, blobs_url
from stigmergy.app.cluster_client import find_workers
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import ConfigError, NotRunning
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, Output
from stigmergy.cli.display.places import (
    ClusterPlace,
    add_place,
    config_of,
    find_place,
    fleet_spec,
    folder_of,
    load_fleet,
    module_folder,
)
from stigmergy.serve.tokens import tokens_path

if TYPE_CHECKING:
    from stigmergy.serve.asker import Asker
    from stigmergy.serve.server import Serving

LISTEN = "127.0.0.1:8080"
FIRST_WORKER_S_MAX = 30.0
FIRST_WORKER_PAUSE_S = 0.5
"""A cluster that is started together with this server has so long until its first worker has joined."""
SERVE_EXAMPLES = """examples:
  stigmergy serve drone:fleet                                  beside the node that runs here
  stigmergy serve drone:fleet --nats nats://hub:4222           for a fleet on workers
  stigmergy serve drone:fleet --listen 0.0.0.0:8443 --cert fleet.crt --cert-key fleet.pem    for others, with tokens
  stigmergy serve drone:fleet --grpc :9090                     gRPC too; stigmergy proto makes the .proto file
  curl http://127.0.0.1:8080/v1/agents                         then ask; /docs shows what there is
"""


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds `serve`."""
    parser = commands.add_parser(
        "serve",
        parents=[common],
        help="serve a running fleet over HTTP",
        description="Serves the HTTP API of a running node, or of a fleet on several workers.",
        epilog=SERVE_EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument("--listen", metavar="HOST:PORT", default=LISTEN, help=f"where to listen ({LISTEN})")
    add_serving(parser)
    add_place(parser, fleet=False, nats=True)
    parser.set_defaults(run=serve)


def add_serving(parser: argparse.ArgumentParser) -> None:
    """The options of everything that serves HTTP or gRPC."""
    serving = parser.add_argument_group("HTTP and gRPC")
    serving.add_argument("--grpc", metavar="HOST:PORT", help="serve gRPC there, such as :9090 on this machine")
    serving.add_argument("--numbers", metavar="FILE", type=Path, help="field numbers of gRPC; else beside the module")
    serving.add_argument("--tokens", metavar="FILE", type=Path, help="the token file; else beside the journal")
    serving.add_argument("--cert", metavar="FILE", type=Path, help="the certificate for TLS")
    serving.add_argument("--cert-key", metavar="FILE", type=Path, help="its private key")
    serving.add_argument(
        "--host", metavar="NAME", action="append", default=[], help="a further name of this server; repeatable"
    )
    serving.add_argument(
        "--cors", metavar="ORIGIN", action="append", default=[], help="web pages of this origin may ask; repeatable"
    )
    serving.add_argument("--rate", metavar="N", type=float, help="requests of one caller in a second, at most")
    serving.add_argument("--insecure", action="store_true", help="let others in without tokens or TLS")


def serving_of(
    arguments: argparse.Namespace, listen: str | None, journal: Path | None, fleet: str, folder: Path
) -> Serving | None:
    """What the command line says; None if nothing is to be served. `folder` is that of the fleet's module. Raises
    ConfigError."""
    if listen is None and arguments.grpc is None:
        return None
    from stigmergy.serve.access import RATE_PER_S, Policy
    from stigmergy.serve.listener import read_address
    from stigmergy.serve.server import Serving

    if arguments.rate is not None and not 0 < arguments.rate < 1e9:
        raise ConfigError(f"--rate {arguments.rate:g}: give how many requests a second one caller may make")
    for origin in arguments.cors:
        if not re.fullmatch(r"https?://[^/\s]+", origin):
            raise ConfigError(f"--cors {origin}: give an origin, such as https://ops.example, without a path")
    http, grpc = (
        None if text is None else read_address(text, arguments.cert, arguments.cert_key)
        for text in (listen, arguments.grpc)
    )
    return Serving(
        http,
        arguments.tokens or tokens_path(journal, fleet),
        Policy(tuple(name.lower() for name in arguments.host), tuple(arguments.cors), arguments.rate or RATE_PER_S),
        arguments.insecure,
        grpc,
        arguments.numbers or (Path() if grpc is None else _numbers_path(folder, fleet)),
    )


def _numbers_path(folder: Path, fleet: str) -> Path:
    try:
        from stigmergy.proto.service import numbers_path
    except ModuleNotFoundError as error:
        raise ConfigError(f'--grpc needs {error.name}: pip install "stigmergy[grpc]"') from None
    return numbers_path(folder, fleet)


def serve(arguments: argparse.Namespace, output: Output) -> int:
    """Serves until it is stopped."""
    place, config = find_place(arguments), config_of(arguments)
    spec = fleet_spec(arguments, config)
    fleet = load_fleet(spec, folder_of(arguments))
    journal = None if isinstance(place, ClusterPlace) else Path(str(place).removesuffix(".sock"))
    serving = serving_of(arguments, arguments.listen, journal, fleet.name, module_folder(spec))
    assert serving is not None
    named = config.fleet.blobs
    beside = place.url if isinstance(place, ClusterPlace) else f"sqlite:{journal}"
    url = blobs_url(named or (place.url if isinstance(place, ClusterPlace) else None), beside)
    bounds = (config.settings or fleet.settings).blobs
    blobs = BlobsAt(url, fleet.name, SystemClock(), SystemThreads(), bounds, make_folder=named is None)
    return asyncio.run(_serve(fleet, place, serving, blobs, output))


async def _serve(fleet: Fleet, place: Path | ClusterPlace, serving: Serving, blobs: BlobsAt, output: Output) -> int:
    from stigmergy.serve.server import ApiServer

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = ApiServer(fleet, await _asker(fleet, place), serving, blobs.blobs)
    urls = await server.start()
    try:
        tell_serving(output, fleet.name, urls)
        await stopping.wait()
    finally:
        await server.close()
        await blobs.stop()
    output.document({"event": "stopped", "fleet": fleet.name})
    return exits.OK


async def _asker(fleet: Fleet, place: Path | ClusterPlace) -> Asker:
    from stigmergy.serve.asker import SocketAsker, WorkersAsker

    if isinstance(place, Path):
        return SocketAsker(place)
    until_s = time.monotonic() + FIRST_WORKER_S_MAX
    while True:
        workers, bus = await find_workers(place.url, fleet, "serve")
        if workers is not None:
            break
        await bus.close()
        if time.monotonic() > until_s:
            raise NotRunning(f"no worker of the fleet {fleet.name!r} was ever started at {place.url}; start one first")
        await asyncio.sleep(FIRST_WORKER_PAUSE_S)
    return WorkersAsker(workers)


def tell_serving(output: Output, fleet: str, urls: Sequence[str]) -> None:
    """Says where the API is: that of HTTP in `url`, that of gRPC in `grpc`."""
    by_scheme = {"grpc" if url.startswith("grpc") else "url": url for url in urls}
    output.document({"event": "serving", "fleet": fleet, **by_scheme})
    for url in urls:
        output.line(("serving", GOOD), f" {url}{'/docs' if url.startswith('http') else ''}")
