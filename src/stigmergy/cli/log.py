"""`stigmergy log`: shows, verifies, exports and holds the log.

Nothing here needs the user's classes. `log export` is in export.py.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import time
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from stigmergy.app.fleet import (
    PublicKey,
    find_holds,
    fingerprint,
    inspect_all,
    inspect_journal,
    open_flight,
    read_key,
    verifier,
)
from stigmergy.app.journals import find_parts
from stigmergy.app.parts import shown_url
from stigmergy.audit.flight import FlightVerification, FlightVerified
from stigmergy.audit.flight_format import FlightSection
from stigmergy.audit.history import read_moment
from stigmergy.audit.listing import OURS, EntryFilter, LogEntry, list_log, readable_time
from stigmergy.audit.verification import NOT_BY_KEY, Verification
from stigmergy.base.errors import ConfigError, JournalCorrupt, NotRunning
from stigmergy.cli import export
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, HEADING, NAME, WARN, Cell, Output, Progress, counted, shown_fields
from stigmergy.cli.display.places import (
    Listing,
    add_place,
    ask,
    ask_list,
    ask_stream,
    closing_journal,
    find_journal,
    find_running,
)
from stigmergy.control.description import described_verification
from stigmergy.control.log_service import answer_hold
from stigmergy.control.protocol import (
    HoldRequest,
    HoldsRequest,
    LogRequest,
    Request,
    UnholdRequest,
    VerifyRequest,
)
from stigmergy.control.replies import VerifiedHead, VerifiedSigner, VerifyReply, filled
from stigmergy.control.router import added_verifications, read_item

# `stigmergy log verify FILE …`: verifies flight logs, each by itself, and that several follow each other. It needs
# neither the journal nor the fleet's classes: only the file, and a public key from elsewhere to prove whose log it is.

AGENTS_SHOWN_MAX = 10


def verify_flights(files: list[Path], trusted: PublicKey | None, output: Output) -> int:
    """Verifies each file, then the seams between them."""
    key = None if trusted is None else (trusted.algorithm, trusted.key)
    sections: list[tuple[Path, str, FlightSection]] = []
    sound = True
    for path in files:
        found = _verified_flight(path, key, sections, output)
        sound = sound and found["sound"]
        output.document(found)
        _show(found, output)
    seams = _seams(sections)
    for seam in seams:
        output.line(("wrong", BAD), f"  {seam}")
    if len(files) > 1:
        output.document({"files": len(files), "sound": sound and not seams, "seams": seams})
    if not (sound and not seams):
        output.note("this is not what was exported; get it once more, and keep this one for an investigation")
        return exits.REFUSED
    return exits.OK


def _verified_flight(
    path: Path, key: tuple[int, bytes] | None, sections: list[tuple[Path, str, FlightSection]], output: Output
) -> dict[str, Any]:
    flight = open_flight(path)
    try:
        if not flight.readable:
            raise JournalCorrupt(f"{path}: {flight.flaws[0].what if flight.flaws else 'it has no opening'}")
        verification = FlightVerification(flight, verifier(), trusted_key=key)
        with Progress(output, "verifying", "commits") as progress:
            for commits in verification.run_slowly():
                progress.show(commits, verification.commits_expected)
        if flight.manifest is not None:
            sections += [(path, flight.opening.fleet, section) for section in flight.manifest.sections]
        return described(path, verification.result)
    finally:
        asyncio.run(flight.close())


def described(path: Path, found: FlightVerified) -> dict[str, Any]:
    """What was found in one file."""
    said = msgspec.to_builtins(_with_fingerprints(described_verification(str(path), found.verified)))
    del said["journal"], said["snapshots"], said["snapshots_unfinished"]
    return {
        "file": str(path),
        "fleet": found.fleet,
        "agent": found.agent,
        "reason": found.reason,
        "made": readable_time(found.made_ns),
        "first": readable_time(found.first_ns),
        "last": readable_time(found.last_ns),
        "sealed_by": fingerprint(PublicKey(1, found.sealed_by)) if found.sealed_by else None,
        "agents": found.agents,
        **said,
    }


def _seams(sections: list[tuple[Path, str, FlightSection]]) -> list[str]:
    """Where one file ends and the next of the same shard begins: nothing may be missing, and the chain must hold."""
    wrong: list[str] = []
    ordered = sorted(sections, key=lambda one: (one[1], one[2].shard, one[2].first, one[2].last))
    for (path, fleet, before), (other, other_fleet, after) in pairwise(ordered):
        if (fleet, before.shard) != (other_fleet, after.shard):
            continue
        where = f"shard {after.shard}, between {path} and {other}: "
        if after.first > before.last + 1:
            wrong.append(f"{where}positions {before.last + 1} to {after.first - 1} are missing")
        elif after.first == before.last + 1 and after.previous != before.digest:
            wrong.append(f"{where}the chain is broken, they are not of one log")
    return wrong


def _show(found: dict[str, Any], output: Output) -> None:
    output.line((found["file"], NAME), "  ", ("sound", GOOD) if found["sound"] else ("not sound", BAD))
    agents = sorted(found["agents"].items())
    names = ", ".join(f"{name} ({count:,})" for name, count in agents[:AGENTS_SHOWN_MAX])
    more = f" and {len(agents) - AGENTS_SHOWN_MAX} more" if len(agents) > AGENTS_SHOWN_MAX else ""
    output.fields(
        [
            ("fleet", found["fleet"]),
            *([("made for", found["agent"])] if found["agent"] else []),
            *([("reason", found["reason"])] if found["reason"] else []),
            ("time", f"{found['first']} to {found['last']}"),
            ("sealed by", found["sealed_by"] or "nobody"),
            ("holds", f"{counted(found['commits'], 'commit')}, {counted(found['events'], 'event')}"),
            *(
                ("shard", f"{head['shard']}: positions {head['first']} to {head['position']}, {head['digest']}")
                for head in found["heads"]
            ),
            ("agents", (names + more) or "none"),
        ]
    )
    for problem in found["problems"]:
        where = f"shard {problem['shard']}, position {problem['position']}: " if problem["position"] else ""
        output.line(("wrong", BAD), f"  {where}{problem['what']}")


# `stigmergy log hold`: keeps a log from being dropped, whatever the rules of retention say, until the hold is cleared.
# A running node is asked; for a stopped one the record beside the journal is changed, while the journal is claimed.


def add_action(actions: Any) -> None:
    """Adds `log hold`."""
    group = actions.add_parser("hold", help="keep the log from being dropped")
    kinds = group.add_subparsers(metavar="ACTION", required=True)
    parser = kinds.add_parser("set", run=set_hold, help="hold the log of an agent, or all of it")
    parser.add_argument("agent", metavar="KIND/NAME", nargs="?", default="", help="the log of its shard; else all")
    parser.add_argument("--since", metavar="TIME", help="from this time on, such as 2026-11-15T08:00:00Z; else all")
    _add_reason(parser, "why it is held, for those who find it in a year")
    parser = kinds.add_parser("clear", run=clear, help="clear it; the record keeps who and why")
    parser.add_argument("hold", metavar="NUMBER", type=int, help="which; see list")
    _add_reason(parser, "why it may go")
    parser = kinds.add_parser("list", run=list_holds, help="holds that are open, and those that were cleared")
    add_place(parser, fleet=False, nats=True)


def _add_reason(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--reason", metavar="TEXT", required=True, help=help_text)
    parser.add_argument("--by", metavar="NAME", help="who says so; else the user of this machine")
    add_place(parser, fleet=False, nats=True)


def set_hold(arguments: argparse.Namespace, output: Output) -> int:
    """Sets a hold."""
    since = None if arguments.since is None else read_moment(arguments.since).time_ns
    if arguments.since is not None and since is None:
        raise ConfigError(f"--since {arguments.since}: give a time, such as 2026-11-15T08:00:00Z")
    request = HoldRequest(reason=arguments.reason, by=_by(arguments), agent=arguments.agent, since_ns=since or 0)
    held = _do(arguments, request)
    output.document(held)
    what = held.agent or "everything"
    output.line(("held", GOOD), "  ", (what, NAME), f" by hold {held.hold}; nothing of it is dropped")
    output.note("with a full disk the node stops rather than drop it: watch the disk")
    return exits.OK


def clear(arguments: argparse.Namespace, output: Output) -> int:
    """Clears a hold."""
    cleared = _do(arguments, UnholdRequest(hold=arguments.hold, reason=arguments.reason, by=_by(arguments)))
    output.document(cleared)
    output.line(("cleared", GOOD), f"  hold {cleared.hold}; retention may drop from the next check on")
    return exits.OK


def list_holds(arguments: argparse.Namespace, output: Output) -> int:
    """Lists the holds."""
    found = _do(arguments, HoldsRequest())
    output.document(found)
    rows: list[list[Cell]] = []
    for hold in found.holds:
        state = ("open", WARN) if hold.open else ("cleared", HEADING)
        ended = "" if hold.open else f" · cleared by {hold.cleared_by}: {hold.cleared_why}"
        since = f" since {hold.since}" if hold.since else ""
        what = (hold.agent or "everything") + since
        rows.append([str(hold.hold), state, hold.set[:19], (what, NAME), f"{hold.by}: {hold.reason}{ended}"])
    if rows:
        output.table(("HOLD", "STATE", "SET", "WHAT", "WHO AND WHY"), rows)
    elif not output.json:
        output.note("nothing is held")
    return exits.OK


def _do(arguments: argparse.Namespace, request: HoldRequest | UnholdRequest | HoldsRequest) -> Any:
    if arguments.nats is not None:
        raise ConfigError(
            "a hold is kept beside a journal on disk, and the logs of a fleet on workers have none: nothing there is "
            "dropped but what retention in its settings allows; export what must stay with log export --nats"
        )
    path = find_running(arguments)
    if path is not None:
        asked: Request[Any] = request
        return ask(path, asked)
    url = find_journal(arguments)
    with closing_journal(inspect_journal(url)):
        return answer_hold(find_holds(url), request, time.time_ns())


def _by(arguments: argparse.Namespace) -> str:
    if arguments.by:
        return str(arguments.by)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("who sets or clears it? This machine does not say; give --by NAME") from None


EXAMPLES = """examples:
  stigmergy log show                                  the last 100 entries
  stigmergy log show Drone/D-17 --type MissionStarted
  stigmergy log show --from 1 --limit 20              from the beginning
  stigmergy log verify                                every digest, signature, signer and snapshot
  stigmergy log verify --key fleet.pub                and that this key vouches for it
  stigmergy log export Drone/D-17 --since 2026-11-15T08:00:00Z > events.jsonl
  stigmergy log export --format parquet --to log.parquet
  stigmergy log export --flight flight-17.log         the commits themselves, sealed
  stigmergy log verify flight-17.log                  anywhere: without the journal and the fleet
  stigmergy log show --nats nats://hub:4222/survey    the logs of a fleet on several workers, from the servers
  stigmergy log hold set Drone/D-17 --reason "incident 7"
"""


def add_commands(commands: Any) -> None:
    """Adds `log`."""
    group = commands.add_parser(
        "log",
        help="show, verify or export the log",
        description="Shows, verifies, exports and holds the log.",
        epilog=EXAMPLES,
    )
    actions = group.add_subparsers(metavar="ACTION", required=True)
    parser = actions.add_parser("show", run=show, help="events, answers and effects, in order")
    parser.add_argument("agent", metavar="KIND/NAME", nargs="?", help="only this agent's")
    parser.add_argument("--from", dest="first", metavar="P", type=int, help="from this position on")
    parser.add_argument("--to", dest="last", metavar="P", type=int, help="up to this position")
    parser.add_argument("--type", metavar="TAG", help="only events, commands or effects of this type")
    parser.add_argument("--shard", metavar="N", type=int, help="only this shard's")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="so many entries (100)")
    add_place(parser, fleet=False, nats=True)
    parser = actions.add_parser("verify", run=verify, help="check digests, chain, signatures, snapshots")
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, help="flight logs; without any, the journal")
    parser.add_argument(
        "--key", metavar="PUBLIC", help="a public key, as a file, a line or hex, that must have signed it"
    )
    add_place(parser, fleet=False, nats=True)
    export.add_action(actions)
    add_action(actions)


# ---------------------------------------------------------------------- show


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Lists the log."""
    wanted = filled(EntryFilter, arguments)
    path = find_running(arguments)
    listing, entries = _entries(arguments, path, wanted)
    if wanted.type is not None and "." not in wanted.type:
        first = next(entries, None)
        if first is None and not listing.missing:  # it may be one of the framework's
            listing, entries = _entries(arguments, path, structs.replace(wanted, type=f"{OURS}{wanted.type}"))
        elif first is not None:
            entries = chain([first], entries)
    if output.json:
        for entry in entries:
            output.document(entry)
        return listing.end(output)
    rows = [row for entry in entries for row in _rows(entry)]
    if rows:
        output.table(("POSITION", "TIME", "AGENT", "TYPE", "FIELDS"), rows)
    elif listing.is_empty:
        output.note("nothing in the log is like that")
    return listing.end(output)


def _entries(
    arguments: argparse.Namespace, path: Path | None, wanted: EntryFilter
) -> tuple[Listing[LogEntry], Iterator[LogEntry]]:
    if path is None:
        return Listing[LogEntry](), _from_journals(arguments, wanted)
    listing = ask_list(path, filled(LogRequest, wanted))
    return listing, iter(listing.items)


def _from_journals(arguments: argparse.Namespace, wanted: EntryFilter) -> Iterator[LogEntry]:
    with closing_journal(inspect_all(find_journal(arguments))) as journal:
        for entry in list_log(journal, wanted):
            if entry is not None:
                yield entry


def _rows(entry: LogEntry) -> Iterator[list[Cell]]:
    agent = entry.agent or "(shard)"
    place = f"{entry.position}.{entry.index}" if entry.kind == "event" else f"{entry.position}"
    place = f"{entry.shard}:{place}" if entry.shard else place
    start: list[Cell] = [(place, HEADING), (entry.time[:-4].replace("T", " "), HEADING), (agent, NAME)]
    fields = shown_fields(entry.fields)
    if entry.kind == "answer":
        yield [*start, f"? {_short(entry.type)}", fields]
        refused = entry.refused
        yield ["", "", "", ("  accepted", GOOD)] if refused is None else ["", "", "", ("  refused", BAD), refused]
        if isinstance(entry.policy, str):
            yield ["", "", "", "  policy", entry.policy]
    elif entry.kind == "event":
        yield [*start, _short(entry.type), fields]
    else:
        yield [*start, (f"  → {_short(entry.type)}", WARN), fields]
        return
    for effect in entry.effects:
        target = f"{effect.to} " if effect.to else ""
        kind = _short(effect.type) or effect.sink
        yield ["", "", "", (f"  → {target}{kind}", WARN), shown_fields(effect.fields)]


def _short(tag: str) -> str:
    """A tag without the version where it is the first."""
    return tag.removesuffix("@1")


# ---------------------------------------------------------------------- verify


def verify(arguments: argparse.Namespace, output: Output) -> int:
    """Verifies the log."""
    trusted = None if arguments.key is None else read_key(arguments.key)
    if arguments.files:
        return verify_flights(arguments.files, trusted, output)
    path = find_running(arguments)
    with Progress(output, "verifying", "commits") as progress:
        if path is None:
            found = _from_journal(arguments, trusted, progress)
        else:
            found = _from_node(path, trusted, progress)
    found = _with_fingerprints(found)
    output.document(found)
    _show_verified(found, output)
    return exits.OK if found.sound else exits.REFUSED


def _with_fingerprints(found: VerifyReply) -> VerifyReply:
    signers = [
        structs.replace(one, fingerprint=fingerprint(PublicKey(one.algorithm, bytes.fromhex(one.public_key))))
        for one in found.signers
    ]
    return structs.replace(found, signers=signers)


def _from_journal(arguments: argparse.Namespace, trusted: PublicKey | None, progress: Progress) -> VerifyReply:
    url = find_journal(arguments)
    parts = find_parts(url)
    if not parts:
        return _verified(url, trusted, progress)
    return added_verifications(shown_url(url), [_verified(part, trusted, progress) for part in parts])


def _verified(url: str, trusted: PublicKey | None, progress: Progress) -> VerifyReply:
    with closing_journal(inspect_journal(url)) as journal:
        key = None if trusted is None else (trusted.algorithm, trusted.key)
        verification = Verification(journal, verifier(), trusted_key=key)
        for commits in verification.run_slowly():
            progress.show(commits, verification.commits_expected)
        return described_verification(shown_url(url), verification.found)


def _from_node(path: Path, trusted: PublicKey | None, progress: Progress) -> VerifyReply:
    """A running node verifies its own journal; until it is done it says how far it has come."""
    request = (
        VerifyRequest() if trusted is None else VerifyRequest(trusted=trusted.key.hex(), algorithm=trusted.algorithm)
    )
    verified: VerifyReply | None = None
    for item in ask_stream(path, request):
        found = read_item(item, VerifyReply)
        if isinstance(found, VerifyReply):
            verified = found
        else:
            progress.show(found.commits, found.of)
    if verified is None:
        raise NotRunning("the verification ended before it was whole; verify again")
    return verified


def _show_verified(found: VerifyReply, output: Output) -> None:
    output.line((found.journal, NAME), "  ", ("sound", GOOD) if found.sound else ("not sound", BAD))
    unfinished = found.snapshots_unfinished
    output.fields(
        [
            ("commits", f"{found.commits:,}"),
            ("events", f"{found.events:,}"),
            ("signatures", f"{found.signatures:,}"),
            ("snapshots", f"{found.snapshots:,}" + (f", and {unfinished} unfinished" if unfinished else "")),
            *(("head", _head(head)) for head in found.heads),
            *(("signer", _signer(signer)) for signer in found.signers),
        ]
    )
    for problem in found.problems:
        where = f"shard {problem.shard}, position {problem.position}: " if problem.position else ""
        output.line(("wrong", BAD), f"  {where}{problem.what}")
    if found.problems and all(problem.what == NOT_BY_KEY for problem in found.problems):
        output.note(
            "everything else verifies: the signers listed above wrote it, and not the key given; give the key that you "
            "expect to have signed it, or treat the log as a stranger's"
        )
    elif not found.sound:
        output.note("the log is not what was written; restore a copy, and keep this one for an investigation")


def _head(head: VerifiedHead) -> str:
    begins = f" (begins at {head.first})" if head.first > 1 else ""
    return f"shard {head.shard}, position {head.position}{begins}, {head.digest}"


def _signer(signer: VerifiedSigner) -> str:
    where = f"from position {signer.enrolled_at}" if signer.enrolled_at else "from before the log begins"
    until = f" to {signer.revoked_after}, revoked" if signer.revoked_after is not None else ""
    return f"{signer.fingerprint}  {where}{until}, {signer.signatures:,} signatures"
