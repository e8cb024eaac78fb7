"""Opens journals by their URLs, through the registered adapters; finds and inspects existing ones."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from stigmergy.app.parts import SEGMENTS, SQLITE, check_single, check_whole, part_urls, shown_url
from stigmergy.audit.export import JoinedJournal
from stigmergy.audit.flight_journal import open_whole_flight
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemEntropy
from stigmergy.claims.sqlite_file import is_ledger
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.journal.segments import inspect_journal as inspect_segments
from stigmergy.journal.sqlite import inspect_journal as inspect_sqlite
from stigmergy.nats.journal import inspect_journals as inspect_nats
from stigmergy.nats.journal import part_urls as nats_parts

JOURNALS = "stigmergy.journals"
"""The entry point group where adapters register: the name is the scheme of the URL, the value opens it."""
INCARNATION_BYTES = 6
FLIGHT = "flight:"
NATS = ("nats:", "tls:")


def open_journal(
    url: str, fleet: str, shards: int, part: tuple[int, int] | None = None, shard_by: str = "", **options: Any
) -> Journal:
    """Opens the journal that a URL names, through the adapter registered for its scheme."""
    check_whole(url)
    scheme, colon, _ = url.partition(":")
    found = {entry.name: entry for entry in entry_points(group=JOURNALS)}
    if not colon or scheme not in found:
        known = ", ".join(f"{name}:" for name in sorted(found))
        raise ConfigError(f"journal {url!r}: no adapter for {scheme!r}; there are {known}, for example sqlite:fleet.db")
    incarnation = int.from_bytes(SystemEntropy().token(INCARNATION_BYTES), "big") + 1
    identity = JournalIdentity(fleet=fleet, shards=shards, incarnation=incarnation, part=part, shard_by=shard_by)
    journal: Journal = found[scheme].load()(url, identity, **options)
    return journal


def find_parts(url: str) -> list[str]:
    """The parts of a journal, each by its URL, where it has a log for each part of its shards; else none."""
    return nats_parts(url) if url.startswith(NATS) else part_urls(url)


def inspect_journal(url: str) -> Journal:
    """Opens an existing journal of any fleet, or a flight log, for reading only."""
    check_single(url)
    if url.startswith(FLIGHT):
        return open_whole_flight(Path(url.removeprefix(FLIGHT)))
    if url.startswith(SEGMENTS):
        return inspect_segments(url)
    if url.startswith(NATS):
        _check_one_log(url)
        return inspect_nats(url)[0]
    if not url.startswith(SQLITE):
        raise ConfigError(
            f"journal {url!r}: only one that outlives its node can be looked at, like sqlite:fleet.db or nats://hub:4222"
        )
    return inspect_sqlite(url)


def inspect_all(url: str) -> Journal:
    """The same, with the parts of a journal read as one."""
    if url.startswith(NATS):
        logs = inspect_nats(url)
        return logs[0] if len(logs) == 1 else JoinedJournal(logs)
    urls = part_urls(url)
    if not urls:
        return inspect_journal(url)
    parts: list[Journal] = []
    for one in urls:
        parts.append(inspect_journal(one))
    return JoinedJournal(parts)


def _check_one_log(url: str) -> None:
    """Refuses a fleet with several logs of which the URL chooses none, before any of them is opened."""
    if parts := nats_parts(url):
        raise ConfigError(
            f"{shown_url(url)} has a log for each of {len(parts)} parts of its shards, and this looks at one "
            f"at a time; name each of them, beginning with --journal '{shown_url(parts[0])}'"
        )


def journals_in(folder: Path) -> list[str]:
    """The URLs of what looks like a journal in a folder: files that end in .db and are no ledgers, and folders with an
    identity."""
    files = [f"{SQLITE}{path}" for path in sorted(folder.glob("*.db")) if not is_ledger(str(path))]
    folders = {path.parent for path in folder.glob("*/identity")} | {
        path.parent.parent for path in folder.glob("*/*-of-*/identity")
    }
    return files + [f"{SEGMENTS}{path}" for path in sorted(folders)]
