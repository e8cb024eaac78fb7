"""Checks the column runs of one shard, commit by commit: that whoever reads them finds what was kept.

Layouts and templates are declared before they are used, agents enrolled before they do something; records and actions
come out even, actions are numbered without a gap, and what they say of their causes is so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from stigmergy.core.columns import NOT_KEPT, ColumnRun, check_run
from stigmergy.core.commit import Commit
from stigmergy.core.directory import Directory
from stigmergy.core.errors import JournalError
from stigmergy.core.outcome import NO_CAUSE
from stigmergy.core.supervision import AgentsEnrolled
from stigmergy.core.walking import index_of_cause, learn, said_in
from stigmergy.ports.journal import Journal
from stigmergy.runtime.audit.directories import begin_directory

FORM_OFFSET = 4
CAUSE_OFFSET = 8


class ColumnCheck:
    """Sees the commits of a shard in order."""

    def __init__(self, journal: Journal, shard: int, first: int) -> None:
        self._journal = journal
        self._shard = shard
        self._from_start = first == 1
        self._directory: Directory | None = Directory() if self._from_start else None
        self._next: dict[str, int] = {}
        """Per kind the sequence of the next action; unknown before the first where the log does not begin."""

    def take(self, commit: Commit) -> Iterator[str]:
        """What is wrong with a commit, in sentences."""
        directory = self._known(commit)
        if directory is None:
            return
        try:
            for said in said_in(commit):
                enrolled = len(directory.names.get(said.kind, ()))
                if self._from_start and isinstance(said, AgentsEnrolled) and said.first != enrolled:
                    yield f"enrols agents of {said.kind} from {said.first} on, and {enrolled} were enrolled before"
            learn(directory, commit)
        except JournalError as error:
            yield f"what it says of compiled agents: {error}"
        for run in commit.columns:
            try:
                yield from self._check_run(run, directory)
            except JournalError as error:
                yield f"its events of {run.kind}: {error}"
        yield from self._check_times(commit)
        yield from self._check_effects(commit)

    def _known(self, commit: Commit) -> Directory | None:
        """What the log has said so far; where its beginning is gone, what a snapshot says. None: it is not needed."""
        if self._directory is None and (commit.columns or commit.confirmed):
            self._directory = begin_directory(self._journal, self._shard)[0]
        return self._directory

    def _check_run(self, run: ColumnRun, directory: Directory) -> Iterator[str]:
        layout = directory.layout_of(run)
        check_run(run, layout)
        if layout.kind != run.kind:
            yield f"events of {run.kind} in the layout of {layout.kind}"
        if run.count:
            events = [number for number, form in enumerate(layout.forms) if not form.is_command]
            if any(form not in events for form in _distinct(run.records, layout.record_bytes, FORM_OFFSET, "H")):
                yield f"a record of {run.kind} that is no event"
            yield from self._check_agents(run.kind, run.records, layout.record_bytes, directory)
        if run.actions_count or run.actions:
            yield from self._check_actions(run, directory)

    def _check_actions(self, run: ColumnRun, directory: Directory) -> Iterator[str]:
        templates = directory.templates_of(run.templates)
        width = templates.action_bytes
        expected = self._next.get(run.kind, 1 if self._from_start else run.first)
        self._next[run.kind] = run.first + run.actions_count
        if run.first != expected:
            yield f"actions of {run.kind} from number {run.first} on, where {expected} is the next"
        if len(run.actions) != run.actions_count * width or not run.actions_count:
            yield f"{len(run.actions)} bytes for {run.actions_count} actions of {run.kind}, of {width} each"
            return
        if max(_distinct(run.actions, width, FORM_OFFSET, "H")) >= len(templates.templates):
            yield f"an action of {run.kind} of no template"
        causes = _distinct(run.actions, width, CAUSE_OFFSET, "I")
        if any(cause >= run.count for cause in causes if cause != NOT_KEPT):
            yield f"an action of {run.kind} without the event that it says it is of"
        yield from self._check_agents(run.kind, run.actions, width, directory)

    def _check_agents(self, kind: str, data: bytes, width: int, directory: Directory) -> Iterator[str]:
        enrolled = directory.names.get(kind, [])
        numbers = _distinct(data, width, 0, "I")
        if max(numbers) >= len(enrolled):
            yield f"agent {max(numbers)} of {kind}, of which {len(enrolled)} are enrolled"
        elif "" in enrolled and any(not enrolled[number] for number in numbers):
            yield f"an agent of {kind} whose name is not known here"

    def _check_times(self, commit: Commit) -> Iterator[str]:
        times_ns = [run.time_ns for run in commit.columns]
        if times_ns != sorted(times_ns) or (times_ns and times_ns[-1] > commit.runs[-1].time_ns):
            yield "the times at which its records were taken do not fit"

    def _check_effects(self, commit: Commit) -> Iterator[str]:
        """What ordinary effects say of the events behind them, and confirmations of actions that were never owed."""
        for owed in commit.owed:
            if not NO_CAUSE <= index_of_cause(commit, owed.cause) < commit.events_count:
                yield f"an effect of {owed.agent} without the event that it says it is of"
                return
        for kind, upto in commit.confirmed:
            if self._from_start and upto >= self._next.get(kind, 1):
                yield f"confirms actions of {kind} up to {upto}, which nobody has asked for"


def _distinct(data: bytes, width: int, offset: int, code: str) -> Sequence[int]:
    """The numbers that lie at the same place in all records, each once. Fast where numpy is there; it need not be."""
    try:
        import numpy as np
    except ModuleNotFoundError:
        return distinct_plain(data, width, offset, code)
    kind = {"H": "<u2", "I": "<u4"}[code]
    dtype = np.dtype({"names": ["value"], "formats": [kind], "offsets": [offset], "itemsize": width})
    found: list[int] = np.unique(np.frombuffer(data, dtype)["value"]).tolist()
    return found


def distinct_plain(data: bytes, width: int, offset: int, code: str) -> Sequence[int]:
    """The same without numpy."""
    rest = width - offset - struct.calcsize(f"<{code}")
    return sorted(dict.fromkeys(number for (number,) in struct.iter_unpack(f"<{offset}x{code}{rest}x", data)))


def loose_actions(run: ColumnRun) -> int:
    """How many actions of a run are of events that are not kept."""
    if not run.actions_count:
        return 0
    width = len(run.actions) // run.actions_count
    causes = struct.iter_unpack(f"<8xI{width - 12}x", run.actions)
    return sum(1 for (cause,) in causes if cause == NOT_KEPT)
