"""The journal, its key, its holds and its archive: whether they are there, readable, and fit each other.

A running node is asked. A stopped journal is opened for reading and verified as far as a few seconds go.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stigmergy.cli.asking import ask
from stigmergy.cli.health.finding import Finding, ill, well, worry
from stigmergy.cli.output import counted, shown_bytes
from stigmergy.core.errors import ConfigError, JournalLocked, LinkDown, StigmergyError
from stigmergy.journals import NATS, find_parts
from stigmergy.keyring import check_not_gone
from stigmergy.parts import left_beside, part_urls
from stigmergy.ports.journal import Journal
from stigmergy.runtime.audit.verification import Verification
from stigmergy.runtime.protocol import Status
from stigmergy.wiring import (
    answers_at,
    control_path,
    find_holds,
    fingerprint,
    inspect_journal,
    journal_path,
    read_private_key,
    verifier,
)

VERIFY_S_MAX = 3.0
AHEAD_S_MAX = 60
Signers = dict[bytes, int | None]
"""The keys of a log, each with where it was revoked."""


def check_journal(url: str, key: Path | None, wall_ns: int) -> Iterator[Finding]:
    """The journal, and whether the key is one of its keys."""
    signers: Signers | None = None
    path = journal_path(url)
    if url.startswith(NATS):
        found, signers = _elsewhere(url, wall_ns)
        yield from found
    elif path is None:
        yield well("journal.opens", f"{url.partition(':')[0]}: is no file; nothing to look at")
    else:
        if not path.exists():
            yield _missing(url, path, key)
        elif answers_at(control_path(url, "")):
            found, signers = _running(control_path(url, ""))
            yield from found
        else:
            for part in part_urls(url) or [url]:
                found, signers = _stopped(part, wall_ns)
                yield from found
        yield from _holds(url)
    if key is not None:
        yield from check_key(key, signers)


def _missing(url: str, path: Path, key: Path | None) -> Finding:
    """There is no journal: not yet, or not any more."""
    try:
        if key is not None:
            check_not_gone(key, url)
    except StigmergyError as error:
        return ill("journal.opens", str(error), "restore a copy; stigmergy restore, if the node has made some")
    if left := left_beside(url):
        what = f"{path} is not there, but {left[0]} is"
        return worry("journal.opens", what, "restore a copy; to begin anew, remove that file")
    return well("journal.opens", f"{path} is not there yet; the first start makes it")


def _elsewhere(url: str, wall_ns: int) -> tuple[list[Finding], Signers | None]:
    """One that servers keep: it can be looked at whether it is run or not."""
    try:
        parts = find_parts(url) or [url]
    except LinkDown as error:
        return [ill("journal.opens", str(error), "start the servers, or name the right ones")], None
    except ConfigError as error:
        return [worry("journal.opens", str(error), "mend the URL, or start the node once")], None
    found: list[Finding] = []
    signers: Signers | None = None
    for part in parts:
        more, signers = _stopped(part, wall_ns)
        found += more
    return found, signers if len(parts) == 1 else None


def _running(path: Path) -> tuple[list[Finding], Signers | None]:
    try:
        status: dict[str, Any] = ask(path, Status())
    except StigmergyError as error:
        return [ill("journal.node", f"a node listens at {path} and does not answer: {error}", "look at it")], None
    signers = {bytes.fromhex(one["public_key"]): one["revoked_after"] for one in status["signers"]}
    what = f"a node runs it (process {status['pid']}), {counted(status['agents'], 'agent')}, "
    found = [well("journal.node", what + shown_bytes(status["journal_bytes"]), pid=status["pid"])]
    found += [worry("journal.troubles", trouble, "see stigmergy status") for trouble in status["troubles"]]
    if status["dead_letters"]:
        what = counted(status["dead_letters"], "dead letter")
        found.append(worry("journal.letters", what, "see stigmergy letters; retry or drop them"))
    if status["stopped"]:
        what = f"{counted(len(status['stopped']), 'agent')} stopped by supervision"
        found.append(worry("journal.stopped", what, "see stigmergy status; then stigmergy resume"))
    return found, signers


def _stopped(url: str, wall_ns: int) -> tuple[list[Finding], Signers | None]:
    try:
        journal = inspect_journal(url)
    except JournalLocked as error:
        return [worry("journal.opens", str(error), "a program has it open that does not listen; ask that one")], None
    except StigmergyError as error:
        return [ill("journal.opens", str(error), "restore a copy, and keep this one")], None
    try:
        size = journal.size()
        what = f"{counted(size.commits, 'commit')}, {shown_bytes(size.bytes_used)}, fleet {journal.identity.fleet}"
        found = [well("journal.opens", what, commits=size.commits, bytes=size.bytes_used)]
        found += _ahead(journal, wall_ns)
        verified, signers = _verified(journal)
        return [*found, verified], signers
    except StigmergyError as error:
        return [ill("journal.opens", str(error), "restore a copy, and keep this one")], None
    finally:
        asyncio.run(journal.close())


def _ahead(journal: Journal, wall_ns: int) -> list[Finding]:
    """Whether the clock is behind what the journal has seen already."""
    last_ns = max(
        (stored.sealed.time_ns for head in journal.heads() for stored in journal.read(head.shard, head.position - 1)),
        default=0,
    )
    behind_s = (last_ns - wall_ns) / 1e9
    if behind_s <= AHEAD_S_MAX:
        return []
    what = f"the last commit is {behind_s:,.0f} s ahead of the clock: time stands still in the log until then"
    return [worry("clock.journal", what, "set the clock; it was wrong then or is now", seconds=round(behind_s))]


def _verified(journal: Journal) -> tuple[Finding, Signers | None]:
    verification = Verification(journal, verifier())
    until_s = time.monotonic() + VERIFY_S_MAX
    whole = True
    for _ in verification.run_slowly():
        if time.monotonic() > until_s:
            whole = False
            break
    found = verification.found
    facts = {"commits": found.commits, "of": verification.commits_expected, "whole": whole}
    if not found.sound:
        first = found.problems[0]
        what = f"shard {first.shard}, position {first.position}: {first.what}"
        return ill("journal.verifies", what, "see stigmergy log verify; restore a copy", **facts), None
    if not whole:
        what = f"nothing wrong in the first {counted(found.commits, 'commit')} of {verification.commits_expected:,}"
        return well("journal.verifies", f"{what}; stigmergy log verify checks all", **facts), None
    signers = {record.public_key: record.revoked_after for record in found.signers}
    return well("journal.verifies", f"{counted(found.commits, 'commit')}, all sound", **facts), signers


def check_key(path: Path, signers: Signers | None) -> Iterator[Finding]:
    """The key file: there, ours alone, whole, and one of the journal's."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if signers:
            remedy = f"put it back; without it nobody can go on with this journal (chmod 600 {path})"
            yield ill("keys.file", f"{path} is not there, and the journal is signed", remedy)
        else:
            yield well("keys.file", f"{path} is not there yet; the first start makes it")
        return
    except OSError as error:
        yield ill("keys.file", f"{path}: {error.strerror}", "give this user the right to read it")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        yield ill("keys.mode", f"{path} is open to others (mode {mode:04o})", f"chmod 600 {path}; think of a new key")
        return
    yield well("keys.mode", f"{path} is for its owner only (mode {mode:04o})")
    try:
        public = read_private_key(path).public
    except StigmergyError as error:
        yield ill("keys.file", str(error), "restore it from a copy")
        return
    name = fingerprint(public)
    yield well("keys.file", f"{path} is whole: {name}", fingerprint=name)
    if signers is None:
        return
    if public.key not in signers:
        remedy = "start with the key that signs it, or let that one enrol this one: stigmergy keys rotate"
        yield ill("keys.journal", f"{name} may not sign this journal", remedy, fingerprint=name)
    elif signers[public.key] is not None:
        yield ill("keys.journal", f"{name} was revoked in this journal", "use its newer key", fingerprint=name)
    else:
        yield well("keys.journal", f"{name} signs this journal", fingerprint=name)


def _holds(url: str) -> Iterator[Finding]:
    holds = find_holds(url)
    if holds is None:
        return
    if holds.trouble:
        yield ill("journal.holds", holds.trouble, "put a copy of the record back, or move it away and set holds anew")
        return
    if count := sum(1 for hold in holds.all() if hold.is_open):
        what = f"{counted(count, 'hold')} open: what is held is never dropped"
        yield worry("journal.holds", what, "watch the disk; stigmergy log hold list", holds=count)


def check_archive(folder: Path) -> Finding:
    """The folder that log goes into before it is dropped."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = f"{folder} cannot be written, so nothing will be dropped"
        return ill("archive.writable", what, "mount it, or give this user the right to")
    room = os.statvfs(there)
    free = room.f_bavail * room.f_frsize
    return well("archive.writable", f"{folder}, {shown_bytes(free)} free", free_bytes=free)
