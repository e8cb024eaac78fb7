"""`stigmergy status --nats URL`: how a cluster stands; once, or again and again."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from stigmergy.cli import exits
from stigmergy.cli.output import BAD, Cell, Output
from stigmergy.cli.screen.cluster import draw_standing
from stigmergy.cli.screen.frame import fit
from stigmergy.cli.screen.terminal import Terminal
from stigmergy.core.errors import ConfigError, LinkDown, NotRunning, StigmergyError
from stigmergy.engine import NatsAddress, on_cluster, parse_address

if TYPE_CHECKING:
    from stigmergy.engine.standing import Standing

EVERY_S = 1.0
LOOK_S_MAX = 15.0


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """What `status` needs for a cluster, beside --nats."""
    group = parser.add_argument_group("a cluster: --nats without --fleet")
    group.add_argument("name", metavar="NAME", nargs="?", help="what belongs to the fleet of this name only")
    group.add_argument("--watch", action="store_true", help="again each second, until Ctrl-C")


def status_of_cluster(arguments: argparse.Namespace, output: Output) -> int:
    """Says how a cluster stands."""
    address = parse_address(arguments.nats)
    try:
        if not arguments.watch:
            standing = look_once(address, arguments.name or "")
            output.document(described(standing))
            for line in draw_standing(standing):
                output.line(*line)
            return exits.OK if standing.servers.has_quorum is not False else exits.NOT_RUNNING
        if sys.stdout.isatty() and not output.json:
            return _live(address, arguments.name or "")
        return _stream(address, arguments.name or "", output)
    except KeyboardInterrupt:
        return exits.OK  # the usual way to leave


def look_once(address: NatsAddress, fleet: str) -> Standing:
    """One look, with a connection of its own. Raises NotRunning if nobody answers."""

    async def work() -> Standing:
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                return await on_cluster(address, lambda link: _look(link, fleet), name="stigmergy status")
        except (LinkDown, TimeoutError) as error:
            why = str(error) or f"no answer in {LOOK_S_MAX:g} s"
            raise NotRunning(f"no server of the cluster answers: {why}") from None

    return asyncio.run(work())


async def _look(link: Any, fleet: str) -> Standing:
    from stigmergy.engine.standing import look

    return await look(link, fleet)


def described(standing: Standing) -> dict[str, Any]:
    """One look as it is told to programs."""
    seen = standing.servers
    plain: dict[str, Any] = msgspec.to_builtins(standing)
    return {
        "url": standing.url,
        "time": standing.at_s,
        "quorum": seen.has_quorum,
        "quorum_needed": seen.needed,
        "leader": seen.leader or None,
        "trouble": standing.trouble or None,
        "servers": plain["servers"]["servers"],
        "fleets": plain["fleets"],
        "ledgers": plain["ledgers"],
        "streams": plain["streams"],
        "leaderless": plain["leaderless"],
    }


def _stream(address: NatsAddress, fleet: str, output: Output) -> int:
    while True:
        began_s = time.monotonic()
        try:
            standing = look_once(address, fleet)
        except ConfigError:
            raise
        except StigmergyError as error:
            output.document({"error": str(error), "kind": type(error).__name__})
            output.note(str(error), BAD)
        else:
            output.document(described(standing))
            for line in draw_standing(standing):
                output.line(*line)
            output.line()
        time.sleep(max(0.0, EVERY_S - (time.monotonic() - began_s)))


def _live(address: NatsAddress, fleet: str) -> int:
    with Terminal() as terminal:
        terminal.show([["looking …"]])
        while terminal.ended_by is None:
            began_s = time.monotonic()
            try:
                lines: list[Any] = list(draw_standing(look_once(address, fleet)))
            except ConfigError:
                raise
            except StigmergyError as error:
                lines = [[(str(error), BAD)]]
            columns, rows = terminal.size
            foot: list[Cell] = [("q", "reverse"), " quit"]
            shown = [fit(line, columns) for line in lines[: max(1, rows - 2)]]
            terminal.show([*shown, *([[]] * (rows - len(shown) - 1)), fit(foot, columns)])
            if "q" in terminal.wait(EVERY_S - (time.monotonic() - began_s)).lower():
                return exits.OK
    return exits.OK if terminal.ended_by is signal.SIGINT else 128 + signal.SIGTERM
