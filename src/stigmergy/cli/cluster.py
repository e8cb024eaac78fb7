"""`stigmergy cluster`: configurations for servers on real hosts; a lost server replaced; what durability hangs on."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stigmergy.cli import exits
from stigmergy.cli.cluster_config import add_config
from stigmergy.cli.output import BAD, GOOD, HEADING, NAME, WARN, Output, counted
from stigmergy.cli.standing import look_once
from stigmergy.core.errors import ConfigError, LinkDown, NotRunning
from stigmergy.engine import FLEET, SYSTEM, NatsAddress, on_cluster, parse_address

if TYPE_CHECKING:
    from stigmergy.engine.standing import Standing

WITHIN_S = 300.0
WITHIN_S_MAX = 86_400.0
REPLACE_EXAMPLES = """First start a new server, with an empty disk and a name of its own:

  stigmergy cluster config --join hub-4 --instead-of hub-2
  stigmergy cluster replace hub-2 --urls cluster-config/urls.txt

A server that is only away needs none of this: with its disk it catches up by itself. One whose disk is lost is best
replaced like this: under its old name it would count for a majority at once, with nothing in it.
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
    add_config(actions, common)
    look = actions.add_parser(
        "check",
        parents=[common],
        help="what is wrong with a cluster, and what to do",
        description="Looks at majority, replicas, syncs, stores, clocks and shards of a cluster. Changes nothing.",
    )
    _add_urls(look)
    look.set_defaults(run=check_cluster)
    replace = actions.add_parser(
        "replace",
        parents=[common],
        help="replace a server that is lost for good",
        description="Gives the replicas of a server that is lost for good to one that has joined, while all goes on.",
        epilog=REPLACE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replace.add_argument("server", metavar="SERVER", help="the name of the lost one")
    _add_urls(replace)
    replace.add_argument("--system", metavar="URL", help="the same servers, as the user of the system account")
    replace.add_argument("--within", metavar="S", type=float, default=WITHIN_S, help=f"give up after ({WITHIN_S:g})")
    replace.set_defaults(run=replace_server)


def _add_urls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nats", metavar="URL", help="the servers, as the fleet's user")
    parser.add_argument(
        "--urls", metavar="FILE", type=Path, help="the urls.txt that cluster config, or up, has written"
    )


def check_cluster(arguments: argparse.Namespace, output: Output) -> int:
    """Says what is wrong."""
    from stigmergy.engine.checking import Level, check

    fleet, _ = _urls(arguments)
    findings = check(look_once(fleet, ""))
    levels = [finding.level for finding in findings]
    worst = next(level for level in (Level.FAIL, Level.WARN, Level.OK) if level in levels)
    output.document({"ok": worst is not Level.FAIL, "worst": worst, "checks": msgspec.to_builtins(findings)})
    styles = {Level.OK: GOOD, Level.WARN: WARN, Level.FAIL: BAD}
    for finding in findings:
        output.line(
            (f"{finding.level:<4}", styles[finding.level]), "  ", (f"{finding.check:<9}", NAME), f" {finding.what}"
        )
        if finding.remedy:
            output.line(("      → ", HEADING), finding.remedy)
    return exits.REFUSED if worst is Level.FAIL else exits.OK


def replace_server(arguments: argparse.Namespace, output: Output) -> int:
    """Moves what a lost server held to others, and has them forget it."""
    fleet, system = _urls(arguments)
    within_s: float = arguments.within
    if not 0 < within_s <= WITHIN_S_MAX:
        raise ConfigError(f"--within {within_s:g}: give seconds, such as {WITHIN_S:g}")
    lost: str = arguments.server
    _check_lost(lost, look_once(fleet, ""))
    try:
        moved = asyncio.run(_replace(fleet, system, lost, within_s))
    except LinkDown as error:
        raise NotRunning(f"{error}; what was moved is moved, the same command goes on") from None
    output.document(
        {
            "server": lost,
            "forgotten": system is not None,
            "streams": [{"stream": one.stream, "servers": list(one.servers)} for one in moved],
        }
    )
    output.table(("STREAM", "NOW ON"), [((one.stream, NAME), ", ".join(one.servers)) for one in moved])
    output.line(("replaced", GOOD), f"  {lost} held {counted(len(moved), 'stream')}; each is whole again")
    if system is None:
        output.note(
            f"the servers still count {lost} among them, and need one more for a majority: give --urls or --system",
            WARN,
        )
    return exits.OK


async def _replace(fleet: NatsAddress, system: NatsAddress | None, lost: str, within_s: float) -> list[Any]:
    from stigmergy.engine.members import forget_server, replace_member

    moved = await on_cluster(fleet, lambda link: replace_member(link, lost, within_s), name="stigmergy cluster")
    if system is not None:
        await on_cluster(system, lambda link: forget_server(link, lost), name="stigmergy cluster")
    return moved


def _check_lost(lost: str, standing: Standing) -> None:
    seen = standing.servers
    names = [server.name for server in seen.servers]
    if seen.has_quorum is False:
        raise NotRunning(f"{standing.trouble}; replace {lost} when a majority is there")
    if lost not in names:
        held = any(lost == one.server for stream in standing.streams for one in stream.others)
        if not held:
            raise ConfigError(f"no server is called {lost!r}; there are {', '.join(names)}")
    if any(server.name == lost and server.is_up for server in seen.servers):
        raise ConfigError(f"{lost} is up; a server that runs is not lost. End it for good first, if it is to go")


def _urls(arguments: argparse.Namespace) -> tuple[NatsAddress, NatsAddress | None]:
    """The servers as the fleet's user, and, if that is known, as the system's."""
    system = getattr(arguments, "system", None)
    if (arguments.nats is None) == (arguments.urls is None):
        raise ConfigError("which cluster? Give --urls FILE, as cluster config and up write it, or --nats URL")
    if arguments.urls is None:
        return parse_address(arguments.nats), None if system is None else parse_address(system)
    try:
        lines = arguments.urls.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{arguments.urls} cannot be read: {error}") from None
    found = [parse_address(line) for line in lines if line.startswith(("nats://", "tls://"))]
    by_user = {address.user: address for address in found}
    if FLEET not in by_user:
        raise ConfigError(f"{arguments.urls} has no URL of the user {FLEET}; is it the urls.txt of a cluster?")
    return by_user[FLEET], parse_address(system) if system is not None else by_user.get(SYSTEM)
