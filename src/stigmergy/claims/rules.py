"""What each move does to the state of claims: only the rules of the ledger.

A resource is free, held, or offered to the first in the queue. Positions only grow, so a grant's token is higher than
that of every earlier grant. A move that no rule allows changes nothing: one that comes too late, twice, or from another
claimant is void.

    Ask       free: granted. Held by the same claimant, or offered to it: granted again. Else queued, if it waits and
              there is room, or refused.
    Take      grants what is offered to this claimant at that position.
    Renew     restarts the lease if the claimant holds it under that token.
    Release   frees what the claimant holds under that token; the first of the queue is offered it.
    Withdraw  removes the claimant, whether it waits, is offered it or holds it.
    Expire    frees what began at that position, a lease or an offer, from any node.
    AskAny    as Ask, of the first of several that the claimant holds, is offered, or that is free. Else it waits in
              the queue of each. When it is offered one of them, it leaves the other queues: one request, served once.
    WithdrawAny  as Withdraw, of each of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import assert_never

import msgspec
from blake3 import blake3
from immutables import Map
from msgspec import Struct, structs

from stigmergy.agents.codec import UNDECODABLE, encode
from stigmergy.base.errors import Malformed
from stigmergy.claims.entries import (
    Ask,
    AskAny,
    Checkpointed,
    Expire,
    Release,
    Renew,
    Take,
    Verify,
    Withdraw,
    WithdrawAny,
    WriterList,
    Written,
    read_record,
)
from stigmergy.claims.state import (
    FREE,
    QUEUE_COUNT_MAX,
    RESOURCES_COUNT_MAX,
    WRITERS_COUNT_MAX,
    Claims,
    Counts,
    Grant,
    Offer,
    Resource,
    Waiter,
    WriterMark,
)

WRITERS_KEPT = WRITERS_COUNT_MAX * 3 // 4
"""How many are left after a clean-up, so that not every new writer needs one."""


class Fate(enum.Enum):
    """The outcome of an entry."""

    GRANTED = "granted"
    QUEUED = "queued"
    REFUSED = "refused"
    RENEWED = "renewed"
    FREED = "freed"
    """Given up by its claimant."""
    EXPIRED = "expired"
    NOTED = "noted"
    """A list of writers or a checkpoint: no resource has changed."""
    VOID = "void"
    REPEATED = "repeated"
    STRANGER = "strangers"
    FORGED = "forged"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"


class FoldStep(Struct, frozen=True):
    """The state after an entry, and the entry's outcome."""

    claims: Claims
    fate: Fate
    resource: str = ""
    """The one that may have changed; empty if none."""
    others: tuple[str, ...] = ()
    """Further ones that may have."""
    noted: Checkpointed | None = None
    """The entry's digest of the state at another position."""
    claimant: bytes = b""
    """Who wrote the entry, if it was valid."""


def apply(claims: Claims, position: int, written: Written) -> FoldStep:
    """The next state. The caller has verified the author, and gives entries in the order of their positions."""
    if claims.roster and written.key not in claims.roster:
        return FoldStep(claims, Fate.STRANGER)
    if claims.has_seen(written.writer, written.life, written.sequence):
        return FoldStep(claims, Fate.REPEATED)
    claims = _marked(claims, position, written)
    match written.move:
        case WriterList(keys=keys):
            return FoldStep(structs.replace(claims, roster=tuple(sorted(dict.fromkeys(keys)))), Fate.NOTED)
        case Checkpointed():
            return FoldStep(claims, Fate.NOTED, noted=written.move)
        case Ask():
            return _asked(claims, position, written, written.move)
        case Take() | Renew() | Release() | Withdraw() | Expire():
            return _move(claims, position, written, written.move)
        case AskAny():
            return _asked_any(claims, position, written, written.move)
        case WithdrawAny(resources=names):
            return _withdrawn(claims, position, written, names)
        case _:
            assert_never(written.move)


def _asked(claims: Claims, position: int, written: Written, ask: Ask) -> FoldStep:
    name, claimant = ask.resource, written.claimant
    known = claims.resource(name)
    if known is FREE and len(claims.resources) >= RESOURCES_COUNT_MAX:
        return FoldStep(claims, Fate.REFUSED, name)
    if known is FREE or claims.holds(name, claimant) or claims.offered(name, claimant):
        return FoldStep(_with(claims, name, _granted(known, position, written, ask.for_ms)), Fate.GRANTED, name)
    others = tuple(waiter for waiter in known.queue if waiter.claimant != claimant)
    if not ask.waits or len(others) >= QUEUE_COUNT_MAX:
        claims = _with(claims, name, structs.replace(known, queue=others))
        return FoldStep(_in_lines(claims, claimant, claims.pools.get(claimant, ())), Fate.REFUSED, name)
    waiter = Waiter(claimant, ask.for_ms)
    if len(others) == len(known.queue):
        queue = (*others, waiter)
    else:  # it asks again, and keeps its place
        queue = tuple(waiter if one.claimant == claimant else one for one in known.queue)
    return FoldStep(_with(claims, name, structs.replace(known, queue=queue)), Fate.QUEUED, name)


def _move(
    claims: Claims, position: int, written: Written, move: Take | Renew | Release | Withdraw | Expire
) -> FoldStep:
    name = move.resource
    changed, fate = _moved(claims.resource(name), position, written, move)
    if changed is claims.resource(name):
        return FoldStep(claims, fate, name)
    claims = _with(claims, name, changed)
    if changed.offer is not None and name in claims.pools.get(changed.offer.claimant, ()):
        claims = _out_of_lines(claims, changed.offer.claimant)
    if isinstance(move, Withdraw) and name in claims.pools.get(written.claimant, ()):
        claims = _in_lines(claims, written.claimant, claims.pools[written.claimant])
    return FoldStep(claims, fate, name)


def _asked_any(claims: Claims, position: int, written: Written, ask: AskAny) -> FoldStep:
    names, claimant = ask.resources, written.claimant
    has_room = len(claims.resources) < RESOURCES_COUNT_MAX
    mine = [name for name in names if claims.holds(name, claimant)]
    mine += [name for name in names if claims.offered(name, claimant)]
    mine += [name for name in names if has_room and claims.resource(name) is FREE]
    if mine:
        claims = _out_of_lines(claims, claimant)
        granted = _granted(claims.resource(mine[0]), position, written, ask.for_ms)
        return FoldStep(_with(claims, mine[0], granted), Fate.GRANTED, mine[0])
    # It keeps a place that it has, and does not join full queues.
    queued = [
        name
        for name in names
        if claims.resource(name) is not FREE
        and (claims.place(name, claimant) or len(claims.resource(name).queue) < QUEUE_COUNT_MAX)
    ]
    if not ask.waits or not queued:
        return FoldStep(_out_of_lines(claims, claimant), Fate.REFUSED, names[0])
    left = [name for name in claims.pools.get(claimant, ()) if name not in queued]
    for name in left:
        claims = _with(claims, name, _without(claims.resource(name), claimant))
    waiter = Waiter(claimant, ask.for_ms)
    for name in queued:
        known = claims.resource(name)
        if claims.place(name, claimant):
            queue = tuple(waiter if one.claimant == claimant else one for one in known.queue)
        else:
            queue = (*known.queue, waiter)
        claims = _with(claims, name, structs.replace(known, queue=queue))
    return FoldStep(_in_lines(claims, claimant, tuple(queued)), Fate.QUEUED, queued[0], tuple(queued[1:]))


def _withdrawn(claims: Claims, position: int, written: Written, names: tuple[str, ...]) -> FoldStep:
    """Leaves every queue; an offer or a grant is freed."""
    fate = Fate.VOID
    if any(name in claims.pools.get(written.claimant, ()) for name in names):
        claims, fate = _out_of_lines(claims, written.claimant), Fate.FREED
    for name in names:
        step = _move(claims, position, written, Withdraw(name))
        claims, fate = step.claims, fate if step.fate is Fate.VOID else step.fate
    return FoldStep(claims, fate, names[0], names[1:])


def _out_of_lines(claims: Claims, claimant: bytes) -> Claims:
    """The claimant no longer waits for any pool."""
    for name in claims.pools.get(claimant, ()):
        claims = _with(claims, name, _without(claims.resource(name), claimant))
    return _in_lines(claims, claimant, ())


def _in_lines(claims: Claims, claimant: bytes, names: tuple[str, ...]) -> Claims:
    """Remembers in which of these queues the claimant waits for a pool."""
    waits = tuple(name for name in names if claims.waits(name, claimant))
    if waits == claims.pools.get(claimant, ()):
        return claims
    pools = claims.pools.set(claimant, waits) if waits else claims.pools.delete(claimant)
    return structs.replace(claims, pools=pools)


def _without(known: Resource, claimant: bytes) -> Resource:
    queue = tuple(waiter for waiter in known.queue if waiter.claimant != claimant)
    return known if len(queue) == len(known.queue) else structs.replace(known, queue=queue)


def _moved(
    known: Resource, position: int, written: Written, move: Take | Renew | Release | Withdraw | Expire
) -> tuple[Resource, Fate]:
    """The resource after the move; the same object if the move is void."""
    grant = known.grant if known.grant is not None and known.grant.claimant == written.claimant else None
    offer = known.offer if known.offer is not None and known.offer.claimant == written.claimant else None
    match move:
        case Take(offer=at) if offer is not None and offer.position == at:
            return _granted(known, position, written, move.for_ms), Fate.GRANTED
        case Renew(token=token, for_ms=for_ms) if grant is not None and grant.token == token:
            renewed = Grant(grant.claimant, token, position, for_ms, written.life, written.sequence)
            return structs.replace(known, grant=renewed), Fate.RENEWED
        case Release(token=token) if grant is not None and grant.token == token:
            return _freed(known, position), Fate.FREED
        case Withdraw() if grant is not None or offer is not None:
            return _freed(known, position), Fate.FREED
        case Withdraw() if any(waiter.claimant == written.claimant for waiter in known.queue):
            left = tuple(waiter for waiter in known.queue if waiter.claimant != written.claimant)
            return structs.replace(known, queue=left), Fate.FREED
        case Expire(grant=at) if at in _begun(known):
            return _freed(known, position), Fate.EXPIRED
        case _:
            return known, Fate.VOID


def _begun(known: Resource) -> tuple[int, ...]:
    """The position where the current lease or offer began."""
    if known.grant is not None:
        return (known.grant.began,)
    return () if known.offer is None else (known.offer.position,)


def _granted(known: Resource, position: int, written: Written, for_ms: int) -> Resource:
    """Held from this entry on. The new holder no longer waits."""
    grant = Grant(written.claimant, position, position, for_ms, written.life, written.sequence)
    return Resource(grant, None, known.queue)


def _freed(known: Resource, position: int) -> Resource:
    """Free, or offered to the first in the queue."""
    if not known.queue:
        return FREE
    return Resource(None, Offer(known.queue[0].claimant, position), known.queue[1:])


def _with(claims: Claims, name: str, resource: Resource) -> Claims:
    if resource is claims.resource(name):
        return claims
    wanted = resource.grant is not None or resource.offer is not None
    resources = claims.resources.set(name, resource) if wanted else claims.resources.delete(name)
    return structs.replace(claims, resources=resources)


def _marked(claims: Claims, position: int, written: Written) -> Claims:
    """Remembers how far the writer is, and forgets who wrote longest ago if there are too many."""
    writers = claims.writers.set(written.writer, WriterMark(written.life, written.sequence, position))
    if len(writers) > WRITERS_COUNT_MAX:
        newest = sorted(writers.items(), key=lambda item: item[1].position)[-WRITERS_KEPT:]
        writers = type(writers)(newest)
    return structs.replace(claims, writers=writers)


# Folds a ledger: entries in, one state out, the same for every reader; its bytes, its digest, its checkpoints.
#
# Every reader skips and counts the same entries: bytes that do not decode, wrong signatures, formats of a later
# version. The fold uses only the log: the list of writers is in the log too (`WriterList`), so readers with different
# settings still find the same holders.
#
# At every MILESTONE_ENTRIES entries the state is a *milestone*: readers compare its digest (`Checkpointed`), and any of
# them may store its bytes as a checkpoint, after which older entries can be cut off.

MILESTONE_ENTRIES = 4_096
CHECKPOINT_FORMAT = 1
_STATE_CONTEXT = "stigmergy 2026 state of claims"
_CHECKPOINT_DOMAIN = "stigmergy.claims.checkpoint@1"
_COUNTED = frozenset(Counts.__struct_fields__)


class ClaimsState(Struct, array_like=True, frozen=True):
    """The bytes of a state: everything in order, so that equal states have equal bytes. `pools` is left out if nobody
    waits for a pool: the bytes are then those of versions that know no pools."""

    position: int
    resources: tuple[tuple[str, Resource], ...]
    writers: tuple[tuple[bytes, WriterMark], ...]
    roster: tuple[bytes, ...]
    counts: Counts
    pools: tuple[tuple[bytes, tuple[str, ...]], ...] = ()


class ClaimsCheckpoint(Struct, array_like=True, frozen=True):
    """A stored state, and who signed it."""

    format: int
    algorithm: int
    key: bytes
    state: bytes
    """The bytes of a ClaimsState."""
    signature: bytes


_state_decoder = msgspec.msgpack.Decoder(ClaimsState)
_checkpoint_decoder = msgspec.msgpack.Decoder(ClaimsCheckpoint)


def fold(claims: Claims, position: int, data: bytes, ledger: str, verify: Verify) -> FoldStep:
    """The state after an entry. Entries come in the order of their positions, each once."""
    read = read_record(ledger, data, verify)
    step = FoldStep(claims, Fate(read)) if isinstance(read, str) else apply(claims, position, read)
    claimant = b"" if isinstance(read, str) else read.claimant
    return structs.replace(step, claims=_counted(step.claims, position, step.fate), claimant=claimant)


def _counted(claims: Claims, position: int, fate: Fate) -> Claims:
    counts = claims.counts
    changed = {"folded": counts.folded + 1}
    if fate.value in _COUNTED:
        changed[fate.value] = getattr(counts, fate.value) + 1
    return structs.replace(claims, position=position, counts=structs.replace(counts, **changed))


def is_milestone(claims: Claims) -> bool:
    """Whether all readers compare this state, for a checkpoint."""
    return claims.counts.folded > 0 and claims.counts.folded % MILESTONE_ENTRIES == 0


def state_bytes(claims: Claims) -> bytes:
    """The canonical bytes of a state."""
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
    """Decodes a state. Raises Malformed."""
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
    """A checkpoint: a state, signed by the node that folded it."""
    signature = sign(_vouched(ledger, algorithm, key, state))
    return encode(ClaimsCheckpoint(CHECKPOINT_FORMAT, algorithm, key, state, signature))


def read_checkpoint(ledger: str, data: bytes, verify: Verify) -> tuple[Claims, bytes]:
    """A stored state and the key that signed it: the caller decides whether to trust it.

    Raises Malformed for anything else, or if the signature is not for this ledger.
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
