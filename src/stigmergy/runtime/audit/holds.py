"""Legal holds: what of a log must not be dropped, since when, who said so and why.

A hold outranks every rule of retention, also a full disk: a node would rather stop than drop what is held. Holds that
were cleared stay in the record. The record lies beside the journal, not in it, so that a hold can be set whatever the
journal is busy with; it checks itself, and a damaged one holds everything until somebody has looked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.core.errors import ConfigError, JournalCorrupt, StigmergyError
from stigmergy.ports.archive import HoldStore
from stigmergy.ports.journal import Journal
from stigmergy.runtime.audit.flight import last_before

FIRST_WORD = b"stigmergy-holds-1"
HOLDS_MAX = 1_000
"""In the record, cleared ones included. At the limit the oldest cleared ones leave it; open ones never do."""
TEXT_CHARS_MAX = 500


class Hold(Struct, frozen=True, omit_defaults=True):
    """One hold. Without an agent it is on everything, without a time on all that is still there."""

    number: int
    reason: str
    by: str
    set_ns: int
    agent: str = ""
    since_ns: int = 0
    cleared_ns: int = 0
    cleared_by: str = ""
    cleared_why: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it still holds."""
        return not self.cleared_ns


_decoder = msgspec.json.Decoder(list[Hold])


class Holds:
    """The holds on one journal."""

    def __init__(self, store: HoldStore) -> None:
        self._store = store
        self._holds: list[Hold] = []
        self.trouble = ""
        """Why the record cannot be believed; then everything is held."""
        try:
            self._holds = read_holds(store.load())
        except StigmergyError as error:
            self.trouble = f"the record of holds cannot be read, so nothing is dropped: {error}"

    def all(self) -> list[Hold]:
        """All that are known, oldest first. Raises JournalCorrupt where the record is damaged."""
        self._check_readable()
        return list(self._holds)

    def set(self, reason: str, by: str, now_ns: int, *, agent: str = "", since_ns: int = 0) -> Hold:
        """Sets a hold; durable on return."""
        self._check_readable()
        if not reason.strip() or not by.strip():
            raise ConfigError("a hold needs a reason and who sets it, for whoever finds it in a year")
        if agent and not all(agent.partition("/")):
            raise ConfigError(f"{agent!r} is no agent; write it like Drone/D-17, or leave it out to hold everything")
        number = max((hold.number for hold in self._holds), default=0) + 1
        hold = Hold(number, reason[:TEXT_CHARS_MAX], by[:TEXT_CHARS_MAX], now_ns, agent=agent, since_ns=since_ns)
        self._save([*self._holds, hold])
        return hold

    def clear(self, number: int, why: str, by: str, now_ns: int) -> Hold:
        """Clears a hold; it stays in the record, with who and why."""
        self._check_readable()
        found = next((hold for hold in self._holds if hold.number == number), None)
        if found is None or not found.is_open:
            what = "was cleared already" if found is not None else "does not exist"
            raise ConfigError(f"hold {number} {what}; stigmergy log hold list shows those there are")
        if not why.strip() or not by.strip():
            raise ConfigError("clearing a hold needs a reason and who does it")
        cleared = msgspec.structs.replace(
            found, cleared_ns=now_ns, cleared_by=by[:TEXT_CHARS_MAX], cleared_why=why[:TEXT_CHARS_MAX]
        )
        self._save([cleared if hold.number == number else hold for hold in self._holds])
        return cleared

    def limit(self, journal: Journal, shard: int, upto: int) -> int:
        """The highest position up to `upto` that may be dropped as far as holds go."""
        if self.trouble:
            return 0
        for hold in self._holds:
            if not hold.is_open or (hold.agent and shard not in journal.identity.shards_with(hold.agent)):
                continue
            first = journal.first_position(shard)
            upto = min(upto, last_before(journal, shard, first, max(upto, first - 1), hold.since_ns))
        return upto

    def _save(self, holds: list[Hold]) -> None:
        if len(holds) > HOLDS_MAX:
            cleared = [hold for hold in holds if not hold.is_open]
            if not cleared:
                raise ConfigError(f"there are {HOLDS_MAX} open holds already; clear one, or hold everything")
            holds = [hold for hold in holds if hold is not cleared[0]]
        self._store.save(write_holds(holds))
        self._holds = holds

    def _check_readable(self) -> None:
        if self.trouble:
            raise JournalCorrupt(f"{self.trouble}; put a copy of it back, or move it away to begin a new record")


def write_holds(holds: Sequence[Hold]) -> bytes:
    """The record as text: its name and the digest of the rest, then one hold a line, as a JSON array."""
    lines = b",\n".join(msgspec.json.encode(hold) for hold in holds)
    body = b"[\n" + lines + b"\n]\n"
    return FIRST_WORD + b" " + blake3(body).hexdigest().encode() + b"\n" + body


def read_holds(data: bytes) -> list[Hold]:
    """Reads a record. Raises JournalCorrupt for what is not as it was written."""
    if not data:
        return []
    first, _, body = data.partition(b"\n")
    word, _, digest = first.partition(b" ")
    if word != FIRST_WORD or digest != blake3(body).hexdigest().encode():
        raise JournalCorrupt("its text is not what was written")
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"it does not decode ({error})") from None
