"""`stigmergy worker`: runs some shards of a fleet on NATS, beside other workers; start as many as you like, anywhere.

SIGTERM and SIGINT hand all shards over, each when its next owner has replayed it, and then end. A second signal ends it
at once: others take over when the lease has run out, from logs that have everything acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

from stigmergy.app.fleet import Fleet, make_process_ours
from stigmergy.app.node_config import NodeConfig, find_node_config
from stigmergy.app.workers import NatsWorker
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, WARN, Output, counted
from stigmergy.cli.display.places import add_peer_keys, config_of, fleet_spec, folder_of, load_fleet
from stigmergy.cli.run import run_to_the_end

EXAMPLES = """examples:
  stigmergy worker drone:fleet --nats nats://hub:4222          a worker of the fleet in drone.py; start more of them
  stigmergy worker drone:fleet --nats nats://hub-1:4222,hub-2:4222,hub-3:4222    with logs on three servers
  stigmergy worker drone:fleet --nats nats://hub:4222 --bus nats://hub:4222      also on the fleet's bus
  stigmergy worker drone:fleet --nats nats://hub:4222 --upgrade    beside workers of another version, to replace them
"""


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds `worker`."""
    parser = commands.add_parser(
        "worker",
        parents=[common],
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
    parser.add_argument(
        "--upgrade", action="store_true", help="run beside workers with other agents or versions, to replace them"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the worker."""
    config = config_of(arguments)
    spec = fleet_spec(arguments, config)
    fleet = load_fleet(spec, folder_of(arguments))
    given = NodeConfig(arguments.bus, arguments.site, ledger=arguments.ledger, peers=tuple(arguments.peer))
    report = WorkerReport(fleet, output)
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
    )
    make_process_ours(large_commits=fleet.has_compiled)
    return run_to_the_end(_live_and_die(worker, report))


async def _live_and_die(worker: NatsWorker, report: WorkerReport) -> int:
    loop = asyncio.get_running_loop()

    def signalled(number: signal.Signals) -> None:
        report.reason = number.name
        # From here on a second signal does what it does by default: it ends the process at once.
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        worker.stop()

    async with worker as running:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled, number)
        report.connected(worker)
        await running.run()
    report.stopped()
    return exits.OK


class WorkerReport:
    """Says what happens to a worker: to people in lines, to programs in documents."""

    def __init__(self, fleet: Fleet, output: Output) -> None:
        self._fleet = fleet
        self._output = output
        self.reason = ""
        """What ended it."""

    def connected(self, worker: NatsWorker) -> None:
        """The servers are there."""
        copies = worker.address.replicas
        self._document("connected", {"nats": worker.address.shown, "replicas": copies, "shards": self._fleet.shards})
        kept = "once: the loss of that server's disk loses them" if copies == 1 else f"on {copies} servers"
        self._output.line(
            ("connected", GOOD),
            f" to {worker.address.shown}: {counted(self._fleet.shards, 'log')} of ",
            (self._fleet.name, NAME),
            f", kept {kept}",
        )

    def stopped(self) -> None:
        """It is over, in good order."""
        self._document("stopped", {"reason": self.reason})
        self._output.line("stopped ", (self._fleet.name, NAME), f" ({self.reason}); its shards are others' or free")

    def tell(self, event: str, fields: dict[str, Any]) -> None:
        """What the worker says."""
        self._document(event, fields)
        if not self._output.json:
            _say(self._output, event, fields)

    def _document(self, event: str, fields: dict[str, Any]) -> None:
        self._output.document({"event": event, "fleet": self._fleet.name, **fields})


def _say(output: Output, event: str, fields: dict[str, Any]) -> None:
    """What happened, in a line for people; nothing of what only programs want to know."""
    match event:
        case "joined":
            others = counted(len(fields["others"]), "other worker")
            output.line(("joined", GOOD), " as ", (fields["worker"], NAME), f", beside {others}")
        case "owns":
            where = f"from position {fields['position']}" if fields["position"] else "new"
            output.line(("owns", GOOD), f" shard {fields['shard']}, {where}, after {_milliseconds(fields['seconds'])}")
        case "released":
            to = f"to {fields['to']}" if fields["to"] else "to nobody yet"
            output.line(f"released shard {fields['shard']} {to}, in {_milliseconds(fields['seconds'])}")
        case "lost":
            output.note(f"lost shard {fields['shard']}: {fields['reason']}", WARN)
        case "unfit":
            output.note(f"cannot have shard {fields['shard']}: {fields['reason']}", BAD)
        case "waits":
            what = f"shard {fields['shard']}" if "shard" in fields else "the servers"
            output.note(f"waits for {what}: {fields['reason']}", WARN)
        case "fenced":
            output.note(f"{fields['reason']}: others have taken all shards; joining again", WARN)
        case "leaving":
            owned = counted(len(fields["shards"]), "shard")
            output.note(f"stopping: handing {owned} over; once more to end at once")
        case "clocks":
            for worker, ahead_s in fields["ahead_s"].items():
                way = "ahead of" if ahead_s > 0 else "behind"
                output.note(
                    f"the clock of worker {worker} is {abs(ahead_s):.0f} s {way} ours; set the clocks (NTP)", WARN
                )
        case "troubled":
            output.note(fields["reason"], WARN)
        case "prepares":
            output.note(fields["what"])
        case _:
            pass


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
