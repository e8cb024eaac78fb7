"""Ledgers on NATS as operators see them: their contents, their writers, and changes of these.

Modules that need the client library are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError
from stigmergy.base.trust import Signer

if TYPE_CHECKING:
    from stigmergy.nats.ledger import NatsLedger
    from stigmergy.nats.ledger.records import LedgerState

SCHEMES = ("nats:", "tls:")


class LedgerLook(Struct, frozen=True):
    """What a look at a ledger has found. All of it was read and verified for that."""

    ledger: str
    place: str
    """Where it is, without passwords."""
    entries: int
    """The position of the last one."""
    first: int
    """The first that is kept; those before are covered by a checkpoint."""
    messages: int
    head: str
    """The chain over everything that was ever stored, which every reader computes alike."""
    writers: tuple[str, ...]
    """Public keys, as hex digits."""
    checkpoint: int
    """The position that the newest checkpoint covers; 0 without one."""
    passed_over: dict[str, int]
    """Messages that do not count, by why."""


async def look_at_ledger(url: str, name: str) -> LedgerLook:
    """Reads a whole ledger, as the servers that answer have it. Writes nothing. Raises ConfigError and LedgerError."""
    ledger = _opened(url, name)
    try:
        return _look(ledger, await ledger.look(), await ledger.checkpoint_position())
    finally:
        await ledger.close()


async def change_writers(
    url: str, name: str, signer: Signer, enrolled: Sequence[bytes] = (), revoked: Sequence[bytes] = ()
) -> LedgerLook:
    """Lets some keys write, and others no more, by a key that may write itself. Raises ConfigError and LedgerError."""
    # First without a key: a caller without rights must not make a ledger that does not exist.
    await look_at_ledger(url, name)
    ledger = _opened(url, name, signer)
    try:
        if enrolled:
            await ledger.enrol(enrolled)
        if revoked:
            await ledger.revoke(revoked)
        return _look(ledger, await ledger.wait_end(), await ledger.checkpoint_position())
    finally:
        await ledger.close()


async def admit_writers(url: str, name: str, signer: Signer, admitted: Sequence[bytes]) -> None:
    """Makes the ledger if there is none, and lets further keys write. Raises ConfigError and LedgerError."""
    ledger = _opened(url, name, signer)
    try:
        writers = (await ledger.wait_end()).writers
        if missing := [key for key in admitted if key not in writers]:
            await ledger.enrol(missing)
    finally:
        await ledger.close()


def _opened(url: str, name: str, signer: Signer | None = None) -> NatsLedger:
    if not url.startswith(SCHEMES):
        raise ConfigError(
            f"ledger {url!r}: only one on NATS has writers to look at, such as nats://hub:4222?replicas=3"
        )
    try:
        from stigmergy.nats.ledger import open_ledger
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'ledger {url!r}: the package {error.name!r} is not installed; pip install "stigmergy[nats]"'
        ) from None
    return open_ledger(url, name, signer=signer)


def _look(ledger: NatsLedger, state: LedgerState, checkpoint: int) -> LedgerLook:
    counts = structs.asdict(state.counts)
    return LedgerLook(
        ledger=ledger.name,
        place=ledger.shown,
        entries=state.position,
        first=state.cut + 1,
        messages=state.sequence,
        head=state.chain.hex(),
        writers=tuple(key.hex() for key in state.writers),
        checkpoint=checkpoint,
        passed_over={why: counts[why] for why in ("malformed", "unknown", "forged", "strangers", "repeated")},
    )
