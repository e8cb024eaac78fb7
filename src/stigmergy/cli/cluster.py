"""`stigmergy cluster`: configurations for servers on real hosts; a lost server replaced; what durability hangs on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from stigmergy.cli import exits
from stigmergy.cli.output import GOOD, HEADING, NAME, WARN, Output, counted
from stigmergy.core.errors import ConfigError
from stigmergy.engine import (
    DEVICE,
    DURABLE_LINES,
    FLEET,
    GATEWAY,
    SYSTEM,
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
PURPOSES = {
    FLEET: "workers, and the command line: --nats URL",
    GATEWAY: "gateways: --hub URL",
    SYSTEM: "whoever looks after the servers: cluster replace --nats URL",
    DEVICE: "devices that speak MQTT",
}
EXAMPLES = """examples:
  stigmergy cluster config --hosts hub-1,hub-2,hub-3      a file for each host and one with URLs, in cluster-config/
  stigmergy cluster config --hosts hub-1,hub-2,hub-3 --tls-cert server.pem --tls-key server.key --tls-ca ca.pem
"""


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds `cluster` and what is under it."""
    parser = commands.add_parser(
        "cluster",
        parents=[common],
        help="servers for a fleet on several machines",
        description="Prepares and mends the NATS servers of a fleet that runs on several machines.",
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions", required=True)
    config = actions.add_parser(
        "config",
        parents=[common],
        help="write server configurations",
        description="Writes a configuration of nats-server for each host, with new passwords; says what matters.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config.add_argument("--hosts", metavar="A,B,C", required=True, help="where servers are to run; one, three or more")
    config.add_argument("--to", metavar="DIR", type=Path, default=DEFAULT_FOLDER, help="where the files go")
    config.add_argument("--name", metavar="NAME", default="stigmergy", help="what the cluster is called")
    config.add_argument("--store", metavar="DIR", default=STORE, help=f"where each host keeps its data ({STORE})")
    config.add_argument("--store-gib", metavar="N", type=float, default=8.0, help="how much of it a server may use (8)")
    config.add_argument("--tls-cert", metavar="FILE", help="each host's certificate, as it is named there")
    config.add_argument("--tls-key", metavar="FILE", help="its key")
    config.add_argument("--tls-ca", metavar="FILE", help="the authority whose clients are let in")
    config.add_argument("--no-mqtt", action="store_true", help="no listener for devices that speak MQTT")
    config.set_defaults(run=config_files)


def config_files(arguments: argparse.Namespace, output: Output) -> int:
    """Writes the files; overwrites none."""
    places = parse_hosts(arguments.hosts)
    if not 0 < arguments.store_gib <= 1e6:
        raise ConfigError(f"--store-gib {arguments.store_gib:g}: give how many GiB a server may use, such as 100")
    tls = _tls(arguments)
    passwords = draw_passwords()
    plans = plan_hosts(
        places,
        cluster=arguments.name,
        store=arguments.store,
        passwords=passwords,
        tls=tls,
        has_mqtt=not arguments.no_mqtt,
        file_bytes=int(arguments.store_gib * GIB),
    )
    urls = urls_of(plans, passwords, tls)
    texts = {f"{plan.name}.conf": write_configuration(plan) for plan in plans}
    texts["urls.txt"] = "".join(f"# {PURPOSES[user]}\n{url}\n" for user, url in urls.items())
    _write_all(arguments.to, texts)
    _tell(arguments.to, plans, urls, output)
    return exits.OK


def _tls(arguments: argparse.Namespace) -> TlsFiles | None:
    cert, key, ca = arguments.tls_cert, arguments.tls_key, arguments.tls_ca
    if bool(cert) != bool(key) or (ca and not cert):
        raise ConfigError("--tls-cert and --tls-key belong together, and --tls-ca to both; give all, or none")
    return None if cert is None else TlsFiles(cert, key, ca or "")


def _write_all(folder: Path, texts: dict[str, str]) -> None:
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
            "urls": str(folder / "urls.txt"),
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
    output.line(("Passwords are in ", HEADING), str(folder / "urls.txt"), (", for: ", HEADING), ", ".join(urls))
    output.line()
    output.line(("What durability hangs on:", HEADING))
    for line, why in DURABLE_LINES:
        output.line(("  " + line.rstrip(":"), GOOD), f"  {why}")
    if len(plans) == 1:
        output.note(
            "one server: it keeps everything once; with its disk all is lost. Three survive the loss of one", WARN
        )
    elif len(plans) % 2 == 0:
        fewer = counted(len(plans) - 1, "server")
        output.note(f"{len(plans)} servers survive no more losses than {fewer}; an odd number is better", WARN)
