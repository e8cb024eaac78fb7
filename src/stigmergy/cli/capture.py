"""`stigmergy capture`: the log of a fleet, or a view of it, as tables of a PostgreSQL database, each event once.

It runs beside the node or the cluster, and may be killed and started again at any time. SIGTERM and SIGINT end it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Coroutine
from typing import Any

from stigmergy.agents.view import plan_of
from stigmergy.app.captures import ViewCapture, open_log
from stigmergy.app.fleet import Fleet, control_path
from stigmergy.app.views import check_raw_views, open_view_store
from stigmergy.base.errors import ConfigError
from stigmergy.base.tasks import end_tasks
from stigmergy.capture.log import Capture, CaptureLog
from stigmergy.capture.postgres import CaptureSource, PostgresWriter
from stigmergy.capture.tables import EventTables, snake_case
from stigmergy.cli.display import exits
from stigmergy.cli.display.logs import add_log, log_of
from stigmergy.cli.display.output import GOOD, NAME, Output, counted
from stigmergy.cli.display.places import (
    add_place,
    config_of,
    find_journal,
    fleet_spec,
    folder_of,
    load_fleet,
)
from stigmergy.cli.display.troubles import LOG

SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXAMPLES = """examples:
  stigmergy capture drone:fleet --to postgresql://stig@db/fleet            beside the node on delivery.db here
  stigmergy capture drone:fleet --nats nats://hub:4222 --to postgresql://stig@db/fleet      beside a cluster
  stigmergy capture drone:fleet --to postgresql://stig@db/fleet --only MissionStarted,Landed --schema missions
  stigmergy capture drone:fleet --to postgresql://stig@db/fleet --view ZoneLoad     the rows of a view
  stigmergy capture drone:fleet --to postgresql://stig@db/fleet --once     up to the end of the log, then end
"""


def add_commands(commands: Any) -> None:
    """Adds `capture`."""
    parser = commands.add_parser(
        "capture",
        run=run,
        help="write the log, or a view, to tables of PostgreSQL, each event once",
        description="Writes each event of the log to a table of its type, or folds it into rows of a view, exactly "
        "once, and goes on as events are kept. It may be killed at any point; start it again.",
        epilog=EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="the module here, and the fleet in it")
    parser.add_argument("--to", metavar="URL", required=True, help="the database, such as postgresql://user@host/name")
    parser.add_argument("--schema", metavar="NAME", help="where its tables are; else named after the fleet")
    parser.add_argument("--only", metavar="EVENT,…", default="", help="only events of these types; for good")
    parser.add_argument("--view", metavar="NAME", help="the rows of this view, instead of events")
    parser.add_argument("--once", action="store_true", help="end at the end of the log")
    add_place(parser, fleet=False, nats=True)
    add_log(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Captures."""
    config = config_of(arguments)
    fleet = load_fleet(fleet_spec(arguments, config), folder_of(arguments))
    only = [name.strip() for name in arguments.only.split(",") if name.strip()]
    if only and arguments.view:
        raise ConfigError("--only chooses events, --view has the rows of a view; run one capture for each")
    with log_of(arguments, config, fleet.name, "capture") as output.log:
        return _capture(arguments, fleet, only, output)


def _capture(arguments: argparse.Namespace, fleet: Fleet, only: list[str], output: Output) -> int:
    schema = arguments.schema or snake_case(fleet.name)
    rules = (config_of(arguments).settings or fleet.settings).raw_may_leave
    tables = EventTables(fleet.plans, only, rules)
    if arguments.view:
        check_raw_views([one for one in fleet.views if plan_of(one).name == arguments.view], fleet, rules, arguments.to)
    elif tables.left_out:
        LOG.say("raw-withheld", f"left out, as they are raw and stay on their device: {', '.join(tables.left_out)}")
    writer = PostgresWriter(arguments.to, schema, tables, CaptureSource(fleet.name, fleet.shards))
    url = find_journal(arguments)
    socket = arguments.socket or control_path(url, fleet.name)

    def say(text: str) -> None:
        output.document({"event": "troubled", "reason": text})
        LOG.say("capture-waits", text)

    def opener() -> Awaitable[CaptureLog]:
        return open_log(fleet, url, socket, arguments.nats)

    began_s = time.monotonic()
    if arguments.view:
        rows = ViewCapture(fleet, arguments.view, open_view_store(arguments.to, schema), opener, say)
        asyncio.run(_run(rows.run(once=arguments.once)))
        events, name = rows.projector.events, f"{schema}.{arguments.view}"
        output.document({"event": "captured", "schema": schema, "view": arguments.view, "events": events})
        took_s = time.monotonic() - began_s
        output.line(("captured", GOOD), f"  {counted(events, 'event')} in {took_s:.1f} s into ", (name, NAME))
        return exits.OK
    capture = Capture(opener, writer, say)
    asyncio.run(_run(capture.run(once=arguments.once)))
    took_s = time.monotonic() - began_s
    positions = {str(shard): captured.position for shard, captured in capture.captured.items()}
    output.document({"event": "captured", "schema": schema, "events": capture.events, "positions": positions})
    output.line(("captured", GOOD), f"  {counted(capture.events, 'event')} in {took_s:.1f} s into ", (schema, NAME))
    return exits.OK


async def _run(capture: Coroutine[Any, Any, None]) -> None:
    """Until the log ends, or a signal."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        ended.set()
        for number in SIGNALS:  # the second one ends the process at once, which harms nothing
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, signalled)
    work = asyncio.ensure_future(capture)
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        await end_tasks(work, waiting)
