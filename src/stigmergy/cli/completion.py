"""`stigmergy completion`: prints the script that lets a shell complete our command lines.

The script asks `stigmergy completion words` at each Tab. That one never fails and never takes long: it ends by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from importlib import resources
from typing import Any

from stigmergy.cli import exits
from stigmergy.cli.completing.names import COMPLETING_S_MAX, Names
from stigmergy.cli.completing.words import complete, split_line
from stigmergy.cli.output import Output, printable

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """examples:
  eval "$(stigmergy completion bash)"          for this shell; into ~/.bashrc for every one
  source <(stigmergy completion zsh)           the same, into ~/.zshrc
  stigmergy completion fish > ~/.config/fish/completions/stigmergy.fish
"""


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds `completion`."""
    group = commands.add_parser(
        "completion",
        help="let your shell complete command lines",
        description="Prints a script for a shell. It completes commands, options, agents, messages and their fields.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(metavar="SHELL", required=True)
    for shell in SHELLS:
        parser = actions.add_parser(shell, parents=[common], help=f"print the script for {shell}")
        parser.set_defaults(run=run, shell=shell)
    # Without a help text it is not listed: it is for the scripts.
    parser = actions.add_parser("words", description="What may come next; for the scripts above.")
    parser.add_argument("--line", metavar="LINE", help="all of the line up to the cursor, instead of its words")
    parser.add_argument("words", metavar="WORD", nargs="*", help="the words behind the program; the last is incomplete")
    parser.set_defaults(run=run_words)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Prints the script."""
    file = resources.files("stigmergy.cli.completing") / "scripts" / f"{arguments.shell}.txt"
    script = file.read_text(encoding="utf-8")
    output.document({"shell": arguments.shell, "script": script})
    if not output.json:
        sys.stdout.write(script)
    return exits.OK


def run_words(arguments: argparse.Namespace, _: Output) -> int:
    """Prints what may come next, one a line, each with what it is behind a tab."""
    from stigmergy.cli.main import build_parser

    # Whoever presses Tab waits for us; a module that is slow to import is not worth it.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(exits.OK))
    signal.setitimer(signal.ITIMER_REAL, COMPLETING_S_MAX)
    try:
        with contextlib.suppress(Exception, SystemExit):
            words = split_line(arguments.line) if arguments.line is not None else arguments.words
            for word in complete(build_parser(), words, Names()):
                if word.text.isprintable():
                    print(word.text, printable(word.about), sep="\t")
    finally:
        # At exit Python gives the signal its default back, which kills: the timer must not outlive our handler.
        signal.setitimer(signal.ITIMER_REAL, 0)
    return exits.OK
