"""Folds a ledger: entries in, one state out, the same for every reader; its bytes, its digest, its checkpoints.

Bytes that do not decode, signatures that do not fit, formats of a later version: skipped and counted, by every reader
alike. The fold takes nothing but the log: who may write is in the log too (`Roster`), so that two readers with other
settings cannot come to different holders.

At every MILESTONE_ENTRIES entries the state is a *milestone*: readers compare its digest (`Checkpointed`), and any of
them may store its bytes as a checkpoint, after which older entries can be cut off.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from blake3 import blake3
from immutables import Map
from msgspec import Struct, structs

from stigmergy.core.claims.entries import Verify, read_record
from stigmergy.core.claims.rules import Fate, Step, apply
from stigmergy.core.claims.state import Claims, Counts, Mark, Resource
from stigmergy.core.codec import UNDECODABLE, encode
from stigmergy.core.errors import Malformed

MILESTONE_ENTRIES = 4_096
CHECKPOINT_FORMAT = 1
_STATE_CONTEXT = "stigmergy 2026 state of claims"
_CHECKPOINT_DOMAIN = "stigmergy.claims.checkpoint@1"
_COUNTED = frozenset(Counts.__struct_fields__)


class ClaimsState(Struct, array_like=True, frozen=True):
    """The bytes of a state: everything in order, so that equal states have equal bytes. Where nobody waits for a pool,
    `pools` is left out: the bytes are those of versions that know no pools."""

    position: int
    resources: tuple[tuple[str, Resource], ...]
    writers: tuple[tuple[bytes, Mark], ...]
    roster: tuple[bytes, ...]
    counts: Counts
    pools: tuple[tuple[bytes, tuple[str, ...]], ...] = ()


class ClaimsCheckpoint(Struct, array_like=True, frozen=True):
    """A stored state, and who vouches for it."""

    format: int
    algorithm: int
    key: bytes
    state: bytes
    """The bytes of a ClaimsState."""
    signature: bytes


_state_decoder = msgspec.msgpack.Decoder(ClaimsState)
_checkpoint_decoder = msgspec.msgpack.Decoder(ClaimsCheckpoint)


def fold(claims: Claims, position: int, data: bytes, ledger: str, verify: Verify) -> Step:
    """The state behind an entry. Entries come in the order of their positions, each once."""
    read = read_record(ledger, data, verify)
    step = Step(claims, Fate(read)) if isinstance(read, str) else apply(claims, position, read)
    return structs.replace(step, claims=_counted(step.claims, position, step.fate))


def _counted(claims: Claims, position: int, fate: Fate) -> Claims:
    counts = claims.counts
    changed = {"folded": counts.folded + 1}
    if fate.value in _COUNTED:
        changed[fate.value] = getattr(counts, fate.value) + 1
    return structs.replace(claims, position=position, counts=structs.replace(counts, **changed))


def is_milestone(claims: Claims) -> bool:
    """Whether all readers look at this very state, for a checkpoint."""
    return claims.counts.folded > 0 and claims.counts.folded % MILESTONE_ENTRIES == 0


def state_bytes(claims: Claims) -> bytes:
    """The one byte string of a state."""
    pools = tuple(sorted(claims.pools.items()))
    fields = (
        claims.position,
        tuple(sorted(claims.resources.items())),
        tuple(sorted(claims.writers.items())),
        claims.roster,
        claims.counts,
    )
    return encode((*fields, pools) if pools else fields)


def read_state(data: bytes) -> Claims:
    """A state out of its bytes. Raises Malformed."""
    try:
        state = _state_decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"not a state of claims ({error}); docs/formats.md describes its bytes") from None
    parts = (Map(state.resources), Map(state.writers), state.roster, state.counts, Map(state.pools))
    return Claims(state.position, *parts)


def digest(state: bytes) -> bytes:
    """The digest of a state's bytes, which readers compare."""
    return blake3(state, derive_key_context=_STATE_CONTEXT).digest()


def write_checkpoint(ledger: str, state: bytes, algorithm: int, key: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """What is stored as a checkpoint: a state, signed by who has folded it."""
    signature = sign(_vouched(ledger, algorithm, key, state))
    return encode(ClaimsCheckpoint(CHECKPOINT_FORMAT, algorithm, key, state, signature))


def read_checkpoint(ledger: str, data: bytes, verify: Verify) -> tuple[Claims, bytes]:
    """A stored state and the key that vouches for it: whether that one is believed is the caller's to decide.

    Raises Malformed for what is none, or is not signed for this ledger.
    """
    try:
        found = _checkpoint_decoder.decode(data)
    except UNDECODABLE as error:
        raise Malformed(f"not a checkpoint of claims ({error}); docs/formats.md describes its bytes") from None
    if found.format != CHECKPOINT_FORMAT:
        raise Malformed(f"checkpoint format {found.format}, this version reads {CHECKPOINT_FORMAT}; update this node")
    vouched = _vouched(ledger, found.algorithm, found.key, found.state)
    if not verify(found.algorithm, found.key, vouched, found.signature):
        raise Malformed("the checkpoint is not signed by the key that it names; have another node write one")
    return read_state(found.state), found.key


def _vouched(ledger: str, algorithm: int, key: bytes, state: bytes) -> bytes:
    return encode((_CHECKPOINT_DOMAIN, ledger, algorithm, key, digest(state)))
