"""The program `stigmergy`: reads the command line, runs one command, and turns errors into one sentence.

User errors show no traceback; --debug shows all.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from stigmergy.base.errors import StigmergyError
from stigmergy.cli import (
    agent,
    bench,
    capture,
    cluster,
    compile,
    completion,
    doctor,
    gateway,
    ledger,
    log,
    new,
    node,
    replay,
    run,
    sim,
    top,
    up,
    worker,
)
from stigmergy.cli import (
    peers as company,
)
from stigmergy.cli.api import profile, proto, serve, token, trace, view, workflows
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import Output, Parser, version
from stigmergy.cli.display.places import show_identity
from stigmergy.cli.stores import blob, model, policy, restore
from stigmergy.cli.trust import ca, keys

GROUPS = (
    new,
    run,
    worker,
    gateway,
    up,
    serve,
    token,
    agent,
    workflows,
    view,
    log,
    trace,
    capture,
    replay,
    restore,
    blob,
    node,
    company,
    top,
    profile,
    cluster,
    ledger,
    doctor,
    keys,
    ca,
    model,
    policy,
    sim,
    compile,
    proto,
    bench,
    completion,
)
OUTPUT_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write to stdout says when it leads to a file on a disk that is full or failing."""
DESCRIPTION = "A runtime for fleets of autonomous agents that decide locally, on their own durable log."
EPILOG = """examples:
  stigmergy new drone                                  begin: an agent, its test, its settings
  stigmergy run drone:fleet                            run the fleet in drone.py
  stigmergy send Drone/D-17 StartMission mission=M1    give an agent a command
  stigmergy state Drone/D-17 --at 2026-11-15T08:00:00Z
  stigmergy log show Drone/D-17                        what happened to it
  stigmergy log verify                                 whether the log is what was written

exit codes:
  0 done   1 refused, or verification failed   2 usage or configuration   3 not running, or the journal is locked
  4 damaged or foreign data, or a wrong key    5 a bug of ours            130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="stigmergy", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"stigmergy {version()}")
    commands: Any = parser.add_subparsers(metavar="COMMAND", title="commands")
    for group in GROUPS:
        group.add_commands(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line says; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    output = Output(json="--json" in given)
    debug = "--debug" in given
    try:
        return _run(given, output)
    except KeyboardInterrupt as error:
        if output.log is None or not output.log.is_json:
            output.note("interrupted")
        return exits.code_of(error)
    except BrokenPipeError:
        # The reader of our output closed it. Python would complain once more when it closes stdout.
        _let_go_of_stdout()
        return exits.OK
    except StigmergyError as error:
        if debug:
            traceback.print_exc()
        output.error(str(error), type(error).__name__)
        return exits.code_of(error)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno in OUTPUT_FAILED:
            _let_go_of_stdout()
            Output().error(f"the output cannot be written: {error.strerror}; free some, or write elsewhere", "")
            return exits.DAMAGED
        text = f"{type(error).__name__}: {error}; this is a bug of ours, please report it (--debug shows where)"
        output.error(text, "Bug")
        return exits.INTERNAL


def _let_go_of_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: list[str], output: Output) -> int:
    parser = build_parser()
    parsed = parser.parse_args(ledger.with_action(given))
    parsed.parser = parser  # completion reads it
    if not hasattr(parsed, "run"):
        parser.print_help(sys.stderr if output.json else sys.stdout)
        return exits.OK if not output.json else exits.USAGE
    show_identity(parsed)
    code: int = parsed.run(parsed, output)
    return code
