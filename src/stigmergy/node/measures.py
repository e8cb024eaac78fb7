"""What a host measures of its own work, in plain integers: once for a turn or a group, never for each event.

Types of events and busy agents are counted exactly while events are few, and from a sample above that: SAMPLED_PER_S
events, and as many records of compiled agents, are looked at in a second, whatever comes, and never within the loop
that steps them. The host's clock is the only one, so a simulation replays all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stigmergy.agents.codec import tag_of
from stigmergy.agents.columns import ColumnRun
from stigmergy.agents.effects import ACTUATORS, WORK
from stigmergy.agents.messages import SECOND_NS
from stigmergy.metrics.busiest import Busiest
from stigmergy.metrics.histogram import COUNTS, Histogram
from stigmergy.shard.draft import Ready

SAMPLED_PER_S = 200
SAMPLED_BURST = 100
TYPES_COUNT_MAX = 1_000
"""Types of events that are counted by name; a fleet declares them, so there are few."""
PHASES = 8
"""The sample of a commit begins at one place in so many: it must not keep step with agents that take turns."""
NUMBER_BYTES = 4
"""A record of a compiled agent begins with the agent's number."""
SHARD_EVENTS = "(shard)"
"""Stands for the kind of events that are of no agent."""
COLUMN_RECORDS = "(records)"
"""Stands for the types of events of compiled agents, which are not told apart here."""


class _Sampling:
    """Chooses which of many to look at: SAMPLED_PER_S in a second, evenly."""

    def __init__(self) -> None:
        self._sampled_ns = 0
        self._tokens = float(SAMPLED_BURST)
        self._phase = 0
        self.missed = 0
        """Of those that came since the last look."""

    def choose(self, count: int, monotonic_ns: int) -> tuple[float, Sequence[int]]:
        """The places of those of `count` to look at, and for how many each of them stands."""
        earned = (monotonic_ns - self._sampled_ns) * SAMPLED_PER_S / SECOND_NS
        self._sampled_ns = monotonic_ns
        self._tokens = min(float(SAMPLED_BURST), self._tokens + earned)
        looks = min(count, int(self._tokens))
        if not looks:
            self.missed += count
            return 0.0, ()
        self._tokens -= looks
        weight = (count + self.missed) / looks
        self.missed = 0
        stride = count / looks
        self._phase = (self._phase + 5) % PHASES
        first = self._phase * stride / PHASES
        return weight, [int(first + number * stride) for number in range(looks)]


class HostMeasures:
    """The histograms and counts of one host. `name_of` says the id of a compiled agent by shard, kind and number."""

    def __init__(self, name_of: Callable[[int, str, int], str] = lambda _shard, _kind, number: f"#{number}") -> None:
        self.event_to_action = Histogram()
        self.mailbox_wait = Histogram()
        self.step = Histogram()
        self.seal = Histogram()
        self.commit = Histogram()
        self.release = Histogram()
        self.group_events = Histogram(COUNTS)
        self.snapshot = Histogram()
        self.source_lag = Histogram()
        self.effects = {sink: Histogram() for sink in (ACTUATORS, WORK)}
        self.inference: dict[str, Histogram] = {}
        """By the name of the model, from question to answer."""
        self.inferences: dict[tuple[str, str, str], int] = {}
        """By model, version and outcome."""
        self.written_bytes = 0
        self.types: dict[tuple[str, str], float] = {}
        """Events by kind and type."""
        self.busiest = Busiest()
        self.on_group: Callable[[Sequence[Ready]], None] | None = None
        """Hears of each durable group while a profile runs."""
        self._name_of = name_of
        self._events, self._records = _Sampling(), _Sampling()

    def answered(self, model: str, version: str, outcome: str, latency_ns: int) -> None:
        """A model, or its rule, has answered."""
        latencies = self.inference.get(model)
        if latencies is None:
            latencies = self.inference[model] = Histogram()
        latencies.observe(latency_ns)
        name = (model, version, outcome)
        count = self.inferences.get(name, 0)
        if count or len(self.inferences) < TYPES_COUNT_MAX:
            self.inferences[name] = count + 1

    def group(self, readies: Sequence[Ready], monotonic_ns: int) -> None:
        """A group is durable."""
        events = 0
        for ready in readies:
            commit = ready.commit
            self.written_bytes += len(ready.sealed.body)
            count = len(commit.events)
            events += count
            if count:
                self._look_at(commit.events, count, monotonic_ns)
            for run in commit.columns:
                events += run.count
                self._count((run.kind, COLUMN_RECORDS), run.count)
                self._look_at_records(commit.shard, run, monotonic_ns)
        self.group_events.observe(events)
        if self.on_group is not None:
            self.on_group(readies)

    def _look_at(self, events: list[tuple[str, bytes]], count: int, monotonic_ns: int) -> None:
        weight, places = self._events.choose(count, monotonic_ns)
        self.busiest.fade(monotonic_ns)
        for place in places:
            address, body = events[place]
            self._count((address.partition("/")[0] or SHARD_EVENTS, tag_of(body).partition("@")[0]), weight)
            self.busiest.add(address, weight)

    def _look_at_records(self, shard: int, run: ColumnRun, monotonic_ns: int) -> None:
        """Whose some of the records are: each begins with the number of its agent, and all have the same length."""
        weight, places = self._records.choose(run.count, monotonic_ns)
        self.busiest.fade(monotonic_ns)
        width = len(run.records) // max(1, run.count)
        for place in places:
            number = int.from_bytes(run.records[place * width : place * width + NUMBER_BYTES], "little")
            self.busiest.add(f"{run.kind}/{self._name_of(shard, run.kind, number)}", weight)

    def _count(self, name: tuple[str, str], count: float) -> None:
        if name in self.types or len(self.types) < TYPES_COUNT_MAX:
            self.types[name] = self.types.get(name, 0) + count
