"""`stigmergy up`: runs a cluster on this machine: servers, workers, gateways; supervised, shown, and stopped in order.

Ctrl-C stops it: workers finish what they have taken, then the servers stop. A second Ctrl-C ends everything at once,
which is no worse than a power loss: everything acknowledged is in the folder, and the next `up` continues from there.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stigmergy.agents.raw import CLUSTER, RawGuard
from stigmergy.app.fleet import Fleet, load_signer
from stigmergy.app.ledgers import admit_writers
from stigmergy.app.node_config import ledgers_at
from stigmergy.base.errors import ConfigError, NotRunning, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.cli.api.serve import add_serving, refuse_unserved, serving_of, serving_options
from stigmergy.cli.children import FAILED, JOINING, STILL_STARTING, UP, Child, ServerWatch, how_it_ended, watch_members
from stigmergy.cli.display import exits
from stigmergy.cli.display.frames import Line, draw_standing, duration, fit
from stigmergy.cli.display.logs import add_log, log_of
from stigmergy.cli.display.output import BAD, GOOD, HEADING, NAME, WARN, Output, aligned, counted, screen_text
from stigmergy.cli.display.places import config_of, folder_of, load_fleet, module_folder
from stigmergy.cli.display.troubles import LOG
from stigmergy.diagnostics.codes import ERROR
from stigmergy.diagnostics.codes import WARN as WARN_LEVEL
from stigmergy.diagnostics.lines import LogLine
from stigmergy.nats.servers import find_program, on_cluster, parse_address, write_configuration
from stigmergy.nats.servers.configuration import LOOPBACK_HOSTS, OPERATOR
from stigmergy.node.needs import BUS, LEDGER, needs_of
from stigmergy.pki.names import NODE
from stigmergy.serve.tokens import how_to_create

if TYPE_CHECKING:
    from rich.live import Live

    from stigmergy.nats.servers.folder import ClusterFolder
    from stigmergy.nats.servers.identities import LocalIdentities
    from stigmergy.nats.servers.status import ClusterStatus

DATA = Path("stigmergy-cluster")
KEY = "fleet.key"
TOKENS = "fleet.tokens"
WORKERS_MAX = 64
READY_S_MAX = 60.0
LOOK_S = 0.1
SHOW_EVERY_S = 1.0
UNOWNED_S = 1.0
MEMBERS_EVERY_S = 1.0
"""How often a secure cluster looks at the list of its authority."""
WORKERS_END_S_MAX = 60.0
SERVERS_END_S_MAX = 15.0
SERVER, WORKER, GATEWAY, PROJECT, API = "server", "worker", "gateway", "project", "serve"
COLLECTOR = "collector"
TOLD = ("process-failed", "shard-lost", "shard-unfit", "view-failed", "view-waits", "worker-fenced", "worker-waits")
"""What children say in documents as well, so that it is told already."""
STYLES = {UP: GOOD, FAILED: BAD}
EXAMPLES = """examples:
  stigmergy up --nodes 3                              three servers, to try workers and gateways on
  stigmergy up drone:fleet --nodes 3 --workers 2      and two workers of the fleet in drone.py
  stigmergy up drone:fleet --serve :8080 --grpc :9090     and the API of the fleet, over HTTP and gRPC
  stigmergy up drone:fleet --serve 0.0.0.0:8443 --cert fleet.crt --cert-key fleet.pem     for others, with tokens
  stigmergy up drone:fleet --secure                   and every link by mutual TLS
  stigmergy up drone:fleet --gateway north            and a gateway for devices at the site north
"""


def add_commands(commands: Any) -> None:
    """Adds `up`."""
    parser = commands.add_parser(
        "up",
        run=run,
        help="run a whole cluster on this machine",
        description="Starts servers, workers and a gateway on this machine, supervises them and shows their state.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "fleet",
        metavar="MODULE:FLEET",
        nargs="?",
        help="what workers run; without it, servers alone, or with --workers the module of stigmergy.toml",
    )
    parser.add_argument("--nodes", metavar="N", type=int, default=3, help="servers: 1, 3 or 5 (3)")
    parser.add_argument("--workers", metavar="N", type=int, help="workers of the fleet (2)")
    parser.add_argument("--gateway", metavar="SITE", action="append", default=[], help="a gateway here; repeatable")
    parser.add_argument("--data", metavar="DIR", type=Path, default=DATA, help=f"where everything is kept ({DATA})")
    parser.add_argument(
        "--port", metavar="PORT", type=int, help="where clients connect, and the ports behind it; else free"
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")
    parser.add_argument("--serve", metavar="HOST:PORT", help="serve the fleet's page and API, such as :8080 here")
    parser.add_argument(
        "--metrics",
        action="store_true",
        help="workers, gateways and views tell Prometheus, each on a free port of loopback",
    )
    parser.add_argument(
        "--secure", action="store_true", help="all links by mutual TLS, with an authority in the folder; for good"
    )
    add_serving(parser, tokens=f"in the folder of the cluster, {DATA / TOKENS}")
    add_log(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Brings the cluster up, and stays until it is told to end."""
    from stigmergy.nats.servers.folder import ClusterFolder

    if arguments.serve is None:
        refuse_unserved(arguments, "--serve HOST:PORT")
    if not arguments.fleet and (arguments.workers or arguments.gateway or arguments.serve):
        arguments.fleet = config_of(arguments).fleet.module
        if not arguments.fleet:
            raise ConfigError(
                "workers, gateways and the API need a fleet: give MODULE:FLEET, or write module into stigmergy.toml"
            )
    workers = arguments.workers if arguments.workers is not None else (2 if arguments.fleet else 0)
    if not 0 <= workers <= WORKERS_MAX:
        raise ConfigError(f"--workers {workers}: give 0 to {WORKERS_MAX}")
    fleet, unmet = None, dict[str, str]()
    if arguments.fleet:
        place = config_of(arguments).fleet
        fleet = load_fleet(arguments.fleet, folder_of(arguments))  # a mistake in the module is said once, here
        if workers:  # each of them would refuse it, again and again
            settings = config_of(arguments).settings or fleet.settings
            RawGuard(fleet.plans, settings.raw_may_leave).check(CLUSTER)
        if arguments.serve is not None:
            arguments.tokens = arguments.tokens or arguments.data / TOKENS
            serving_of(arguments, arguments.serve, None, fleet, module_folder(arguments.fleet))  # what it would refuse
        unmet = needs_of(fleet).unmet(bus=place.bus is not None, ledger=place.ledger is not None)
    find_program()
    secure_for = "" if not arguments.secure else "local" if fleet is None else fleet.name
    if secure_for:
        _check_secure(arguments)
    folder = ClusterFolder(arguments.data, arguments.nodes, arguments.port, secure_for)
    try:
        if folder.identities is not None:
            _check_secure(arguments)
        folder.check_ports()
        name = "" if fleet is None else fleet.name
        with log_of(arguments, config_of(arguments), name, "up") as output.log:
            return asyncio.run(_Cluster(folder, arguments, fleet, workers, unmet, output).live_and_die())
    finally:
        folder.close()


def _check_secure(arguments: argparse.Namespace) -> None:
    """Refuses what would not be encrypted, or would let somebody in without a certificate."""
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError('certificates need cryptography: pip install "stigmergy[pki]"') from None
    if arguments.gateway:
        raise ConfigError(
            "--gateway: the server of a site does not ask its own devices for certificates yet, so a cluster with "
            "--secure starts none; leave it out, or start it on its own: stigmergy gateway … --identity DIR"
        )
    if getattr(arguments, "identity", None) is not None:
        raise ConfigError("--identity: a cluster with --secure makes the identities of its processes; leave it out")


class _Cluster:
    """One run of a cluster."""

    def __init__(
        self,
        folder: ClusterFolder,
        arguments: argparse.Namespace,
        fleet: Fleet | None,
        workers: int,
        unmet: dict[str, str],
        output: Output,
    ) -> None:
        """`unmet` is what the fleet needs and its configuration does not name: these servers bring it."""
        self._folder = folder
        self._fleet = fleet
        self._unmet = unmet
        self._arguments = arguments
        self._output = output
        self._plans = folder.plans
        self._servers = [self._server(number) for number in range(len(self._plans))]
        self._workers = [self._worker(number) for number in range(1, workers + 1)]
        self._gateways = [self._gateway(site) for site in arguments.gateway]
        if self._gateways and self._workers:
            self._gateways.append(self._collector())
        self._projectors = [self._projector(fleet)] if fleet is not None and fleet.views and self._workers else []
        self._apis = [] if arguments.serve is None else [self._api()]
        self._stopping = asyncio.Event()
        self._reason = ""
        self._failure: StigmergyError | None = None
        self._standing: ClusterStatus | None = None
        self._trouble = ""
        self._live: Live | None = None
        self._shards = 0 if fleet is None else fleet.shards
        self._owners: dict[int, str] = {}
        """Which worker has said last that it owns a shard."""
        self._since_s, self._told_owned = time.monotonic(), False
        """Since when some shard has no owner; 0 while all have one."""
        self._watches = [self._watch(number) for number in range(len(self._plans))]
        self._watching: list[asyncio.Task[None]] = []

    async def live_and_die(self) -> int:
        """Everything from the first server to the end of the last."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        showing = asyncio.ensure_future(self._show())
        try:
            self._tell_begun()
            await self._begin()
            await self._stopping.wait()
        except StigmergyError as error:
            self._failure = self._failure or error
        finally:
            await self._end()
            await end_tasks(showing)
        if self._failure is not None:
            raise self._failure
        document = {"event": "stopped", "reason": self._reason, "folder": str(self._folder.path)}
        text = f"stopped ({self._reason}); the next `stigmergy up` goes on from {self._folder.path}"
        self._output.tell("node-stopped", text, document=document)
        return exits.OK

    # ------------------------------------------------------------------ what there is

    def _server(self, number: int) -> Child:
        plan, folder = self._plans[number], self._folder.path.resolve()
        path = folder / f"{plan.name}.conf"
        path.touch(mode=0o600)
        path.write_text(write_configuration(plan), encoding="utf-8")
        Path(plan.store).mkdir(exist_ok=True, mode=0o700)
        command = [find_program(), "-c", str(path)]
        return Child(plan.name, SERVER, command, folder / f"{plan.name}.log", self._tell, speaks=False)

    def _watch(self, number: int) -> ServerWatch:
        plan, child = self._plans[number], self._servers[number]

        def say(code: str, event: str, text: str, style: str, fields: dict[str, Any]) -> None:
            document = {"event": event, "process": child.name, **fields}
            self._output.tell(code, (text, style), document=document)

        return ServerWatch(child, plan, self._folder.path / f"{plan.name}.log", say)

    def _worker(self, number: int) -> Child:
        name = f"worker-{number}"
        options = (*self._worker_options(), "--name", f"w{number}")
        return self._speaking(name, WORKER, *options, key=self._folder.path / KEY)

    def _worker_options(self) -> list[str]:
        """Where a worker of this cluster finds everything."""
        url, key = self._folder.kept_url, self._folder.path / KEY
        # What sites send up reaches workers over their bus.
        bus = ["--bus", url] if BUS in self._unmet or self._arguments.gateway else []
        return ["--nats", url, "--key", str(key), *bus, *self._ledger_option(), *self._metrics_option()]

    def _ledger_option(self) -> list[str]:
        return ["--ledger", self._folder.kept_url] if LEDGER in self._unmet else []

    def _metrics_option(self) -> list[str]:
        """A port of its own for each: that of the configuration would be all of theirs."""
        wanted = self._arguments.metrics or config_of(self._arguments).fleet.metrics is not None
        return ["--metrics", "127.0.0.1:0"] if wanted else []

    def _gateway(self, site: str) -> Child:
        name = f"gateway-{site}"
        ports = self._folder.gateway_ports(site)
        hubs = [text for hub in self._folder.hubs for text in ("--hub", hub)]
        data = ["--data", str(self._folder.path / name), "--hub-replicas", str(len(self._plans))]
        listens = ["--port", str(ports["client"]), "--mqtt-port", str(ports["mqtt"])]
        options = (*data, *listens, *self._ledger_option(), *self._metrics_option())
        return self._speaking(name, GATEWAY, "--site", site, *hubs, *options)

    def _collector(self) -> Child:
        """Distributes what the sites send up to the workers."""
        key = str(self._folder.path / KEY)
        return self._speaking(COLLECTOR, GATEWAY, "--at-hub", self._folder.kept_url, "--key", key)

    def _projector(self, fleet: Fleet) -> Child:
        """Keeps the views of the fleet: workers do not, because each has only some of the shards."""
        rows = config_of(self._arguments).fleet.views or f"sqlite:{self._folder.path / f'{fleet.name}.views'}"
        options = ("--to", rows, *self._metrics_option())
        return self._speaking("views", PROJECT, "--nats", self._folder.kept_url, *options)

    def _api(self) -> Child:
        """The API of the fleet."""
        listens = ["--listen", self._arguments.serve, *serving_options(self._arguments)]
        if self._folder.identities is not None and not self._arguments.cert and not self._arguments.client_ca:
            listens.append(f"--client-ca={self._folder.identities.certificate}")
        return self._speaking("api", API, "--nats", self._folder.kept_url, *listens)

    def _speaking(self, name: str, kind: str, *options: str, key: Path | None = None) -> Child:
        """A process of our own program, of the command that is called as its kind. `key` signs what it writes."""
        if self._folder.identities is not None:
            if key is not None:
                load_signer(key, create=True)
            hosts = (*LOOPBACK_HOSTS, *self._arguments.host) if kind == API else ()
            options = (*options, "--identity", str(self._folder.identities.folder(NODE, name, *hosts, key=key)))
        config = [] if self._arguments.config is None else ["--config", str(self._arguments.config)]
        config += ["--log-format", "json", "--json"]
        command = [sys.executable, "-m", "stigmergy", kind, self._arguments.fleet, *options, *config]
        child = Child(name, kind, command, self._folder.path / f"{name}.log", self._tell, speaks=True)
        child.on_log = self._logged
        return child

    @property
    def _all(self) -> list[Child]:
        return [*self._servers, *self._workers, *self._gateways, *self._projectors, *self._apis]

    # ------------------------------------------------------------------ its life

    async def _begin(self) -> None:
        if self._folder.identities is not None:
            self._folder.identities.write_users()
        for server in self._servers:
            server.begin()
        self._watching = [asyncio.ensure_future(watch.run()) for watch in self._watches]
        deadline_s = time.monotonic() + READY_S_MAX
        while not self._servers_serve():
            if self._stopping.is_set():
                return
            if failed := [server for server in self._servers if server.state == FAILED]:
                raise NotRunning(f"server {failed[0].name}: {failed[0].error}; its log is in {self._folder.path}")
            if time.monotonic() > deadline_s:
                raise NotRunning(
                    f"the servers do not form a cluster within {READY_S_MAX:g} s; see their logs in {self._folder.path}"
                )
            await asyncio.sleep(LOOK_S)
        await self._admit_gateways()
        for child in (*self._workers, *self._gateways, *self._projectors, *self._apis):
            child.begin()
        self._watching.append(asyncio.ensure_future(watch_members(self._workers, self._say_unready)))
        if self._folder.identities is not None:
            self._watching.append(asyncio.ensure_future(self._keep_members(self._folder.identities)))
            self._watching.append(asyncio.ensure_future(self._answer_renewals(self._folder.identities)))
        self._tell_up()

    async def _keep_members(self, identities: LocalIdentities) -> None:
        """Has the servers read anew who may connect, when that changes: they end the links of whoever was revoked."""
        while True:
            try:
                renewed = await asyncio.to_thread(identities.renew)
                changed = await asyncio.to_thread(identities.write_users)
            except StigmergyError as error:
                self._note("members-unread", f"the list of the authority cannot be used: {error}", BAD)
                renewed, changed = (), False
            if renewed or changed:
                for server in self._servers:
                    server.signal(signal.SIGHUP)
                what = f"renewed {', '.join(renewed)}" if renewed else "the list of the authority has changed"
                self._note("members-changed", f"{what}: the servers have read who may connect")
            await asyncio.sleep(MEMBERS_EVERY_S)

    async def _answer_renewals(self, identities: LocalIdentities) -> None:
        """Of workers and others that `up` has not started."""
        from stigmergy.nats.renewals import answer_renewals

        address = parse_address(self._folder.own_url)
        while True:
            try:
                await on_cluster(address, lambda link: answer_renewals(link, identities.authority), name="stigmergy ca")
            except StigmergyError as error:
                LOG.say("members-unread", f"certificates cannot be renewed over the servers: {error}")
            await asyncio.sleep(SHOW_EVERY_S)

    async def _admit_gateways(self) -> None:
        """Lets gateways write to the ledger: each signs with a key of its own, which nobody there knows yet."""
        if self._fleet is None or not self._arguments.gateway or LEDGER not in self._unmet:
            return
        name, configured = self._fleet.name, config_of(self._arguments).fleet.key
        signer = load_signer(self._folder.path / KEY, create=True)
        keys: list[bytes] = []
        for site in self._arguments.gateway:
            own = self._folder.path / f"gateway-{site}" / f"{name}.key"
            own.parent.mkdir(mode=0o700, exist_ok=True)
            keys.append(load_signer(Path(configured) if configured else own, create=True).public_key)
        for url, log in ledgers_at(self._folder.kept_url, self._fleet):
            # Opening a ledger waits for its servers.
            await asyncio.to_thread(asyncio.run, admit_writers(url, log, signer, keys))

    def _servers_serve(self) -> bool:
        """Whether all are up; or a majority, while the others wait until they can be restarted."""
        up = sum(server.state == UP for server in self._servers)
        stuck = sum(watch.is_stuck for watch in self._watches)
        return up == len(self._servers) or (up > len(self._servers) // 2 and up + stuck == len(self._servers))

    async def _end(self) -> None:
        """Workers and gateways first: they hand over and write; then the servers. Side by side: one that hangs takes no
        time from the others, and the limits hold for all together."""
        self._stopping.set()
        ended = await _end_all([*self._apis, *self._projectors, *self._workers, *self._gateways], WORKERS_END_S_MAX)
        await end_tasks(*self._watching)
        ended += await _end_all(self._servers, SERVERS_END_S_MAX)
        for error in ended:
            if error is not None:
                raise error

    def _signalled(self, number: signal.Signals) -> None:
        """The first one ends in order, another one at once."""
        if self._stopping.is_set():
            for child in self._all:
                child.kill()
            return
        self._reason = number.name
        self._stopping.set()
        text = "stopping: workers finish what they have taken, then the servers; once more to end at once"
        self._output.tell("node-stopping", text, document={"event": "stopping", "reason": number.name})

    # ------------------------------------------------------------------ what is said

    def _tell(self, child: Child, event: str, fields: dict[str, Any]) -> None:
        self._output.document(
            {"event": event, "process": child.name, **({"said": fields} if event == "said" else fields)}
        )
        if event == "said":
            self._heard(child, fields)
        elif event == "started" and child.starts > 1:
            self._note("child-started", f"{child.name} is started again, pid {fields['pid']}")
        elif event == "started":
            LOG.say("child-started", f"{child.name} is started, pid {fields['pid']}", on_stdout=True)
        elif event == "ended":
            self._owns({shard: name for shard, name in self._owners.items() if name != child.name})
            how = how_it_ended(fields["code"]) + (f" ({child.error})" if child.error else "")
            self._note("child-ended", f"{child.name} {how}; again in {fields['again_in_s']:g} s", WARN)
        elif event == "given up":
            self._note("child-given-up", f"{child.name} is given up: {fields['error']}", BAD)
            self._given_up(child)

    def _given_up(self, child: Child) -> None:
        """The others go on; but without any worker, or without a majority of the servers, there is no cluster."""
        alike = {SERVER: self._servers, WORKER: self._workers}.get(child.kind, [])
        left = sum(one.state != FAILED for one in alike)
        if child.kind in (GATEWAY, PROJECT, API) or left > (len(alike) // 2 if child.kind == SERVER else 0):
            return
        self._failure = self._failure or NotRunning(
            f"{child.name}: {child.error}; nothing is left to go on with, see the logs in {self._folder.path}"
        )
        self._stopping.set()

    def _heard(self, child: Child, said: dict[str, Any]) -> None:
        match said.get("event"):
            case "joined":
                child.ready(str(said.get("worker", "")))
                self._output.line(f"{child.name} has joined as {child.detail}")
            case "owns":
                self._owns({**self._owners, int(said["shard"]): child.name})
            case "released" | "lost":
                shard = int(said["shard"])
                self._owns({one: name for one, name in self._owners.items() if (one, name) != (shard, child.name)})
            case "fenced":
                child.unready(JOINING, str(said.get("reason", "")))
                what = f"{child.name}: {said.get('reason', '')}; its shards go to others, it joins again"
                self._output.line((what, WARN))
                self._owns({one: name for one, name in self._owners.items() if name != child.name})
            case "unfit":
                what = f"{child.name} cannot have shard {said.get('shard')}: {said.get('reason', '')}"
                self._output.line((what, BAD))
            case "waits" | "troubled":
                child.detail = str(said.get("reason", ""))
                if child.kind == PROJECT:
                    # Before the workers have made the logs there is nothing to follow, which is no fault.
                    self._output.line((f"{child.name}: {child.detail}", WARN if self._told_owned else ""))
            case "resolved":
                child.detail = f"over: {said.get('reason', '')}"
            case "projecting":
                child.ready(", ".join(said.get("views", ())))
                self._output.line(f"{child.name} follow the logs: {child.detail}")
            case "gateway":
                child.ready(f"mqtt://{said.get('mqtt', '')}, nats://{said.get('nats', '')}")
                self._output.line(f"{child.name} serves its site: {child.detail}")
            case "hub":
                child.ready(str(said.get("why", "")))
            case "serving":
                child.ready(", ".join(said[name] for name in ("url", "grpc") if name in said))
                url = said.get("url", "")
                what = f"{child.name} serves {child.detail}; the fleet's page: {url}/  API: {url}/docs"
                self._output.line((what, GOOD))
            case "listening" if child.kind == GATEWAY:
                child.ready()
            case _:
                pass

    def _say_unready(self, child: Child, event: str, text: str, fields: dict[str, Any]) -> None:
        code, style = ("worker-starting", WARN) if event == STILL_STARTING else ("worker-absent", BAD)
        self._output.tell(code, (text, style), document={"event": event, "process": child.name, **fields})

    def _owns(self, owners: dict[int, str]) -> None:
        """Says when all shards have an owner, and again when one was without for a while; moves take no time."""
        self._owners = owners
        now_s = time.monotonic()
        if len(owners) < self._shards:
            self._since_s = self._since_s or now_s
        elif self._since_s:
            if now_s - self._since_s > UNOWNED_S or not self._told_owned:
                whole = "the shard has" if self._shards == 1 else f"all {self._shards:,} shards have"
                self._note("cluster-up", f"{whole} an owner", GOOD)
            self._since_s, self._told_owned = 0.0, True

    def _tell_begun(self) -> None:
        from stigmergy.nats.servers.folder import told_urls

        told = told_urls(self._folder)
        brings = dict.fromkeys(self._unmet, self._folder.kept_url)
        self._output.document({"event": "begun", "folder": str(self._folder.path), **told, "brings": brings})
        servers = counted(len(self._servers), "server")
        self._output.line(("cluster ", HEADING), (self._folder.url, NAME), f"  {servers}, data in {self._folder.path}")
        self._output.line(("devices ", HEADING), (", ".join(told["mqtt"]), NAME))
        self._output.line(("gateways ", HEADING), (", ".join(told["hubs"]), NAME))
        for what, why in self._unmet.items():
            copies = counted(self._folder.replicas, "replica")
            self._output.line((f"{what} ", HEADING), f"on these servers, {copies}: ", why)

    def _tell_up(self) -> None:
        spec, url = self._arguments.fleet, self._folder.url
        operator = self._folder.identity(OPERATOR)
        shows = "" if operator is None else f" {shlex.join(['--identity', str(operator)])}"
        of_fleet = f" --fleet {spec}" if spec else " --fleet MODULE:FLEET"
        uses = [
            ("look at it", f"stigmergy status --nats {url}{shows}"),
            ("send", f"stigmergy send KIND/NAME COMMAND FIELD=VALUE --nats {url}{of_fleet}{shows}"),
            ("one more worker", shlex.join(["stigmergy", WORKER, spec or "MODULE:FLEET", *self._worker_options()])),
        ]
        if operator is not None:
            authority = shlex.join(["--ca", str(self._folder.path / "ca")])
            uses[-1] = (uses[-1][0], f"{uses[-1][1]} --identity NAME")
            uses.append(("an identity for it", f"stigmergy ca issue node NAME {authority}"))
            uses.append(("for a device", f"stigmergy ca issue device NAME {authority}"))
        if self._apis:
            uses.append(("a token for the API", how_to_create(self._arguments.tokens)))
        document = {"event": "up", "nats": url, "uses": dict(uses)}
        self._output.tell(
            "cluster-up", ("up", GOOD), "  use it from another terminal; Ctrl-C ends it", document=document
        )
        for what, how in uses:
            self._output.line((f"  {what}: ", HEADING), how)

    def _note(self, code: str, text: str, style: str = "") -> None:
        self._output.tell(code, (text, style))

    def _logged(self, child: Child, line: bytes) -> None:
        """A line of a child's log: it goes on as it is, and on a terminal under the child's name, if it says more than
        what we say ourselves."""
        assert self._output.log is not None
        try:
            logged = msgspec.json.decode(line, type=LogLine)
        except msgspec.DecodeError:  # of a library that knows no log
            LOG.say("library", f"{child.name}: {line.decode(errors='replace').rstrip()}")
            return
        if self._output.log.is_json:
            self._output.log.pass_on(line)
        elif logged.level in (WARN_LEVEL, ERROR) and logged.code not in TOLD and logged.over is not True:
            self._output.line(
                (f"{child.name}: {logged.message} [{logged.code}]", BAD if logged.level == ERROR else WARN)
            )

    # ------------------------------------------------------------------ what is shown

    async def _show(self) -> None:
        """On a terminal, a table below the lines, written anew each second."""
        if self._output.json or not sys.stdout.isatty() or self._output.console.is_dumb_terminal:
            return
        from rich.live import Live

        looking = asyncio.ensure_future(self._look())
        with Live(console=self._output.console, auto_refresh=False, transient=True) as self._live:
            try:
                while True:
                    self._draw()
                    await asyncio.sleep(SHOW_EVERY_S)
            finally:
                await end_tasks(looking)
                self._live.update("", refresh=True)
                self._live = None

    def _draw(self) -> None:
        size = self._output.console.size
        lines = [[], *self._processes()]
        if self._standing is not None:
            lines += [[], *draw_standing(self._standing)]
        elif self._trouble:
            lines += [[], [(self._trouble, WARN)]]
        fitting = [fit(line, size.width - 1) for line in lines[: max(1, size.height - 1)]]
        assert self._live is not None
        self._live.update(screen_text([*fitting, []]), refresh=True)

    def _processes(self) -> list[Line]:
        rows: list[Line] = [
            [
                (child.name, NAME),
                (child.state, STYLES.get(child.state, WARN)),
                f"{child.pid or ''}",
                duration(child.up_s) if child.pid else "",
                f"{max(0, child.starts - 1)}",
                child.detail,
            ]
            for child in self._all
        ]
        return aligned(("PROCESS", "", "PID", "UP", "RESTARTS", ""), rows)

    async def _look(self) -> None:
        """Keeps what is shown of the cluster new, over one connection."""
        while True:
            try:
                await on_cluster(parse_address(self._folder.own_url), self._look_on, name="stigmergy up")
            except StigmergyError as error:
                self._standing, self._trouble = None, str(error)
            await asyncio.sleep(LOOK_S)

    async def _look_on(self, link: Any) -> None:
        from stigmergy.nats.servers.status import look

        while True:
            self._standing, self._trouble = await look(link), ""
            await asyncio.sleep(SHOW_EVERY_S)


async def _end_all(children: list[Child], within_s: float) -> list[BaseException | None]:
    """Ends processes in order, the hard way if that takes too long; what went wrong with each."""
    for child in children:
        child.stop()
    return await asyncio.gather(*(child.wait_end(within_s) for child in children), return_exceptions=True)
