"""`stigmergy sim`: runs a scenario with faults over many seeds, and shows what broke and how to reproduce it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, WARN, Output, Progress, counted
from stigmergy.control.replies import filled
from stigmergy.diagnostics.logger import be_quiet

if TYPE_CHECKING:
    from stigmergy.sim.campaign import Campaign, Options, SeedResult, Shrunk
    from stigmergy.sim.simulation import Outcome, Scenario

SEEDS = "1..20"
SEEDS_MAX = 10_000_000
FAILING_SHOWN_MAX = 10
TIMELINE_ROWS = 60
HANG_S = 600.0
STDERR = 2
STACK_LINES_MAX = 24
"""Of the stack of a seed that hung; the innermost calls are the last."""
_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?", re.ASCII)
EXAMPLES = """examples:
  stigmergy sim missions                            20 seeds of a scenario that comes with stigmergy
  stigmergy sim traffic --seeds 1..200 --json       for programs
  stigmergy sim lights:scenario --seed 8123         one run, event by event, node by node
  stigmergy sim traffic --seed 7 --serve :8080      play it back on the fleet's page: map, agents, time
  stigmergy sim test_lights:test_never_two_greens --faults partition,crash --html run.html

A failing seed is made smaller while it still fails: fewer faults, fewer agents, a shorter run. What is left is printed
with the command that runs it again. Exit code 1 if any seed fails.
"""


def add_commands(commands: Any) -> None:
    """Adds `sim`."""
    parser = commands.add_parser(
        "sim",
        run=run,
        help="test a fleet under simulated faults",
        description="Runs a fleet in simulated time on simulated machines, disks and links, and injects faults.",
        epilog=EXAMPLES,
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="module:scenario, or the name of an installed one")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seeds", metavar="A..B", help=f"which seeds, or how many (default: {SEEDS})")
    seeds.add_argument("--seed", metavar="N", type=int, help="one seed, with its timeline")
    parser.add_argument("--agents", metavar="N", type=int, help="how many agents")
    parser.add_argument("--nodes", metavar="N", type=int, help="on how many machines")
    parser.add_argument("--faults", metavar="WORDS", help="all, none, network, or names: loss,partition,crash …")
    parser.add_argument("--for", metavar="SECONDS", dest="for_s", type=float, help="how long work and faults last")
    parser.add_argument("--keep", metavar="NUMBERS", help="only these of the faults that the seed draws")
    parser.add_argument("--until", metavar="SECONDS", dest="until_s", type=float, help="heal at this time")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the timeline of one run as a page")
    parser.add_argument(
        "--serve", metavar="HOST:PORT", help="play one run back on the fleet's page, such as :8080, until Ctrl-C"
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="processes (default: one for each core)")
    parser.add_argument(
        "--hang-after",
        metavar="SECONDS",
        dest="hang_s",
        type=float,
        default=HANG_S,
        help="end a seed that runs for so long, in real time, and print its stack (default: %(default)g)",
    )
    parser.add_argument("--no-shrink", action="store_true", help="do not shrink a failing seed")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the seeds, shows what was found."""
    from stigmergy.sim.campaign import run_campaign
    from stigmergy.sim.simulation import find_scenario

    be_quiet()
    options = _options(arguments)
    scenario = find_scenario(arguments.scenario)
    seeds = [arguments.seed] if arguments.seed is not None else read_seeds(arguments.seeds or SEEDS)
    _check_page(arguments.html)
    jobs = arguments.jobs or os.cpu_count() or 1
    with _sigterm_interrupts(), Progress(output, "simulating", "seeds") as progress:
        campaign = run_campaign(
            arguments.scenario,
            options,
            seeds,
            jobs,
            lambda done: progress.show(done, len(seeds)),
            lambda text: output.note(text, WARN),
            arguments.hang_s,
        )
    if campaign.interrupted:
        _show(arguments.scenario, options, campaign, None, None, output)
        output.note(f"interrupted after {len(campaign.results)} of {counted(len(seeds), 'seed')}", WARN)
        return exits.INTERRUPTED
    shrunk = None
    if campaign.ended and not arguments.no_shrink:
        shrunk = _shrink(scenario, options, campaign.ended[0], arguments.hang_s, output)
    told = None
    if _wants_timeline(arguments, campaign, output):
        with _ended_after(arguments.hang_s):
            told = _run_told(scenario, options, campaign, shrunk)
    if arguments.html is not None and told is not None:
        _write_page(arguments.html, arguments.scenario, told[0], told[1], output)
    _show(arguments.scenario, options, campaign, shrunk, None if told is None else told[0], output)
    if arguments.serve is not None and told is not None:
        _play_back(arguments.serve, f"{arguments.scenario}, seed {told[0].seed}", told[0], output)
    return exits.REFUSED if campaign.failing else exits.OK


def read_seeds(text: str) -> range:
    """`1..200`, or `200` for the first so many."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ConfigError(f"--seeds {text}: give a range like 1..200, or a number")
    first, last = (1, int(found[1])) if found[2] is None else (int(found[1]), int(found[2]))
    if not first <= last < first + SEEDS_MAX:
        raise ConfigError(f"--seeds {text}: give the smaller number first, and at most {SEEDS_MAX:,} seeds")
    return range(first, last + 1)


def command_of(name: str, seed: int, options: Options) -> str:
    """What runs one seed again."""
    return shlex.join(["stigmergy", "sim", name, "--seed", str(seed), *options.words()])


def _options(arguments: argparse.Namespace) -> Options:
    from stigmergy.sim.campaign import Options

    keep = None
    if arguments.keep is not None:
        words = [] if arguments.keep == "none" else arguments.keep.split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise ConfigError(f"--keep {arguments.keep}: give numbers of faults with commas between them, or none")
        keep = tuple(int(word) for word in words)
    for flag, value in (("--for", arguments.for_s), ("--until", arguments.until_s)):
        if value is not None and not 0 < value <= 1_000_000:
            raise ConfigError(f"{flag} {value:g}: give more than 0 seconds, and at most a million")
    if not 1 <= arguments.hang_s <= 1_000_000:
        raise ConfigError(f"--hang-after {arguments.hang_s:g}: give 1 second or more, and at most a million")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ConfigError(f"--jobs {arguments.jobs}: give 1 or more")
    return filled(Options, arguments, keep=keep)


def _check_page(path: Path | None) -> None:
    if path is not None and not path.absolute().parent.is_dir():
        raise ConfigError(f"--html {path}: there is no folder {path.parent}; make it first")


def _wants_timeline(arguments: argparse.Namespace, campaign: Campaign, output: Output) -> bool:
    if campaign.failing and not campaign.ended:
        return False  # a seed that hangs would hang again
    if arguments.html is not None or arguments.serve is not None:
        return True
    return not output.json and (arguments.seed is not None or bool(campaign.failing))


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C: what was found so far is shown."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _ended_after(hang_s: float) -> Iterator[None]:
    """Ends the program with its stack if a run in this process hangs: one that was made smaller, for instance."""
    faulthandler.dump_traceback_later(hang_s, exit=True, file=STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _shrink(scenario: Scenario, options: Options, failing: SeedResult, hang_s: float, output: Output) -> Shrunk:
    from stigmergy.sim.campaign import RUNS_MAX, Shrinking
    from stigmergy.sim.simulation import run_seed

    changed = options.apply(scenario)
    with (
        _ended_after(hang_s),
        Progress(output, f"making seed {failing.seed} smaller", "runs") as progress,
    ):

        def tried(runs: int) -> None:
            faulthandler.dump_traceback_later(hang_s, exit=True, file=STDERR)  # for each run anew
            progress.show(runs, RUNS_MAX)

        outcome = run_seed(changed.setup, failing.seed, changed.test)
        return Shrinking(scenario, options, outcome, tried=tried).run()


def _run_told(
    scenario: Scenario, options: Options, campaign: Campaign, shrunk: Shrunk | None
) -> tuple[Outcome, Options]:
    """One run once more, with its timeline: what was shrunk, else the first that failed, else the first."""
    from stigmergy.sim.simulation import run_seed

    used = options if shrunk is None else shrunk.options
    first = campaign.ended[0] if campaign.ended else campaign.results[0]
    changed = used.apply(scenario)
    return run_seed(changed.setup, first.seed, changed.test, chronicle=True), used


def _play_back(listen: str, name: str, outcome: Outcome, output: Output) -> None:
    """Shows a run on the page until Ctrl-C."""
    from stigmergy.app.fleet import installed_version
    from stigmergy.cli.api.serve import serve_playback
    from stigmergy.control.playback import LogPlayback
    from stigmergy.serve.listener import read_address
    from stigmergy.serve.server import Serving
    from stigmergy.serve.tokens import tokens_path

    log = outcome.log
    if log is None:
        output.note("nothing was kept in this run; there is nothing to play back", WARN)
        return
    playback = LogPlayback(log.journal, log.fleet, name, installed_version(), log.homes)
    serving = Serving(read_address(listen), tokens_path(None, log.fleet.name))
    asyncio.run(serve_playback(log.fleet, playback, serving, output))


def _write_page(path: Path, name: str, outcome: Outcome, options: Options, output: Output) -> None:
    from stigmergy.sim.page import write_page

    command = command_of(name, outcome.seed, options)
    try:
        path.write_text(write_page(outcome, title=name, command=command), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path}: cannot be written: {error.strerror}; name another file") from None
    output.note(f"the timeline of seed {outcome.seed} is in {path}")


def _show(
    name: str,
    options: Options,
    campaign: Campaign,
    shrunk: Shrunk | None,
    told: Outcome | None,
    output: Output,
) -> None:
    failing = campaign.failing
    output.document(
        {
            "scenario": name,
            "seeds": len(campaign.results),
            "interrupted": campaign.interrupted,
            "violations": sum(len(result.violations) for result in failing),
            "failing": [
                {
                    "seed": result.seed,
                    "violations": result.violations,
                    "trace": result.trace,
                    "stack": result.stack,
                    "command": command_of(name, result.seed, options),
                }
                for result in failing
            ],
            "shrunk": None
            if shrunk is None
            else {
                "seed": shrunk.outcome.seed,
                "violations": shrunk.outcome.violations,
                "faults": [str(one) for one in shrunk.outcome.plan],
                "runs": shrunk.runs,
                "command": command_of(name, shrunk.outcome.seed, shrunk.options),
            },
            "trace": campaign.trace,
            "simulated_s": round(campaign.simulated_s, 3),
            "messages": campaign.messages,
            "messages_per_s": round(campaign.messages_per_s),
            "seconds": round(campaign.seconds, 2),
        }
    )
    if output.json:
        return
    if told is not None:
        _show_timeline(told, command_of(name, told.seed, options if shrunk is None else shrunk.options), output)
    for result in failing[:FAILING_SHOWN_MAX]:
        output.line(("failed", BAD), " ", (f"seed {result.seed}", NAME), f": {result.violations[0]}")
        for violation in result.violations[1:3]:
            output.line(f"         {violation}")
        for line in result.stack.splitlines()[-STACK_LINES_MAX:]:
            output.line(f"           {line}")
        output.line(f"         {command_of(name, result.seed, options)}")
    if len(failing) > FAILING_SHOWN_MAX:
        output.line(f"         and {len(failing) - FAILING_SHOWN_MAX} more")
    if shrunk is not None:
        _show_shrunk(name, shrunk, output)
    verdict = (f"{len(failing)} of {counted(len(campaign.results), 'seed')} failed", BAD)
    if not failing:
        verdict = (f"no violations in {counted(len(campaign.results), 'seed')}", GOOD)
    output.line(verdict)
    output.fields(
        [
            ("simulated", f"{campaign.simulated_s:,.0f} s in {campaign.seconds:,.1f} s"),
            ("messages", f"{campaign.messages:,}, {campaign.messages_per_s:,.0f} a second"),
            ("trace", campaign.trace),
        ]
    )


def _show_timeline(told: Outcome, command: str, output: Output) -> None:
    from stigmergy.sim.timeline import render

    if told.chronicle is not None:
        width = max(80, min(output.console.width, 200))
        for line in render(told.chronicle, last=TIMELINE_ROWS, width=width, about=told.violations).splitlines():
            output.line(line)
        output.line(f"all of it, as a page: {command} --html run.html")
        output.line("")


def _show_shrunk(name: str, shrunk: Shrunk, output: Output) -> None:
    outcome = shrunk.outcome
    output.line(
        ("made smaller", NAME), f" in {counted(shrunk.runs, 'run')}: {counted(len(outcome.plan), 'fault')} left"
    )
    for one in outcome.plan:
        output.line(f"         at {one.at_ms / 1000:.3f} s {one}")
    output.line(f"         {outcome.violations[0]}")
    output.line(f"         {command_of(name, outcome.seed, shrunk.options)}")
