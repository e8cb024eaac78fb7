"""`stigmergy state`: the state of an agent, now or at a position or a time.

A running node answers itself. Otherwise the journal is read, which needs the user's classes.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from stigmergy.app.fleet import inspect_all
from stigmergy.app.parts import shown_url
from stigmergy.audit.history import History, Moment, read_moment
from stigmergy.base.errors import JournalForeign
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, HEADING, NAME, Output, shown
from stigmergy.cli.display.places import add_place, ask, find_fleet, find_journal, find_running_place
from stigmergy.control.description import described_sight
from stigmergy.control.protocol import StateRequest
from stigmergy.control.replies import StateReply

EXAMPLES = """examples:
  stigmergy state Drone/D-17
  stigmergy state Drone/D-17 --at 4711                      after the commit at this position
  stigmergy state Drone/D-17 --at 2026-11-15T08:00:00Z      after the last commit by then
"""


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds `state`."""
    parser = commands.add_parser(
        "state",
        parents=[common],
        help="show an agent's state, now or in the past",
        description="Shows an agent's durable state, of a running node or from the journal of a stopped one.",
        epilog=EXAMPLES,
    )
    parser.add_argument("agent", metavar="KIND/NAME", help="whose state, such as Drone/D-17")
    parser.add_argument("--at", metavar="TIME|POSITION", help="as it was then; a time needs its zone, such as Z")
    add_place(parser, nats=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Shows the state."""
    moment = Moment() if arguments.at is None else read_moment(arguments.at)
    place = find_running_place(arguments)
    if place is not None:
        seen = ask(place, StateRequest(agent=arguments.agent, at=arguments.at))
    else:
        seen = _from_journal(arguments, moment, output)
    _show(seen, output)
    return exits.OK


def _from_journal(arguments: argparse.Namespace, moment: Moment, output: Output) -> StateReply:
    fleet = find_fleet(arguments)
    url = find_journal(arguments)
    journal = inspect_all(url)
    try:
        if journal.identity.fleet != fleet.name:
            raise JournalForeign(
                f"{shown_url(url)} belongs to the fleet {journal.identity.fleet!r}, not to {fleet.name!r}"
            )
        sight = History(journal, fleet.plans, fleet.settings.limits, output.note, fleet.homes).look(
            arguments.agent, moment
        )
        return described_sight(arguments.agent, sight)
    finally:
        asyncio.run(journal.close())


def _show(seen: StateReply, output: Output) -> None:
    output.document(seen)
    where = f"  position {seen.position}" + (f", {seen.time}" if seen.time else "")
    output.line((seen.agent, NAME), (where, HEADING))
    output.fields((name, shown(value)) for name, value in seen.state.items())
    if seen.stopped:
        output.line(("stopped", BAD), f"  {seen.stopped}; go on with: stigmergy resume {seen.agent}")
    if not seen.known:
        output.note(f"{seen.agent} had had no input by then; this is the state it would begin with", "yellow")
