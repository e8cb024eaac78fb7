"""`stigmergy log verify FILE …`: flight logs, each for itself, and of several that they follow each other.

Needs neither the journal nor the fleet's classes: a file, and for whose log it is a public key from elsewhere.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

from stigmergy.cli import exits
from stigmergy.cli.output import BAD, GOOD, NAME, Output, counted
from stigmergy.cli.progress import Progress
from stigmergy.core.errors import JournalCorrupt
from stigmergy.core.flight import FlightSection
from stigmergy.runtime.audit.flight import FlightVerification, FlightVerified
from stigmergy.runtime.audit.listing import readable_time
from stigmergy.runtime.describing import described_verification
from stigmergy.wiring import PublicKey, fingerprint, open_flight, verifier

AGENTS_SHOWN_MAX = 10


def verify(files: list[Path], trusted: PublicKey | None, output: Output) -> int:
    """Verifies each file, then the seams between them."""
    key = None if trusted is None else (trusted.algorithm, trusted.key)
    sections: list[tuple[Path, str, FlightSection]] = []
    sound = True
    for path in files:
        found = _verified(path, key, sections, output)
        sound = sound and found["sound"]
        output.document(found)
        _show(found, output)
    seams = _seams(sections)
    for seam in seams:
        output.line(("wrong", BAD), f"  {seam}")
    if len(files) > 1:
        output.document({"files": len(files), "sound": sound and not seams, "seams": seams})
    if not (sound and not seams):
        output.note("this is not what was exported; get it once more, and keep this one for whoever looks into it")
        return exits.REFUSED
    return exits.OK


def _verified(
    path: Path, key: tuple[int, bytes] | None, sections: list[tuple[Path, str, FlightSection]], output: Output
) -> dict[str, Any]:
    flight = open_flight(path)
    try:
        if not flight.readable:
            problems = [{"shard": one.shard, "position": one.position, "what": one.what} for one in flight.flaws]
            raise JournalCorrupt(f"{path}: {problems[0]['what'] if problems else 'it has no opening'}")
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
    said = described_verification(str(path), found.verified)
    for signer in said["signers"]:
        signer["fingerprint"] = fingerprint(PublicKey(signer["algorithm"], bytes.fromhex(signer["public_key"])))
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
