"""The journal on NATS JetStream: a stream for each log, fenced by epochs, with snapshots in another stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stigmergy.base.errors import ConfigError
from stigmergy.journal.port import JournalIdentity

if TYPE_CHECKING:
    from stigmergy.nats.journal.journal import NatsJournal

MISSING = 'a journal on NATS needs the client library: pip install "stigmergy[nats]"'


def open_journal(url: str, identity: JournalIdentity, *, owner: str = "") -> NatsJournal:
    """Opens a log for writing: 'nats://hub-1:4222,hub-2:4222?replicas=3'. See `opener.open_journal`."""
    try:
        from stigmergy.nats.journal import opener as opening
    except ModuleNotFoundError as error:
        raise ConfigError(f"{MISSING} ({error})") from None
    return opening.open_journal(url, identity, owner=owner)


def part_urls(url: str) -> list[str]:
    """The URLs of a fleet's logs, if it has more than one. See `opener.part_urls`."""
    try:
        from stigmergy.nats.journal import opener as opening
    except ModuleNotFoundError as error:
        raise ConfigError(f"{MISSING} ({error})") from None
    return opening.part_urls(url)


def inspect_journals(url: str) -> list[NatsJournal]:
    """Opens the logs of one fleet for reading only. See `opener.inspect_journals`."""
    try:
        from stigmergy.nats.journal import opener as opening
    except ModuleNotFoundError as error:
        raise ConfigError(f"{MISSING} ({error})") from None
    return opening.inspect_journals(url)
