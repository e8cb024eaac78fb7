"""Which agents a node runs: every agent of its fleet, or those that `agents` in its configuration names. Pure.

    agents = ["Cart/c01", "Cart/c1*", "Dock/*"]        # addresses; `*` stands for any characters of a name

Every entry point checks here: calls of the embedding program, the control socket, the bus, sensors, uplinks, envelopes,
and the step itself for tells. An agent that does not run here is refused with one sentence, which says where it runs if
that is known. Otherwise a command at the wrong node would create a second agent that acts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from stigmergy.base.errors import ConfigError, NotAssigned, PeerError, UnknownKind, Unreachable

ANY = "*"
UNKNOWN_NODES = "*"
"""Instead of the name of a node: all that are not known."""
KNOWN_MAX = 100_000
"""So many answers are remembered; then they are found anew."""
SHOWN_MAX = 3
BEYOND_FLEET = "commands and questions stay within a fleet: ask a node of that one, or let an agent here `Tell` it"
_ENTRY = re.compile(r"[A-Za-z0-9_.-]{1,64}/[A-Za-z0-9_.:@=~*-]{1,128}", re.ASCII)


class Assignment:
    """The agents of one node. Without any named, it runs all of them."""

    __slots__ = ("_kinds", "_known", "_names", "_patterns", "agents", "fleet", "is_elsewhere", "locate", "unreachable")

    def __init__(
        self,
        agents: Sequence[str] = (),
        kinds: Iterable[str] | None = None,
        locate: Callable[[str], str] = lambda _: "",
        fleet: str = "",
        is_elsewhere: Callable[[str], bool] = lambda _: False,
        unreachable: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`kinds` are those of the fleet. `locate` says which other node runs an agent, such as "node 'b' runs it";
        empty if nobody knows, and then `unreachable` says why, if that may change by itself. Raises ConfigError for
        what names no agent of the kinds."""
        self.fleet = fleet
        self.is_elsewhere = is_elsewhere
        """Of a node that runs everything: whether another node names an agent that is not here yet."""
        self.agents = tuple(dict.fromkeys(agents))
        self._names = dict.fromkeys(entry for entry in self.agents if ANY not in entry)
        self._patterns = tuple((entry, _compiled(entry)) for entry in self.agents if ANY in entry)
        self._known: dict[str, bool] = {}
        self.locate = locate
        self.unreachable = unreachable
        known = self._kinds = None if kinds is None else tuple(kinds)
        for entry in self.agents:
            kind = entry.partition("/")[0]
            if _ENTRY.fullmatch(entry) is None or ANY in kind or (known is not None and kind not in known):
                raise ConfigError(
                    f"agents has {entry!r}; give addresses like 'Drone/D-17', or 'Drone/D-1*' and 'Drone/*' for "
                    f"several, of the kinds {', '.join(known) if known else 'of this fleet'}"
                )

    @property
    def is_everything(self) -> bool:
        """Whether it runs every agent of its fleet."""
        return not self.agents

    def runs(self, address: str) -> bool:
        """Whether the agent runs here."""
        if not self.agents or address in self._names:
            return True
        if not self._patterns:
            return False
        found = self._known.get(address)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            found = self._known[address] = any(fits.fullmatch(address) for _, fits in self._patterns)
        return found

    def within_fleet(self, address: str) -> str:
        """The address as this fleet's nodes write it: `delivery/Drone/D-17` is `Drone/D-17` in the fleet `delivery`."""
        return within_fleet(address, self.fleet)

    def knows_kind(self, address: str) -> bool:
        """Whether this fleet has agents of the address's kind."""
        return self._kinds is None or address.partition("/")[0] in self._kinds

    def check(self, address: str) -> None:
        """Raises NotAssigned, with where it runs, unless the agent runs here; Unreachable while that is not known, or
        its node is away; UnknownKind if the fleet has no such."""
        if not self.runs(address):
            raise self._refused(address)

    def refusal(self, address: str) -> str:
        """Why an agent is refused, and what to do."""
        return str(self._refused(address))

    def _refused(self, address: str) -> PeerError:
        """There can be agents of the kinds of this fleet, and of those that another node says it runs, whose version of
        the fleet may have more kinds."""
        where = self.locate(address)
        kind = address.partition("/")[0]
        if is_foreign(address):
            fleet = f"the fleet {kind[:64]!r}, and this node runs {self.fleet!r}"
            return NotAssigned(f"{address[:200]} is an agent of {fleet}; {BEYOND_FLEET}")
        if not where and self._kinds is not None and kind not in self._kinds:
            what = f"{address[:200]}: this fleet has no agent kind {kind[:200]!r}"
            return UnknownKind(f"{what}; there are {', '.join(self._kinds)}: correct the address")
        what = f"{address[:200]} does not run on this node, which runs {shown(self.agents)}"
        if where:
            return NotAssigned(f"{what}; {where}: send it there")
        if why := self.unreachable(address):
            return Unreachable(f"{what}; {why}: try again later")
        return NotAssigned(f"{what}; no node says that it does: add it to agents of one")

    def names_of(self, kind: str) -> list[str]:
        """The names of agents of this kind that are spelt out: they run here also before their first input."""
        return [entry.partition("/")[2] for entry in self._names if entry.startswith(f"{kind}/")]

    def shared_with(self, other: Assignment) -> list[str]:
        """Entries of ours that the other one runs as well, or that have entries of the other's in them; of two patterns
        those that a name can fit both of."""
        found: list[str] = []
        for entry in self.agents:
            if ANY not in entry:
                met = other.runs(entry) and not other.is_everything
            else:
                fits = _compiled(entry)
                met = any(fits.fullmatch(name) for name in other._names) or any(
                    _may_meet(entry, pattern) for pattern, _ in other._patterns
                )
            if met:
                found.append(entry)
        return found


def is_foreign(address: str) -> bool:
    """Whether it names an agent of another fleet: `ground/Pilot/D-17`. See `within_fleet`."""
    return address.count("/") == 2


def within_fleet(address: str, fleet: str) -> str:
    """The address as this fleet's nodes write it. Everything that takes addresses from people and programs calls it:
    both spellings mean the same agent."""
    named, _, rest = address.partition("/")
    return rest if named == fleet and "/" in rest else address


def shown_nodes(names: Sequence[str]) -> str:
    """Nodes for a sentence."""
    return ", ".join("nodes that are not known yet" if name == UNKNOWN_NODES else name for name in names)


def shown(agents: Sequence[str]) -> str:
    """A few of them, for a sentence."""
    more = len(agents) - SHOWN_MAX
    few = ", ".join(agents[:SHOWN_MAX])
    return f"{few} and {more} more" if more > 0 else few or "every agent of its fleet"


def _compiled(entry: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in entry.split(ANY)), re.ASCII | re.DOTALL)


def _may_meet(one: str, other: str) -> bool:
    """Whether a name can fit both patterns: exactly if their beginnings fit each other, and their ends do. What is
    between two `*` can always be put in, in any order."""
    (begin, _, rest), (other_begin, _, other_rest) = one.partition(ANY), other.partition(ANY)
    end, other_end = rest.rpartition(ANY)[2], other_rest.rpartition(ANY)[2]
    begins = begin.startswith(other_begin) or other_begin.startswith(begin)
    return begins and (end.endswith(other_end) or other_end.endswith(end))


def home_of(assigned: Mapping[str, Assignment], address: str) -> str | None:
    """The first of several nodes that runs an agent, by name; None if none does."""
    return next((name for name, one in assigned.items() if one.runs(address)), None)
