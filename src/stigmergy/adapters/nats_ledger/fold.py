"""Folds the messages of a ledger's stream: which of them count, at which positions, who may write. Pure.

Every reader comes to the same state, because nothing but the messages goes in. A message that is signed by nobody who
may write, is a repetition, or does not read, is passed over and counted. Entries have the positions 1, 2, 3 …, whatever
lies between their messages; the chain is over everything that is stored, positions included, so that two readers who
count differently have different chains.

Repetitions are told by session and number. A session that was silent while SESSIONS_COUNT_MAX others wrote is
forgotten; `floor` keeps it from coming back: what says that it began before that is too old to be judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, assert_never

from immutables import Map
from msgspec import Struct, structs

from stigmergy.adapters.nats_ledger.records import (
    START,
    WRITERS_COUNT_MAX,
    Cut,
    Deed,
    Enrol,
    Entries,
    Genesis,
    LedgerBase,
    LedgerBody,
    LedgerCounts,
    Revoke,
    SessionMark,
    link,
    read_base,
    read_record,
    statement,
)
from stigmergy.core.codec import encode
from stigmergy.core.errors import LedgerCorrupt, LedgerForeign
from stigmergy.ports.ledger import ENTRIES_COUNT_MAX, LedgerEntry

SESSIONS_COUNT_MAX = 1_024
SESSIONS_KEPT = SESSIONS_COUNT_MAX * 3 // 4
"""So many are left when there were too many, so that not every new one has to look for the oldest."""
PARTIAL_COUNT_MAX = 64
"""Appends of which some parts are there; of more, one is given up. Its writer begins again."""
PARTIAL_AGE_MAX = 1_024
"""An append whose next part has not come within so many messages is given up: its writer is gone."""

Verify = Callable[[int, bytes, bytes, bytes], bool]
"""Algorithm, public key, statement, signature: whether this key signed exactly these bytes."""


class Partial(Struct, frozen=True):
    """An append whose last part is still to come."""

    number: int
    bodies: tuple[bytes, ...]
    parts_there: int
    sequence: int
    """Of the last part that is there."""


class State(Struct, frozen=True):
    """What the messages have come to."""

    name: str = ""
    incarnation: bytes = b""
    sequence: int = 0
    position: int = 0
    chain: bytes = START
    writers: tuple[bytes, ...] = ()
    sessions: Map[bytes, SessionMark] = Map()
    floor: int = 0
    partial: Map[bytes, Partial] = Map()
    cut: int = 0
    """Entries up to here are gone, or may go at any moment."""
    counts: LedgerCounts = LedgerCounts()


class Taken(NamedTuple):
    """What became of a message."""

    state: State
    entries: tuple[LedgerEntry, ...] = ()
    session: bytes = b""
    number: int = 0
    counted: bool = False
    """Whether the deed of this number is done; of an append in parts, with its last."""
    head_sequence: int = 0
    head: bytes = b""
    """What a writer has signed as the chain there."""
    base: bytes = b""
    """Of a cut: what its writer says that the log begins with."""


def take(state: State, sequence: int, payload: bytes, verify: Verify) -> Taken:
    """The state behind the next message. Raises LedgerForeign if the first one is not that of a ledger."""
    if sequence != state.sequence + 1:
        raise LedgerCorrupt(f"ledger {state.name!r}: message {sequence} follows {state.sequence}; some are missing")
    if not payload:
        return Taken(_moved(state, sequence, payload, "looks"))
    found = read_record(payload)
    if isinstance(found, str):
        if sequence == 1:
            raise LedgerForeign("the stream does not begin as a ledger does; name another place for it")
        return Taken(_moved(state, sequence, payload, found))
    record, body = found
    if sequence == 1:
        state = _born(body.deed)
    if not verify(
        record.algorithm,
        record.key,
        statement(state.name, state.incarnation, record.algorithm, record.key, record.body),
        record.signature,
    ):
        return Taken(_moved(state, sequence, payload, "forged"), session=body.session, number=body.number)
    if record.key not in state.writers:
        return Taken(_moved(state, sequence, payload, "strangers"), session=body.session, number=body.number)
    heads = (body.head_sequence, body.head)
    if not _is_new(state, sequence, body):
        behind = _moved(state, sequence, payload, "repeated")
        return Taken(behind, (), body.session, body.number, False, *heads)
    if isinstance(body.deed, Entries) and body.deed.part < body.deed.parts - 1:
        behind = _moved(_kept(state, body, body.deed, sequence), sequence, payload, "records")
        return Taken(behind, (), body.session, body.number, False, *heads)
    first = state.position + 1
    state, bodies = _done(state, body)
    entries = tuple(LedgerEntry(position, one) for position, one in enumerate(bodies, start=first))
    state = _marked(state, body, sequence)
    behind = _moved(state, sequence, payload, "records", len(entries))
    base = body.deed.base if isinstance(body.deed, Cut) else b""
    return Taken(behind, entries, body.session, body.number, True, *heads, base)


def base_of(state: State) -> bytes:
    """What somebody needs who reads on behind this state. There must be no append in parts that is not whole."""
    assert not state.partial
    sessions = tuple(sorted(state.sessions.items()))
    fields = (state.name, state.incarnation, state.sequence, state.position, state.chain, state.writers, sessions)
    return encode(LedgerBase(*fields, state.floor, state.counts))


def state_of(base: LedgerBase, cut: int) -> State:
    """The state that a base stands for, in a log that was cut."""
    fields = (base.name, base.incarnation, base.sequence, base.position, base.chain, base.writers)
    return State(*fields, Map(base.sessions), base.floor, Map(), cut, base.counts)


def _born(deed: Deed) -> State:
    if not isinstance(deed, Genesis):
        raise LedgerForeign("the stream does not begin as a ledger does; name another place for it")
    return State(deed.name, deed.incarnation, writers=tuple(sorted(dict.fromkeys(deed.writers))))


def _is_new(state: State, sequence: int, body: LedgerBody) -> bool:
    """Whether this number of a session is to be judged now: the next deed, or the next part of one."""
    if isinstance(body.deed, Genesis) != (sequence == 1):
        return False
    mark = state.sessions.get(body.session)
    if body.number <= mark.number if mark is not None else body.began < state.floor:
        return False
    if not isinstance(body.deed, Entries):
        return True
    partial = state.partial.get(body.session)
    there = partial.parts_there if partial is not None and partial.number == body.number else 0
    return body.deed.part == there


def _kept(state: State, body: LedgerBody, deed: Entries, sequence: int) -> State:
    """One part more of a large append."""
    before = state.partial.get(body.session)
    bodies = () if before is None or before.number != body.number else before.bodies
    kept = state.partial.set(body.session, Partial(body.number, bodies + deed.bodies, deed.part + 1, sequence))
    if len(kept) > PARTIAL_COUNT_MAX:
        kept = kept.delete(next(name for name in sorted(kept) if name != body.session))
    return structs.replace(state, partial=kept)


def _done(state: State, body: LedgerBody) -> tuple[State, tuple[bytes, ...]]:
    """What a deed changes, and the entries that it brings."""
    deed = body.deed
    match deed:
        case Genesis():
            return state, ()
        case Entries(bodies=bodies):
            partial = state.partial.get(body.session)
            if partial is None:
                return state, bodies
            whole = partial.bodies + bodies if partial.number == body.number else bodies
            return structs.replace(state, partial=state.partial.delete(body.session)), whole[:ENTRIES_COUNT_MAX]
        case Enrol(keys=keys):
            writers = tuple(sorted(dict.fromkeys((*state.writers, *keys))))
            # A roster that is full stays as it is, for every reader alike.
            return (structs.replace(state, writers=writers) if len(writers) <= WRITERS_COUNT_MAX else state), ()
        case Revoke(keys=keys):
            left = tuple(key for key in state.writers if key not in keys)
            # The last writer stays: a ledger that nobody may write to could never be mended.
            return (structs.replace(state, writers=left) if left else state), ()
        case Cut(upto=upto, base=base):
            is_valid = upto <= state.position and read_base(base) is not None
            return (structs.replace(state, cut=max(state.cut, upto)) if is_valid else state), ()
        case _:
            assert_never(deed)


def _marked(state: State, body: LedgerBody, sequence: int) -> State:
    for name, partial in sorted(state.partial.items()):
        if partial.sequence < sequence - PARTIAL_AGE_MAX:
            state = structs.replace(state, partial=state.partial.delete(name))
    sessions, floor = state.sessions.set(body.session, SessionMark(body.number, sequence)), state.floor
    if len(sessions) > SESSIONS_COUNT_MAX:
        by_age = sorted(sessions.items(), key=lambda item: item[1].sequence)
        floor = max(floor, by_age[-SESSIONS_KEPT - 1][1].sequence)
        sessions = Map(by_age[-SESSIONS_KEPT:])
    return structs.replace(state, sessions=sessions, floor=floor)


def _moved(state: State, sequence: int, payload: bytes, counted: str, entries: int = 0) -> State:
    position = state.position + entries
    counts = structs.replace(state.counts, **{counted: getattr(state.counts, counted) + 1})
    chain = link(state.chain, sequence, position, payload)
    return structs.replace(state, sequence=sequence, position=position, chain=chain, counts=counts)
