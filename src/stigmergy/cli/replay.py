"""`stigmergy replay`: replays an old journal against today's code. The exit code is 1 if any result differs."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from stigmergy.app.fleet import inspect_journal, verifier
from stigmergy.app.parts import shown_url
from stigmergy.audit.differences import Compared
from stigmergy.audit.replay import JournalReplay
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, HEADING, NAME, WARN, Cell, Output, Progress, counted, shown
from stigmergy.cli.display.places import add_place, check_fleet, closing_journal, config_of, find_fleet, find_journal

SHOWN_MAX = 50
COUNTED = ("commits", "events", "commands", "failures", "effects", "snapshots", "states", "agents")
EXAMPLES = """examples:
  stigmergy replay drone:fleet --journal old.db       before an upgrade; in CI, the exit code is the gate
  stigmergy replay drone:fleet --journal flight:flight-17.log
  stigmergy replay --json                             what stigmergy.toml says, for a program

What was recorded is done once more: every event is folded, every effect asked for, every command decided again, and
agents are compared with the snapshots that the old code took. The node must not run: use a copy or a flight log.
"""


def add_commands(commands: Any) -> None:
    """Adds `replay`."""
    parser = commands.add_parser(
        "replay",
        run=run,
        help="compare an old journal with today's code",
        description="Replays a journal against today's code, and lists the differences.",
        epilog=EXAMPLES,
    )
    parser.add_argument("module", metavar="MODULE:FLEET", nargs="?", help="today's code, such as drone:fleet")
    parser.add_argument(
        "--differences", metavar="N", type=int, default=1_000, help="how many to list; the others are counted (1000)"
    )
    add_place(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Replays."""
    if arguments.differences < 1:
        raise ConfigError(f"--differences {arguments.differences}: give 1 or more")
    arguments.fleet = arguments.module or arguments.fleet
    fleet = find_fleet(arguments)
    url = find_journal(arguments)
    with closing_journal(inspect_journal(url)) as journal:
        check_fleet(journal, url, fleet)
        limits = (config_of(arguments).settings or fleet.settings).limits
        replaying = JournalReplay(
            journal,
            fleet.plans,
            limits,
            verifier(),
            differences_max=arguments.differences,
            say=output.note,
            homes=fleet.homes,
        )
        with Progress(output, "replaying", "commits") as progress:
            for commits in replaying.run_slowly():
                progress.show(commits, replaying.commits_expected)
    found = replaying.found
    output.document({"journal": shown_url(url), "fleet": fleet.name, **described(found)})
    _show(shown_url(url), found, output)
    return exits.OK if found.same else exits.REFUSED


def described(found: Compared) -> dict[str, Any]:
    """What a replay found."""
    return {
        "same": found.same,
        **{name: getattr(found, name) for name in COUNTED},
        "digests": {str(shard): digest for shard, digest in sorted(found.digests.items())},
        "not_compared": found.not_compared,
        "ignored": found.ignored,
        "differences_count": found.differences_count,
        "differences": [msgspec.to_builtins(one) for one in found.differences],
    }


def _show(url: str, found: Compared, output: Output) -> None:
    verdict = ("the same", GOOD) if found.same else (counted(found.differences_count, "difference"), BAD)
    output.line((url, NAME), "  ", verdict)
    output.fields(
        [
            ("replayed", f"{counted(found.commits, 'commit')}, {counted(found.events, 'event')}"),
            ("compared", f"{counted(found.commands, 'command')}, {counted(found.effects, 'effect')}"),
            ("states", f"{counted(found.states, 'agent')} in {counted(found.snapshots, 'snapshot')}"),
            *(("not compared", (f"{count:,} {why}", WARN)) for why, count in sorted(found.not_compared.items())),
            *(("ignored", (f"{count:,} {tag}", WARN)) for tag, count in sorted(found.ignored.items())),
        ]
    )
    rows: list[list[Cell]] = []
    for one in found.differences[:SHOWN_MAX]:
        place = f"{one.shard}:{one.position}.{one.index}" if one.shard else f"{one.position}.{one.index}"
        change = f"{shown(one.old)} → {shown(one.new)}"
        field = f"{one.field}: " if one.field else ""
        rows.append([(place, HEADING), (one.kind, BAD), (one.agent or "(shard)", NAME), f"{one.what}  {field}{change}"])
    if rows:
        output.table(("POSITION", "KIND", "AGENT", "WHAT"), rows)
    if found.differences_count > len(rows):
        output.note(f"and {found.differences_count - len(rows):,} more; --json lists them")
