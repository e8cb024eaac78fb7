"""Raw kinds of events: which of them may leave their device, and by which door. Pure.

    class Sampled(Event, raw=True): ...                     # stays on the device that has it
    Settings(raw_may_leave=("Sampled to uplink",))          # unless a rule names the kind and the door

Every part of a node that sends events or states somewhere asks the guard of its host first. A kind that is marked
stays back wherever no rule names it, and that shows: it is counted, and it is a trouble with the rule to write. What a
handler takes out of a raw event and puts into another one may leave: nothing follows numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, tag_of
from stigmergy.agents.messages import any_raw, first_raw, is_raw, resolve_hints, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.steps import StepAsked, StepHeard, StepTaken
from stigmergy.agents.supervision import InputFailed
from stigmergy.base.errors import ConfigError
from stigmergy.diagnostics.codes import Trouble, coded

UPLINK, BUS, TELLS, CLIENTS = "uplink", "bus", "tells", "clients"
CAPTURE, COPIES, VIEWS, CLUSTER = "capture", "copies", "views", "cluster"
DOORS: Mapping[str, str] = {
    UPLINK: "the uplink to a gateway",
    BUS: "publications on a bus, and their history",
    TELLS: "tells to agents of other nodes",
    CLIENTS: "answers to other nodes, and to programs over HTTP and gRPC",
    CAPTURE: "tables of PostgreSQL that events are captured to",
    COPIES: "copies of the journal, and archives in a store",
    VIEWS: "rows of views in a database elsewhere",
    CLUSTER: "logs and servers of a cluster",
}
"""The ways out of a device."""
RULES_COUNT_MAX = 1_000
WITHHELD_NAMES_MAX = 100
"""So many pairs of a kind and a door are told apart; of further ones only the count is kept."""
WITHHELD = {"raw": "stays on its device"}
"""Stands for the fields of what does not leave."""
_WRAPPED: Mapping[str, tuple[msgspec.msgpack.Decoder[Any], str]] = {
    spec_of(cls).tag: (msgspec.msgpack.Decoder(cls), field)
    for cls, field in ((StepHeard, "body"), (StepAsked, "body"), (StepTaken, "body"), (InputFailed, "input"))
}
"""Messages of the framework that have another one inside."""


def read_rules(texts: object) -> frozenset[tuple[str, str]]:
    """Kinds and doors of rules such as "Sampled to uplink". Raises ConfigError."""
    found: set[tuple[str, str]] = set()
    if not isinstance(texts, list | tuple) or len(texts) > RULES_COUNT_MAX:
        raise ConfigError(f"settings: raw_may_leave = {texts!r}; give a list of rules, {RULES_COUNT_MAX} at most")
    for text in texts:
        name, word, door = text.rpartition(" to ") if isinstance(text, str) else ("", "", "")
        if not word or not name.strip() or "@" in name or door.strip() not in DOORS:
            raise ConfigError(
                f'settings: raw_may_leave has {text!r}; write the kind and where it may go, such as "Sampled to '
                f'uplink"; there are {", ".join(DOORS)}'
            )
        found.add((name.strip(), door.strip()))
    return frozenset(found)


def refusal(name: str, door: str) -> str:
    """Why a kind stays here, with the rule that would let it leave."""
    return (
        f"{name} is raw and stays on its device: {DOORS[door]} must not have it; if it may leave that way, write "
        f'raw_may_leave = ["{name} to {door}"] under [settings]'
    )


class RawCounters(Struct):
    """What did not leave."""

    raw_withheld: int = 0


class RawGuard:
    """Says for one fleet what may leave by which door, and keeps count of what did not."""

    def __init__(self, plans: Mapping[str, AgentPlan], rules: Sequence[str] = ()) -> None:
        self._allowed = read_rules(rules)
        self._known = {spec_of(message).name: spec_of(message).raw for plan in plans.values() for message in plan.plans}
        """Of the kinds that agents of the fleet handle, whether they are raw. Of others their classes tell."""
        self._withheld: dict[tuple[str, str], int] = {}
        self.counters = RawCounters()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is raw here: then nobody has to look at what leaves."""
        return not any_raw() and not any(self._known.values())

    @property
    def kinds(self) -> list[str]:
        """The raw kinds that agents of the fleet handle."""
        return sorted(name for name, raw in self._known.items() if raw)

    def is_raw(self, tag: str) -> bool:
        """Whether messages with this tag, or this name, are raw."""
        name = tag.partition("@")[0]
        return self._known[name] if name in self._known else is_raw(name)

    def stays(self, tag: str, door: str) -> bool:
        """Whether messages with this tag must not leave by this door."""
        return self.is_raw(tag) and (tag.partition("@")[0], door) not in self._allowed

    def kept_back(self, door: str) -> list[str]:
        """The raw kinds of the fleet that no rule lets out by this door."""
        return [name for name in self.kinds if self.stays(name, door)]

    def stops(self, body: bytes, door: str) -> str:
        """Why a message must not leave by this door, and counts it; empty if it may."""
        tag = inner_tag(body)
        if not self.stays(tag, door):
            return ""
        name = tag.partition("@")[0]
        self.counters.raw_withheld += 1
        if (name, door) in self._withheld or len(self._withheld) < WITHHELD_NAMES_MAX:
            self._withheld[name, door] = self._withheld.get((name, door), 0) + 1
        return refusal(name, door)

    def check(self, door: str, names: Iterable[str] | None = None) -> None:
        """Refuses what is configured to let raw kinds out: these, or all that the fleet has. Raises ConfigError."""
        for name in self.kinds if names is None else names:
            if self.stays(name, door):
                raise ConfigError(refusal(name, door))

    def troubles(self) -> list[Trouble]:
        """What was kept back since the start, and the rule to write."""
        return coded(
            "raw-withheld",
            [f"{count:,} did not leave: {refusal(*which)}" for which, count in self._withheld.items()],
        )

    def fields_that_stay(self, cls: type[Any], door: str) -> list[str]:
        """The fields of an agent class that hold raw events and must not leave."""
        hints = resolve_hints(cls, cls.__qualname__)
        held = {name: first_raw(hints[name]) for name in cls.__struct_fields__ if name in hints}
        return [name for name, kind in held.items() if kind and (kind, door) not in self._allowed]


def inner_tag(body: bytes) -> str:
    """The tag of a message, or of the one that it carries; empty for what cannot be read."""
    tag = tag_of(body)
    wrapped = _WRAPPED.get(tag)
    if wrapped is None:
        return tag
    decoder, field = wrapped
    try:
        inside = getattr(decoder.decode(body), field)
        return tag_of(inside) if inside else tag
    except UNDECODABLE:
        return tag
