"""`stigmergy run`: runs a fleet until it is stopped, and serves its control endpoint meanwhile.

SIGTERM and SIGINT drain: nothing more is taken, and accepted inputs are finished and written. A second signal ends it
at once, which is no worse than a power loss: everything acknowledged is in the journal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from stigmergy.agents.assignment import shown
from stigmergy.app.fleet import Fleet, NodeConfig, Running, journal_path, make_process_ours
from stigmergy.app.parts import check_one_process, shown_url
from stigmergy.base.errors import NotRunning
from stigmergy.base.tasks import end_tasks
from stigmergy.cli.api.metrics import MetricsReport, add_metrics, metrics_of
from stigmergy.cli.api.serve import add_serving, serving_of, tell_serving
from stigmergy.cli.display import exits
from stigmergy.cli.display.logs import add_log, log_of
from stigmergy.cli.display.output import GOOD, NAME, WARN, Output, counted, shown_bytes, version
from stigmergy.cli.display.places import (
    add_models,
    add_peer_keys,
    config_of,
    fleet_spec,
    folder_of,
    load_fleet,
    module_folder,
    url_of,
)
from stigmergy.cli.display.troubles import LOG, TroubleWatch
from stigmergy.cli.trust.keeping import kept_identity
from stigmergy.control.description import described_recovery
from stigmergy.control.live import Live
from stigmergy.control.metrics import ProcessMetrics
from stigmergy.control.protocol import ControlHandler
from stigmergy.journal.recovery import sum_up_passed_over
from stigmergy.metrics.samples import Collect

if TYPE_CHECKING:
    from stigmergy.serve.server import ApiServer, Serving

STATUS_EVERY_S = 1.0
LEFT_BEHIND_S = 1.0
"""What a node has left behind at its end, such as a sensor that does not heed it, is waited for so long once more."""
LIFE_ENDS_S_MAX = 60.0
"""A node that is ended by an exception, such as `sys.exit()` in a sensor, has so long to drain."""
EXAMPLES = """examples:
  stigmergy run drone:fleet                      the fleet in drone.py, on NAME.db with the key NAME.key
  stigmergy run drone:fleet --journal north.db   on another journal
  stigmergy run drone:fleet --bus mqtt://gateway:1883    on a bus, where others hear it
  stigmergy run drone:fleet --mesh 'udp://0.0.0.0:7946?peers=north@10.0.0.7:7946'    shared fields without a broker
  stigmergy run drone:fleet --ledger sqlite:ledger.db    claims, between the nodes of this machine
  stigmergy run drone:fleet --ring telemetry.ring    fed by a producer on this machine
  stigmergy run drone:fleet --serve :8080        and its HTTP API, see http://127.0.0.1:8080/docs
  stigmergy run drone:fleet --metrics :9100      and http://127.0.0.1:9100/metrics for Prometheus
  stigmergy run                                  what stigmergy.toml says: module = "drone:fleet" under [fleet]
"""


def add_commands(commands: Any) -> None:
    """Adds `run`."""
    parser = commands.add_parser(
        "run",
        run=run,
        help="run a fleet until it is stopped",
        description="Runs a fleet. Recovers from its journal, listens on a socket beside it, drains on SIGTERM.",
        epilog=EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument("--journal", metavar="URL", help="where to keep the log, such as sqlite:fleet.db or fleet.db")
    parser.add_argument("--key", metavar="FILE", type=Path, help="the key to sign with; made if it is not there")
    parser.add_argument(
        "--trust",
        metavar="KEY",
        action="append",
        default=[],
        help="believe a log that ends with this key's signature: its file, line or hex digits; after a rotation",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")
    parser.add_argument("--bus", metavar="URL", help="the bus, such as mqtt://gateway:1883")
    parser.add_argument("--site", metavar="NAME", help="the site of this node; part of all its topics")
    parser.add_argument("--node", metavar="NAME", help="the name of this node; else the name of the machine")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="run agents that another node on the bus says it runs: that node is gone for good",
    )
    parser.add_argument(
        "--mesh",
        metavar="URL",
        help="how shared fields reach others without a bus: udp://HOST:PORT?peers=NAME@HOST:PORT",
    )
    parser.add_argument("--ledger", metavar="URL", help="the ledger of claims, such as sqlite:ledger.db")
    add_peer_keys(parser)
    add_models(parser)
    parser.add_argument(
        "--copies",
        metavar="URL",
        action="append",
        default=[],
        help="copy the journal to this store, such as nats://hub:4222 or folder:/mnt/peer; repeatable",
    )
    parser.add_argument("--blobs", metavar="URL", help="the store of large payloads; else a folder beside the journal")
    parser.add_argument("--uplink-to", metavar="URL", help="the bus of the uplink, if it is another one")
    parser.add_argument(
        "--collect-from", metavar="URL", help="take the uplinks of all sites of a hub: nats-sites://hub:4222"
    )
    parser.add_argument("--socket", metavar="PATH", type=Path, help="where to listen; else beside the journal")
    parser.add_argument("--processes", metavar="N", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--ring",
        metavar="PATH",
        action="append",
        default=[],
        help="read a producer's messages from this ring; repeatable",
    )
    parser.add_argument("--serve", metavar="HOST:PORT", help="serve the fleet's page and API, such as :8080 here")
    add_serving(parser)
    add_metrics(parser)
    add_log(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the fleet."""
    config = config_of(arguments)
    spec = fleet_spec(arguments, config)
    processes = config.fleet.processes if arguments.processes is None else arguments.processes
    named = "processes in stigmergy.toml" if arguments.processes is None else f"--processes {processes}"
    check_one_process(processes, named, spec)
    fleet = load_fleet(spec, folder_of(arguments))
    journal = None if arguments.journal is None else url_of(arguments.journal)
    node_config = NodeConfig(
        arguments.bus,
        arguments.site,
        arguments.node,
        mesh=arguments.mesh,
        ledger=arguments.ledger,
        peers=tuple(arguments.peer),
        copies=tuple(arguments.copies),
        uplink_to=arguments.uplink_to,
        collect_from=arguments.collect_from,
        blobs=arguments.blobs,
        models=arguments.models,
        model_keys=tuple(arguments.model_key),
        policy=arguments.policy,
        policy_keys=tuple(arguments.policy_key),
        take_over=arguments.take_over,
    )
    running = Running(
        fleet, config, journal, arguments.key, None, arguments.trust, (), node_config, rings=arguments.ring
    )
    path = arguments.socket or running.socket
    beside = journal_path(running.url)
    serving = serving_of(arguments, arguments.serve, beside, fleet, module_folder(spec))
    metrics = metrics_of(arguments, config, beside, fleet)
    make_process_ours(large_commits=fleet.has_compiled)
    with log_of(arguments, config, fleet.name, "node", running.node_config.node or "") as output.log:
        _tell_unused(fleet, running.node_config)
        node = NodeRun(fleet, running, path, output, serving, metrics)
        place, key = running.node_config, arguments.key or (Path(config.fleet.key) if config.fleet.key else None)
        node.keeping = kept_identity(config, key, place.bus, place.ledger, running.url)
        return run_to_the_end(node.live_and_die())


def _tell_unused(fleet: Fleet, node_config: NodeConfig) -> None:
    """What is given and of no use to this fleet is mostly a mistake."""
    plans = fleet.plans.values()
    if node_config.mesh is not None and not any(plan.shared for plan in plans):
        text = f"no agent of {fleet.name} has a Shared field: the mesh {node_config.mesh} is not used"
        LOG.say("option-unused", text)
    if node_config.ledger is not None and not fleet.ledgers and not any(plan.ordered for plan in plans):
        text = f"no agent of {fleet.name} has an Ordered field, and it has no Ledger: nobody asks {node_config.ledger}"
        LOG.say("option-unused", text)
    if node_config.models is not None and not fleet.models:
        text = (
            f"no agent of {fleet.name} has a handler for an Inferred[…]: nobody asks the models at {node_config.models}"
        )
        LOG.say("option-unused", text)


def run_to_the_end(life: Coroutine[Any, Any, int]) -> int:
    """Like `asyncio.run`, which would wait for ever for a sensor that cannot be cancelled: it is left behind."""
    runner = asyncio.Runner()
    patience_s = LEFT_BEHIND_S
    try:
        return runner.run(life)
    except (KeyboardInterrupt, SystemExit):
        patience_s = LIFE_ENDS_S_MAX
        raise
    finally:
        if runner.run(_end_rest(patience_s)):
            runner.get_loop().set_exception_handler(lambda *_: None)  # It would only say so.
        else:
            runner.close()


async def _end_rest(patience_s: float) -> bool:
    """Cancels all that still runs; whether something is left that does not end."""
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    return bool(rest and (await asyncio.wait(rest, timeout=patience_s))[1])


class NodeRun:
    """One run of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        running: Running,
        path: Path,
        output: Output,
        serving: Serving | None = None,
        metrics: MetricsReport | None = None,
        role: str = "node",
    ) -> None:
        self._fleet = fleet
        self._serving = serving
        self._metrics = metrics or MetricsReport()
        self._role = role
        self._running = running
        self._path = path
        self._output = output
        self._stopping = asyncio.Event()
        self._reason = ""
        self._troubles = TroubleWatch(output, fleet.name)
        self.on_live: Callable[[Live], None] = lambda _: None
        """Called once the fleet runs and listens."""
        self.keeping: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        """Entered while the fleet runs."""

    async def live_and_die(self) -> int:
        """Everything from recovery to the end."""
        began_s = time.monotonic()
        async with self._running as live, self.keeping:
            self._heed_signals()
            self._tell_recovered(live, time.monotonic() - began_s)
            metrics, stop = self._metrics, lambda: self._stop("control")
            service = self._running.service(live, version(), stop, role=self._role, metrics_url=lambda: metrics.url)
            server = self._running.control(service, self._path)
            await server.start()
            api: ApiServer | None = None
            try:
                self._tell_listening()
                collected = ProcessMetrics(lambda: {0: live}, version(), self._role).collect
                await self._metrics.start(collected, self._fleet.name, self._output)
                api = await self._serve(service, live, collected)
                self.on_live(live)
                await self._wait(live)
            finally:
                self._show("")
                self._troubles.tell_safe_actions({0: live}, time.monotonic())
                if api is not None:
                    await api.close()
                await self._metrics.close()
                await server.close()
        if live.failure is not None and not isinstance(live.failure, NotRunning):
            raise live.failure
        document = {"event": "stopped", "fleet": self._fleet.name, "reason": self._reason}
        what = f" ({self._reason}); everything taken is in the journal"
        self._output.tell("node-stopped", "stopped ", (self._fleet.name, NAME), what, document=document)
        return exits.OK

    async def _serve(self, service: ControlHandler, live: Live, collected: Collect) -> ApiServer | None:
        """The HTTP API, if it was asked for."""
        if self._serving is None:
            return None
        from stigmergy.serve.asker import NodeAsker
        from stigmergy.serve.server import ApiServer

        agents = live.host.settings.metrics.agents
        options = (NodeAsker(service), self._serving, live.blobs, collected)
        api = ApiServer(self._fleet, *options, agents=agents, raw_may_leave=live.host.settings.raw_may_leave)
        tell_serving(self._output, self._fleet.name, await api.start())
        return api

    async def _wait(self, live: Live) -> None:
        """Until a signal, a client or a failure ends it."""
        ends = [asyncio.ensure_future(self._stopping.wait()), asyncio.ensure_future(live.wait_failure())]
        shows = [asyncio.ensure_future(self._show_status(live)), asyncio.ensure_future(self._tell_troubles(live))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*ends, *shows)

    def _heed_signals(self) -> None:
        """From recovery on a signal drains; before that nothing was taken, and it ends the process as usual."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        self._stop(number.name)
        # From here on a second signal does what it does by default: it ends the process at once.
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        LOG.say("node-stopping", "stopping: finishing what was taken; once more to end at once")

    def _stop(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._stopping.set()

    def _tell_recovered(self, live: Live, took_s: float) -> None:
        found = described_recovery(live.recovered)
        agents, resting = len(live.agents()), live.standing().at_rest
        document = {
            "event": "recovered",
            "fleet": self._fleet.name,
            **structs.asdict(found),
            "agents": agents,
            "at_rest": resting,
            "seconds": round(took_s, 6),
        }
        if not live.recovered.commits and not live.recovered.snapshots:
            what = f"  new journal {shown_url(self._running.url)}"
        else:
            begun = ", ".join(f"{position}" for position in live.recovered.snapshots.values())
            snapshot = f"from the snapshot at {begun}" if begun else "from the beginning of the log"
            what = (
                f"  recovered {counted(agents, 'agent')} in {took_s:.2f} s: {counted(found.events, 'event')} in "
                f"{counted(found.commits, 'commit')}, {snapshot}"
            )
        self._output.tell("node-recovered", (self._fleet.name, NAME), what, document=document)
        if resting:
            what = f"{shown(resting)}: in the journal, and not among agents of this node"
            self._output.line(("at rest", WARN), f"  {what}; they take nothing, and only send tells that they owe")
        for passed_over in sum_up_passed_over(live.recovered.passed_over):
            LOG.say("journal-passed-over", f"passed over: {passed_over}")

    def _tell_listening(self) -> None:
        document = {
            "event": "listening",
            "socket": str(self._path),
            "journal": shown_url(self._running.url),
            "fleet": self._fleet.name,
        }
        self._output.tell("node-listening", ("listening", GOOD), f" on {self._path}", document=document)

    async def _tell_troubles(self, live: Live) -> None:
        while True:
            self._troubles.look({0: live}, time.monotonic())
            await asyncio.sleep(STATUS_EVERY_S)

    async def _show_status(self, live: Live) -> None:
        """One line at the foot of a terminal, written anew each second."""
        if self._output.json or self._output.log is None or not self._output.log.is_terminal:
            return
        before, before_s = _events(live), time.monotonic()
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            standing = live.standing()
            events, now_s = _events(live), time.monotonic()
            rate = (events - before) / (now_s - before_s)
            before, before_s = events, now_s
            parts = [counted(standing.agents, "agent"), counted(events, "event"), f"{rate:,.0f}/s"]
            parts += [f"{standing.owed:,} owed"] if standing.owed else []
            parts += [counted(standing.dead_letters, "dead letter")] if standing.dead_letters else []
            parts += [f"{len(standing.stopped):,} stopped"] if standing.stopped else []
            parts.append(shown_bytes(standing.journal_bytes))
            self._show(" · ".join(parts))

    def _show(self, status: str) -> None:
        if self._output.log is not None:
            self._output.log.show_status(status)


def _events(live: Live) -> int:
    return sum(shard.state.events_count for shard in live.host.shards)
