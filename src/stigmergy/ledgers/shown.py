"""Entries of a ledger as people and programs outside the fleet see them."""

from __future__ import annotations

import msgspec

from stigmergy.agents.codec import tag_of
from stigmergy.base.errors import ConfigError
from stigmergy.ledgers.fold import LedgerItem
from stigmergy.ledgers.records import ShownEntry, ShownLedger
from stigmergy.ledgers.service import EntryService, EntryServices

SHOWN_COUNT_MAX = 1_000


async def show_entries(
    services: EntryServices | None, name: str, after: int, limit: int, *, latest: bool, fresh: bool
) -> ShownLedger:
    """The entries that are asked for. Raises ConfigError and LedgerError."""
    known = {} if services is None else services.services
    if name not in known:
        there = ", ".join(known) or "none"
        raise ConfigError(f"{name[:100]!r} is no ledger of this node's fleet; there are {there}")
    if after < 0 or not 1 <= limit <= SHOWN_COUNT_MAX:
        raise ConfigError(f"after={after}, limit={limit}: give a position, and 1 to {SHOWN_COUNT_MAX} entries")
    service = known[name]
    found = await (latest_of(service, limit, fresh=fresh) if latest else service.read(after, limit, fresh=fresh))
    return ShownLedger(name, [_shown(item) for item in found], service.follower.fold.position)


async def latest_of(service: EntryService, count: int, *, fresh: bool) -> list[LedgerItem]:
    """The last so many entries. Raises LedgerError."""
    found = await service.read(service.follower.fold.position, 1, fresh=fresh)
    end, first, width = service.follower.fold.position, service.follower.fold.first, count
    while True:
        found = await service.read(max(0, end - width), width)
        if len(found) >= count or end - width < first:
            return found[-count:]
        width *= 2


def _shown(item: LedgerItem) -> ShownEntry:
    body = item.body
    fields = {name: value for name, value in msgspec.msgpack.decode(body.entry).items() if name != "type"}
    return ShownEntry(item.position, body.id, tag_of(body.entry), fields, body.proposer, item.key.hex())
