"""What one frame of the live view shows, as lines of at most so many columns. Pure: asks nobody and draws nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, assert_never

from msgspec import Struct

from stigmergy.cli.company import company_fields
from stigmergy.cli.output import BAD, GOOD, HEADING, NAME, WARN, Cell, counted, printable, shown_bytes, shown_fields
from stigmergy.cli.screen.sampling import Seen
from stigmergy.runtime.link import NO_BUS, UP

CELL_COLUMNS_MIN, CELL_COLUMNS_MAX = 20, 26
COLUMNS_MIN = 20
KEYS_COLUMNS = 56
"""So wide are the keys with room around them."""
STOPPED_SHOWN_MAX = 5
RISING = "▁▂▃▄▅▆▇█"
HISTORY_COUNT_MAX = 300
LOST = (
    "shed_items",
    "skipped",
    "gaps",
    "malformed",
    "stale_epochs",
    "stale_mappings",
    "overloads",
    "publish_shed",
    "unpublishable",
    "bus_refused",
    "bus_shed",
    "bus_gaps",
    "bus_lost_by_senders",
    "shared_refused",
    "shared_misfits",
)
"""Counters of what was not taken, or given up, on its way in or out."""

Line = Sequence[Cell]


class Page(StrEnum):
    """What the lower part of a frame lists."""

    EVENTS = "e"
    COUNTERS = "c"
    LETTERS = "l"


HEADINGS = {
    Page.EVENTS: "LAST ENTRIES OF THE LOG",
    Page.COUNTERS: "COUNTERS SINCE THE START",
    Page.LETTERS: "DEAD LETTERS",
}


class View(Struct, frozen=True):
    """How somebody looks: the size of the terminal, the page, and the rates seen so far, the newest last."""

    columns: int
    lines: int
    page: Page = Page.EVENTS
    paused: bool = False
    rates: tuple[float, ...] = ()
    keys: bool = True


def draw(seen: Seen, view: View) -> list[list[Cell]]:
    """The lines of a frame: never more of them than the terminal has, and none wider than it is."""
    columns = max(view.columns, COLUMNS_MIN)
    top = list(_above(seen, view, columns))
    foot = [_keys(view, columns)] if view.keys else []
    room = view.lines - len(top) - len(foot)
    below = list(_below(seen, view, columns, room)) if seen.status is not None and room > 1 else []
    padding: list[Line] = [[] for _ in range(max(0, room - len(below)))] if foot else []
    body = [*top, *below, *padding][: max(0, view.lines - len(foot))]
    return [fit(line, columns) for line in [*body, *foot][: view.lines]]


def list_lines(view: View) -> int:
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


def _above(seen: Seen, view: View, columns: int) -> Iterator[Line]:
    status = seen.status
    paused: list[Cell] = [("paused  ", WARN)] if view.paused else []
    if status is None:
        yield [*paused, ("not running", BAD)]
        yield from ([line] for line in _wrapped(seen.why, columns))
        return
    up = f"  up {_duration(status['up_s'])}  process {status['pid']}  version {status['version']}"
    if status["pid"] is None:  # a fleet on several workers
        owned = sum(one["pid"] is not None for one in status["processes"])
        up = f"  {owned} of {len(status['processes'])} shards answer"
    yield [*paused, (status["fleet"], NAME), (up, HEADING)]
    yield [(f"{status['journal']}  {shown_bytes(status['journal_bytes'])}", HEADING)]
    yield from _link(status["link"])
    for name, cell in company_fields(status):
        yield [(f"{name} ", HEADING), cell]
    yield []
    yield from _cells(_figures(seen, status), columns)
    if view.rates:
        yield [
            ("events/s ", HEADING),
            (_rising(view.rates[-(columns - 20) :]), GOOD),
            (f" {max(view.rates):,.0f}", HEADING),
        ]
    for trouble in status["troubles"]:
        yield [("trouble ", BAD), trouble]
    for number, (agent, why) in enumerate(status["stopped"].items()):
        if number == STOPPED_SHOWN_MAX:
            yield [(f"… and {len(status['stopped']) - number} more are stopped: stigmergy status", HEADING)]
            break
        yield [("stopped ", BAD), (agent, NAME), f"  {why}"]


def _figures(seen: Seen, status: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Names, values and styles of the numbers that one looks for first."""
    counters = status["counters"]
    lost = sum(counters.get(name, 0) for name in LOST)
    letters, stopped = status["dead_letters"], len(status["stopped"])
    return [
        ("events/s", _rate(seen.events_per_s), ""),
        ("commits/s", _rate(seen.commits_per_s), ""),
        ("agents", f"{status['agents']:,}", ""),
        ("owed", f"{status['owed']:,}", ""),
        ("waiting", f"{status['waiting']:,}", ""),
        ("dead letters", f"{letters:,}", WARN if letters else ""),
        ("stopped", f"{stopped:,}", BAD if stopped else ""),
        ("lost", f"{lost:,}", WARN if lost else ""),
        ("events", _large(status["events"]), ""),
        ("commits", _large(status["commits"]), ""),
        ("cpu", "…" if seen.cpu_percent is None else f"{seen.cpu_percent:.0f} %", ""),
        ("memory", shown_bytes(status["memory_peak_bytes"]), ""),
    ]


def _link(link: dict[str, Any]) -> Iterator[Line]:
    """The link to the broker, of a node that has a bus."""
    if link["state"] == NO_BUS:
        return
    owed = f"  {link['owed']:,} to publish" if link["owed"] else ""
    style = GOOD if link["state"] == UP else WARN
    yield [("link ", HEADING), (link["state"], style), (f"  {counted(link['members'], 'member')}{owed}", HEADING)]
    if link["why"]:
        yield [("link ", HEADING), (link["why"], BAD)]


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


def _below(seen: Seen, view: View, columns: int, room: int) -> Iterator[Line]:
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
        case _:
            assert_never(view.page)
    yield []
    yield [(HEADINGS[view.page], HEADING)]
    if len(rows) > fitting:
        rows = [*rows[: fitting - 1], [(f"… and {len(rows) - fitting + 1} more", HEADING)]]
    yield from rows[:fitting] or [[("none", HEADING)]][:fitting]


def _entries(entries: Iterable[dict[str, Any]], columns: int) -> Iterator[Line]:
    for entry in entries:
        kind = entry["type"].removesuffix("@1").removeprefix("stigmergy.")
        when = entry["time"][11:19] if columns < 60 else entry["time"][11:23]
        start: list[Cell] = [(f"{when} ", HEADING), (f"{entry['agent'] or '(shard)'} ", NAME)]
        fields = shown_fields(entry["fields"])
        if entry["kind"] == "answer" and entry["refused"] is not None:
            yield [*start, ("refused ", BAD), f"{kind} {fields}  {entry['refused']}"]
        elif entry["kind"] == "answer":
            yield [*start, ("accepted ", GOOD), f"{kind} {fields}"]
        elif entry["kind"] == "effect":
            yield [*start, ("→ ", WARN), f"{kind} {fields}"]
        else:
            effects = ", ".join(_asked_for(effect) for effect in entry["effects"])
            yield [*start, f"{kind} {fields}", (f"  → {effects}" if effects else "", WARN)]


def _asked_for(effect: dict[str, Any]) -> str:
    kind = effect["type"].removesuffix("@1") or effect["sink"]
    return f"{effect['to']} {kind}" if effect["to"] else str(kind)


def _counters(seen: Seen) -> Iterator[Line]:
    """Those that are not 0, the quickest first."""
    counters = {name: count for name, count in (seen.status or {})["counters"].items() if count}
    for name in sorted(counters, key=lambda name: (-seen.counters_per_s.get(name, 0.0), name)):
        rate = seen.counters_per_s.get(name)
        yield [(f"{name:<20} ", HEADING), f"{counters[name]:>12,}", (f" {_rate(rate):>10}/s" if rate else "", GOOD)]


def _letters(letters: Iterable[dict[str, Any]]) -> Iterator[Line]:
    for one in letters:
        yield [f"{one['letter']} ", (f"{one['agent']} ", NAME), (one["error"], BAD), f"  {one['type']}"]


def _keys(view: View, columns: int) -> Line:
    line: list[Cell] = []
    for key, what, on in (
        ("q", "quit", False),
        ("e", "events", view.page is Page.EVENTS),
        ("c", "counters", view.page is Page.COUNTERS),
        ("l", "letters", view.page is Page.LETTERS),
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


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _wrapped(text: str, columns: int) -> Iterator[Cell]:
    """A sentence over several lines, broken between words where there is room."""
    line = ""
    for word in printable(text).split(" "):
        if line and len(line) + 1 + len(word) > columns:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
