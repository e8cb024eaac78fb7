"""`stigmergy profile`: where the time of a running node goes, and what it writes to its disk."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.flame import draw_flames
from stigmergy.cli.display.output import HEADING, NAME, Cell, Output, counted, shown_bytes
from stigmergy.cli.display.places import add_place, ask, find_place
from stigmergy.control.protocol import ProfileRequest
from stigmergy.metrics.profile import AWAITED, ON_LOOP, Profile

GRAPH = "profile.svg"
ROWS_MAX = 20
EXAMPLES = """examples:
  stigmergy profile --for 10s                    the node that runs here; a flame graph in profile.svg
  stigmergy profile --json                       all of it for programs, the stacks too
  stigmergy profile --nats nats://hub:4222 --fleet drone:fleet --worker hub-4711
"""
MEANINGS = {
    "decode": "messages to objects",
    "decide": "handlers: decide, evolve, react",
    "step": "the rest of a step: marks, outbox, encoding",
    "seal": "commits to bytes, hash, signature",
    "release": "answers, effects, timers of what is durable",
    "other": "bus, control, housekeeping, programs around",
    "write": "a group on its way to the disk or the servers; the loop goes on meanwhile",
    "sync": "of that, waiting for the disk",
}


def add_commands(commands: Any) -> None:
    """Adds `profile`."""
    parser = commands.add_parser(
        "profile",
        run=run,
        help="show where the time of a node goes",
        description="Shows where the time of a running node or worker goes, and what it writes to its disk.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--for", metavar="TIME", dest="for_s", type=_seconds, default=10.0, help="so long (10s)")
    parser.add_argument("--flame", metavar="FILE", type=Path, help=f"where the flame graph goes ({GRAPH})")
    add_place(parser, nats=True)
    parser.add_argument("--worker", metavar="NAME", default="", help="with --nats: which worker")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time like 10s")
    return float(found[1]) * {"ms": 0.001, "m": 60.0}.get(found[2] or "s", 1.0)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Profiles, prints, draws."""
    if arguments.worker and arguments.nats is None:
        raise ConfigError("--worker is for a fleet on workers: give --nats URL, or leave --worker out")
    place = find_place(arguments)
    output.note(f"profiling for {arguments.for_s:g} s")
    found = ask(place, ProfileRequest(seconds=arguments.for_s, worker=arguments.worker))
    output.document(found)
    graph = arguments.flame or (None if output.json else Path(GRAPH))
    if graph is not None:
        title = f"{found.fleet}, {found.process}, {found.seconds:.1f} s, {found.source}"
        try:
            graph.write_text(draw_flames(found.stacks, title), encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{str(graph)!a} cannot be written: {error.strerror}; name another with --flame"
            ) from None
    _print(found, output)
    if graph is not None:
        unit = "samples of py-spy" if found.source == "py-spy" else f"our counters: {found.why}"
        output.line("flame graph  ", (str(graph), NAME), f"  from {unit}")
    return exits.OK


def _print(found: Profile, output: Output) -> None:
    def share(seconds: float) -> str:
        return f"{100 * seconds / found.seconds:.1f} %"

    def table(heading: str, columns: str, rows: list[tuple[Cell, ...]]) -> None:
        if rows:
            output.line("")
            output.table((heading, *columns.split(",")), rows)

    output.line((found.fleet, NAME), f"  {found.process}, {found.seconds:.1f} s, {counted(found.events, 'event')}")
    threads_s = max(0.0, found.cpu_s - found.loop_cpu_s)
    output.line(f"event loop {share(found.loop_cpu_s)} busy, other threads {share(threads_s)}")
    for heading, names in (("ON THE LOOP", ON_LOOP), ("BESIDE IT", AWAITED)):
        rows: list[tuple[Cell, ...]] = [
            (one.phase, share(one.seconds), f"{one.seconds:.3f} s", f"{one.count:,}", (MEANINGS[one.phase], HEADING))
            for one in found.phases
            if one.phase in names and one.seconds
        ]
        table(heading, "SHARE,TIME,COUNT", rows)
    rows = []
    for one in found.handlers[:ROWS_MAX]:
        each_us = one.seconds / one.calls * 1e6
        rows.append((f"{one.kind}.{one.handler}", one.role, share(one.seconds), f"{one.calls:,}", f"{each_us:.2f} us"))
    table("HANDLER", ",SHARE,CALLS,EACH", rows)
    if not found.flash:
        output.line("", "to flash: nothing, or not counted; the log is on servers or in memory, or there is no /proc")
    for heading, written in (("TO FLASH", found.flash), ("CONTENT", found.contents)):
        total, of_hour = sum(one.bytes for one in written), sum(one.per_hour for one in written)
        rows = [
            (one.cause, shown_bytes(one.per_hour), f"{100 * one.bytes / total:.0f} %") for one in written[:ROWS_MAX]
        ]
        table(heading, "IN AN HOUR,SHARE", [*rows, ("all", shown_bytes(of_hour))] if rows else [])
    output.line("")
