"""One frame of the live view, as lines of bounded width. Pure: asks nobody and draws nothing."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar, assert_never

from msgspec import UNSET, Struct, structs

from stigmergy.app.cluster_client import ClusterClient
from stigmergy.app.fleet import ControlClient
from stigmergy.audit.listing import LogEntry, Owing
from stigmergy.base.errors import NotRunning, StigmergyError
from stigmergy.bus.port import NO_BUS, UP
from stigmergy.claims.service import CONTACT, ClaimsStatus
from stigmergy.cli.display.output import (
    BAD,
    GOOD,
    HEADING,
    NAME,
    WARN,
    Cell,
    aligned,
    counted,
    printable,
    shown_bytes,
    shown_fields,
)
from stigmergy.cli.display.places import ClusterPlace, NodePlace
from stigmergy.control.protocol import LettersRequest, LogRequest, Request, StatusRequest, answers_to
from stigmergy.control.replies import LetterReply, LinkReply, StatusReply
from stigmergy.crdt.anti_entropy.context import SharedStatus
from stigmergy.metrics.catalogue import DROPPED
from stigmergy.metrics.samples import Percentiles, latencies

if TYPE_CHECKING:
    from stigmergy.nats.servers.status import ClusterStatus, FleetSeen, LedgerSeen


# Polls a running node through one connection, and computes rates per second. A node that is down is not an error here:
# the sample says so, and the next one tries again.

R = TypeVar("R")
ANSWER_S_MAX = 10.0
"""A node that takes longer counts as one that does not answer."""


class Seen(Struct, frozen=True):
    """One look at a node. Without a status it does not run or does not answer, and `why` says more."""

    at_s: float
    status: StatusReply | None = None
    why: str = ""
    events_per_s: float | None = None
    """None where it is not known yet: rates need two looks at the same process."""
    commits_per_s: float | None = None
    cpu_percent: float | None = None
    counters_per_s: dict[str, float] = {}
    last: list[LogEntry] = []
    """The last entries of the log, oldest first."""
    letters: list[LetterReply] = []
    latencies: dict[str, Percentiles] = {}
    """Of what was measured since the look before."""


class Sampler:
    """Looks at the node that `find` finds; it raises NotRunning where there is none."""

    def __init__(
        self,
        find: Callable[[], NodePlace],
        *,
        answer_s_max: float = ANSWER_S_MAX,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._answer_s_max = answer_s_max
        self._now_s = now_s
        self._client: ControlClient | ClusterClient | None = None
        self._before: Seen | None = None

    def look(self, *, last: int = 0, letters: bool = False) -> Seen:
        """Looks once; if asked, with the last entries of the log, and with the dead letters."""
        try:
            seen = self._look(last, letters)
        except StigmergyError as error:
            self.close()
            self._before = None
            return Seen(self._now_s(), why=str(error))
        self._before = seen
        return seen

    def close(self) -> None:
        """Ends the connection; the next look makes another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _look(self, last: int, letters: bool) -> Seen:
        client = self._client
        if client is None:
            client = self._client = _connect(self._find(), self._answer_s_max)
        (status,) = _asked(client, StatusRequest())
        if status.is_unanswered:
            raise NotRunning(f"no worker of the fleet {status.fleet!r} answers at {status.journal}")
        seen = _compared(Seen(self._now_s(), status), self._before)
        return structs.replace(
            seen,
            last=_asked(client, LogRequest(limit=last)) if last else [],
            letters=_asked(client, LettersRequest()) if letters else [],
        )


def _connect(place: NodePlace, answer_s_max: float) -> ControlClient | ClusterClient:
    if isinstance(place, ClusterPlace):
        return ClusterClient(place.url, place.fleet, timeout_s=answer_s_max)
    return ControlClient(place, timeout_s=answer_s_max)


def _asked(client: ControlClient | ClusterClient, request: Request[R]) -> list[R]:
    # Closed by us, not by being forgotten: a Ctrl-C while Python tidies up a generator goes unheard.
    with closing(client.ask(request)) as replies:
        return answers_to(replies)


def _compared(seen: Seen, before: Seen | None) -> Seen:
    """What changed each second since the look before, if that was at the same process."""
    now, then = seen.status, None if before is None else before.status
    if now is None or then is None or before is None or now.pid != then.pid:
        return seen
    # By the node's own clock: it may have been busy between our asking and its answering.
    took_s = seen.at_s - before.at_s if now.is_on_workers else now.up_s - then.up_s
    counters = then.counters
    if took_s <= 0 or now.cpu_s < then.cpu_s or now.events < then.events:
        return seen  # another process; or a shard has moved to one, and counts from its start
    return structs.replace(
        seen,
        events_per_s=(now.events - then.events) / took_s,
        commits_per_s=(now.commits - then.commits) / took_s,
        cpu_percent=100 * (now.cpu_s - then.cpu_s) / took_s,
        latencies={} if now.metrics is UNSET else latencies(now.metrics, then.metrics or None),
        counters_per_s={name: (count - counters.get(name, 0)) / took_s for name, count in now.counters.items()},
    )


CELL_COLUMNS_MIN, CELL_COLUMNS_MAX = 20, 26
COLUMNS_MIN = 20
KEYS_COLUMNS = 66
"""So wide are the keys with room around them."""
STOPPED_SHOWN_MAX = 5
RISING = "▁▂▃▄▅▆▇█"
HISTORY_COUNT_MAX = 300

Line = Sequence[Cell]


class Page(StrEnum):
    """What the lower part of a frame lists."""

    EVENTS = "e"
    COUNTERS = "c"
    LETTERS = "l"
    METRICS = "m"


HEADINGS = {
    Page.EVENTS: "LAST ENTRIES OF THE LOG",
    Page.COUNTERS: "COUNTERS SINCE THE START",
    Page.LETTERS: "DEAD LETTERS",
    Page.METRICS: "TIMES SINCE THE START, BUSIEST AGENTS, LARGEST STATES",
}


class Viewport(Struct, frozen=True):
    """How somebody looks: the size of the terminal, the page, and the rates seen so far, the newest last."""

    columns: int
    lines: int
    page: Page = Page.EVENTS
    paused: bool = False
    rates: tuple[float, ...] = ()
    keys: bool = True


def draw(seen: Seen, view: Viewport) -> list[list[Cell]]:
    """The lines of a frame: never more of them than the terminal has, and none wider than it is."""
    columns = max(view.columns, COLUMNS_MIN)
    top = list(_above(seen, view, columns))
    foot = [_keys(view, columns)] if view.keys else []
    room = view.lines - len(top) - len(foot)
    below = list(_below(seen, view, columns, room)) if seen.status is not None and room > 1 else []
    padding: list[Line] = [[] for _ in range(max(0, room - len(below)))] if foot else []
    body = [*top, *below, *padding][: max(0, view.lines - len(foot))]
    return [fit(line, columns) for line in [*body, *foot][: view.lines]]


def list_lines(view: Viewport) -> int:
    """So many entries can be shown at most; more need not be asked for."""
    return max(1, view.lines - 6)


def fit(line: Line, columns: int) -> list[Cell]:
    """A line cut off at the last column, with a mark where it was; nothing in it that a terminal would obey."""
    fitted: list[Cell] = []
    left = columns
    for cell in line:
        text, style = (cell, "") if isinstance(cell, str) else cell
        text = printable(text)
        if len(text) > left:
            fitted.append((text[: max(0, left - 1)] + "…" if left else "", style))
            break
        fitted.append((text, style))
        left -= len(text)
    return fitted


# ---------------------------------------------------------------------- above


def _above(seen: Seen, view: Viewport, columns: int) -> Iterator[Line]:
    status = seen.status
    paused: list[Cell] = [("paused  ", WARN)] if view.paused else []
    if status is None:
        yield [*paused, ("not running", BAD)]
        wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
        yield from ([line] for line in wrapper.wrap(printable(seen.why)))
        return
    up = f"  up {duration(status.up_s)}  process {status.pid}  version {status.version}"
    if status.is_on_workers:
        owned = sum(one.pid is not None for one in status.parts)
        up = f"  {owned} of {len(status.parts)} shards answer"
    yield [*paused, (status.fleet, NAME), (up, HEADING)]
    yield [(f"{status.journal}  {shown_bytes(status.journal_bytes)}", HEADING)]
    yield from _link(status.link)
    for name, cell in replication_fields(status):
        yield [(f"{name} ", HEADING), cell]
    yield []
    yield from _cells(_figures(seen, status), columns)
    if view.rates:
        yield [
            ("events/s ", HEADING),
            (_rising(view.rates[-(columns - 20) :]), GOOD),
            (f" {max(view.rates):,.0f}", HEADING),
        ]
    for trouble in status.troubles:
        yield [("trouble ", BAD), trouble]
    for number, (agent, why) in enumerate(status.stopped.items()):
        if number == STOPPED_SHOWN_MAX:
            yield [(f"… and {len(status.stopped) - number} more are stopped: stigmergy status", HEADING)]
            break
        yield [("stopped ", BAD), (agent, NAME), f"  {why}"]


def _figures(seen: Seen, status: StatusReply) -> list[tuple[str, str, str]]:
    """Names, values and styles of the numbers that one looks for first."""
    counters = status.counters
    lost = sum(counters.get(name, 0) for name in DROPPED)
    letters, stopped = status.dead_letters, len(status.stopped)
    return [
        ("events/s", _rate(seen.events_per_s), ""),
        ("commits/s", _rate(seen.commits_per_s), ""),
        ("agents", f"{status.agents:,}", ""),
        ("owed", f"{status.owed:,}", ""),
        ("waiting", f"{status.waiting:,}", ""),
        ("dead letters", f"{letters:,}", WARN if letters else ""),
        ("stopped", f"{stopped:,}", BAD if stopped else ""),
        ("lost", f"{lost:,}", WARN if lost else ""),
        ("events", _large(status.events), ""),
        ("commits", _large(status.commits), ""),
        ("action p99", _time(seen, "event_to_action"), ""),
        ("commit p99", _time(seen, "commit"), ""),
        ("wait p99", _time(seen, "mailbox_wait"), ""),
        ("cpu", "…" if seen.cpu_percent is None else f"{seen.cpu_percent:.0f} %", ""),
        ("memory", shown_bytes(status.memory_peak_bytes), ""),
    ]


def _time(seen: Seen, name: str) -> str:
    """The 99th percentile since the look before; nothing where nothing was observed."""
    found = seen.latencies.get(name)
    return "…" if found is None or found.p99_ms is None else _shown_ms(found.p99_ms)


def _shown_ms(ms: float) -> str:
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:.0f} s"


def _link(link: LinkReply) -> Iterator[Line]:
    """The link to the broker, of a node that has a bus."""
    if link.state == NO_BUS:
        return
    owed = f"  {link.owed:,} to publish" if link.owed else ""
    style = GOOD if link.state == UP else WARN
    yield [("link ", HEADING), (link.state, style), (f"  {counted(link.members, 'member')}{owed}", HEADING)]
    if link.why:
        yield [("link ", HEADING), (link.why, BAD)]


def _cells(figures: Sequence[tuple[str, str, str]], columns: int) -> Iterator[Line]:
    """The figures side by side, as many as fit."""
    beside = max(1, columns // CELL_COLUMNS_MIN)
    width = min(columns // beside, CELL_COLUMNS_MAX)
    for start in range(0, len(figures), beside):
        line: list[Cell] = []
        for name, value, style in figures[start : start + beside]:
            line += ["  " if line else "", (f"{name} ", HEADING), (value.rjust(width - len(name) - 3), style)]
        yield line


# ---------------------------------------------------------------------- below


def _below(seen: Seen, view: Viewport, columns: int, room: int) -> Iterator[Line]:
    """The list, under its heading; `room` lines at most, two of them its own."""
    fitting = max(0, room - 2)
    rows: list[Line] = []
    match view.page:
        case Page.EVENTS:
            rows = list(_entries(seen.last, columns))[-fitting:]
        case Page.COUNTERS:
            rows = list(_counters(seen))
        case Page.LETTERS:
            rows = list(_letters(seen.letters))
        case Page.METRICS:
            rows = list(_measured(seen))
        case _:
            assert_never(view.page)
    yield []
    yield [(HEADINGS[view.page], HEADING)]
    if len(rows) > fitting:
        rows = [*rows[: fitting - 1], [(f"… and {len(rows) - fitting + 1} more", HEADING)]]
    yield from rows[:fitting] or [[("none", HEADING)]][:fitting]


def _measured(seen: Seen) -> Iterator[Line]:
    """All times of a node that were observed, and who is busy and large."""
    metrics = UNSET if seen.status is None else seen.status.metrics
    if metrics is UNSET:
        return
    for name, one in sorted(latencies(metrics).items()):
        if one.p50_ms is not None and one.p99_ms is not None:
            times = f"p50 {_shown_ms(one.p50_ms):>8}  p99 {_shown_ms(one.p99_ms):>8}"
            yield [(f"{name.replace('_', ' '):<18}", HEADING), times]
    for busy in metrics.busiest:
        yield [("busy  ", HEADING), (busy.name, NAME), f"  {busy.share:.0%} of the events"]
    for large in metrics.largest:
        yield [("large ", HEADING), (large.agent, NAME), f"  {shown_bytes(large.state_bytes)}"]


def _entries(entries: Iterable[LogEntry], columns: int) -> Iterator[Line]:
    for entry in entries:
        kind = entry.type.removesuffix("@1").removeprefix("stigmergy.")
        when = entry.time[11:19] if columns < 60 else entry.time[11:23]
        start: list[Cell] = [(f"{when} ", HEADING), (f"{entry.agent or '(shard)'} ", NAME)]
        fields = shown_fields(entry.fields)
        if entry.kind == "answer" and entry.refused is not None:
            yield [*start, ("refused ", BAD), f"{kind} {fields}  {entry.refused}"]
        elif entry.kind == "answer":
            yield [*start, ("accepted ", GOOD), f"{kind} {fields}"]
        elif entry.kind == "effect":
            yield [*start, ("→ ", WARN), f"{kind} {fields}"]
        else:
            effects = ", ".join(_asked_for(effect) for effect in entry.effects)
            yield [*start, f"{kind} {fields}", (f"  → {effects}" if effects else "", WARN)]


def _asked_for(effect: Owing) -> str:
    kind = effect.type.removesuffix("@1") or effect.sink
    return f"{effect.to} {kind}" if effect.to else kind


def _counters(seen: Seen) -> Iterator[Line]:
    """Those that are not 0, the quickest first."""
    counters = {name: count for name, count in seen.status.counters.items() if count} if seen.status else {}
    for name in sorted(counters, key=lambda name: (-seen.counters_per_s.get(name, 0.0), name)):
        rate = seen.counters_per_s.get(name)
        yield [(f"{name:<20} ", HEADING), f"{counters[name]:>12,}", (f" {_rate(rate):>10}/s" if rate else "", GOOD)]


def _letters(letters: Iterable[LetterReply]) -> Iterator[Line]:
    for one in letters:
        yield [f"{one.letter} ", (f"{one.agent} ", NAME), (one.error, BAD), f"  {one.type}"]


def _keys(view: Viewport, columns: int) -> Line:
    line: list[Cell] = []
    for key, what, on in (
        ("q", "quit", False),
        ("e", "events", view.page is Page.EVENTS),
        ("c", "counters", view.page is Page.COUNTERS),
        ("l", "letters", view.page is Page.LETTERS),
        ("m", "times", view.page is Page.METRICS),
        ("p", "pause", view.paused),
    ):
        narrow = columns < KEYS_COLUMNS
        line += [(key if narrow else f" {key} ", "reverse"), (f" {what} ", "" if on else HEADING)]
    return line


# ---------------------------------------------------------------------- texts


def _rising(rates: Sequence[float]) -> str:
    """The rates as a row of bars, the highest one full."""
    highest = max(rates, default=0.0)
    if highest <= 0:
        return RISING[0] * len(rates)
    return "".join(RISING[min(len(RISING) - 1, int(rate / highest * (len(RISING) - 1) + 0.5))] for rate in rates)


def _rate(rate: float | None) -> str:
    if rate is None:
        return "…"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _large(count: int) -> str:
    return f"{count:,}" if count < 10_000_000 else f"{count / 1e6:,.1f} M"


def duration(seconds: float) -> str:
    """How long something has been so."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


# The state of a cluster, as lines for people. Pure: asks nobody and draws nothing.

STREAMS_SHOWN_MAX = 40
CONSUMERS_SHOWN_MAX = 20
CLOCK_S = 0.5
"""A server's clock may be so far from ours before it is worth a colour."""
STORE_SHARE = 0.8
"""A store that is fuller than this is worth a colour."""


def draw_standing(standing: ClusterStatus) -> list[Line]:
    """All that there is to say."""
    from stigmergy.nats.servers.status import MEND_OFF, is_off

    lines: list[Line] = [_headline(standing)]
    if standing.trouble:
        lines += [[(standing.trouble, WARN if standing.servers.has_majority else BAD)]]
    if off := standing.servers.off:
        lines += [] if standing.trouble else [[(is_off(off), BAD)]]
    ill = [server for server in standing.servers.servers if server.error and not server.is_off]
    lines += [[(f"{one.name} is not well: {one.error}", BAD if one.cannot_write else WARN)] for one in ill]
    if off or any(server.cannot_write for server in ill):
        lines += [[(f"→ {MEND_OFF}", HEADING)]]
    lines += [[], *_servers(standing)]
    for fleet in standing.fleets:
        lines += [[], *_fleet(fleet)]
    if standing.ledgers:
        lines += [[], *_ledgers(standing.ledgers)]
    if standing.streams or standing.leaderless:
        lines += [[], *_streams(standing)]
    if any(stream.consumers for stream in standing.streams if _is_read(stream.name)):
        lines += [[], *_consumers(standing)]
    return lines


def ranges(numbers: Sequence[int]) -> str:
    """0 to 3, 7: runs of numbers in a row."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _headline(standing: ClusterStatus) -> Line:
    seen = standing.servers
    up = sum(server.is_up for server in seen.servers)
    text = f"{up} of {counted(len(seen.servers), 'server')} up"
    if seen.has_quorum is None:
        how: Cell = ("whether there is a quorum cannot be seen", WARN)
    elif seen.has_quorum:
        how = (
            "quorum" if len(seen.servers) > 1 else "one server, no replicas",
            GOOD if len(seen.servers) > 1 else WARN,
        )
    elif seen.has_majority:
        how = ("no leader yet", WARN)
    else:
        how = (f"NO QUORUM: {seen.needed} are needed", BAD)
    off: list[Cell] = [(f"JetStream off on {', '.join(seen.off)}", BAD), ", "] if seen.off else []
    leader = [(f", {seen.leader} leads", HEADING)] if seen.leader and seen.has_quorum else []
    return [("cluster ", HEADING), (standing.url, NAME), "  ", text, ", ", *off, how, *leader]


def _servers(standing: ClusterStatus) -> list[Line]:
    rows: list[Line] = []
    led: dict[str, int] = {}
    for stream in standing.streams:
        led[stream.leader] = led.get(stream.leader, 0) + 1
    for server in standing.servers.servers:
        if not server.is_up:
            rows.append([(server.name, NAME), ("gone", BAD)])
            continue
        if server.is_off:
            rows.append([(server.name, NAME), ("JetStream off", BAD), server.version])
            continue
        store: Cell = "not seen"
        if server.store_bytes is not None and server.store_bytes_max:
            share = server.store_bytes / server.store_bytes_max
            text = f"{shown_bytes(server.store_bytes)} of {shown_bytes(server.store_bytes_max)}"
            store = (text, WARN if share > STORE_SHARE else "")
        sync: Cell = "not seen" if server.sync is None else (server.sync, GOOD if server.sync == "always" else WARN)
        clock: Cell = "not seen"
        if server.clock_off_s is not None:
            clock = (f"{server.clock_off_s:+.2f} s", WARN if abs(server.clock_off_s) > CLOCK_S else "")
        leads = f"{led.get(server.name, 0)}" + (", the servers" if server.leads else "")
        streams = "" if server.streams is None else f"{server.streams}"
        state: Cell = ("up", GOOD) if not server.error else ("not well", BAD if server.cannot_write else WARN)
        rows.append([(server.name, NAME), state, server.version, streams, leads, store, sync, clock])
    return aligned(("SERVER", "", "VERSION", "STREAMS", "LEADS", "STORE", "SYNC", "CLOCK"), rows)


def _fleet(fleet: FleetSeen) -> Iterator[Line]:
    nobody = [shard.shard for shard in fleet.shards if not shard.worker]
    moving = [shard.shard for shard in fleet.shards if shard.worker and shard.planned not in ("", shard.worker)]
    owned = len(fleet.shards) - len(nobody)
    yield [
        ("fleet ", HEADING),
        (fleet.fleet, NAME),
        f"  {counted(len(fleet.workers), 'worker')}, {owned} of {counted(len(fleet.shards), 'shard')} owned",
        (f", plan {fleet.plan} of {fleet.coordinator or 'nobody now'}" if fleet.plan is not None else "", HEADING),
    ]
    if nobody:
        yield [("  nobody has ", BAD), f"shard {ranges(nobody)}"]
    if moving:
        yield [("  moving ", WARN), f"shard {ranges(moving)}"]
    for lack in fleet.unmet:
        yield [("  lacks ", BAD), lack]
    for why in fleet.unfit:
        yield [("  refused by ", BAD), why]
    rows: list[Line] = [
        [
            (worker.id, NAME),
            f"{worker.host or '?'}",
            f"{worker.pid}",
            duration(worker.up_s),
            f"{worker.revision}",
            (ranges(worker.owns) or "none") if not worker.is_leaving else (f"leaving, {ranges(worker.owns)}", WARN),
        ]
        for worker in fleet.workers
    ]
    yield from aligned(("WORKER", "HOST", "PID", "UP", "LEASE", "SHARDS"), rows) if rows else ()


def _ledgers(ledgers: Sequence[LedgerSeen]) -> list[Line]:
    return aligned(
        ("LEDGER", "HEAD", "SINCE"),
        [[(one.ledger, NAME), f"{one.head:,}", one.when[:19].replace("T", " ")] for one in ledgers],
    )


def _streams(standing: ClusterStatus) -> list[Line]:
    rows: list[Line] = [[(name, NAME), ("no leader", BAD)] for name in standing.leaderless]
    away = standing.servers.gone
    streams = standing.folded()
    for stream in streams[:STREAMS_SHOWN_MAX]:
        off = [one.server for one in stream.others if one.server in standing.servers.off]
        gone = [one.server for one in stream.others if one.server not in off and (one.is_offline or one.server in away)]
        late = [one.server for one in stream.others if one.server not in (*gone, *off) and not one.is_current]
        copies: Cell = f"{stream.replicas}"
        if gone or late or off:
            parts = [f"{', '.join(gone)} gone"] if gone else []
            parts += [f"{', '.join(off)} off"] if off else []
            parts += [f"{', '.join(late)} behind"] if late else []
            copies = (f"{stream.replicas}: {'; '.join(parts)}", BAD if gone or off else WARN)
        rows.append(
            [
                (stream.name, NAME),
                copies,
                stream.leader or ("" if stream.replicas == 1 else ("nobody", BAD)),
                f"{stream.last_sequence:,}",
                shown_bytes(stream.stored_bytes),
                (f"{stream.behind:,}", WARN if stream.behind else ""),
            ]
        )
    lines = aligned(("STREAM", "REPLICAS", "LEADER", "LAST", "SIZE", "LAG"), rows)
    if (more := len(streams) - STREAMS_SHOWN_MAX) > 0:
        lines.append([(f"… and {more} more; --json has all", HEADING)])
    return lines


def _consumers(standing: ClusterStatus) -> list[Line]:
    """Those that are furthest behind. Who watches a bucket comes and goes, and is of no interest here."""
    every = [(stream.name, one) for stream in standing.streams if _is_read(stream.name) for one in stream.consumers]
    found = [(stream, one) for stream, one in every if one.pending or one.unconfirmed]
    found.sort(key=lambda one: (-one[1].pending - one[1].unconfirmed, one[0], one[1].name))
    rows: list[Line] = [
        [stream, (one.name, NAME), (f"{one.pending:,}", WARN if one.pending else ""), f"{one.unconfirmed:,}"]
        for stream, one in found[:CONSUMERS_SHOWN_MAX]
    ]
    lines = aligned(("READS", "CONSUMER", "PENDING", "UNCONFIRMED"), rows)
    if (more := len(found) - CONSUMERS_SHOWN_MAX) > 0:
        lines.append([(f"… and {more} more that are less behind; --json has all", HEADING)])
    if (done := len(every) - len(found)) > 0:
        lines.append([(f"{counted(done, 'reader')} with nothing pending or unconfirmed; --json has all", HEADING)])
    return lines


def _is_read(stream: str) -> bool:
    return not stream.startswith("KV_")


def replication_fields(status: StatusReply) -> list[tuple[str, Cell]]:
    """How a node stands with its peers and its ledger, as lines of its status; none of what it does not have."""
    found: list[tuple[str, Cell]] = []
    if shared := status.shared:
        found.append(("shared", (_shared_summary(shared), _shared_style(shared))))
    if claims := status.claims:
        found.append(("claims", (_claims_summary(claims), GOOD if claims.ledger == CONTACT else WARN)))
    for one in status.ledgers or ():
        parts = [counted(one.entries, "entry", "entries"), f"position {one.position:,}"]
        parts += [f"{counted(one.waiting, 'proposal')} waiting"] if one.waiting else []
        parts += [f"{one.behind:,} behind"] if one.behind else []
        summary = ", ".join(parts) + (f"; {one.why}" if one.why else "")
        found.append((f"ledger {one.ledger}", (summary, WARN if one.why else GOOD)))
    return found


def _shared_summary(shared: SharedStatus) -> str:
    """What is shared, with how many, and what is not well with it."""
    parts = [counted(shared.objects, "object"), counted(shared.replicas, "replica")]
    parts += [counted(shared.peers, "peer") if shared.peers else "nobody else is there"]
    parts += [f"{shared.waiting:,} waiting"] if shared.waiting else []
    parts += [f"{shared.unacknowledged:,} unacknowledged"] if shared.unacknowledged else []
    parts += [f"{len(shared.diverged):,} diverged"] if shared.diverged else []
    parts += [f"{len(shared.quarantined):,} in quarantine"] if shared.quarantined else []
    return ", ".join(parts)


def _shared_style(shared: SharedStatus) -> str:
    if shared.diverged or shared.quarantined:
        return BAD
    return GOOD if shared.peers else WARN


def _claims_summary(claims: ClaimsStatus) -> str:
    """How the ledger is reached, how far it was read, and what is held and asked."""
    parts = [f"ledger {claims.ledger}", f"position {claims.position:,}"]
    parts += [f"{claims.held:,} held", f"{claims.asking:,} asking"]
    parts += [f"{claims.waiting:,} to write"] if claims.waiting else []
    return ", ".join(parts) + (f"; {claims.why}" if claims.why else "")
