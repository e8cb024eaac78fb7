"""The fold of a ledger of users' own: which entry of an id counts, who may write, and where the log begins. Pure.

Every reader folds the same records in the order of their positions, and finds the same entries. It uses only the log
and the number of ids that are remembered, which is part of the ledger's declaration.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.base.errors import Malformed
from stigmergy.claims.entries import Verify
from stigmergy.ledgers.records import EntriesStored, EntryBody, EntryWriters, read_record

DIGEST_BYTES = 16
PROPOSAL_BYTES = 8
CHECKPOINT_FORMAT = 1
_ID_CONTEXT = "stigmergy 2026 id of an entry"
_PROPOSAL_CONTEXT = "stigmergy 2026 proposal of an entry"
_CHECKPOINT_DOMAIN = "stigmergy.entries.checkpoint@1"


class EntryFate(enum.Enum):
    """What a record has done."""

    ENTERED = "entered"
    DUPLICATE = "duplicate"
    NOTED = "noted"
    STRANGER = "strangers"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    FORGED = "forged"


class FirstEntry(Struct, array_like=True, frozen=True, gc=False):
    """The entry that counts for an id."""

    position: int
    proposal: bytes
    """A digest of its proposal."""


class LedgerItem(Struct, frozen=True):
    """An entry of the ledger, verified."""

    position: int
    key: bytes
    """Of the node that has entered it."""
    body: EntryBody


class EntriesState(Struct, array_like=True, frozen=True):
    """The bytes of a fold."""

    position: int
    first: int
    base: int
    entered: bytes
    ids: tuple[tuple[bytes, FirstEntry], ...]
    writers: tuple[bytes, ...]
    count: int


class EntriesCheckpoint(Struct, array_like=True, frozen=True):
    """A stored fold, and who signed it."""

    format: int
    algorithm: int
    key: bytes
    state: bytes
    signature: bytes


_state_decoder = msgspec.msgpack.Decoder(EntriesState)
_checkpoint_decoder = msgspec.msgpack.Decoder(EntriesCheckpoint)


def proposal_digest(proposal: str) -> bytes:
    """What is remembered of a proposal."""
    return blake3(proposal.encode(), derive_key_context=_PROPOSAL_CONTEXT).digest(PROPOSAL_BYTES)


class EntryFold:
    """A ledger as far as it was read. `take` its records in order, each once."""

    def __init__(self, name: str, ids_count: int) -> None:
        self.name = name
        self.position = 0
        """How far it was read."""
        self.first = 1
        """From here on entries are kept, as far as the log says."""
        self.stored = 0
        """The position of the newest checkpoint, as far as the log says."""
        self.writers: tuple[bytes, ...] = ()
        """Who may write; empty: everybody whom the adapter lets."""
        self.count = 0
        """How many entries it ever had."""
        self._ids_count = ids_count
        self._ids: dict[bytes, FirstEntry] = {}
        self._base = 1
        self._entered = bytearray()
        """A bit for each position since `_base`: whether its entry counts. So one that was read before can be told from
        a duplicate, whatever ids are still remembered."""

    def take(self, position: int, data: bytes, verify: Verify) -> tuple[EntryFate, LedgerItem | None]:
        """Folds a record; with the entry, if it counts."""
        self.position = position
        read = read_record(self.name, data, verify)
        if isinstance(read, str):
            return EntryFate(read), None
        key, body = read
        if self.writers and key not in self.writers:
            return EntryFate.STRANGER, None
        match body:
            case EntryWriters(keys=keys):
                self.writers = tuple(sorted(dict.fromkeys(keys)))
                return EntryFate.NOTED, None
            case EntriesStored(position=at, cut=cut):
                if at < position and cut <= at:
                    self.stored = max(self.stored, at)
                    self._cut(cut)
                return EntryFate.NOTED, None
            case EntryBody(id=id):
                if self.find(id) is not None:
                    return EntryFate.DUPLICATE, None
                self._remember(id, FirstEntry(position, proposal_digest(body.proposal)))
                return EntryFate.ENTERED, LedgerItem(position, key, body)

    def find(self, id: str) -> FirstEntry | None:
        """The entry that counts for an id, if it is remembered."""
        return self._ids.get(_digest_of(id))

    def has_entered(self, position: int) -> bool:
        """Whether the entry at a position that was read, and is kept, counts."""
        place, bit = divmod(position - self._base, 8)
        return 0 <= place < len(self._entered) and bool(self._entered[place] >> bit & 1)

    def _remember(self, id: str, first: FirstEntry) -> None:
        self._ids[_digest_of(id)] = first
        if len(self._ids) > self._ids_count:
            del self._ids[next(iter(self._ids))]
        place, bit = divmod(first.position - self._base, 8)
        self._entered.extend(bytes(max(0, place + 1 - len(self._entered))))
        self._entered[place] |= 1 << bit
        self.count += 1

    def _cut(self, upto: int) -> None:
        self.first = max(self.first, upto + 1)
        whole = (self.first - self._base) // 8
        del self._entered[:whole]
        self._base += 8 * whole  # bits stay where they are in their bytes

    def checkpoint(self, algorithm: int, key: bytes, sign: Callable[[bytes], bytes]) -> bytes:
        """The fold as it is, signed."""
        ids = tuple(self._ids.items())
        fields = (self.position, self.first, self._base, bytes(self._entered), ids, self.writers, self.count)
        state = encode(EntriesState(*fields))
        signature = sign(_vouched(self.name, algorithm, key, state))
        return encode(EntriesCheckpoint(CHECKPOINT_FORMAT, algorithm, key, state, signature))

    def restore(self, data: bytes, verify: Verify) -> bytes:
        """Goes on from a checkpoint; returns the key that has signed it, which the caller must trust.

        Raises Malformed for anything else, or if the signature is not for this ledger.
        """
        try:
            found = _checkpoint_decoder.decode(data)
            state = _state_decoder.decode(found.state)
        except UNDECODABLE as error:
            raise Malformed(f"not a checkpoint of entries ({error}); docs/formats.md describes its bytes") from None
        if found.format != CHECKPOINT_FORMAT:
            raise Malformed(
                f"checkpoint format {found.format}, this version reads {CHECKPOINT_FORMAT}; update this node"
            )
        vouched = _vouched(self.name, found.algorithm, found.key, found.state)
        if not verify(found.algorithm, found.key, vouched, found.signature):
            raise Malformed("the checkpoint is not signed by the key that it names; have another node write one")
        self.position, self.first, self.writers, self.count = state.position, state.first, state.writers, state.count
        self.stored, self._base, self._entered = state.position, state.base, bytearray(state.entered)
        self._ids = dict(state.ids[-self._ids_count :])
        return found.key


def _digest_of(id: str) -> bytes:
    return blake3(id.encode(), derive_key_context=_ID_CONTEXT).digest(DIGEST_BYTES)


def _vouched(ledger: str, algorithm: int, key: bytes, state: bytes) -> bytes:
    return encode((_CHECKPOINT_DOMAIN, ledger, algorithm, key, blake3(state).digest()))
