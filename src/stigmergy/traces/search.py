"""Finds the spans of a job in a log: by the id of a trace or a command, or by an agent. No code of the fleet is needed.

Between pieces of the log it yields None, so that a running node goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.journal.port import Journal
from stigmergy.shard.commit import Commit, open_commit
from stigmergy.shard.forwarding import FORWARD, read_forwarded
from stigmergy.shard.tracing import TracedInput
from stigmergy.traces.spans import Span, spans_of

TRACES_COUNT_MAX = 1_000
COMMITS_AT_ONCE = 100
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


def find_spans(journal: Journal, jobs: Sequence[str], limit: int, node: str = "") -> Iterator[Span | None]:
    """The spans of the traces that these jobs are in, at most the last so many traces, in the order of the log."""
    ids, known = [job for job in jobs if _TRACE_ID.fullmatch(job)], set[str]()
    for span in _spans(journal, map(bytes.fromhex, ids), node) if ids else ():
        yield span
        if span is not None:
            known.add(span.trace_id)
    # What is no trace here may be a command: ids of the page, and of many other programs, look the same.
    others = [job for job in jobs if job not in known]
    found: dict[bytes, int] = {}
    for commit in _commits(journal) if others else ():
        if commit is None:
            yield None
            continue
        for note in commit.traces:
            if isinstance(note, TracedInput) and any(_is_of(commit, note, job) for job in others):
                found[note.trace_id] = max(note.decided_ns, found.get(note.trace_id, 0))
    newest = sorted(found, key=lambda one: found[one])[-min(limit, TRACES_COUNT_MAX) :]
    newest = [one for one in newest if one.hex() not in known]
    if newest:
        yield from _spans(journal, newest, node)


def _spans(journal: Journal, wanted: Iterable[bytes], node: str) -> Iterator[Span | None]:
    wanted = frozenset(wanted)
    for commit in _commits(journal):
        if commit is None:
            yield None
            continue
        for span in spans_of(commit, wanted):
            yield structs.replace(span, fleet=journal.identity.fleet, node=commit.instance or node)


def _commits(journal: Journal) -> Iterator[Commit | None]:
    """The commits with notes of traces."""
    for shard in journal.identity.owned:
        for number, stored in enumerate(journal.read(shard)):
            commit = open_commit(stored.sealed.body)
            if commit.traces:
                yield commit
            if number % COMMITS_AT_ONCE == 0:
                yield None


def _is_of(commit: Commit, note: TracedInput, job: str) -> bool:
    if note.agent == job:
        return True
    if 0 <= note.answer < len(commit.answers) and commit.answers[note.answer].command_id == job:
        return True
    first, count = note.owed
    for owed in commit.owed[first : first + count]:
        try:
            if owed.sink == FORWARD and read_forwarded(owed).command_id == job:
                return True
        except UNDECODABLE:
            continue
    return False
