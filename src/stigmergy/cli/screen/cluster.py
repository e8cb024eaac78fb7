"""How a cluster stands, as lines for people. Pure: asks nobody and draws nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stigmergy.cli.output import BAD, GOOD, HEADING, NAME, WARN, Cell, counted, printable, shown_bytes
from stigmergy.engine.checking import MEND_OFF, is_off

if TYPE_CHECKING:
    from stigmergy.engine.standing import FleetSeen, LedgerSeen, Standing

Line = Sequence[Cell]
STREAMS_SHOWN_MAX = 40
CONSUMERS_SHOWN_MAX = 20
CLOCK_S = 0.5
"""A server's clock may be so far from ours before it is worth a colour."""
STORE_SHARE = 0.8
"""A store that is fuller than this is worth a colour."""


def draw_standing(standing: Standing) -> list[Line]:
    """All that there is to say."""
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


def aligned(heading: Sequence[str], rows: Sequence[Line]) -> list[Line]:
    """A table: columns as wide as they need, the last one as long as it likes."""
    lines: list[Line] = [[(name, HEADING) for name in heading], *rows]
    widths = [max(len(_plain(line[n])) for line in lines if n < len(line)) for n in range(len(heading))]
    found: list[Line] = []
    for line in lines:
        cells: list[Cell] = []
        for number, cell in enumerate(line):
            last = number == len(line) - 1
            cells += [cell, "" if last else " " * (widths[number] - len(_plain(cell)) + 2)]
        found.append(cells)
    return found


def ranges(numbers: Sequence[int]) -> str:
    """0 to 3, 7: runs of numbers in a row."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def duration(seconds: float) -> str:
    """How long something has been so."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def _headline(standing: Standing) -> Line:
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


def _servers(standing: Standing) -> list[Line]:
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


def _streams(standing: Standing) -> list[Line]:
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


def _consumers(standing: Standing) -> list[Line]:
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


def _plain(cell: Cell) -> str:
    return printable(cell if isinstance(cell, str) else cell[0])
