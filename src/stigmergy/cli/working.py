"""One of the processes of `stigmergy run --processes N`: a node with a part of the shards, and a supervisor above it.

It says to its supervisor, and to nobody else, what a node says to people; it keeps to one core where there are enough,
and it does not outlive its supervisor.

What a process takes from outside beside its control socket, such as a ring of column batches, belongs here too: beside
`running.control`, on files named after its share.
"""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from stigmergy.cli import exits
from stigmergy.cli.output import Output
from stigmergy.core.errors import ConfigError, StigmergyError
from stigmergy.runtime.shares import Share
from stigmergy.wiring import Lifeline, keep_to_one_core


class Report(Output):
    """What a process tells its supervisor: the documents that a node prints with --json."""

    def __init__(self, lifeline: Lifeline) -> None:
        super().__init__(json=True)
        self._lifeline = lifeline

    def document(self, value: Any) -> None:
        """One line of JSON, to the supervisor."""
        self._lifeline.report(msgspec.json.encode(value) + b"\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a supervisor says to a process that it starts; nothing for people."""
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)


def tie(arguments: argparse.Namespace) -> Lifeline:
    """Ties this process to its supervisor, before it does anything else."""
    if arguments.lifeline is None:
        raise ConfigError("--process is for processes that a supervisor starts; give --processes N alone")
    lifeline = Lifeline(arguments.lifeline)
    lifeline.watch()
    return lifeline


def settle_down(share: Share) -> None:
    """Keeps to one core, where there are enough."""
    keep_to_one_core(share.process, share.processes)


def failed(report: Report, error: StigmergyError) -> int:
    """Says why it cannot go on, and ends with the code for that."""
    report.error(str(error), type(error).__name__)
    return exits.code_of(error)
