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
from stigmergy.app.fleet import FLIGHT, Fleet, inspect_all, installed_version
from stigmergy.app.parts import shown_url
from stigmergy.audit.flight_format import FLIGHT_MAGIC
from stigmergy.base.errors import ConfigError, NotRunning, StigmergyError
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.cli.display import exits
from stigmergy.cli.display.logs import add_log, log_of
from stigmergy.cli.display.output import GOOD, NAME, Output
from stigmergy.cli.display.places import (
    ClusterPlace,
    add_place,
    config_of,
    find_place,
    fleet_spec,
    folder_of,
    load_fleet,
    module_folder,
    url_of,
)
from stigmergy.control.playback import LogPlayback
from stigmergy.control.protocol import StatusRequest
from stigmergy.node.declaration import Declaration
from stigmergy.pki.identity import PAIR, check_identity
from stigmergy.serve.tokens import tokens_path

if TYPE_CHECKING:
    from stigmergy.serve.asker import Asker
    from stigmergy.serve.server import ApiServer, Serving

LISTEN = "127.0.0.1:8080"
SERVING_OPTIONS = (
    "--grpc",
    "--numbers",
    "--tokens",
    "--cert",
    "--cert-key",
    "--client-ca",
    "--client-crl",
    "--host",
    "--cors",
    "--rate",
    "--insecure",
)
"""Those of `add_serving`."""
NODE_S_MAX = 5.0
"""So long a node that is there has to say which fleet it runs; else it is asked again with the first request."""
FIRST_WORKER_S_MAX = 30.0
FIRST_WORKER_PAUSE_S = 0.5
"""A cluster that is started together with this server has so long until its first worker has joined."""
SERVE_EXAMPLES = """examples:
  stigmergy serve drone:fleet                                  beside the node that runs here
  stigmergy serve drone:fleet --nats nats://hub:4222           for a fleet on workers
  stigmergy serve drone:fleet --listen 0.0.0.0:8443 --cert fleet.crt --cert-key fleet.pem    for others, with tokens
  stigmergy serve drone:fleet --grpc :9090                     gRPC too; stigmergy proto makes the .proto file
  stigmergy serve drone:fleet --log flight-1.log               play a flight log back, on the map and in time
  curl http://127.0.0.1:8080/v1/agents                         then ask; /docs shows what there is
"""


def add_commands(commands: Any) -> None:
    """Adds `serve`."""
    parser = commands.add_parser(
        "serve",
        run=serve,
        help="serve a running fleet over HTTP",
        description="Serves the HTTP API of a running node, or of a fleet on several workers.",
        epilog=SERVE_EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument(
        "--log", metavar="FILE", help="play back this flight log, or the journal of a node that does not run"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", default=LISTEN, help=f"where to listen ({LISTEN})")
    add_serving(parser)
    add_place(parser, fleet=False, nats=True)
    add_log(parser)


def add_serving(parser: argparse.ArgumentParser, *, tokens: str = "beside the journal") -> None:
    """The options of everything that serves HTTP or gRPC. `tokens` is where the token file is otherwise."""
    serving = parser.add_argument_group("HTTP and gRPC")
    serving.add_argument("--grpc", metavar="HOST:PORT", help="serve gRPC there, such as :9090 on this machine")
    serving.add_argument("--numbers", metavar="FILE", type=Path, help="field numbers of gRPC; else beside the module")
    serving.add_argument("--tokens", metavar="FILE", type=Path, help=f"the token file; else {tokens}")
    serving.add_argument("--cert", metavar="FILE", type=Path, help="the certificate for TLS")
    serving.add_argument("--cert-key", metavar="FILE", type=Path, help="its private key")
    serving.add_argument(
        "--client-ca", metavar="FILE", type=Path, help="let in only who shows a certificate of this authority"
    )
    serving.add_argument(
        "--client-crl", metavar="FILE", type=Path, help="and who is not on this list of revoked ones; HTTP only"
    )
    serving.add_argument(
        "--host", metavar="NAME", action="append", default=[], help="a further name of this server; repeatable"
    )
    serving.add_argument(
        "--cors", metavar="ORIGIN", action="append", default=[], help="web pages of this origin may ask; repeatable"
    )
    serving.add_argument("--rate", metavar="N", type=float, help="requests of one caller in a second, at most")
    serving.add_argument("--insecure", action="store_true", help="let others in without tokens or TLS")


def serving_options(arguments: argparse.Namespace) -> list[str]:
    """What was given of the options of `add_serving`, in words for a process that serves."""
    given: list[str] = []
    for option in SERVING_OPTIONS:
        value = getattr(arguments, option.removeprefix("--").replace("-", "_"))
        if value is True:
            given.append(option)
        elif isinstance(value, list):
            given += [f"{option}={one}" for one in value]
        elif value is not None and value is not False:
            given.append(f"{option}={value}")
    return given


def refuse_unserved(arguments: argparse.Namespace, wanted: str) -> None:
    """Raises ConfigError for options that would guard nothing: who gives a certificate believes that it is used.
    `wanted` is what is missing."""
    if given := serving_options(arguments):
        raise ConfigError(f"{given[0].partition('=')[0]}: nothing is served; give {wanted} too")


def serving_of(
    arguments: argparse.Namespace, listen: str | None, journal: Path | None, fleet: Fleet, folder: Path
) -> Serving | None:
    """What the command line says; None if nothing is to be served. `folder` is that of the fleet's module. Raises
    ConfigError for what could not be served, before anything is opened."""
    if listen is None and arguments.grpc is None:
        refuse_unserved(arguments, "--serve HOST:PORT or --grpc HOST:PORT")
        return None
    from stigmergy.serve.access import RATE_PER_S, Policy
    from stigmergy.serve.listener import check_addresses, read_address
    from stigmergy.serve.server import Serving

    if arguments.rate is not None and not 0 < arguments.rate < 1e9:
        raise ConfigError(f"--rate {arguments.rate:g}: give how many requests a second one caller may make")
    for origin in arguments.cors:
        if not re.fullmatch(r"https?://[^/\s]+", origin):
            raise ConfigError(f"--cors {origin}: give an origin, such as https://ops.example, without a path")
    http, grpc = (
        None if text is None else read_address(text, *_certificates(arguments)) for text in (listen, arguments.grpc)
    )
    serving = Serving(
        http,
        arguments.tokens or tokens_path(journal, fleet.name),
        Policy(tuple(name.lower() for name in arguments.host), tuple(arguments.cors), arguments.rate or RATE_PER_S),
        arguments.insecure,
        grpc,
        arguments.numbers or (Path() if grpc is None else _numbers_path(folder, fleet.name)),
    )
    serving.check(fleet)
    check_addresses([address for address in (http, grpc) if address is not None])
    return serving


def _certificates(arguments: argparse.Namespace) -> tuple[Path | None, Path | None, Path | None, Path | None]:
    """Our certificate, its key, the authority of those that are let in, and the list of those who are not any more. Who
    asks for theirs shows his own."""
    if arguments.client_crl is not None and arguments.grpc is not None:
        raise ConfigError("--client-crl: gRPC cannot look at it; leave --grpc out, or serve it by a process of its own")
    identity = config_of(arguments).fleet.identity
    if arguments.client_ca is not None and arguments.cert is None and identity is not None:
        pair = check_identity(Path(identity)) / PAIR
        return pair, pair, arguments.client_ca, arguments.client_crl
    return arguments.cert, arguments.cert_key, arguments.client_ca, arguments.client_crl


def _numbers_path(folder: Path, fleet: str) -> Path:
    try:
        from stigmergy.proto.service import numbers_path
    except ModuleNotFoundError as error:
        raise ConfigError(f'--grpc needs {error.name}: pip install "stigmergy[grpc]"') from None
    return numbers_path(folder, fleet)


def serve(arguments: argparse.Namespace, output: Output) -> int:
    """Serves until it is stopped."""
    if arguments.log is not None:
        return _play_back(arguments, output)
    place, config = find_place(arguments), config_of(arguments)
    spec = fleet_spec(arguments, config)
    fleet = load_fleet(spec, folder_of(arguments))
    journal = None if isinstance(place, ClusterPlace) else Path(str(place).removesuffix(".sock"))
    serving = serving_of(arguments, arguments.listen, journal, fleet, module_folder(spec))
    assert serving is not None
    named = config.fleet.blobs
    beside = place.url if isinstance(place, ClusterPlace) else f"sqlite:{journal}"
    url = blobs_url(named or (place.url if isinstance(place, ClusterPlace) else None), beside)
    settings = config.settings or fleet.settings
    bounds = settings.blobs
    blobs = BlobsAt(url, fleet.name, SystemClock(), SystemThreads(), bounds, make_folder=named is None)
    with log_of(arguments, config, fleet.name, "serve") as output.log:
        return asyncio.run(_serve(fleet, place, serving, blobs, settings.raw_may_leave, output))


async def _serve(
    fleet: Fleet,
    place: Path | ClusterPlace,
    serving: Serving,
    blobs: BlobsAt,
    rules: Sequence[str],
    output: Output,
) -> int:
    from stigmergy.serve.blobs import BlobsOfNodes
    from stigmergy.serve.server import ApiServer

    asker = await _asker(fleet, place)
    if isinstance(place, Path):
        blobs.blobs.elsewhere = BlobsOfNodes(asker)
    server = ApiServer(fleet, asker, serving, blobs.blobs, raw_may_leave=rules)
    try:
        return await _serve_until_stopped(server, fleet.name, output)
    finally:
        await blobs.stop()


async def _serve_until_stopped(server: ApiServer, fleet: str, output: Output) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    urls = await server.start()
    try:
        tell_serving(output, fleet, urls)
        await stopping.wait()
    finally:
        await server.close()
    output.tell("node-stopped", "stopped ", (fleet, NAME), document={"event": "stopped", "fleet": fleet})
    return exits.OK


def _play_back(arguments: argparse.Namespace, output: Output) -> int:
    """Serves a log that nobody writes to."""
    for option in ("nats", "socket", "journal"):
        if getattr(arguments, option, None) is not None:
            raise ConfigError(f"--log is one place, and --{option} another; give one of both")
    spec = fleet_spec(arguments, config_of(arguments))
    fleet = load_fleet(spec, folder_of(arguments))
    serving = serving_of(arguments, arguments.listen, Path(arguments.log), fleet, module_folder(spec))
    assert serving is not None
    with log_of(arguments, config_of(arguments), fleet.name, "serve") as output.log:
        return asyncio.run(serve_log(fleet, log_url(arguments.log), serving, output))


def log_url(text: str) -> str:
    """The URL of a log: a bare path is a flight log if it begins like one, else a journal."""
    path = Path(text)
    if ":" not in text and path.is_file():
        with path.open("rb") as file:
            if file.read(len(FLIGHT_MAGIC)) == FLIGHT_MAGIC:
                return f"{FLIGHT}{text}"
    return url_of(text)


async def serve_log(fleet: Fleet, url: str, serving: Serving, output: Output) -> int:
    """Plays back a log until it is stopped."""
    fleet.prepare(output.note)
    journal = inspect_all(url)
    try:
        return await serve_playback(
            fleet, LogPlayback(journal, fleet, shown_url(url), installed_version()), serving, output
        )
    finally:
        await journal.close()


async def serve_playback(fleet: Declaration, playback: LogPlayback, serving: Serving, output: Output) -> int:
    """Serves what is played back until it is stopped."""
    from stigmergy.serve.asker import NodeAsker
    from stigmergy.serve.server import ApiServer

    await playback.open()
    return await _serve_until_stopped(ApiServer(fleet, NodeAsker(playback), serving), fleet.name, output)


async def _asker(fleet: Fleet, place: Path | ClusterPlace) -> Asker:
    from stigmergy.serve.asker import OtherFleet, SocketAsker, WorkersAsker

    if isinstance(place, Path):
        asker = SocketAsker(place, fleet.name)
        try:
            async with asyncio.timeout(NODE_S_MAX):
                await asker.ask(StatusRequest())
        except OtherFleet as error:
            raise ConfigError(str(error)) from None
        except (TimeoutError, StigmergyError):
            pass  # a node that comes later is asked then
        return asker
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
        what = f" {url}/  API: {url}/docs" if url.startswith("http") else f" {url}"
        output.tell("api-listening", ("serving", GOOD), what)
