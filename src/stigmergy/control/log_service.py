"""Serves the log of a running node to exports and holds. Streams come in small pieces; None lets the node go on."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from stigmergy.agents.codec import encode
from stigmergy.audit.directories import LiveReading
from stigmergy.audit.export import Export, Selection
from stigmergy.audit.flight import FlightSelection, commits_in, make_flight
from stigmergy.audit.listing import LogEntry, readable_time
from stigmergy.audit.retention import RetentionHold, RetentionHolds
from stigmergy.base.errors import ConfigError
from stigmergy.base.trust import Signer
from stigmergy.capture.log import log_commits
from stigmergy.control import protocol
from stigmergy.control.replies import CommitPiece, FlightPiece, HoldReply, HoldsReply, LogProgress, filled
from stigmergy.journal.port import Journal
from stigmergy.node.feed import FeedCommit, FeedPosition
from stigmergy.node.host import Host

PIECE_BYTES = 512 * 1024
"""So much of a flight log is told in one line."""
TOLD_COMMITS = 1_000
"""So often an export says how far it has come."""
PIECE_EVENTS = 1_000
"""So many events of a commit are in one line."""
WITHIN_S_MAX = 30.0
"""So long a request may wait for commits."""


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


async def next_commits(host: Host, request: protocol.CommitsRequest) -> Iterator[CommitPiece | None]:
    """What the log has, and the next commits behind the positions that are asked for."""
    if not 0 <= request.within_s <= WITHIN_S_MAX:
        raise ConfigError(f"within_s {request.within_s}: give 0 to {WITHIN_S_MAX:g}")
    first = {shard: before.position + 1 for shard, before in host.feed.first_positions().items()}
    end = {shard: at.position for shard, at in host.feed.positions().items()}
    commits: list[FeedCommit] = []
    if request.after:
        if missing := [shard for shard in first if shard not in request.after]:
            raise ConfigError(f"after: no position for shard {missing[0]}; give one for each of {len(first)} shards")
        reader = host.feed.reader({shard: FeedPosition(position) for shard, position in request.after.items()})
        try:
            commits = await reader.read_commits(request.within_s)
        finally:
            await reader.close()
    return _commit_pieces(CommitPiece(fleet=host.declaration.name, first=first, end=end), commits)


def _commit_pieces(opening: CommitPiece, commits: list[FeedCommit]) -> Iterator[CommitPiece | None]:
    yield opening
    for one in commits:
        (whole,) = log_commits([one])
        for start in range(0, max(1, len(whole.events)), PIECE_EVENTS):
            part = structs.replace(whole, events=whole.events[start : start + PIECE_EVENTS])
            yield CommitPiece(data=encode(part), more=start + PIECE_EVENTS < len(whole.events))
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
