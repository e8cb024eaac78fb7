"""Ledgers of users' own: entries that are proposed from anywhere, and that everybody has in one order, each id once.

    class Incident(Entry):
        incident: str
        gas: str

    incidents = Ledger("incidents", Incident)

    yield incidents.propose(Incident("I-7", "co"))              # in @react
    def proposed(self, outcome: Proposed[Incident]) ...         # what has become of it, for the proposer
    def on_incident(self, entry: Entered[Incident]) ...         # every entry, once and in order, for each subscriber

An entry's id is its first field, or the one that `key` names. The second proposal of an id is answered with the
position of the first, and no subscriber sees it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.effects import WITHIN_S_MAX, ProposeEntry, event_of
from stigmergy.agents.messages import Event, Message, is_number, resolve_hints, spec_of
from stigmergy.base.errors import DefinitionError

NAME_CHARS_MAX = 48
ENTRY_BODY_BYTES_MAX = 2_400
"""Of one entry, so that it fits into the ledger with its signature. A larger one is refused where it is proposed."""
ID_BYTES_MAX = 200
IDS_COUNT = 250_000
IDS_COUNT_MAX = 500_000
"""A checkpoint of a ledger has all ids that are remembered, and is bounded."""
KEEP_COUNT_MIN = 1_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}", re.ASCII)


class Entry(Message):
    """What a ledger is made of. Subclass it; one field, the first or the one that the ledger's `key` names, is the
    entry's id."""


EntryT = TypeVar("EntryT", bound=Entry)

if TYPE_CHECKING:

    class _OfEntry(Generic[EntryT]):
        """What type checkers see."""

else:

    class _OfEntry:
        """`Entered[Incident]` is a class of events of its own, made when it is first named."""

        __slots__ = ()

        def __class_getitem__(cls, entry: Any) -> type[Any]:
            return cls if isinstance(entry, TypeVar) else _class_of(cls, entry)


class Entered(_OfEntry[EntryT], Event, name="stigmergy.Entered"):
    """An entry is in the ledger. Each subscriber gets each entry once, in the order of the positions, which may have
    gaps."""

    entry: EntryT
    position: int
    ledger: str = ""
    proposer: str = ""
    """The agent that has proposed it, as the node that entered it says."""
    writer: str = ""
    """The key of that node, as hex digits: it has signed the entry."""


class Proposed(_OfEntry[EntryT], Event, name="stigmergy.Proposed"):
    """What has become of a proposal. Kept only if the proposer has a handler for it."""

    id: str
    position: int = 0
    """Of the entry with this id; 0: the proposal was refused or given up."""
    duplicate: bool = False
    """Whether another proposal of this id was first."""
    reason: str = ""
    """Why it was refused or given up."""
    ledger: str = ""

    @property
    def entered(self) -> bool:
        """Whether this very proposal is the entry."""
        return self.position > 0 and not self.duplicate


def _class_of(generic: type[Any], entry: Any) -> type[Event]:
    name = generic.__name__
    if generic not in (Entered, Proposed):
        raise DefinitionError(f"{name}[…]: it says already of which entries it is; name Entered[…] or Proposed[…]")
    if not (isinstance(entry, type) and issubclass(entry, Entry)) or entry is Entry:
        raise DefinitionError(f"{name}[{getattr(entry, '__name__', repr(entry))}]: name the class of the entries")
    spec, hints = spec_of(entry), resolve_hints(generic, name)
    types = {field: entry if field == "entry" else hints[field] for field in generic.__struct_fields__}
    return event_of(generic, entry, f"{spec_of(generic).name}.{spec.name}", spec.version, types)


def entered_of(entry: type[Entry]) -> type[Event]:
    """The class of events that subscribers get for entries of a class."""
    return _class_of(Entered, entry)


def proposed_of(entry: type[Entry]) -> type[Event]:
    """The class of events that tells proposers what has become of entries of a class."""
    return _class_of(Proposed, entry)


def typed_entered(message: Any) -> Any:
    """`Entered(Incident(…), 1)` as an `Entered[Incident]`. Any other message as it is."""
    if type(message) is not Entered:
        return message
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return entered_of(type(message.entry))(**fields)


def _checked(name: object, entry: Any, key: str, keep: object, ids: object) -> str:
    """The field with the id; raises DefinitionError for what a ledger cannot be."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise DefinitionError(f"ledger {name!r}: a name is 1 to {NAME_CHARS_MAX} small letters, digits, '_' and '-'")
    if not (isinstance(entry, type) and issubclass(entry, Entry)) or entry is Entry:
        raise DefinitionError(f"ledger {name!r}: give the class of its entries, a subclass of Entry")
    key = key or next(iter(entry.__struct_fields__), "")
    if resolve_hints(entry, entry.__qualname__).get(key) is not str:
        raise DefinitionError(f"ledger {name!r}: key={key!r} is the id of an entry; name a field that is a str")
    if keep is not None and not (isinstance(keep, int) and keep >= KEEP_COUNT_MIN):
        raise DefinitionError(f"ledger {name!r}: keep={keep!r}; give {KEEP_COUNT_MIN} entries or more, or None")
    if not isinstance(ids, int) or not 1 <= ids <= IDS_COUNT_MAX:
        raise DefinitionError(f"ledger {name!r}: ids={ids!r}; give 1 to {IDS_COUNT_MAX}")
    return key


class Ledger(Generic[EntryT]):
    """A ledger of entries of one class. Declare it once, list it in `Fleet(…, ledgers=[…])`, and propose from any
    agent."""

    def __init__(
        self,
        name: str,
        entry: type[EntryT],
        *,
        key: str = "",
        to: str | Sequence[str] = (),
        keep: int | None = None,
        ids: int = IDS_COUNT,
    ) -> None:
        """Subscribers are all agents that have a handler for `Entered[…]` and are there; `to` names agents that the
        first entry is to make, such as "Desk/main". Entries are kept for ever, or with `keep` the last so many and some
        thousand more. The ids of the last `ids` entries are remembered: a proposal of an older one is a new entry. Name
        and `ids` are for good."""
        key = _checked(name, entry, key, keep, ids)
        self.name = name
        self.entry = entry
        self.key = key
        self.to = (to,) if isinstance(to, str) else tuple(to)
        self.keep = keep
        self.ids = ids

    def __repr__(self) -> str:
        return f"Ledger({self.name!r}, {self.entry.__name__})"

    def propose(self, entry: EntryT, *, within_s: float | None = None) -> ProposeEntry:
        """Proposes an entry; yield it from a @react handler. It is kept until its outcome is known; with `within_s` it
        is given up if it is not in the ledger by then."""
        if not isinstance(entry, self.entry):
            raise TypeError(f"{self!r}: {type(entry).__name__} is none of its entries")
        if within_s is not None and not (is_number(within_s) and 0 < within_s <= WITHIN_S_MAX):
            raise ValueError(f"{self!r}: within_s={within_s!r}; give more than 0 and at most a year, or leave it out")
        found = getattr(entry, self.key)
        if not isinstance(found, str) or not 0 < len(found.encode()) <= ID_BYTES_MAX:
            raise ValueError(f"{self!r}: {self.key}={found!r}; an id is a text of 1 to {ID_BYTES_MAX} bytes")
        body = encode(entry)
        if len(body) > ENTRY_BODY_BYTES_MAX:
            raise ValueError(
                f"{self!r}: an entry of {len(body)} bytes, {ENTRY_BODY_BYTES_MAX} at most; put a Blob into it"
            )
        return ProposeEntry(
            ledger=self.name, id=found, entry=body, within_s=None if within_s is None else float(within_s)
        )


def outcome_of(asked: ProposeEntry, position: int = 0, *, duplicate: bool = False, reason: str = "") -> bytes:
    """The bytes of what a proposer is told."""
    told = {"type": f"{_PROPOSED}.{tag_of(asked.entry)}", "id": asked.id, "ledger": asked.ledger}
    return encode({**told, "position": position, "duplicate": duplicate, "reason": reason})


_PROPOSED = spec_of(Proposed).name
read_proposal = msgspec.msgpack.Decoder(ProposeEntry).decode
NO_LEDGER = "this host has no ledger; configure one where it is started, see docs/ledger.md"
