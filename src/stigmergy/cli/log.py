"""`stigmergy log`: what the log says, whether it is what was written, and what is made of it for others.

Nothing here needs the user's classes. `log export` is in export.py, `log hold` in holding.py.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stigmergy.cli import exits, export, flights, holding
from stigmergy.cli.asking import Listing, ask_list, ask_stream
from stigmergy.cli.output import BAD, GOOD, HEADING, NAME, WARN, Cell, Output, shown_fields
from stigmergy.cli.places import add_place, find_journal, find_running
from stigmergy.cli.progress import Progress
from stigmergy.journals import find_parts
from stigmergy.parts import shown_url
from stigmergy.runtime.audit.listing import Wanted, list_log
from stigmergy.runtime.audit.verification import Verification
from stigmergy.runtime.describing import described_verification
from stigmergy.runtime.merging import added_verifications
from stigmergy.runtime.protocol import Log, Verify
from stigmergy.wiring import PublicKey, fingerprint, inspect_all, inspect_journal, read_key, verifier

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


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds `log`."""
    group = commands.add_parser(
        "log",
        help="show, verify or export the log",
        description="Shows what the log says, verifies that it is what was written, makes something of it for others.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(metavar="ACTION", required=True)
    parser = actions.add_parser("show", parents=[common], help="events, answers and effects, in order")
    parser.add_argument("agent", metavar="KIND/NAME", nargs="?", help="only this agent's")
    parser.add_argument("--from", dest="first", metavar="P", type=int, help="from this position on")
    parser.add_argument("--to", dest="last", metavar="P", type=int, help="up to this position")
    parser.add_argument("--type", metavar="TAG", help="only events, commands or effects of this type")
    parser.add_argument("--shard", metavar="N", type=int, help="only this shard's")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="so many entries (100)")
    add_place(parser, fleet=False, nats=True)
    parser.set_defaults(run=show)
    parser = actions.add_parser("verify", parents=[common], help="check digests, chain, signatures, snapshots")
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, help="flight logs; without any, the journal")
    parser.add_argument(
        "--key", metavar="PUBLIC", help="a public key, as a file, a line or hex, that must vouch for it"
    )
    add_place(parser, fleet=False, nats=True)
    parser.set_defaults(run=verify)
    export.add_action(actions, common)
    holding.add_action(actions, common)


# ---------------------------------------------------------------------- show


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Lists the log."""
    wanted = Wanted(
        agent=arguments.agent,
        first=arguments.first,
        last=arguments.last,
        type=arguments.type,
        shard=arguments.shard,
        limit=arguments.limit,
    )
    path = find_running(arguments)
    listing, entries = Listing(), _from_journals(arguments, wanted) if path is None else iter(())
    if path is not None:
        listing = ask_list(path, Log(**{name: getattr(wanted, name) for name in wanted.__struct_fields__}))
        entries = iter(listing.items)
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


def _from_journals(arguments: argparse.Namespace, wanted: Wanted) -> Iterator[dict[str, Any]]:
    journal = inspect_all(find_journal(arguments))
    try:
        for entry in list_log(journal, wanted):
            if entry is not None:
                yield msgspec.to_builtins(entry)
    finally:
        asyncio.run(journal.close())


def _rows(entry: dict[str, Any]) -> Iterator[list[Cell]]:
    agent = entry["agent"] or "(shard)"
    place = f"{entry['position']}.{entry['index']}" if entry["kind"] == "event" else f"{entry['position']}"
    place = f"{entry['shard']}:{place}" if entry["shard"] else place
    start: list[Cell] = [(place, HEADING), (entry["time"][:-4].replace("T", " "), HEADING), (agent, NAME)]
    fields = shown_fields(entry["fields"])
    if entry["kind"] == "answer":
        yield [*start, f"? {_short(entry['type'])}", fields]
        refused = entry["refused"]
        yield ["", "", "", ("  accepted", GOOD)] if refused is None else ["", "", "", ("  refused", BAD), refused]
    elif entry["kind"] == "event":
        yield [*start, _short(entry["type"]), fields]
    else:
        yield [*start, (f"  → {_short(entry['type'])}", WARN), fields]
        return
    for effect in entry["effects"]:
        target = f"{effect['to']} " if effect["to"] else ""
        kind = _short(effect["type"]) or effect["sink"]
        yield ["", "", "", (f"  → {target}{kind}", WARN), shown_fields(effect["fields"])]


def _short(tag: str) -> str:
    """A tag without the version where it is the first."""
    return tag.removesuffix("@1")


# ---------------------------------------------------------------------- verify


def verify(arguments: argparse.Namespace, output: Output) -> int:
    """Verifies the log."""
    trusted = None if arguments.key is None else read_key(arguments.key)
    if arguments.files:
        return flights.verify(arguments.files, trusted, output)
    path = find_running(arguments)
    with Progress(output, "verifying", "commits") as progress:
        if path is None:
            found = _from_journal(arguments, trusted, progress)
        else:
            found = _from_node(path, trusted, progress)
    for signer in found["signers"]:
        signer["fingerprint"] = fingerprint(PublicKey(signer["algorithm"], bytes.fromhex(signer["public_key"])))
    output.document(found)
    _show_verified(found, output)
    return exits.OK if found["sound"] else exits.REFUSED


def _from_journal(arguments: argparse.Namespace, trusted: PublicKey | None, progress: Progress) -> dict[str, Any]:
    url = find_journal(arguments)
    parts = find_parts(url)
    if not parts:
        return _verified(url, trusted, progress)
    return added_verifications(shown_url(url), [_verified(part, trusted, progress) for part in parts])


def _verified(url: str, trusted: PublicKey | None, progress: Progress) -> dict[str, Any]:
    journal = inspect_journal(url)
    try:
        key = None if trusted is None else (trusted.algorithm, trusted.key)
        verification = Verification(journal, verifier(), trusted_key=key)
        for commits in verification.run_slowly():
            progress.show(commits, verification.commits_expected)
        return described_verification(shown_url(url), verification.found)
    finally:
        asyncio.run(journal.close())


def _from_node(path: Path, trusted: PublicKey | None, progress: Progress) -> dict[str, Any]:
    """A running node verifies its own journal; until it is done it says how far it has come."""
    request = Verify() if trusted is None else Verify(trusted=trusted.key.hex(), algorithm=trusted.algorithm)
    found: dict[str, Any] = {}
    for found in ask_stream(path, request):
        if "of" in found:
            progress.show(found["commits"], found["of"])
    return found


def _show_verified(found: dict[str, Any], output: Output) -> None:
    output.line((found["journal"], NAME), "  ", ("sound", GOOD) if found["sound"] else ("not sound", BAD))
    unfinished = found["snapshots_unfinished"]
    output.fields(
        [
            ("commits", f"{found['commits']:,}"),
            ("events", f"{found['events']:,}"),
            ("signatures", f"{found['signatures']:,}"),
            ("snapshots", f"{found['snapshots']:,}" + (f", and {unfinished} unfinished" if unfinished else "")),
            *(("head", _head(head)) for head in found["heads"]),
            *(("signer", _signer(signer)) for signer in found["signers"]),
        ]
    )
    for problem in found["problems"]:
        where = f"shard {problem['shard']}, position {problem['position']}: " if problem["position"] else ""
        output.line(("wrong", BAD), f"  {where}{problem['what']}")
    if not found["sound"]:
        output.note("the log is not what was written; restore a copy, and keep this one for whoever looks into it")


def _head(head: dict[str, Any]) -> str:
    begins = f" (begins at {head['first']})" if head["first"] > 1 else ""
    return f"shard {head['shard']}, position {head['position']}{begins}, {head['digest']}"


def _signer(signer: dict[str, Any]) -> str:
    where = f"from position {signer['enrolled_at']}" if signer["enrolled_at"] else "from before the log begins"
    until = f" to {signer['revoked_after']}, revoked" if signer["revoked_after"] is not None else ""
    return f"{signer['fingerprint']}  {where}{until}, {signer['signatures']:,} signatures"
