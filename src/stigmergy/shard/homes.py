"""Which shard an agent belongs to, by its address or by a key that the fleet computes from it; who owns a shard. Pure.

The shard is the hash of a text: the agent's address, or the result of a function of the fleet, for instance its zone.
Agents with the same text share a shard. The answer is permanent, so the function must see only the address and return
the same text in every process and every version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from stigmergy.agents.assignment import BEYOND_FLEET, is_foreign
from stigmergy.agents.codec import printable
from stigmergy.base.errors import DefinitionError, JournalForeign, NotOwned, UnknownKind

ShardKey = Callable[[str], str]
"""From an agent's address, such as "Drone/D-17", to the text whose hash is its shard, such as "harbour"."""

KEY_CHARS_MAX = 256
ADDRESSES_KNOWN_MAX = 1_000_000
"""So many answers are remembered; then they are computed anew."""
AGENTS_CHECKED_MAX = 10_000
"""Of so many agents that a log has is checked whether they belong there."""
_ADDRESS = re.compile(r"[A-Za-z0-9_.-]{1,64}/[A-Za-z0-9_.:@=~-]{1,128}", re.ASCII)
_FLEET = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
PlanT = TypeVar("PlanT")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def is_address(text: str) -> bool:
    """Whether somebody could live there."""
    return _ADDRESS.fullmatch(text) is not None


def plan_at(plans: Mapping[str, PlanT], address: str) -> PlanT:
    """The plan of the agent kind that this address names. Raises UnknownKind."""
    plan = plans.get(address.partition("/")[0])
    if plan is None and is_foreign(address) and is_remote_address(address):
        raise UnknownKind(f"{address} is an agent of another fleet; {BEYOND_FLEET}")
    if plan is None or not is_address(address):
        raise UnknownKind(
            f"{address[:200]!r} is no address of an agent here: write Kind/name with a kind of "
            f"{', '.join(sorted(plans)) or 'this fleet'} and a name of letters, digits and _.:@=~-"
        )
    return plan


def is_remote_address(text: str) -> bool:
    """Whether it names an agent of a fleet, `ground/Pilot/D-17`, or of this one."""
    fleet, slash, rest = text.partition("/")
    return is_address(text) or (bool(slash) and _FLEET.fullmatch(fleet) is not None and is_address(rest))


def shard_of(text: str, shards: int) -> int:
    """The shard of a text: its FNV-1a, the function that NATS partitions subjects by. `Homes` says which text it is."""
    if shards == 1:
        return 0
    value = 2166136261
    for byte in text.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value % shards


class Homes:
    """Says where agents live, and remembers it, because it is asked for every input and every tell."""

    __slots__ = ("_key", "_known", "key_name", "shards")

    def __init__(self, shards: int = 1, key: ShardKey | None = None) -> None:
        self.shards = shards
        self.key_name = "" if key is None else _name_of(key)
        """What journals keep of the function: its name. Empty: the address itself is hashed."""
        self._key = key
        self._known: dict[str, int] = {}

    def of(self, address: str) -> int:
        """The shard of an agent. Raises UnknownKind where the fleet's function has no good answer."""
        if self.shards == 1:
            return 0
        shard = self._known.get(address)
        if shard is None:
            if len(self._known) >= ADDRESSES_KNOWN_MAX:
                self._known.clear()
            shard = self._known[address] = shard_of(self._text_of(address), self.shards)
        return shard

    def settle(self, addresses: Iterable[str], shard: int) -> None:
        """Says where these agents live, whatever their hash says: for logs that were put together afterwards."""
        self._known.update(dict.fromkeys(addresses, shard))

    def of_all(self, addresses: Sequence[str]) -> list[int]:
        """The same of many, which are mostly known."""
        if self.shards == 1:
            return [0] * len(addresses)
        known = [shard for shard in map(self._known.get, addresses) if shard is not None]
        return known if len(known) == len(addresses) else [self.of(address) for address in addresses]

    def check_agents(self, shard: int, addresses: Iterable[str]) -> None:
        """Refuses a log with agents whose shard has changed: a new function moves no agent."""
        if self._key is None or self.shards == 1:
            return
        for address in islice(addresses, AGENTS_CHECKED_MAX):
            if (home := self.of(address)) != shard:
                raise JournalForeign(
                    f"{address} lives in shard {shard}, and {self.key_name} puts it into shard {home} now; give "
                    "the function back as it was: an agent's shard is fixed"
                )

    def _text_of(self, address: str) -> str:
        if self._key is None or not is_address(address):
            return address  # Nobody can live at what is no address: its receiver says so.
        try:
            text: object = self._key(address)
            again: object = self._key(address)
        except Exception as error:
            said = f"raised {type(error).__name__}: {printable(error, 100)}"
            raise UnknownKind(f"{address}: {self.key_name} {said}; let it return a text for every address") from None
        if not isinstance(text, str) or not 1 <= len(text) <= KEY_CHARS_MAX or _is_half(text):
            raise UnknownKind(
                f"{address}: {self.key_name} returned {printable(repr(text), 100)}; let it return a text of 1 to "
                f"{KEY_CHARS_MAX} characters"
            )
        if text != again:
            raise UnknownKind(
                f"{address}: {self.key_name} said {printable(repr(text), 100)}, and asked again something else; let it "
                "depend on the address alone"
            )
        return text


def _is_half(text: str) -> bool:
    """Whether it has no bytes: half of a pair of surrogates is no character."""
    return text != text.encode(errors="replace").decode()


def _name_of(key: object) -> str:
    name = getattr(key, "__name__", None)
    if not callable(key) or not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise DefinitionError(
            f"shard_by={printable(repr(key), 100)}: give a function with a name, def zone_of(address: str) -> str; "
            "journals keep its name"
        )
    return name


class Ownership:
    """Which shards of its fleet a host owns, by number: all of them, or some where several owners share a fleet. If a
    shard is not ours, the error names its owner. Ownership may change from one turn to the next."""

    def __init__(self, total: int) -> None:
        self.total = total
        """How many the fleet has."""
        self.numbers: Collection[int] = ()
        """Those that are ours, in order."""

    def __contains__(self, number: int) -> bool:
        return number in self.numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def _owner_of(self, number: int) -> str:
        return f"process {number + 1} of {self.total}" if 0 <= number < self.total else "nobody"

    def check_home(self, address: str, number: int) -> None:
        """Raises NotOwned, with who has it, if the agent's shard is not ours."""
        if number not in self.numbers:
            raise NotOwned(
                f"{address} lives in shard {number}, which {self._owner_of(number)} has; nothing was taken, ask there"
            )
