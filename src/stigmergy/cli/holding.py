"""`stigmergy log hold`: keeps a log from being dropped, whatever the rules of retention say, until it is cleared.

A running node is asked; for a stopped one the record beside the journal is changed, while the journal is claimed.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import time
from typing import Any

from stigmergy.cli import exits
from stigmergy.cli.asking import ask
from stigmergy.cli.output import GOOD, HEADING, NAME, WARN, Cell, Output
from stigmergy.cli.places import add_place, find_journal, find_running
from stigmergy.core.errors import ConfigError
from stigmergy.runtime.audit.history import read_moment
from stigmergy.runtime.audit.streams import answer_hold
from stigmergy.runtime.protocol import Hold, Holds, Unhold
from stigmergy.wiring import find_holds, inspect_journal


def add_action(actions: Any, common: argparse.ArgumentParser) -> None:
    """Adds `log hold`."""
    group = actions.add_parser("hold", help="keep the log from being dropped")
    kinds = group.add_subparsers(metavar="ACTION", required=True)
    parser = kinds.add_parser("set", parents=[common], help="hold the log of an agent, or all of it")
    parser.add_argument("agent", metavar="KIND/NAME", nargs="?", default="", help="the log of its shard; else all")
    parser.add_argument("--since", metavar="TIME", help="from this time on, such as 2026-11-15T08:00:00Z; else all")
    _add_reason(parser, "why it is held, for whoever finds it in a year")
    parser.set_defaults(run=set_hold)
    parser = kinds.add_parser("clear", parents=[common], help="let it go again; the record keeps who and why")
    parser.add_argument("hold", metavar="NUMBER", type=int, help="which; see list")
    _add_reason(parser, "why it may go")
    parser.set_defaults(run=clear)
    parser = kinds.add_parser("list", parents=[common], help="holds that are open, and those that were cleared")
    add_place(parser, fleet=False, nats=True)
    parser.set_defaults(run=list_holds)


def _add_reason(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--reason", metavar="TEXT", required=True, help=help_text)
    parser.add_argument("--by", metavar="NAME", help="who says so; else the user of this machine")
    add_place(parser, fleet=False, nats=True)


def set_hold(arguments: argparse.Namespace, output: Output) -> int:
    """Sets a hold."""
    since = None if arguments.since is None else read_moment(arguments.since).time_ns
    if arguments.since is not None and since is None:
        raise ConfigError(f"--since {arguments.since}: give a time, such as 2026-11-15T08:00:00Z")
    request = Hold(reason=arguments.reason, by=_by(arguments), agent=arguments.agent, since_ns=since or 0)
    held = _do(arguments, request)
    output.document(held)
    what = held["agent"] or "everything"
    output.line(("held", GOOD), "  ", (what, NAME), f" by hold {held['hold']}; nothing of it is dropped")
    output.note("with a full disk the node stops rather than drop it: watch the disk")
    return exits.OK


def clear(arguments: argparse.Namespace, output: Output) -> int:
    """Clears a hold."""
    cleared = _do(arguments, Unhold(hold=arguments.hold, reason=arguments.reason, by=_by(arguments)))
    output.document(cleared)
    output.line(("cleared", GOOD), f"  hold {cleared['hold']}; retention may drop from the next check on")
    return exits.OK


def list_holds(arguments: argparse.Namespace, output: Output) -> int:
    """Lists the holds."""
    holds = _do(arguments, Holds())["holds"]
    output.document({"holds": holds})
    rows: list[list[Cell]] = []
    for hold in holds:
        state = ("open", WARN) if hold["open"] else ("cleared", HEADING)
        ended = "" if hold["open"] else f" · cleared by {hold['cleared_by']}: {hold['cleared_why']}"
        since = f" since {hold['since']}" if hold["since"] else ""
        what = (hold["agent"] or "everything") + since
        rows.append(
            [str(hold["hold"]), state, hold["set"][:19], (what, NAME), f"{hold['by']}: {hold['reason']}{ended}"]
        )
    if rows:
        output.table(("HOLD", "STATE", "SET", "WHAT", "WHO AND WHY"), rows)
    elif not output.json:
        output.note("nothing is held")
    return exits.OK


def _do(arguments: argparse.Namespace, request: Hold | Unhold | Holds) -> Any:
    if arguments.nats is not None:
        raise ConfigError(
            "a hold is kept beside a journal on disk, and the logs of a fleet on workers have none: nothing there is "
            "dropped but what retention in its settings allows; export what must stay with log export --nats"
        )
    path = find_running(arguments)
    if path is not None:
        return ask(path, request)
    url = find_journal(arguments)
    # Opening it claims it: nobody can start a node while the record changes.
    journal = inspect_journal(url)
    try:
        return answer_hold(find_holds(url), request, time.time_ns())
    finally:
        asyncio.run(journal.close())


def _by(arguments: argparse.Namespace) -> str:
    if arguments.by:
        return str(arguments.by)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("who sets or clears it? This machine does not say; give --by NAME") from None
