"""What a replay against today's code found: differences with their places, and what could not be compared and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import canonical_bytes, tag_of
from stigmergy.agents.display import plain_state
from stigmergy.audit.listing import owing, readable_fields
from stigmergy.shard.commit import Owed

ABSENT = "(none)"
"""Stands for what one of the two does not have."""
TEXT_CHARS_MAX = 500


class Difference(Struct, frozen=True):
    """Where today's code does something else than was recorded. `kind` is one of

    - `fold`: an event of the log cannot be folded any more; nothing of its agent is compared from there on
    - `answer`: a command that was accepted is refused, the other way round, or for another reason
    - `event`: a command that was accepted keeps another event
    - `failure`: an input that failed fails in another way, or no longer
    - `effect`: an event asks for another effect
    - `state`: an agent is in another state than a snapshot says
    - `table`: a table of the shard is not what a snapshot says
    """

    kind: str
    shard: int
    position: int
    index: int
    agent: str
    what: str
    field: str
    old: Any
    new: Any


class Compared(Struct):
    """What was compared, and what came of it."""

    commits: int = 0
    events: int = 0
    commands: int = 0
    failures: int = 0
    effects: int = 0
    states: int = 0
    """Agents in snapshots, compared with what the fold of the log makes of them."""
    snapshots: int = 0
    agents: int = 0
    """At the end of the log."""
    digests: dict[int, str] = {}
    """Per shard of the whole state at the end of its log: equal digests mean equal states, of two replays too."""
    not_compared: dict[str, int] = {}
    ignored: dict[str, int] = {}
    """Types of events in the log that nothing of today's code is for, and how many there are."""
    differences: list[Difference] = []
    differences_count: int = 0
    differences_max: int = 1_000
    observed: dict[str, None] = {}
    """Names of events that came as inputs, at some place in the log."""
    maybe: list[tuple[str, Difference]] = []
    """Differences only if an event of this name was never an input; bounded like the others."""

    @property
    def same(self) -> bool:
        """Whether today's code does what was recorded, as far as that can be compared."""
        return not self.differences_count

    def add(self, difference: Difference) -> None:
        """Counts a difference, and lists it while there is room."""
        self.differences_count += 1
        if len(self.differences) < self.differences_max:
            self.differences.append(difference)

    def add_if_never_observed(self, body: bytes, difference: Difference) -> None:
        """A difference, unless events of this type turn out to come as inputs too. Decided by `settle`."""
        if len(self.maybe) < self.differences_max:
            self.maybe.append((name_of(body), difference))

    def settle(self) -> None:
        """The whole log was seen: decides what is a difference among what may have been one."""
        for name, difference in self.maybe:
            if name in self.observed:
                self.skip("events behind a command that may have been inputs of their own")
            else:
                self.add(difference)
        self.maybe = []

    def skip(self, why: str, count: int = 1) -> None:
        """Counts what could not be compared."""
        self.not_compared[why] = self.not_compared.get(why, 0) + count


def name_of(body: bytes) -> str:
    """The name of a message without its version."""
    return tag_of(body).partition("@")[0]


def message_differences(old: bytes, new: bytes) -> Iterator[tuple[str, Any, Any]]:
    """Field by field where two messages differ: name, old, new."""
    if tag_of(old) != tag_of(new):
        yield "type", tag_of(old), tag_of(new)
    yield from value_differences(readable_fields(old), readable_fields(new))


def value_differences(old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """The same for what has been decoded; the name is empty where a value has no fields."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        if canonical_bytes(old) != canonical_bytes(new):
            yield "", shortened(old), shortened(new)
        return
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = old.get(name, ABSENT), new.get(name, ABSENT)
        if canonical_bytes(before) != canonical_bytes(after):
            yield str(name), shortened(before), shortened(after)


def effect_differences(old: Owed, new: Owed) -> Iterator[tuple[str, Any, Any]]:
    """The same for two effects: their targets and contents."""
    before, after = owing(old), owing(new)
    for name in ("sink", "to", "type"):
        if getattr(before, name) != getattr(after, name):
            yield name, getattr(before, name), getattr(after, name)
    yield from value_differences(before.fields, after.fields)


def shortened(value: Any) -> Any:
    """A value for a report, as JSON can say it; a long one is cut."""
    plain = plain_state(value)
    text = msgspec.json.encode(plain).decode()
    return plain if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"


def shown_effect(owed: Owed) -> str:
    """An effect in a few words."""
    effect = owing(owed)
    fields = msgspec.json.encode(effect.fields).decode()
    return shortened(f"{effect.type or effect.sink} {f'to {effect.to} ' if effect.to else ''}{fields}")  # type: ignore[no-any-return]
