"""Which part of a journal goes up to a gateway: a rule, and the sieve that applies it to commits in order. Pure.

    uplink = { only = ["MissionCompleted"], sample = { Position = "1s" },
               aggregate = { BatteryMeasured = { every = "60s", fields = ["percent"] } } }

Every decision follows from the journal, its times included, and never from a clock: the same commits always give the
same events with the same numbers. So a sender needs no memory of its own. To restore what a sieve remembers, samples
and unfinished summaries, feed it the commits since `horizon` again.

A number is `position << 22 | slot`. The slots of a commit are first for the summaries that its time completes, then,
from 2**21 on, one for each of its events, sent or not: events that the rule leaves out leave gaps in the numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.columns import read_columns
from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.base.errors import ConfigError
from stigmergy.shard.commit import Commit
from stigmergy.shard.commit_reader import Reading, Records, runs_of
from stigmergy.shard.directory import Directory

SLOT_BITS = 22
FIRST_EVENT = 1 << (SLOT_BITS - 1)
WHOLE = (1 << SLOT_BITS) - 1
"""The slot that stands for a whole commit."""
BUCKETS_COUNT_MAX = 100_000
"""Unfinished summaries. At the limit the events of further agents are left out and counted."""
SAMPLES_COUNT_MAX = 100_000
"""Samples remembered before expired ones are dropped."""
NAMES_COUNT_MAX = 1_000
EVERY_MS_MAX = 24 * 3600 * 1000
OURS = "stigmergy."
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(ms|s|m|h)", re.ASCII)
_UNITS_NS = {"ms": SECOND_NS // 1000, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}

Item = tuple[int, str, bytes]
"""What goes up: number, agent, the event's bytes."""


class FieldSummary(Struct, frozen=True):
    """The summary of a numeric field. Values that are not finite numbers are skipped."""

    name: str
    count: int
    min: float
    max: float
    mean: float
    last: float


class Summary(Event, name="stigmergy.Summary"):
    """Stands for all events of one type of an agent in a period. Times are the journal's."""

    event: str
    """The type's name, without its version."""
    count: int
    start_s: float
    end_s: float
    """The period: from its start up to, and not including, its end."""
    first_s: float
    last_s: float
    """The times of the first and the last event."""
    fields: tuple[FieldSummary, ...] = ()

    def field(self, name: str) -> FieldSummary | None:
        """The summary of one field; None if it never had a number."""
        return next((field for field in self.fields if field.name == name), None)


class Aggregate(Struct, frozen=True, forbid_unknown_fields=True):
    """One summary per agent for each period; without fields, of all numeric ones."""

    every: str
    fields: tuple[str, ...] = ()


class UplinkRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What goes up. Names are those of event types, of any version.

    Without `only` everything goes up except what is sampled or aggregated; with it, only what it names, samples and
    summaries. A type may be aggregated, and also be sampled or in `only`.
    """

    only: tuple[str, ...] | None = None
    sample: Mapping[str, str] = {}
    """At most one event per agent, the first, for each period."""
    aggregate: Mapping[str, Aggregate] = {}
    when_full: Literal["drop", "hold"] = "drop"
    """When the log needs room and the receiver has not confirmed its oldest part: drop that and declare it lost, or
    hold it, and let the node stop instead."""

    def __post_init__(self) -> None:
        names = named_in(self)
        if len(names) > NAMES_COUNT_MAX:
            raise ConfigError(f"uplink: {len(names)} names of events, {NAMES_COUNT_MAX} at most")
        for name in names:
            if not name or "@" in name:
                raise ConfigError(f"uplink: {name!r} is not the name of an event type; write it without a version")
        for name in self.sample:
            duration_ns(f"uplink: sample.{name}", self.sample[name])
            if name in (self.only or ()):
                raise ConfigError(f"uplink: {name} is in only and in sample; choose whether all or some of them go up")
        for name, aggregate in self.aggregate.items():
            duration_ns(f"uplink: aggregate.{name}.every", aggregate.every)


def named_in(rule: UplinkRule) -> list[str]:
    """The event types that a rule names."""
    return [*(rule.only or ()), *rule.sample, *rule.aggregate]


def duration_ns(what: str, text: str) -> int:
    """Parses `500ms`, `1s`, `5m`, `1h`."""
    found = _DURATION.fullmatch(text)
    length_ns = round(float(found[1]) * _UNITS_NS[found[2]]) if found else 0
    if not SECOND_NS // 1000 <= length_ns <= EVERY_MS_MAX * (SECOND_NS // 1000):
        raise ConfigError(f"{what} = {text!r}; give from 1ms to 24h, such as 500ms, 1s, 5m or 1h")
    return length_ns


def number_of(position: int, slot: int = WHOLE) -> int:
    """The number of a slot of a commit; without a slot, of the commit's end."""
    return position << SLOT_BITS | slot


def position_of(number: int) -> int:
    """The commit of a number."""
    return number >> SLOT_BITS


def complete_position(number: int) -> int:
    """The last commit that is complete at this number."""
    return number >> SLOT_BITS if number & WHOLE == WHOLE else (number >> SLOT_BITS) - 1


class _Field:
    __slots__ = ("count", "last", "max", "min", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.min = math.inf
        self.max = -math.inf
        self.sum = self.last = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self.sum += value
        self.last = value


class _Bucket:
    __slots__ = ("count", "fields", "first_ns", "last_ns", "start_ns")

    def __init__(self, start_ns: int, first_ns: int) -> None:
        self.start_ns = start_ns
        self.first_ns = self.last_ns = first_ns
        self.count = 0
        self.fields: dict[str, _Field] = {}

    def add(self, message: Mapping[str, Any], wanted: tuple[str, ...], time_ns: int) -> None:
        self.count += 1
        self.last_ns = time_ns
        for name in wanted or message:
            value = message.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                self.fields.setdefault(name, _Field()).add(float(value))

    def summary(self, event: str, end_ns: int) -> Summary:
        return Summary(
            event=event,
            count=self.count,
            start_s=self.start_ns / SECOND_NS,
            end_s=end_ns / SECOND_NS,
            first_s=self.first_ns / SECOND_NS,
            last_s=self.last_ns / SECOND_NS,
            fields=tuple(
                FieldSummary(name, field.count, field.min, field.max, field.sum / field.count, field.last)
                for name, field in self.fields.items()
            ),
        )


class SieveCounters(Struct):
    """What happened to the events of the journal."""

    uplink_events_passed: int = 0
    uplink_events_left_out: int = 0
    uplink_summaries: int = 0
    uplink_buckets_refused: int = 0


class Sieve:
    """Applies a rule to the commits of one shard, in order."""

    def __init__(
        self,
        rule: UplinkRule,
        counters: SieveCounters | None = None,
        stays: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Events of a type that `stays` here are left out, whatever the rule says."""
        self._stays = stays
        self._only = None if rule.only is None else frozenset(rule.only)
        self._sample = {name: duration_ns(name, every) for name, every in rule.sample.items()}
        self._aggregate = {
            name: (duration_ns(name, aggregate.every), aggregate.fields) for name, aggregate in rule.aggregate.items()
        }
        self._lengths = (*self._sample.values(), *(length_ns for length_ns, _ in self._aggregate.values()))
        self._sampled: dict[tuple[str, str], int] = {}
        """By agent and type: the end of the period that was sampled."""
        self._buckets: dict[tuple[int, str, str], _Bucket] = {}
        """By end, agent and type."""
        self._next_end_ns = 0
        self._names: dict[str, str] = {}
        self.counters = counters or SieveCounters()

    @property
    def longest_ns(self) -> int:
        """The longest period that it has to remember; 0 if it remembers nothing."""
        return max(self._lengths, default=0)

    def horizon(self, time_ns: int) -> int:
        """The time from which on commits matter for what the sieve remembers after a commit of this time."""
        return min((_floor(time_ns, length_ns) for length_ns in self._lengths), default=time_ns + 1)

    def take(self, commit: Commit, reading: Reading | None = None) -> list[Item]:
        """The events of this commit that go up, and the summaries that its time completes, ordered by their numbers.

        `reading` is needed for events of compiled agents; they go up as ordinary messages.
        """
        items: list[Item] = []
        base = commit.position << SLOT_BITS
        first_ns = commit.runs[0].time_ns
        if self._buckets and first_ns >= self._next_end_ns:
            for slot, (address, body) in enumerate(self._completed(first_ns), start=1):
                items.append((base | slot, address, body))
        completed = len(items)
        slot = base | FIRST_EVENT
        events = iter(commit.events)
        for run in commit.runs:
            for _ in range(run.events):
                address, body = next(events)
                name = self._name(tag_of(body))
                if name in self._aggregate:
                    self._collect(address, name, msgspec.msgpack.decode(body), run.time_ns)
                if self._passes(address, name, run.time_ns):
                    items.append((slot, address, body))
                slot += 1
        if commit.columns:
            for records in runs_of(commit, Directory() if reading is None else reading):
                self._take_records(records, base | FIRST_EVENT, items)
        passed = len(items) - completed
        self.counters.uplink_events_passed += passed
        self.counters.uplink_events_left_out += commit.events_count - passed
        return items

    def _take_records(self, records: Records, base: int, items: list[Item]) -> None:
        """The same for records. Unwanted ones are not decoded."""
        run, forms = records.run, records.layout.forms
        names = [self._name(form.tag) for form in forms]
        wanted = [name in self._aggregate or name in self._sample or self._passes("", name, 0) for name in names]
        for place, (agent, form) in enumerate(records.heads()):
            if not wanted[form]:
                continue
            address, name = records.address(agent), names[form]
            if name in self._aggregate:
                start = place * records.layout.record_bytes
                self._collect(address, name, read_columns(forms[form].columns, run.records, start), run.time_ns)
            if self._passes(address, name, run.time_ns):
                items.append((base + records.first + place, address, records.body(place, form)))

    def _passes(self, address: str, name: str, time_ns: int) -> bool:
        """Whether an event goes up as it is."""
        if not name:
            return False
        if name in self._sample:
            return self._is_first(address, name, time_ns)
        return name not in self._aggregate if self._only is None else name in self._only

    def _name(self, tag: str) -> str:
        """The name of a type that may go up. The framework's events about this node's own agents may not."""
        name = self._names.get(tag)
        if name is None:
            name = tag.partition("@")[0]
            if name.startswith(OURS):
                name = Summary.__name__ if name == f"{OURS}{Summary.__name__}" else ""
            elif self._stays(name):
                name = ""
            if len(self._names) < NAMES_COUNT_MAX:
                self._names[tag] = name
        return name

    def _is_first(self, address: str, name: str, time_ns: int) -> bool:
        end_ns = _floor(time_ns, self._sample[name]) + self._sample[name]
        key = (address, name)
        if self._sampled.get(key) == end_ns:
            return False
        if len(self._sampled) >= SAMPLES_COUNT_MAX and key not in self._sampled:
            self._sampled = {one: until_ns for one, until_ns in self._sampled.items() if until_ns > time_ns}
        self._sampled[key] = end_ns
        return True

    def _collect(self, address: str, name: str, message: Mapping[str, Any], time_ns: int) -> None:
        length_ns, wanted = self._aggregate[name]
        start_ns = _floor(time_ns, length_ns)
        key = (start_ns + length_ns, address, name)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_COUNT_MAX:
                self.counters.uplink_buckets_refused += 1
                return
            bucket = self._buckets[key] = _Bucket(start_ns, time_ns)
            self._next_end_ns = min(self._next_end_ns or key[0], key[0])
        bucket.add(message, wanted, time_ns)

    def _completed(self, time_ns: int) -> Iterator[tuple[str, bytes]]:
        """The summaries of finished periods: a journal's time never goes back, so no event of theirs can follow."""
        for key in sorted(key for key in self._buckets if key[0] <= time_ns):
            end_ns, address, name = key
            self.counters.uplink_summaries += 1
            yield address, encode(self._buckets.pop(key).summary(name, end_ns))
        self._next_end_ns = min((end_ns for end_ns, _, _ in self._buckets), default=0)


def _floor(time_ns: int, length_ns: int) -> int:
    return time_ns - time_ns % length_ns
