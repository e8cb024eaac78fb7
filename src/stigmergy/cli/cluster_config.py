"""`stigmergy cluster config`: configurations for servers on real hosts, and which of their lines durability hangs on.

What a cluster was made with is kept beside the configurations, so that a server can join it later.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.cli import exits
from stigmergy.cli.output import GOOD, HEADING, NAME, WARN, Output, counted
from stigmergy.core.errors import ConfigError
from stigmergy.engine import (
    DEVICE,
    DURABLE_LINES,
    FLEET,
    GATEWAY,
    SYSTEM,
    Passwords,
    ServerPlan,
    TlsFiles,
    draw_passwords,
    parse_hosts,
    plan_hosts,
    urls_of,
    write_configuration,
)

DEFAULT_FOLDER = Path("cluster-config")
STORE = "/var/lib/stigmergy/nats"
GIB = 1024**3
FORMAT = 1
URLS, NOTES = "urls.txt", "cluster.json"
PURPOSES = {
    FLEET: "workers, and the command line: --nats URL",
    GATEWAY: "gateways: --hub USER:PASSWORD@HOST:PORT, for each",
    SYSTEM: "whoever looks after the servers: cluster replace --system URL",
    DEVICE: "devices that speak MQTT",
}
EXAMPLES = """examples:
  stigmergy cluster config --hosts hub-1,hub-2,hub-3      a file for each host and one with URLs, in cluster-config/
  stigmergy cluster config --hosts hub-1,hub-2,hub-3 --tls-cert server.pem --tls-key server.key --tls-ca ca.pem
  stigmergy cluster config --join hub-4 --instead-of hub-2      a server more for the same cluster, for one that is lost
"""


class Notes(Struct, frozen=True):
    """What a cluster was made with."""

    hosts: str
    name: str
    store: str
    store_gib: float
    passwords: Passwords
    tls: TlsFiles | None = None
    has_mqtt: bool = True
    format: int = FORMAT

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
        )


def add_config(actions: Any, common: argparse.ArgumentParser) -> None:
    """Adds `cluster config`."""
    config = actions.add_parser(
        "config",
        parents=[common],
        help="write server configurations",
        description="Writes a configuration of nats-server for each host, with new passwords; says what matters.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config.add_argument("--hosts", metavar="A,B,C", help="where servers are to run; one, three or more")
    config.add_argument("--join", metavar="HOST", help="one more server for the cluster whose files are there already")
    config.add_argument("--instead-of", metavar="HOST", help="with --join: leave this one out, which is lost")
    config.add_argument("--to", metavar="DIR", type=Path, default=DEFAULT_FOLDER, help=f"the files ({DEFAULT_FOLDER})")
    config.add_argument("--name", metavar="NAME", default="stigmergy", help="what the cluster is called")
    config.add_argument("--store", metavar="DIR", default=STORE, help=f"where each host keeps its data ({STORE})")
    config.add_argument("--store-gib", metavar="N", type=float, default=8.0, help="how much of it a server may use (8)")
    config.add_argument("--tls-cert", metavar="FILE", help="each host's certificate, as it is named there")
    config.add_argument("--tls-key", metavar="FILE", help="its key")
    config.add_argument("--tls-ca", metavar="FILE", help="the authority whose clients are let in")
    config.add_argument("--no-mqtt", action="store_true", help="no listener for devices that speak MQTT")
    config.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Writes the files; overwrites none of a server."""
    if (arguments.hosts is None) == (arguments.join is None):
        raise ConfigError("give --hosts A,B,C for a new cluster, or --join HOST for one more server of this one")
    folder: Path = arguments.to
    if arguments.join is not None:
        notes, plans = _join(folder, arguments.join, arguments.instead_of)
        _write_new(folder, {f"{plan.name}.conf": write_configuration(plan) for plan in plans})
        _write_over(folder, notes)
        _tell(folder, plans, urls_of(notes.plans, notes.passwords, notes.tls), output)
        return exits.OK
    if not 0 < arguments.store_gib <= 1e6:
        raise ConfigError(f"--store-gib {arguments.store_gib:g}: give how many GiB a server may use, such as 100")
    notes = Notes(
        arguments.hosts,
        arguments.name,
        arguments.store,
        arguments.store_gib,
        draw_passwords(),
        _tls(arguments),
        not arguments.no_mqtt,
    )
    texts = {f"{plan.name}.conf": write_configuration(plan) for plan in notes.plans}
    _write_new(folder, {**texts, URLS: _urls_text(notes), NOTES: _notes_text(notes)})
    _tell(folder, notes.plans, urls_of(notes.plans, notes.passwords, notes.tls), output)
    return exits.OK


def _join(folder: Path, host: str, lost: str | None) -> tuple[Notes, list[ServerPlan]]:
    """The cluster with one server more, and the plan of that one."""
    path = folder / NOTES
    try:
        notes = msgspec.json.decode(path.read_bytes(), type=Notes)
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


def _tls(arguments: argparse.Namespace) -> TlsFiles | None:
    cert, key, ca = arguments.tls_cert, arguments.tls_key, arguments.tls_ca
    if bool(cert) != bool(key) or (ca and not cert):
        raise ConfigError("--tls-cert and --tls-key belong together, and --tls-ca to both; give all, or none")
    return None if cert is None else TlsFiles(cert, key, ca or "")


def _urls_text(notes: Notes) -> str:
    hint = (
        "" if notes.tls is None else "# Clients add ?ca=FILE, and &cert=FILE&key=FILE if the servers want to see one.\n"
    )
    urls = urls_of(notes.plans, notes.passwords, notes.tls)
    return hint + "".join(f"# {PURPOSES[user]}\n{url}\n" for user, url in urls.items())


def _notes_text(notes: Notes) -> str:
    return msgspec.json.format(msgspec.json.encode(notes), indent=2).decode() + "\n"


def _write_new(folder: Path, texts: dict[str, str]) -> None:
    """All of them or none: a mixture of two sets of passwords would be a cluster that does not find together."""
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


def _write_over(folder: Path, notes: Notes) -> None:
    """What says which servers there are; the configurations of the others need no change: servers tell each other."""
    for name, text in ((URLS, _urls_text(notes)), (NOTES, _notes_text(notes))):
        new = folder / f"{name}.new"
        new.touch(mode=0o600)
        new.write_text(text, encoding="utf-8")
        new.rename(folder / name)


def _tell(folder: Path, plans: list[ServerPlan], urls: dict[str, str], output: Output) -> None:
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
    output.line(("Start each on its host: ", HEADING), f"nats-server -c {plans[0].name}.conf")
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
