"""Finds where a ledger's log begins that was cut: what the messages about cuts say, as far as they are believed.

The last of them need not be the one that counts. Of two who cut at the same time the later message may cut less, and
anybody who can reach the stream may have written something behind it. So all are looked at, and the cut that reaches
farthest is taken.
"""

from __future__ import annotations

import base64

from stigmergy.adapters.nats.errors import NO_MESSAGE, JetStreamRefused
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats_ledger.fold import State, Verify, state_of
from stigmergy.adapters.nats_ledger.places import Place, refused
from stigmergy.adapters.nats_ledger.records import Cut, read_base, read_record, statement
from stigmergy.core.errors import LedgerCorrupt, LedgerForeign

CUTS_COUNT_MAX = 64
"""Messages about cuts that are looked at: each cut takes those before it away, so that few are left."""
ASK_S = 1.0


async def find_cut(
    place: Place, link: NatsLink, first: int, incarnation: bytes, trusted: frozenset[bytes], verify: Verify
) -> State:
    """What the log, whose first message is `first`, begins with. `incarnation` is that of the ledger as far as we know
    it, `trusted` are the keys that are believed; any writer's, if there is none.

    Raises LedgerCorrupt or LedgerForeign if nothing is believed, LedgerUnavailable, and as the link does.
    """
    best: State | None = None
    fault: LedgerCorrupt | LedgerForeign = LedgerCorrupt(
        f"{place.shown}: the first message is {first}, and nobody has cut the log; restore it from a copy"
    )
    wanted = first
    for _ in range(CUTS_COUNT_MAX):
        found = await _next_cut(place, link, wanted)
        if found is None:
            break
        wanted = found[0] + 1
        read = _read_cut(place, *found, incarnation, trusted, verify)
        if not isinstance(read, State):
            fault = read
        elif best is None or read.sequence > best.sequence:
            best = read
    if best is None:
        raise fault
    return best


def another_ledger(place: Place, name: str) -> str:
    """What to say of a stream that holds the ledger of another name."""
    return f"{place.shown}: the stream {place.stream} holds the ledger {name!r}; name another place for it"


async def _next_cut(place: Place, link: NatsLink, wanted: int) -> tuple[int, bytes] | None:
    """The next message about a cut, from this sequence on. The leader answers: a replica may be behind."""
    asked = {"seq": wanted, "next_by_subj": place.cut_subject}
    try:
        found = await link.api(f"STREAM.MSG.GET.{place.stream}", asked, within_s=ASK_S)
    except JetStreamRefused as error:
        if error.code != NO_MESSAGE:
            raise refused(place, error) from None
        return None
    message = found["message"]
    return int(message["seq"]), base64.b64decode(message.get("data", ""))


def _read_cut(
    place: Place, sequence: int, payload: bytes, incarnation: bytes, trusted: frozenset[bytes], verify: Verify
) -> State | LedgerCorrupt | LedgerForeign:
    """What a message says that the log begins with, or why it is not believed."""
    read = read_record(payload)
    if not isinstance(read, str) and isinstance(read[1].deed, Cut):
        record, deed = read[0], read[1].deed
        base = read_base(deed.base)
        if base is not None and base.sequence < sequence:
            if base.name != place.name:
                return LedgerForeign(another_ledger(place, base.name))
            if incarnation not in (b"", base.incarnation):
                return LedgerForeign(f"{place.shown}: was made anew; start this node again if that is right")
            signed = statement(base.name, base.incarnation, record.algorithm, record.key, record.body)
            known = trusted or frozenset(base.writers)
            if record.key in known and verify(record.algorithm, record.key, signed, record.signature):
                return state_of(base, deed.upto)
    return LedgerCorrupt(
        f"{place.shown}: the log was cut, and what it says about it is not signed by a key that this node trusts; have "
        "a trusted node cut it, or restore it from a copy"
    )
