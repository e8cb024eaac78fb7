"""`stigmergy worker`: runs some shards of a fleet on NATS, beside other workers; start as many as you like, anywhere.

SIGTERM and SIGINT hand all shards over, each when its next owner has replayed it, and then end. A second signal ends it
at once: others take over when the lease has run out, from logs that have everything acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import Any

from stigmergy.app.fleet import Fleet, make_process_ours
from stigmergy.app.node_config import NodeConfig, find_node_config
from stigmergy.app.workers import NatsWorker, Worker
from stigmergy.base.errors import NotOwned
from stigmergy.base.tasks import end_tasks
from stigmergy.cli.api.metrics import MetricsReport, add_metrics, metrics_of
from stigmergy.cli.display import exits
from stigmergy.cli.display.logs import add_log, log_of
from stigmergy.cli.display.output import GOOD, NAME, Output, counted, version
from stigmergy.cli.display.places import add_models, add_peer_keys, config_of, fleet_spec, folder_of, load_fleet
from stigmergy.cli.display.troubles import LOG, TroubleWatch
from stigmergy.cli.run import run_to_the_end
from stigmergy.cli.trust.keeping import kept_identity
from stigmergy.cluster.worker import UNHEARD
from stigmergy.control.live import Live
from stigmergy.control.metrics import ProcessMetrics
from stigmergy.metrics.samples import SampleSheet
from stigmergy.node.needs import hasty_rules

WATCH_S = 1.0
MOVES = ("owns", "released", "lost")
EXAMPLES = """examples:
  stigmergy worker drone:fleet --nats nats://hub:4222          a worker of the fleet in drone.py; start more of them
  stigmergy worker drone:fleet --nats nats://hub-1:4222,hub-2:4222,hub-3:4222    with logs on three servers
  stigmergy worker drone:fleet --nats nats://hub:4222 --bus nats://hub:4222      also on the fleet's bus
  stigmergy worker drone:fleet --nats nats://hub:4222 --upgrade    beside workers of another version, to replace them
"""


def add_commands(commands: Any) -> None:
    """Adds `worker`."""
    parser = commands.add_parser(
        "worker",
        run=run,
        help="run some shards of a fleet on NATS, beside other workers",
        description="Runs some of a fleet's shards, with logs on NATS. Shards move as workers join, leave or die.",
        epilog=EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument("--nats", metavar="URL", required=True, help="the servers, such as nats://hub:4222?replicas=3")
    parser.add_argument("--key", metavar="FILE", type=Path, help="the key that all workers sign with; made if missing")
    parser.add_argument(
        "--trust",
        metavar="KEY",
        action="append",
        default=[],
        help="a key of other workers: its file, line or hex digits; they may own what this one owned; repeatable",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")
    parser.add_argument("--name", metavar="NAME", help="the prefix of this worker's id; else the machine's name")
    parser.add_argument("--bus", metavar="URL", help="the bus that agents publish on, such as nats://hub:4222")
    parser.add_argument("--site", metavar="NAME", help="the site of the fleet; part of all its topics")
    parser.add_argument("--ledger", metavar="URL", help="the ledger of claims, such as nats://hub:4222")
    add_peer_keys(parser)
    add_models(parser)
    parser.add_argument(
        "--upgrade", action="store_true", help="run beside workers with other agents or versions, to replace them"
    )
    add_metrics(parser)
    add_log(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the worker."""
    config = config_of(arguments)
    spec = fleet_spec(arguments, config)
    fleet = load_fleet(spec, folder_of(arguments))
    given = NodeConfig(
        arguments.bus,
        arguments.site,
        ledger=arguments.ledger,
        peers=tuple(arguments.peer),
        models=arguments.models,
        model_keys=tuple(arguments.model_key),
        policy=arguments.policy,
        policy_keys=tuple(arguments.policy_key),
    )
    report = WorkerReport(fleet, output, metrics_of(arguments, config, None, fleet))
    worker = NatsWorker(
        fleet,
        arguments.nats,
        config,
        key=arguments.key,
        trust=arguments.trust,
        node_config=find_node_config(given, config),
        name=arguments.name,
        upgrade=arguments.upgrade,
        tell=report.tell,
        metrics_url=lambda: report.metrics.url,
    )
    make_process_ours(large_commits=fleet.has_compiled)
    with log_of(arguments, config, fleet.name, "worker", arguments.name or "") as output.log:
        key = arguments.key or (Path(config.fleet.key) if config.fleet.key else None)
        return run_to_the_end(_live_and_die(worker, report, kept_identity(config, key, arguments.nats)))


async def _live_and_die(
    worker: NatsWorker, report: WorkerReport, keeping: contextlib.AbstractAsyncContextManager[None]
) -> int:
    loop = asyncio.get_running_loop()

    def signalled(number: signal.Signals) -> None:
        report.reason = number.name
        # From here on a second signal does what it does by default: it ends the process at once.
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        worker.stop()

    async with worker as running, keeping:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled, number)
        report.connected(worker)
        metrics = ProcessMetrics(lambda: _lives(running), version(), "worker")
        report.metrics.put = lambda sheet: report.put(sheet, len(running.owned()))
        await report.metrics.start(metrics.collect, report.fleet.name, report.output)
        watch = TroubleWatch(report.output, report.fleet.name)
        watching = asyncio.ensure_future(_watch(running, watch))
        try:
            await running.run()
        finally:
            await end_tasks(watching)
            watch.tell_safe_actions(_lives(running), time.monotonic())
            await report.metrics.close()
    report.stopped()
    return exits.OK


async def _watch(worker: Worker, watch: TroubleWatch) -> None:
    """Has the troubles and safe actions of all its shards in the log."""
    while True:
        watch.look(_lives(worker), time.monotonic())
        await asyncio.sleep(WATCH_S)


def _lives(worker: Worker) -> dict[int, Live]:
    """The shards that are this worker's at this very moment."""
    found: dict[int, Live] = {}
    for shard in worker.owned():
        with contextlib.suppress(NotOwned):
            found[shard] = worker.live(shard)
    return found


class WorkerReport:
    """Says what happens to a worker: to people in lines, to programs in documents, to Prometheus in numbers."""

    def __init__(self, fleet: Fleet, output: Output, metrics: MetricsReport | None = None) -> None:
        self.fleet = fleet
        self.output = output
        self.metrics = metrics or MetricsReport()
        self._moves = dict.fromkeys(MOVES, 0)
        self.reason = ""
        """What ended it."""

    def connected(self, worker: NatsWorker) -> None:
        """The servers are there."""
        copies = worker.address.replicas
        fields = {"nats": worker.address.shown, "replicas": copies, "shards": self.fleet.shards}
        kept = "once: the loss of that server's disk loses them" if copies == 1 else f"on {copies} servers"
        self.output.tell(
            "worker-connected",
            ("connected", GOOD),
            f" to {worker.address.shown}: {counted(self.fleet.shards, 'log')} of ",
            (self.fleet.name, NAME),
            f", kept {kept}",
            document=self._document("connected", fields),
        )
        for sentence in hasty_rules(self.fleet) if copies > 1 else ():
            LOG.say("start-notice", sentence)

    def stopped(self) -> None:
        """It is over, in good order."""
        document = self._document("stopped", {"reason": self.reason})
        what = f" ({self.reason}); its shards are others' or free"
        self.output.tell("node-stopped", "stopped ", (self.fleet.name, NAME), what, document=document)

    def tell(self, event: str, fields: dict[str, Any]) -> None:
        """What the worker says."""
        if event in self._moves:
            self._moves[event] += 1
        if event == "joined" and self.output.log is not None:
            self.output.log.node = fields["worker"]
        _say(self.output, event, fields, self._document(event, fields))

    def put(self, sheet: SampleSheet, owned: int) -> None:
        """What is of the worker, not of a shard."""
        info = {"fleet": self.fleet.name, "version": version(), "role": "worker"}
        sheet.put("stigmergy_node_info", 1, **info)
        sheet.put("stigmergy_shards", self.fleet.shards)
        sheet.put("stigmergy_shards_owned", owned)
        for event, count in self._moves.items():
            sheet.put("stigmergy_shard_moves_total", count, event=event)

    def _document(self, event: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {"event": event, "fleet": self.fleet.name, **fields}


def _say(output: Output, event: str, fields: dict[str, Any], document: dict[str, Any]) -> None:
    """What happened: for people, for programs and in the log. What only programs want to know has no line."""
    match event:
        case "joined":
            others = f", beside {counted(len(fields['others']), 'other worker')}"
            output.tell("worker-joined", ("joined", GOOD), " as ", (fields["worker"], NAME), others, document=document)
            return
        case "owns":
            where = f"from position {fields['position']}" if fields["position"] else "new"
            what = f" shard {fields['shard']}, {where}, after {_milliseconds(fields['seconds'])}"
            output.tell("shard-owned", ("owns", GOOD), what, document=document)
            return
        case "released":
            to = f"to {fields['to']}" if fields["to"] else "to nobody yet"
            what = f"released shard {fields['shard']} {to}, in {_milliseconds(fields['seconds'])}"
            output.tell("shard-released", what, document=document)
            return
        case "lost":
            said = {"shard-lost": f"lost shard {fields['shard']}: {fields['reason']}"}
        case "unfit":
            said = {"shard-unfit": f"cannot have shard {fields['shard']}: {fields['reason']}"}
        case "waits":
            what = f"shard {fields['shard']}" if "shard" in fields else "the servers"
            said = {"worker-waits": f"waits for {what}: {fields['reason']}"}
        case "fenced":
            said = {"worker-fenced": f"{fields['reason']}: others may take its shards; joining again"}
        case "leaving":
            owned = counted(len(fields["shards"]), "shard")
            said = {"node-stopping": f"stopping: handing {owned} over; once more to end at once"}
        case "clocks":
            said = {"worker-clock": "; ".join(_clock(*one) for one in fields["ahead_s"].items())}
        case "troubled":
            said = {"unheard" if fields["reason"] == UNHEARD else "device-failed": fields["reason"]}
        case "prepares":
            said = {"agents-compiled": fields["what"]}
        case "notice":
            said = {"start-notice": fields["what"]}
        case _:
            said = {}
    output.document(document)
    for code, text in said.items():
        if text:
            LOG.say(code, text, shard=fields.get("shard"))


def _clock(worker: str, ahead_s: float) -> str:
    way = "ahead of" if ahead_s > 0 else "behind"
    return f"the clock of worker {worker} is {abs(ahead_s):.0f} s {way} ours; set the clocks (NTP)"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
