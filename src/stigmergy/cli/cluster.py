"""`stigmergy cluster`: makes configurations for servers on real hosts, replaces a lost server."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError, LinkDown, NotRunning, StigmergyError
from stigmergy.cli.display import exits
from stigmergy.cli.display.frames import draw_standing, fit
from stigmergy.cli.display.output import BAD, GOOD, HEADING, NAME, WARN, Cell, Output, counted
from stigmergy.cli.display.terminal import Terminal
from stigmergy.cli.trust.cluster import secure_cluster, secured_urls, tell_secured, write_users_of
from stigmergy.nats.servers import (
    DEVICE,
    DURABLE_LINES,
    FLEET,
    GATEWAY,
    SYSTEM,
    NatsAddress,
    Passwords,
    Secured,
    ServerPlan,
    ServerTlsFiles,
    draw_passwords,
    look_once,
    on_cluster,
    parse_address,
    parse_hosts,
    plan_hosts,
    urls_of,
    write_configuration,
)

if TYPE_CHECKING:
    from stigmergy.nats.servers.status import ClusterStatus


# `stigmergy cluster config`: configurations for servers on real hosts, with comments on the lines that durability
# depends on. The parameters of a cluster are kept beside the configurations, so that a server can join it later.

DEFAULT_FOLDER = Path("cluster-config")
STORE = "/var/lib/stigmergy/nats"
GIB = 1024**3
FORMAT = 1
URLS, NOTES = "urls.txt", "cluster.json"
IDENTITY = "/etc/stigmergy/identity"
"""Where each host of a secure cluster has its identity."""
PURPOSES = {
    FLEET: "workers, and the command line: --nats URL",
    GATEWAY: "gateways: --hub USER:PASSWORD@HOST:PORT, for each",
    SYSTEM: "the administrator of the servers: cluster replace --system URL",
    DEVICE: "devices that speak MQTT",
}
EXAMPLES = """examples:
  stigmergy cluster config --hosts hub-1,hub-2,hub-3      a file for each host and one with URLs, in cluster-config/
  stigmergy cluster config --hosts hub-1,hub-2,hub-3 --tls-cert server.pem --tls-key server.key --tls-ca ca.pem
  stigmergy cluster config --hosts hub-1,hub-2,hub-3 --secure      certificates for everybody, no passwords
  stigmergy cluster config --join hub-4 --instead-of hub-2      a server more for the same cluster, for one that is lost
"""


class ClusterNotes(Struct, frozen=True):
    """What a cluster was made with."""

    hosts: str
    name: str
    store: str
    store_gib: float
    passwords: Passwords
    tls: ServerTlsFiles | None = None
    has_mqtt: bool = True
    format: int = FORMAT
    secured: Secured | None = None
    """Where the servers find their certificates, if everybody shows one."""

    @property
    def plans(self) -> list[ServerPlan]:
        """A server on each host."""
        return plan_hosts(
            parse_hosts(self.hosts),
            cluster=self.name,
            store=self.store,
            passwords=self.passwords,
            tls=self.tls,
            has_mqtt=self.has_mqtt,
            file_bytes=int(self.store_gib * GIB),
            secured=self.secured,
        )


def add_config(actions: Any) -> None:
    """Adds `cluster config`."""
    config = actions.add_parser(
        "config",
        run=run,
        help="write server configurations",
        description="Writes a nats-server configuration for each host, with new passwords; explains the key lines.",
        epilog=EXAMPLES,
    )
    config.add_argument("--hosts", metavar="A,B,C", help="the hosts of the servers; one, three or more")
    config.add_argument("--join", metavar="HOST", help="add a server to the cluster of the existing files")
    config.add_argument("--instead-of", metavar="HOST", help="with --join: leave out this lost server")
    config.add_argument("--to", metavar="DIR", type=Path, default=DEFAULT_FOLDER, help=f"the files ({DEFAULT_FOLDER})")
    config.add_argument("--name", metavar="NAME", default="stigmergy", help="the name of the cluster")
    config.add_argument("--store", metavar="DIR", default=STORE, help=f"where each host keeps its data ({STORE})")
    config.add_argument("--store-gib", metavar="N", type=float, default=8.0, help="how much of it a server may use (8)")
    config.add_argument("--tls-cert", metavar="FILE", help="each host's certificate, as it is named there")
    config.add_argument("--tls-key", metavar="FILE", help="its key")
    config.add_argument("--tls-ca", metavar="FILE", help="the CA of accepted client certificates")
    config.add_argument(
        "--secure",
        action="store_true",
        help="all links by mutual TLS: an authority in DIR/ca; each host has its identity in --identity",
    )
    config.add_argument("--no-mqtt", action="store_true", help="no listener for devices that speak MQTT")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Writes the files; overwrites none of a server."""
    if (arguments.hosts is None) == (arguments.join is None):
        raise ConfigError("give --hosts A,B,C for a new cluster, or --join HOST for one more server of this one")
    folder: Path = arguments.to
    if arguments.join is not None:
        notes, plans = _join(folder, arguments.join, arguments.instead_of)
        _write_new(folder, {f"{plan.name}.conf": write_configuration(plan) for plan in plans})
        if notes.secured is not None:
            secure_cluster(folder, notes.secured, plans)
        _write_over(folder, notes)
        _tell(folder, notes, plans, output)
        return exits.OK
    if not 0 < arguments.store_gib <= 1e6:
        raise ConfigError(f"--store-gib {arguments.store_gib:g}: give how many GiB a server may use, such as 100")
    notes = ClusterNotes(
        arguments.hosts,
        arguments.name,
        arguments.store,
        arguments.store_gib,
        draw_passwords(),
        _tls(arguments),
        not arguments.no_mqtt,
    )
    if arguments.secure:
        notes = msgspec.structs.replace(notes, secured=_secured(arguments, notes))
    texts = {f"{plan.name}.conf": write_configuration(plan) for plan in notes.plans}
    _write_new(folder, {**texts, URLS: _urls_text(notes, folder), NOTES: _notes_text(notes)})
    if notes.secured is not None:
        secure_cluster(folder, notes.secured, notes.plans)
    _tell(folder, notes, notes.plans, output)
    return exits.OK


def _join(folder: Path, host: str, lost: str | None) -> tuple[ClusterNotes, list[ServerPlan]]:
    """The cluster with one server more, and the plan of that one."""
    path = folder / NOTES
    try:
        notes = msgspec.json.decode(path.read_bytes(), type=ClusterNotes)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}: give --to the folder that `cluster config --hosts` has written"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    hosts = notes.hosts.split(",")
    if lost is not None and lost not in hosts:
        raise ConfigError(f"{lost} is no host of this cluster; there are {', '.join(hosts)}")
    if host in hosts:
        raise ConfigError(f"{host} is one of this cluster's hosts already, and its server keeps its name: give another")
    notes = msgspec.structs.replace(notes, hosts=",".join([*(one for one in hosts if one != lost), host]))
    return notes, [notes.plans[-1]]


def _secured(arguments: argparse.Namespace, notes: ClusterNotes) -> Secured:
    """Where the servers of a secure cluster find their identities: here, if they all run on this machine."""
    if notes.tls is not None:
        raise ConfigError("--secure has its own authority; leave --tls-cert, --tls-key and --tls-ca out")
    given: str | None = getattr(arguments, "identity", None)
    if given is None and all(place.host.startswith("127.") for place in parse_hosts(notes.hosts)):
        return Secured(notes.name, str(arguments.to.resolve()))
    return Secured(notes.name, given or IDENTITY, is_shared=True)


def _tls(arguments: argparse.Namespace) -> ServerTlsFiles | None:
    cert, key, ca = arguments.tls_cert, arguments.tls_key, arguments.tls_ca
    if bool(cert) != bool(key) or (ca and not cert):
        raise ConfigError("--tls-cert and --tls-key belong together, and --tls-ca to both; give all, or none")
    return None if cert is None else ServerTlsFiles(cert, key, ca or "")


def _urls_text(notes: ClusterNotes, folder: Path) -> str:
    if notes.secured is not None:
        return secured_urls(folder, notes.plans)
    hint = (
        "" if notes.tls is None else "# Clients add ?ca=FILE, and &cert=FILE&key=FILE if the servers want to see one.\n"
    )
    urls = urls_of(notes.plans, notes.passwords, notes.tls)
    return hint + "".join(f"# {PURPOSES[user]}\n{url}\n" for user, url in urls.items())


def _notes_text(notes: ClusterNotes) -> str:
    return msgspec.json.format(msgspec.json.encode(notes), indent=2).decode() + "\n"


def _write_new(folder: Path, texts: dict[str, str]) -> None:
    """All of them or none: servers with two sets of passwords would not form a cluster."""
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise ConfigError(
            f"{folder / there[0]} is there already, with the passwords of a cluster; nothing was written. Give another "
            "folder with --to, or move it away"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, text in texts.items():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}; give another with --to") from None


def _write_over(folder: Path, notes: ClusterNotes) -> None:
    """What says which servers there are; the configurations of the others need no change: servers tell each other."""
    for name, text in ((URLS, _urls_text(notes, folder)), (NOTES, _notes_text(notes))):
        new = folder / f"{name}.new"
        new.touch(mode=0o600)
        new.write_text(text, encoding="utf-8")
        new.rename(folder / name)


def _tell(folder: Path, notes: ClusterNotes, plans: list[ServerPlan], output: Output) -> None:
    urls = {} if notes.secured is not None else urls_of(notes.plans, notes.passwords, notes.tls)
    output.document(
        {
            "folder": str(folder),
            "servers": [
                {
                    "name": plan.name,
                    "file": str(folder / f"{plan.name}.conf"),
                    "port": plan.port,
                    "cluster_port": plan.cluster_port,
                    "leaf_port": plan.leaf_port,
                    "mqtt_port": plan.mqtt_port,
                    "http_port": plan.http_port,
                }
                for plan in plans
            ],
            "urls": str(folder / URLS),
            "users": list(urls),
            "durability": [{"line": line, "why": why} for line, why in DURABLE_LINES],
        }
    )
    rows = [
        (
            (plan.name, NAME),
            str(folder / f"{plan.name}.conf"),
            f"clients {plan.port}, servers {plan.cluster_port}, gateways {plan.leaf_port}"
            + (f", MQTT {plan.mqtt_port}" if plan.mqtt_port else ""),
        )
        for plan in plans
    ]
    output.table(("SERVER", "FILE", "PORTS"), rows)
    output.line()
    if notes.secured is not None:
        tell_secured(folder, notes.secured, plans, output)
    output.line(("Start each on its host: ", HEADING), f"nats-server -c {plans[0].name}.conf")
    if notes.secured is None:
        output.line(("Passwords are in ", HEADING), str(folder / URLS), (", for: ", HEADING), ", ".join(urls))
    output.line()
    output.line(("What durability hangs on:", HEADING))
    for line, why in DURABLE_LINES:
        output.line(("  " + line.rstrip(":"), GOOD))
        output.line(f"    {why}")
    count = len(plans[0].routes) or 1
    if count == 1:
        output.note("one server keeps everything once; with its disk all is lost. Three survive the loss of one", WARN)
    elif count % 2 == 0:
        output.note(f"{count} servers survive no more losses than {counted(count - 1, 'server')}", WARN)


# `stigmergy status --nats URL`: the state of a cluster; once, or repeatedly.

EVERY_S = 1.0


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """What `status` needs for a cluster, beside --nats."""
    group = parser.add_argument_group("a cluster: --nats without --fleet")
    group.add_argument("name", metavar="NAME", nargs="?", help="only this fleet")
    group.add_argument("--watch", action="store_true", help="repeat each second, until Ctrl-C")


def status_of_cluster(arguments: argparse.Namespace, output: Output) -> int:
    """Says how a cluster stands."""
    address = parse_address(arguments.nats)
    try:
        if not arguments.watch:
            standing = _show(address, arguments.name or "", output)
            return exits.OK if standing.servers.has_quorum is not False else exits.NOT_RUNNING
        if sys.stdout.isatty() and not output.json:
            return _live(address, arguments.name or "")
        return _stream(address, arguments.name or "", output)
    except KeyboardInterrupt:
        return exits.OK  # the usual way to leave


def described(standing: ClusterStatus) -> dict[str, Any]:
    """One look as it is told to programs."""
    seen = standing.servers
    plain: dict[str, Any] = msgspec.to_builtins(standing)
    return {
        "url": standing.url,
        "time": standing.at_s,
        "quorum": seen.has_quorum,
        "quorum_needed": seen.needed,
        "leader": seen.leader or None,
        "trouble": standing.trouble or None,
        "servers": plain["servers"]["servers"],
        **{key: plain[key] for key in ("fleets", "ledgers", "streams", "leaderless")},
    }


def _show(address: NatsAddress, fleet: str, output: Output) -> ClusterStatus:
    standing = look_once(address, fleet)
    output.document(described(standing))
    for line in draw_standing(standing):
        output.line(*line)
    return standing


def _stream(address: NatsAddress, fleet: str, output: Output) -> int:
    while True:
        began_s = time.monotonic()
        try:
            _show(address, fleet, output)
            output.line()
        except ConfigError:
            raise
        except StigmergyError as error:
            output.document({"error": str(error), "kind": type(error).__name__})
            output.note(str(error), BAD)
        time.sleep(max(0.0, EVERY_S - (time.monotonic() - began_s)))


def _live(address: NatsAddress, fleet: str) -> int:
    with Terminal() as terminal:
        terminal.show([["looking …"]])
        while terminal.ended_by is None:
            began_s = time.monotonic()
            try:
                lines: list[Any] = list(draw_standing(look_once(address, fleet)))
            except ConfigError:
                raise
            except StigmergyError as error:
                lines = [[(str(error), BAD)]]
            columns, rows = terminal.size
            foot: list[Cell] = [("q", "reverse"), " quit"]
            shown = [fit(line, columns) for line in lines[: max(1, rows - 2)]]
            terminal.show([*shown, *([[]] * (rows - len(shown) - 1)), fit(foot, columns)])
            if "q" in terminal.wait(EVERY_S - (time.monotonic() - began_s)).lower():
                return exits.OK
    return exits.OK if terminal.ended_by is signal.SIGINT else 128 + signal.SIGTERM


WITHIN_S = 300.0
WITHIN_S_MAX = 86_400.0
REPLACE_EXAMPLES = """First start a new server, with an empty disk and a name of its own:

  stigmergy cluster config --join hub-4 --instead-of hub-2
  stigmergy cluster replace hub-2 --urls cluster-config/urls.txt

A server that is only away needs none of this: with its disk it catches up by itself. One whose disk is lost is best
replaced like this: under its old name it would count for a majority at once, with nothing in it.
"""


def add_commands(commands: Any) -> None:
    """Adds `cluster` and what is under it."""
    parser = commands.add_parser(
        "cluster",
        help="servers for a fleet on several machines",
        description="Prepares and repairs the NATS servers of a fleet that runs on several machines.",
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions", required=True)
    add_config(actions)
    users = actions.add_parser(
        "users",
        run=write_users_of,
        help="write anew who may connect",
        description="Writes the users of a secure cluster from the list of its authority, without revoked ones.",
    )
    users.add_argument("--to", metavar="DIR", type=Path, default=DEFAULT_FOLDER, help=f"the files ({DEFAULT_FOLDER})")
    look = actions.add_parser(
        "check",
        run=check_cluster,
        help="find problems of a cluster, and remedies",
        description="Checks majority, replicas, syncs, stores, clocks and shards of a cluster. Changes nothing.",
    )
    _add_urls(look)
    replace = actions.add_parser(
        "replace",
        run=replace_server,
        help="replace a permanently lost server",
        description="Moves the replicas of a permanently lost server to one that has joined, while the cluster runs.",
        epilog=REPLACE_EXAMPLES,
    )
    replace.add_argument("server", metavar="SERVER", help="the name of the lost one")
    _add_urls(replace)
    replace.add_argument("--system", metavar="URL", help="the same servers, as the user of the system account")
    replace.add_argument("--within", metavar="S", type=float, default=WITHIN_S, help=f"give up after ({WITHIN_S:g})")


def _add_urls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nats", metavar="URL", help="the servers, as the fleet's user")
    parser.add_argument("--urls", metavar="FILE", type=Path, help="the urls.txt that cluster config, or up, wrote")


def check_cluster(arguments: argparse.Namespace, output: Output) -> int:
    """Says what is wrong."""
    from stigmergy.nats.servers.status import Level, check

    fleet, _ = _urls(arguments)
    findings = check(look_once(fleet, ""))
    levels = [finding.level for finding in findings]
    worst = next(level for level in (Level.FAIL, Level.WARN, Level.OK) if level in levels)
    output.document({"ok": worst is not Level.FAIL, "worst": worst, "checks": msgspec.to_builtins(findings)})
    styles = {Level.OK: GOOD, Level.WARN: WARN, Level.FAIL: BAD}
    for finding in findings:
        output.line(
            (f"{finding.level:<4}", styles[finding.level]), "  ", (f"{finding.check:<9}", NAME), f" {finding.what}"
        )
        if finding.remedy:
            output.line(("      → ", HEADING), finding.remedy)
    return exits.REFUSED if worst is Level.FAIL else exits.OK


def replace_server(arguments: argparse.Namespace, output: Output) -> int:
    """Moves what a lost server held to others, and has them forget it."""
    fleet, system = _urls(arguments)
    within_s: float = arguments.within
    if not 0 < within_s <= WITHIN_S_MAX:
        raise ConfigError(f"--within {within_s:g}: give seconds, such as {WITHIN_S:g}")
    lost: str = arguments.server
    _check_lost(lost, look_once(fleet, ""))
    try:
        moved = asyncio.run(_replace(fleet, system, lost, within_s))
    except LinkDown as error:
        raise NotRunning(f"{error}; what was moved is moved, the same command goes on") from None
    output.document(
        {
            "server": lost,
            "forgotten": system is not None,
            "streams": [{"stream": one.stream, "servers": list(one.servers)} for one in moved],
        }
    )
    output.table(("STREAM", "NOW ON"), [((one.stream, NAME), ", ".join(one.servers)) for one in moved])
    output.line(("replaced", GOOD), f"  {lost} held {counted(len(moved), 'stream')}; each is whole again")
    if system is None:
        output.note(
            f"the servers still count {lost} among them, and need one more for a majority: give --urls or --system",
            WARN,
        )
    return exits.OK


async def _replace(fleet: NatsAddress, system: NatsAddress | None, lost: str, within_s: float) -> list[Any]:
    from stigmergy.nats.servers.members import forget_server, replace_member

    moved = await on_cluster(fleet, lambda link: replace_member(link, lost, within_s), name="stigmergy cluster")
    if system is not None:
        await on_cluster(system, lambda link: forget_server(link, lost), name="stigmergy cluster")
    return moved


def _check_lost(lost: str, standing: ClusterStatus) -> None:
    seen = standing.servers
    names = [server.name for server in seen.servers]
    if seen.has_quorum is False:
        raise NotRunning(f"{standing.trouble}; replace {lost} when a majority is there")
    if lost not in names:
        held = any(lost == one.server for stream in standing.streams for one in stream.others)
        if not held:
            raise ConfigError(f"no server is called {lost!r}; there are {', '.join(names)}")
    if any(server.name == lost and server.is_up for server in seen.servers):
        raise ConfigError(f"{lost} is up; a server that runs is not lost. Stop it permanently first to replace it")


def _urls(arguments: argparse.Namespace) -> tuple[NatsAddress, NatsAddress | None]:
    """The servers as the fleet's user, and, if that is known, as the system's."""
    system = getattr(arguments, "system", None)
    if (arguments.nats is None) == (arguments.urls is None):
        raise ConfigError("which cluster? Give --urls FILE, as cluster config and up write it, or --nats URL")
    if arguments.urls is None:
        return parse_address(arguments.nats), None if system is None else parse_address(system)
    try:
        lines = arguments.urls.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{arguments.urls} cannot be read: {error}") from None
    found = [parse_address(line) for line in lines if line.startswith(("nats://", "tls://"))]
    by_user = {address.user: address for address in found}
    if list(by_user) == [""]:  # all show certificates: the operator's, then the administrator's
        return found[0], parse_address(system) if system is not None else found[-1]
    if FLEET not in by_user:
        raise ConfigError(f"{arguments.urls} has no URL of the user {FLEET}; is it the urls.txt of a cluster?")
    return by_user[FLEET], parse_address(system) if system is not None else by_user.get(SYSTEM)
