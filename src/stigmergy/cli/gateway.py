"""`stigmergy gateway`: the node of a site, with its own NATS server that is a leaf of the level above.

The site works whatever happens to the link: devices connect here, agents decide here, the log is here. What the rule
lets through goes up; what was held back while cut off follows when the link is back.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

from msgspec import structs

from stigmergy.app.config import Config
from stigmergy.app.fleet import Fleet, Running, journal_path, make_process_ours
from stigmergy.app.gateway import (
    NODE,
    GatewayPlan,
    HubCollector,
    HubPlan,
    Leaf,
    drop_claim,
    hub_tls,
    make_leaf,
    node_config_of,
    read_hubs,
)
from stigmergy.base.errors import ConfigError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import UP
from stigmergy.cli.api.metrics import add_metrics, metrics_of
from stigmergy.cli.display import exits
from stigmergy.cli.display.logs import add_log, log_of
from stigmergy.cli.display.output import GOOD, NAME, WARN, Output
from stigmergy.cli.display.places import config_of, fleet_spec, folder_of, load_fleet, url_of
from stigmergy.cli.display.troubles import LOG
from stigmergy.cli.run import NodeRun, run_to_the_end
from stigmergy.control.live import Live
from stigmergy.uplink.rules import UplinkRule

LOOK_S = 0.25
STEADY_S = 1.0
"""A link that is away for a moment is not worth a line."""
PORT = 4222
MQTT_PORT = 1883
EXAMPLES = """examples:
  stigmergy gateway town:fleet --site north --hub hub.example:7422     a site, and the hub above it
  stigmergy gateway town:fleet --site north --hub hub.example:7422 --only IncidentReported
  stigmergy gateway town:fleet --site west --leaf-port 7422            the uppermost level: gateways connect to it
  stigmergy gateway town:fleet --site west --leaf-port 7422 --hub cloud.example:7422    a level between two others
  stigmergy gateway town:fleet --at-hub nats://hub:4222                to the workers of a cluster, from all its sites
"""


def add_commands(commands: Any) -> None:
    """Adds `gateway`."""
    parser = commands.add_parser(
        "gateway",
        run=run,
        help="run the node of a site, with its own leaf server",
        description="Runs a fleet at a site on its own NATS server, which links it to the level above.",
        epilog=EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument("--site", metavar="NAME", help="where this is; its JetStream domain has the same name")
    parser.add_argument(
        "--hub",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="the leaf listener of the level above, with USER:PASSWORD@ if it needs one; repeatable",
    )
    parser.add_argument(
        "--hub-file", metavar="FILE", type=Path, help="the same from a file, one in each line: for passwords"
    )
    parser.add_argument(
        "--at-hub",
        metavar="URL",
        help="at the hub instead of a site: give what all sites send up to the fleet's workers, such as nats://hub:4222",
    )
    parser.add_argument("--hub-ca", metavar="FILE", help="the CA of the hub's certificate: uses TLS")
    parser.add_argument("--hub-cert", metavar="FILE", help="our certificate, if the hub requires one")
    parser.add_argument("--hub-key", metavar="FILE", help="its key")
    parser.add_argument(
        "--hub-replicas", metavar="N", type=int, default=1, help="servers of the hub that store the uplink: 1, 3 or 5"
    )
    parser.add_argument(
        "--only", metavar="EVENT", action="append", default=[], help="send up events of this type only; repeatable"
    )
    parser.add_argument("--data", metavar="FOLDER", type=Path, help="where everything is kept; else gateway-SITE")
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="where devices connect; else loopback")
    parser.add_argument(
        "--port", metavar="PORT", type=int, default=PORT, help=f"for NATS; else {PORT}, 0 for a free one"
    )
    parser.add_argument(
        "--mqtt-port", metavar="PORT", type=int, default=MQTT_PORT, help=f"for MQTT; else {MQTT_PORT}, 0 for a free one"
    )
    parser.add_argument("--leaf-port", metavar="PORT", type=int, help="where gateways of the level below connect")
    parser.add_argument("--store-mb", metavar="N", type=int, default=4_096, help="disk space of the server; else 4096")
    parser.add_argument(
        "--bus", choices=("nats", "mqtt"), default="nats", help="how the node itself connects to the server"
    )
    parser.add_argument("--ledger", metavar="URL", help="the ledger of claims, such as nats://hub:4222")
    parser.add_argument("--node", metavar="NAME", default=NODE, help=f"the name of this node; else {NODE}")
    parser.add_argument("--journal", metavar="URL", help="where to keep the log; else in the folder")
    parser.add_argument("--key", metavar="FILE", type=Path, help="the key to sign with; else in the folder")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")
    parser.add_argument("--socket", metavar="PATH", type=Path, help="where to listen; else beside the journal")
    parser.add_argument(
        "--take-over", action="store_true", help="take the site over from another gateway that is permanently gone"
    )
    add_metrics(parser)
    add_log(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the gateway."""
    config = config_of(arguments)
    spec = fleet_spec(arguments, config, "which fleet? Give MODULE:FLEET, such as town:fleet")
    site = arguments.site or config.fleet.site
    if arguments.hub_file is not None:
        arguments.hub += read_hubs(arguments.hub_file)
    if arguments.at_hub is not None:
        if arguments.hub or arguments.leaf_port is not None:
            raise ConfigError("--at-hub runs no server; give --hub or --leaf-port for a gateway, or --at-hub alone")
        fleet = load_fleet(spec, folder_of(arguments))
        settings = (config.settings or fleet.settings).bus
        key = arguments.key or (None if config.fleet.key is None else Path(config.fleet.key))
        url, peers = arguments.at_hub, config.fleet.peers
        hub = HubPlan(fleet=fleet, url=url, site=site or "local", key=key, settings=settings, peers=peers)
        with log_of(arguments, config, fleet.name, "hub") as output.log:
            return run_to_the_end(_AtHub(hub, output).live_and_die())
    if site is None:
        raise ConfigError("which site? Give --site NAME: it is part of all topics here, and what the hub knows it by")
    if not arguments.hub and arguments.leaf_port is None:
        raise ConfigError(
            "which hub? Give --hub HOST:PORT of the level above; or --leaf-port PORT, if this is the uppermost level"
        )
    fleet = load_fleet(spec, folder_of(arguments))
    plan = _plan(arguments, config, fleet, site)
    with log_of(arguments, config, fleet.name, "gateway", plan.node) as output.log:
        return run_to_the_end(_Gateway(fleet, plan, arguments, config, output).live_and_die())


def _plan(arguments: argparse.Namespace, config: Config, fleet: Fleet, site: str) -> GatewayPlan:
    rule = UplinkRule(only=tuple(arguments.only)) if arguments.only else config.fleet.uplink or UplinkRule()
    if arguments.only and config.fleet.uplink is not None:
        raise ConfigError("--only and uplink = … in the configuration both say what goes up; give one of them")
    return GatewayPlan(
        fleet=fleet,
        site=site,
        folder=arguments.data or Path(f"gateway-{site}"),
        node=arguments.node,
        hubs=tuple(arguments.hub),
        hub_tls=hub_tls(arguments.hub_ca, arguments.hub_cert, arguments.hub_key, config.fleet.identity),
        hub_replicas=arguments.hub_replicas,
        rule=rule,
        host=arguments.host,
        port=arguments.port,
        mqtt_port=arguments.mqtt_port,
        leaf_port=arguments.leaf_port,
        store_mb=arguments.store_mb,
        bus=arguments.bus,
        ledger=arguments.ledger,
    )


class _AtHub:
    """Distributes what sites send up, until it is stopped."""

    def __init__(self, plan: HubPlan, output: Output) -> None:
        self._plan = plan
        self._output = output
        self._stopping = asyncio.Event()

    async def live_and_die(self) -> int:
        """Until a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        collector = HubCollector(self._plan, self._tell)
        ends = [asyncio.ensure_future(collector.run()), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if ends[0].done():
                ends[0].result()
        finally:
            await end_tasks(*ends)
        document = {"event": "stopped", "fleet": self._plan.fleet.name, "reason": "signal"}
        self._output.tell("node-stopped", "stopped ", (self._plan.fleet.name, NAME), document=document)
        return exits.OK

    def _tell(self, state: str, why: str) -> None:
        document = {"event": "hub", "state": state, "why": why, "fleet": self._plan.fleet.name}
        style = GOOD if state == "hands-out" else WARN
        self._output.tell("hub-collects", (state, style), f"  {why}", document=document)


class _Gateway:
    """One run of a gateway."""

    def __init__(
        self, fleet: Fleet, plan: GatewayPlan, arguments: argparse.Namespace, config: Config, output: Output
    ) -> None:
        self._fleet = fleet
        self._plan = plan
        self._arguments = arguments
        self._config = config
        self._output = output
        self._task: asyncio.Task[None] | None = None

    async def live_and_die(self) -> int:
        """The server first, and last."""
        leaf = make_leaf(self._plan)
        await leaf.start()
        make_process_ours(large_commits=self._fleet.has_compiled)
        try:
            if self._arguments.take_over:
                await drop_claim(self._plan, leaf)
            running = self._running(leaf)
            beside = journal_path(running.url)
            metrics = metrics_of(self._arguments, self._config, beside, self._fleet)
            path = self._arguments.socket or running.socket
            node = NodeRun(self._fleet, running, path, self._output, metrics=metrics, role="gateway")
            node.on_live = lambda live: self._begin(live, leaf)
            return await node.live_and_die()
        finally:
            if self._task is not None:
                self._task.cancel()
            await leaf.stop()

    def _running(self, leaf: Leaf) -> Running:
        folder, name = self._plan.folder, self._fleet.name
        given = self._arguments.journal or self._config.fleet.journal
        journal = f"sqlite:{folder / name}.db" if given is None else url_of(given)
        key = self._arguments.key or (None if self._config.fleet.key else folder / f"{name}.key")
        place = structs.replace(node_config_of(self._plan, leaf), take_over=self._arguments.take_over)
        running = Running(self._fleet, self._config, journal, key, None, (), (), place)
        return running

    def _begin(self, live: Live, leaf: Leaf) -> None:
        plan, server = self._plan, leaf.server.plan
        document = {
            "event": "gateway",
            "site": plan.site,
            "gateway": leaf.identity.gateway,
            "nats": leaf.address,
            "mqtt": leaf.mqtt_address,
            "leaf_port": server.leaf_port,
            "hubs": [hub.rpartition("@")[2] for hub in plan.hubs],
        }
        below = f", gateways on {plan.host}:{server.leaf_port}" if server.leaf_port else ""
        where = f"  mqtt://{leaf.mqtt_address}, nats://{leaf.address}{below}"
        self._output.tell("site-open", ("site", GOOD), " ", (plan.site, NAME), where, document=document)
        self._task = asyncio.get_running_loop().create_task(self._watch(live, leaf), name="gateway watch")

    async def _watch(self, live: Live, leaf: Leaf) -> None:
        """Says when the hub, or the server, comes and goes."""
        told, steady_s, before = "", 0.0, ""
        restarts = leaf.restarts
        while True:
            standing = live.standing().link
            above = live.link.relay.levels.above if live.link is not None else None
            if above is not None and above.is_up:
                leaf.recognise()
            if leaf.restarts != restarts and leaf.trouble:
                LOG.say("leaf-restarted", leaf.trouble)
            restarts = leaf.restarts
            steady_s = steady_s + LOOK_S if standing.link == before else 0.0
            before = standing.link
            if before != told and (before == UP or steady_s >= STEADY_S):
                told = before
                self._tell(told, "" if told == UP else standing.why)
            await asyncio.sleep(LOOK_S)

    def _tell(self, state: str, why: str) -> None:
        document = {"event": "link", "state": state, "why": why, "site": self._plan.site}
        if not self._plan.hubs:
            self._output.document(document)
        elif state == UP:
            self._output.tell("site-linked", ("linked", GOOD), " to the hub", document=document)
        else:
            what = f"  the site goes on by itself: {why}"
            self._output.tell("site-alone", (state, WARN), what, document=document)


__all__ = ["add_commands", "run"]
