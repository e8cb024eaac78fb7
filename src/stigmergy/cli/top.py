"""`stigmergy top`: a running node, live. One frame for scripts, lines of JSON for programs, a screen for people.

It changes nothing, and survives restarts of the node: while the node is down it says so, and resumes when it is back.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections import deque
from typing import Any

import msgspec

from stigmergy.base.errors import ConfigError, NotRunning
from stigmergy.cli.display import exits
from stigmergy.cli.display.frames import (
    ANSWER_S_MAX,
    HISTORY_COUNT_MAX,
    Page,
    Sampler,
    Seen,
    Viewport,
    draw,
    list_lines,
)
from stigmergy.cli.display.output import Output
from stigmergy.cli.display.places import add_place, find_place
from stigmergy.cli.display.terminal import Terminal

EVERY_S = 1.0
EVERY_S_MIN, EVERY_S_MAX = 0.1, 3600.0
LIVE_ANSWER_S_MAX = 2.0
"""On a screen nobody waits longer for a node: keys are heard between two looks."""
ONCE_LINES = 40
EXAMPLES = """examples:
  stigmergy top                  a screen, refreshed each second; q leaves it
  stigmergy top --once           one frame, for scripts; also where stdout is no terminal
  stigmergy top --json           one line each second, until it is interrupted
  stigmergy top --nats nats://hub:4222 --fleet drone:fleet    a fleet on several workers

keys: e events, c counters, l dead letters, m times and busy agents, p pause, q quit
"""


def add_commands(commands: Any) -> None:
    """Adds `top`."""
    parser = commands.add_parser(
        "top",
        run=run,
        help="watch a node, live",
        description="Shows what a running node does, live: rates, what waits, what failed, the last events.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument("--every", metavar="S", type=float, default=EVERY_S, help="seconds between frames (1)")
    add_place(parser, nats=True)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Shows the node."""
    every_s: float = arguments.every
    if not EVERY_S_MIN <= every_s <= EVERY_S_MAX:
        raise ConfigError(f"--every {every_s:g}: give {EVERY_S_MIN:g} to {EVERY_S_MAX:g} seconds")
    try:
        find_place(arguments)
    except NotRunning:
        if arguments.once:
            raise
    live = sys.stdout.isatty() and not output.json and not arguments.once
    sampler = Sampler(lambda: find_place(arguments), answer_s_max=LIVE_ANSWER_S_MAX if live else ANSWER_S_MAX)
    try:
        if live:
            return _live(sampler, every_s)
        return (
            _stream(sampler, every_s, output) if output.json and not arguments.once else _once(sampler, every_s, output)
        )
    except KeyboardInterrupt:
        return exits.OK  # the usual way to leave
    finally:
        sampler.close()


def _once(sampler: Sampler, every_s: float, output: Output) -> int:
    """Two looks, because a rate needs two, and one frame."""
    seen = sampler.look()
    if seen.status is not None:
        time.sleep(every_s)
        seen = sampler.look(last=10)
    if seen.status is None:
        raise NotRunning(seen.why)
    output.document(described(seen))
    size = shutil.get_terminal_size((100, 24))
    for line in draw(seen, Viewport(size.columns, ONCE_LINES, keys=False)) if not output.json else ():
        output.line(*line)
    return exits.OK


def _stream(sampler: Sampler, every_s: float, output: Output) -> int:
    next_s = time.monotonic()
    while True:
        output.document(described(sampler.look()))
        next_s = max(next_s + every_s, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))


def _live(sampler: Sampler, every_s: float) -> int:
    rates: deque[float] = deque(maxlen=HISTORY_COUNT_MAX)
    page, paused = Page.EVENTS, False
    with Terminal() as terminal:
        seen, next_s = Seen(0.0, why="looking …"), 0.0
        while terminal.ended_by is None:
            view = Viewport(*terminal.size, page, paused, tuple(rates), terminal.has_keys)
            if time.monotonic() >= next_s and (not paused or next_s == 0.0):
                seen = sampler.look(last=list_lines(view) if page is Page.EVENTS else 0, letters=page is Page.LETTERS)
                if seen.events_per_s is not None:
                    rates.append(seen.events_per_s)
                view = msgspec.structs.replace(view, rates=tuple(rates))
                next_s = max(next_s + every_s, time.monotonic())
            terminal.show(draw(seen, view))
            keys = terminal.wait(every_s if paused else next_s - time.monotonic())
            for key in keys.lower():
                if key == "q":
                    return exits.OK
                if key == "p":
                    paused = not paused
                if key in list(Page) and key != page:
                    page, next_s = Page(key), 0.0
    return exits.OK if terminal.ended_by is signal.SIGINT else 128 + signal.SIGTERM


def described(seen: Seen) -> dict[str, Any]:
    """One look as it is told to programs."""
    return {
        "time": time.time(),
        "running": seen.status is not None,
        "why": seen.why or None,
        "events_per_s": seen.events_per_s,
        "commits_per_s": seen.commits_per_s,
        "cpu_percent": seen.cpu_percent,
        "counters_per_s": seen.counters_per_s,
        "latencies": seen.latencies,
        "status": seen.status,
    }
