"""`stigmergy trace`: rebuilds the trace of a job from the log, also months later, and sends it to a collector.

A running node asks the other nodes on its bus. Of stopped nodes name the journals or flight logs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stigmergy.app.journals import FLIGHT, inspect_all
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, NotRunning
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, HEADING, NAME, Cell, Output, counted
from stigmergy.cli.display.places import (
    Listing,
    add_place,
    ask,
    ask_list,
    closing_journal,
    config_of,
    find_journal,
    find_running,
    url_of,
)
from stigmergy.control.description import span_of
from stigmergy.control.protocol import SpanRequest, TraceRequest
from stigmergy.traces.exporter import BATCH_COUNT, POST_ERRORS, post, shown, traces_url
from stigmergy.traces.otlp import write_otlp
from stigmergy.traces.search import TRACES_COUNT_MAX, find_spans
from stigmergy.traces.spans import Span

EXAMPLES = """examples:
  stigmergy trace Drone/D-17                                 the last jobs that this agent had a part in
  stigmergy trace 4bf92f3577b34da6a3ce929d0e0e4736           one trace
  stigmergy trace 0197f0c2-6a1e-7b3c-9f7a-3f6f1d2a4b5c       the job of this command
  stigmergy trace Drone/D-17 north.db flight-17.log          from the logs of two nodes that are stopped
  stigmergy trace Drone/D-17 --otlp http://127.0.0.1:4318    to a collector, the same spans as live
"""


class _Place(NamedTuple):
    """A log, or a running node."""

    find: Callable[[Sequence[str], int], Iterator[Span]]
    """The spans of jobs in it, at most of so many traces."""
    begins_ns: Callable[[], int | None]
    """When the oldest commit that it still has was made; None: it has none."""


def add_commands(commands: Any) -> None:
    """Adds `trace`."""
    parser = commands.add_parser(
        "trace",
        run=trace,
        help="rebuild the trace of a job from the log",
        description="Rebuilds the trace of a job from the log: what followed from what, on which agents, and when.",
        epilog=EXAMPLES,
    )
    parser.add_argument("job", metavar="JOB", help="the id of a trace or of a command, or an agent such as Drone/D-17")
    parser.add_argument(
        "logs", metavar="LOG", nargs="*", help="journals or flight logs; without any, the node or the journal here"
    )
    parser.add_argument("--limit", metavar="N", type=int, default=10, help="at most the last so many traces (10)")
    parser.add_argument("--otlp", metavar="URL|FILE", help="send the spans to a collector, or write them to a file")
    add_place(parser, nats=True)


def trace(arguments: argparse.Namespace, output: Output) -> int:
    """Shows the spans of a job, or sends them on."""
    if not 1 <= arguments.limit <= TRACES_COUNT_MAX:
        raise ConfigError(f"--limit {arguments.limit}: give 1 to {TRACES_COUNT_MAX}")
    listing = Listing[Span]()
    places = _places(arguments, listing)
    spans = _all_of(places, arguments.job, arguments.limit)
    if arguments.otlp:
        _export(arguments, spans, output)
    elif output.json:
        for span in spans:
            output.document(span)
    elif spans:
        _show(spans, output)
    if not spans and not listing.missing:
        begins = [begins_ns for place in places if (begins_ns := place.begins_ns()) is not None]
        kept = f"the log begins at {readable_time(min(begins))}" if begins else "the log is empty"
        output.note(f"no trace is like that: it was not sampled, or is older than what is kept: {kept}")
        return exits.REFUSED
    return listing.end(output)


def _places(arguments: argparse.Namespace, listing: Listing[Span]) -> list[_Place]:
    if arguments.logs:
        return [_in_journal(_log_url(text)) for text in arguments.logs]
    path = find_running(arguments)
    if path is None:
        return [_in_journal(find_journal(arguments))]

    def ask_node(jobs: Sequence[str], limit: int) -> Iterator[Span]:
        found = ask_list(path, TraceRequest(jobs=list(jobs), limit=limit))
        listing.missing = found.missing
        yield from found.items

    return [_Place(ask_node, lambda: ask(path, SpanRequest()).first_ns)]


def _log_url(text: str) -> str:
    """A journal, or a flight log: which is a file that does not begin as a database does."""
    path = Path(text)
    if ":" not in text and path.is_file() and not path.read_bytes()[:16].startswith(b"SQLite format 3"):
        return f"{FLIGHT}{text}"
    return url_of(text)


def _in_journal(url: str) -> _Place:
    def find(jobs: Sequence[str], limit: int) -> Iterator[Span]:
        with closing_journal(inspect_all(url)) as journal:
            for span in find_spans(journal, jobs, limit):
                if span is not None:
                    yield span

    def begins_ns() -> int | None:
        with closing_journal(inspect_all(url)) as journal:
            return span_of(journal, "").first_ns

    return _Place(find, begins_ns)


def _all_of(places: Sequence[_Place], job: str, limit: int) -> list[Span]:
    """All spans of the traces that a job is in, from all places: where a trace is found, the others have more of it."""
    found = {span.span_id: span for place in places for span in place.find([job], limit)}
    newest = {span.trace_id: span.start_ns for span in sorted(found.values(), key=lambda one: one.start_ns)}
    traces = sorted(newest, key=lambda one: newest[one])[-limit:]
    if traces and traces != [job]:
        found = {span.span_id: span for place in places for span in place.find(traces, limit)}
    return sorted(found.values(), key=lambda span: (span.trace_id, span.start_ns, span.end_ns))


def _export(arguments: argparse.Namespace, spans: list[Span], output: Output) -> None:
    target: str = arguments.otlp
    if "://" not in target:
        Path(target).write_bytes(write_otlp(spans) + b"\n")
        output.note(f"{counted(len(spans), 'span')} as OTLP in {target}")
        return
    settings = config_of(arguments).settings
    headers = {} if settings is None else settings.traces.headers
    url, refused = traces_url(target), 0
    for first in range(0, len(spans), BATCH_COUNT):
        try:
            refused += post(url, headers, write_otlp(spans[first : first + BATCH_COUNT]))
        except POST_ERRORS as error:
            raise NotRunning(f"the collector {shown(url)} does not take spans: {error}") from None
    if refused:
        raise NotRunning(f"the collector {shown(url)} refused {refused} of {counted(len(spans), 'span')}")
    output.note(f"{counted(len(spans), 'span')} sent to {shown(url)}")


def _show(spans: list[Span], output: Output) -> None:
    for trace_id in dict.fromkeys(span.trace_id for span in spans):
        mine = [span for span in spans if span.trace_id == trace_id]
        began_ns = min(span.start_ns for span in mine)
        output.line(("trace ", HEADING), (trace_id, NAME), (f"  {readable_time(began_ns)}", HEADING))
        ids = {span.span_id for span in mine}
        children: dict[str, list[Span]] = {}
        for span in mine:
            children.setdefault(span.parent if span.parent in ids else "", []).append(span)
        rows = [_row(span, depth, began_ns) for span, depth in _ordered(children)]
        output.table(("AT", "TOOK", "WHAT", "AGENT", "WHERE"), rows)
        if outside := [span for span in children.get("", []) if span.parent]:
            output.note(f"{counted(len(outside), 'span')} followed from one that is not in these logs")


def _ordered(children: dict[str, list[Span]]) -> Iterator[tuple[Span, int]]:
    waiting = [(span, 0) for span in reversed(children.get("", []))]
    while waiting:
        span, depth = waiting.pop()
        yield span, depth
        waiting += [(child, depth + 1) for child in reversed(children.get(span.span_id, []))]


def _row(span: Span, depth: int, began_ns: int) -> list[Cell]:
    agent = str(span.attributes.get("stigmergy.agent", ""))
    name = f"{'  ' * depth}{span.name}"
    to = span.attributes.get("stigmergy.to")
    where = f"{span.node} {span.attributes.get('stigmergy.shard', '')}:{span.attributes.get('stigmergy.position', '')}"
    what: Cell = (f"{name}  {span.error}", BAD) if span.error else name
    return [
        (f"{(span.start_ns - began_ns) / 1e6:,.1f} ms", HEADING),
        f"{(span.end_ns - span.start_ns) / 1e6:,.1f} ms",
        what,
        (f"{agent} → {to}" if to else agent, NAME),
        (where.strip().removesuffix(":"), HEADING),
    ]
