"""`stigmergy view` and `project`: questions to read models, and the process that keeps those of a cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

from stigmergy.app.parts import shown_url
from stigmergy.app.projection import ClusterProjection
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.cli.api.metrics import MetricsReport, add_metrics, listening_of
from stigmergy.cli.display import exits
from stigmergy.cli.display.logs import add_log, log_of
from stigmergy.cli.display.output import BAD, GOOD, NAME, WARN, Cell, Output, shown, version
from stigmergy.cli.display.places import add_place, ask, config_of, find_place, folder_of, load_fleet
from stigmergy.cli.display.troubles import LOG
from stigmergy.control.protocol import ViewRequest, ViewsRequest
from stigmergy.diagnostics.codes import Trouble
from stigmergy.metrics.samples import SampleSheet

EXAMPLES = """examples:
  stigmergy view                                        the views there are, and where each stands
  stigmergy view ZoneLoad zone=7
  stigmergy view ZoneLoad 'active>=5' --order=-active --limit 10
  stigmergy view ZoneLoad --after Drone/D-17:41         wait until that command is in the rows
"""
LAGS_S = 5.0
"""How often it asks where the logs end, if somebody may want to know how far views are behind."""
LOOK_S = 0.5
"""How often it looks whether there is new trouble to tell."""
PROJECT_EXAMPLES = """examples:
  stigmergy project drone:fleet --nats nats://hub:4222 --metrics :9100
  stigmergy project drone:fleet ground:fleet --nats nats://hub:4222 --to postgresql://stig@db/fleet
"""


def add_commands(commands: Any) -> None:
    """Adds `view` and `project`."""
    parser = commands.add_parser(
        "view",
        run=show,
        help="ask a read model about the whole fleet",
        description="Shows rows of a view of a running node, or of a fleet on workers; without a name, which there "
        "are.",
        epilog=EXAMPLES,
    )
    parser.add_argument("view", metavar="VIEW", nargs="?", help="which view, such as ZoneLoad")
    parser.add_argument("where", metavar="CONDITION", nargs="*", help="FIELD=VALUE, also with != < <= > >=")
    parser.add_argument("--order", metavar="FIELD", action="append", default=[], help="=-FIELD from high to low")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="so many rows at most (100)")
    parser.add_argument("--cursor", metavar="CURSOR", default="", help="go on where the page before ended")
    parser.add_argument(
        "--after",
        metavar="POSITION",
        action="append",
        default=[],
        help="wait for the `after` of a command, or KIND/NAME:POSITION",
    )
    parser.add_argument("--within", metavar="S", type=float, default=5.0, help="how long to wait for that (5)")
    parser.add_argument("--of", metavar="NODE", default="", help="the rows of another node on the bus")
    add_place(parser, nats=True)
    parser = commands.add_parser(
        "project",
        run=project,
        help="keep the views of a fleet on workers",
        description="Reads the logs of all shards of a fleet on workers, keeps its views, and answers `stigmergy view "
        "--nats`. Runs until SIGTERM or SIGINT; it may be killed at any point.",
        epilog=PROJECT_EXAMPLES,
    )
    parser.add_argument("fleets", metavar="MODULE:FLEET", nargs="*", help="the module here, and the fleet in it")
    parser.add_argument("--nats", metavar="URL", required=True, help="the NATS servers of the fleet's workers")
    parser.add_argument("--to", metavar="URL", help="where rows are kept; sqlite:NAME.views without it")
    add_metrics(parser)
    add_log(parser)
    parser.add_argument("--config", metavar="FILE", type=Path, help="a stigmergy.toml elsewhere")


def project(arguments: argparse.Namespace, output: Output) -> int:
    """Projects until a signal comes."""
    config = config_of(arguments)
    specs = arguments.fleets or ([config.fleet.module] if config.fleet.module else [])
    if not specs:
        raise ConfigError("which fleet? give MODULE:FLEET, or write module under [fleet] in stigmergy.toml")
    fleets = [load_fleet(spec, folder_of(arguments)) for spec in specs]
    store = arguments.to or config.fleet.views or f"sqlite:{fleets[0].name}.views"
    with log_of(arguments, config, fleets[0].name, "project") as output.log:
        traces = None if config.settings is None else config.settings.traces
        # Not where stigmergy.toml says: that page is the worker's, on the same machine perhaps.
        report = MetricsReport(listening_of(arguments, None, None, fleets[0].name))
        projection = ClusterProjection(fleets, arguments.nats, store, traces)
        return asyncio.run(_project(projection, store, output, report, fleets[0].name))


class ProjectionMetrics:
    """What a projector tells Prometheus. `look` until it is cancelled, because logs can only be asked for their ends
    now and then."""

    def __init__(self, projection: ClusterProjection, fleet: str) -> None:
        self._projection = projection
        self._fleet = fleet
        self._lags: dict[str, int] = {}

    def put(self, sheet: SampleSheet) -> None:
        """Adds how far the views were behind at the last look; nothing of those that could not be looked at."""
        sheet.put("stigmergy_node_info", 1, fleet=self._fleet, version=version(), role="project")
        sheet.put("stigmergy_troubles", len(self._projection.troubles()))
        for view, behind in self._lags.items():
            sheet.put("stigmergy_view_lag_commits", behind, view=view)

    async def look(self) -> None:
        while True:
            found: dict[str, int] = {}
            for service in self._projection.services:
                with contextlib.suppress(StigmergyError):  # its trouble says so
                    found |= await service.lags()
            self._lags = found
            await asyncio.sleep(LAGS_S)


async def _project(projection: ClusterProjection, store: str, output: Output, report: MetricsReport, fleet: str) -> int:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    known: list[Trouble] = []
    async with projection:
        names = [view for service in projection.services for view in service.projectors]
        document = {"event": "projecting", "views": names, "store": shown_url(store)}
        what = f"  {', '.join(names)} into {shown_url(store)}"
        output.tell("node-listening", ("projecting", GOOD), what, document=document)
        metrics = ProjectionMetrics(projection, fleet)
        report.put = metrics.put
        await report.start(list, fleet, output)
        looking = asyncio.ensure_future(metrics.look()) if report.url else None
        while not ended.is_set():
            troubles = projection.troubles()
            for trouble in troubles:
                if trouble not in known:
                    output.document({"event": "troubled", "reason": str(trouble)})
                    LOG.say(trouble.code, trouble, over=False)
            known = troubles
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
        await end_tasks(looking)
        await report.close()
        failed = projection.has_failed()
    output.tell("node-stopped", "stopped", document={"event": "stopped", "views": names})
    return exits.DAMAGED if failed else exits.OK


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Shows rows, or the views there are."""
    place = find_place(arguments)
    if arguments.view is None:
        return _list(place, arguments.of, output)
    request = ViewRequest(
        view=arguments.view,
        where=arguments.where,
        order=arguments.order,
        limit=arguments.limit,
        cursor=arguments.cursor,
        after=arguments.after,
        within_s=arguments.within,
        node=arguments.of,
    )
    found = ask(place, request)
    output.document(found)
    if found.rows:
        heads = tuple(name.upper() for name in found.rows[0])
        output.table(heads, [tuple(shown(value) for value in row.values()) for row in found.rows])
    else:
        output.note("no such rows")
    if found.next is not None:
        output.note(f"there are more: --cursor {found.next}")
    for part in found.missing:
        output.note(f"not in these rows: {part.why} (--of)", WARN)
    return exits.OK


def _list(place: Any, node: str, output: Output) -> int:
    found = ask(place, ViewsRequest(node=node))
    output.document(found)
    rows: list[tuple[Cell, ...]] = []
    for one in found.views:
        standing: Cell = ("up to date", GOOD) if not one.behind else (f"{one.behind} commits behind", WARN)
        standing = ("being made", WARN) if one.building else standing
        fields = ", ".join(f"{name}: {hint}" for name, hint in one.fields.items())
        rows.append(((one.view, NAME), standing, fields))
    output.table(("VIEW", "STANDS", "FIELDS"), rows)
    for one in found.views:
        if one.trouble:
            output.note(one.trouble, BAD)
    return exits.NOT_RUNNING if any(one.trouble for one in found.views) else exits.OK
