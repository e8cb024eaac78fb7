"""What a program reads in a ledger of its fleet: `live.ledger(incidents).entries(after=41)`."""

from __future__ import annotations

from typing import Any, Generic, cast

import msgspec

from stigmergy.agents.ledgers import Entered, EntryT, Ledger, entered_of
from stigmergy.base.errors import ConfigError
from stigmergy.ledgers.service import EntryService
from stigmergy.ledgers.shown import SHOWN_COUNT_MAX, latest_of


class LedgerReader(Generic[EntryT]):
    """One ledger, on a running node."""

    def __init__(self, ledger: Ledger[EntryT], service: EntryService) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(entered_of(ledger.entry))
        self._service = service

    async def entries(
        self, *, after: int = 0, limit: int = SHOWN_COUNT_MAX, latest: int | None = None, fresh: bool = False
    ) -> list[Entered[EntryT]]:
        """Entries behind a position, in order, or the `latest` so many: as far as this node has read. With `fresh` all
        that was in the ledger before this call, as a majority of its servers says; that needs the ledger in reach.

        Raises ConfigError and LedgerError.
        """
        if after < 0 or not 1 <= (limit if latest is None else latest) <= SHOWN_COUNT_MAX:
            raise ConfigError(f"entries(after={after}, limit={limit}, latest={latest}): at most {SHOWN_COUNT_MAX}")
        if latest is None:
            found = await self._service.read(after, limit, fresh=fresh)
        else:
            found = await latest_of(self._service, latest, fresh=fresh)
        return [cast("Entered[EntryT]", self._decoder.decode(self._service.event_of(item))) for item in found]
