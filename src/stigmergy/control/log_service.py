"""Serves the log of a running node to exports and holds. Streams come in small pieces; None lets the node go on."""

from __future__ import annotations

from collections.abc import Iterator

from stigmergy.audit.directories import LiveReading
from stigmergy.audit.export import Export, Selection
from stigmergy.audit.flight import FlightSelection, commits_in, make_flight
from stigmergy.audit.listing import LogEntry, readable_time
from stigmergy.audit.retention import RetentionHold, RetentionHolds
from stigmergy.base.errors import ConfigError
from stigmergy.base.trust import Signer
from stigmergy.control import protocol
from stigmergy.control.replies import FlightPiece, HoldReply, HoldsReply, LogProgress, filled
from stigmergy.journal.port import Journal

PIECE_BYTES = 512 * 1024
"""So much of a flight log is told in one line."""
TOLD_COMMITS = 1_000
"""So often an export says how far it has come."""


def export_items(
    journal: Journal, request: protocol.ExportRequest, live: LiveReading
) -> Iterator[LogEntry | LogProgress | None]:
    """Entries, and before the first and after every so many commits how far it is, and whose log it is."""
    selection = Selection(**{name: getattr(request, name) for name in Selection.__struct_fields__})
    export = Export(journal, selection, live)
    identity, of = journal.identity, export.commits_expected
    yield LogProgress(commits=0, of=of, fleet=identity.fleet, incarnation=identity.incarnation)
    told = 0
    for entry in export.entries():
        if export.commits_read >= told + TOLD_COMMITS:
            told = export.commits_read
            yield LogProgress(commits=told, of=of, fleet=identity.fleet, incarnation=identity.incarnation)
        yield entry


def flight_items(
    journal: Journal, signer: Signer, request: protocol.FlightRequest, made_ns: int, live: LiveReading
) -> Iterator[FlightPiece | None]:
    """The bytes of a flight log up to the end that the log has now."""
    asked = FlightSelection(request.agent, request.since_ns, request.until_ns, reason=request.reason)
    of = commits_in(journal, asked)
    written = 0
    for piece in make_flight(journal, signer, asked, made_ns, live=live):
        written += bool(piece)
        for start in range(0, len(piece), PIECE_BYTES):
            yield FlightPiece(min(written - 1, of), of, piece[start : start + PIECE_BYTES])
        if not piece:
            yield None


def answer_hold(
    holds: RetentionHolds | None,
    request: protocol.HoldsRequest | protocol.HoldRequest | protocol.UnholdRequest,
    now_ns: int,
) -> HoldReply | HoldsReply:
    """Does what is asked of the holds; it is durable when this returns."""
    if holds is None:
        raise ConfigError("only a journal that is a file can be held: holds lie beside it")
    match request:
        case protocol.HoldRequest():
            agent, since_ns = request.agent, request.since_ns
            return described_hold(holds.set(request.reason, request.by, now_ns, agent=agent, since_ns=since_ns))
        case protocol.UnholdRequest():
            return described_hold(holds.clear(request.hold, request.reason, request.by, now_ns))
        case _:
            return HoldsReply([described_hold(hold) for hold in holds.all()])


def described_hold(hold: RetentionHold) -> HoldReply:
    """A hold as it is told to people and programs."""
    return filled(
        HoldReply,
        hold,
        hold=hold.number,
        open=hold.is_open,
        since=readable_time(hold.since_ns) if hold.since_ns else None,
        set=readable_time(hold.set_ns),
        cleared=readable_time(hold.cleared_ns) if hold.cleared_ns else None,
    )
