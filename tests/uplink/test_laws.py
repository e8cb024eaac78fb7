"""The laws of a sieve, over random logs and several rules: nothing twice, nothing missing, the same from anywhere."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.shard.commit import COMMIT_FORMAT, GENESIS, Commit, EventRun, HashAlgorithm
from stigmergy.uplink.rules import FIRST_EVENT, WHOLE, Aggregate, Item, Sieve, Summary, UplinkRule, duration_ns


class Moved(Event):
    x: int


class Measured(Event):
    percent: float


class Done(Event):
    pass


NAMES = ("Moved", "Measured", "Done")
AGENTS = ("A/1", "A/2")
RULES = st.sampled_from(
    (
        UplinkRule(),
        UplinkRule(only=("Done",)),
        UplinkRule(only=("Done",), sample={"Moved": "3s"}, aggregate={"Measured": Aggregate(every="10s")}),
        UplinkRule(sample={"Moved": "700ms", "Done": "20s"}),
        UplinkRule(aggregate={"Measured": Aggregate(every="2s"), "Moved": Aggregate(every="7s", fields=("x",))}),
        UplinkRule(only=("Moved",), aggregate={"Moved": Aggregate(every="1s")}),
    )
)
EVENTS = st.sampled_from((Moved(x=1), Moved(x=-5), Measured(percent=3.5), Measured(percent=9.25), Done()))
PLACED = st.tuples(st.sampled_from(AGENTS), EVENTS)
STEPS_S = st.sampled_from((0.0, 0.1, 0.5, 1.0, 3.0, 30.0))
summary_of = msgspec.msgpack.Decoder(Summary)


def commit(position: int, runs: list[tuple[float, list[tuple[str, Event]]]]) -> Commit:
    events = [(address, encode(event)) for _, kept in runs for address, event in kept]
    timed = [EventRun(len(kept), round(at_s * SECOND_NS), "test") for at_s, kept in runs]
    return Commit(COMMIT_FORMAT, HashAlgorithm.BLAKE3_256, 0, position, 1, GENESIS, timed, events)


@st.composite
def logs(draw: st.DrawFn) -> list[Commit]:
    """A shard's log: commits of one or more runs, whose time never goes back."""
    at_s = 1000.0
    found: list[Commit] = []
    for position in range(1, draw(st.integers(1, 25)) + 1):
        runs: list[tuple[float, list[tuple[str, Event]]]] = []
        for _ in range(draw(st.integers(1, 2))):
            at_s += draw(STEPS_S)
            runs.append((at_s, draw(st.lists(PLACED, max_size=4))))
        found.append(commit(position, runs))
    return found


def times_of(log: list[Commit], address: str, name: str) -> list[int]:
    """When an agent kept events of a type."""
    found: list[int] = []
    for one in log:
        times = [run.time_ns for run in one.runs for _ in range(run.events)]
        found += [
            time_ns
            for (where, body), time_ns in zip(one.events, times, strict=True)
            if where == address and tag_of(body) == f"{name}@1"
        ]
    return found


def summaries(items: list[Item], address: str, name: str) -> list[Summary]:
    found = [
        summary_of.decode(body) for number, where, body in items if number & WHOLE < FIRST_EVENT and where == address
    ]
    return [one for one in found if one.event == name]


@given(RULES, logs())
def test_each_event_goes_up_or_into_one_summary_or_is_left_out(rule: UplinkRule, log: list[Commit]) -> None:
    sieve = Sieve(rule)
    items = [item for one in log for item in sieve.take(one)]
    items += sieve.take(commit(10_000, [(10_000_000.0, [])]))
    numbers = [number for number, _, _ in items]
    assert numbers == sorted(set(numbers))
    for address in AGENTS:
        for name in NAMES:
            times = times_of(log, address, name)
            went = sum(1 for _, where, body in items if where == address and tag_of(body) == f"{name}@1")
            if name in rule.sample:
                every_ns = duration_ns(name, rule.sample[name])
                assert went == len(dict.fromkeys(time_ns // every_ns for time_ns in times))
            elif (name not in rule.aggregate) if rule.only is None else (name in rule.only):
                assert went == len(times)
            else:
                assert not went
            found = summaries(items, address, name)
            if name in rule.aggregate:
                every_ns = duration_ns(name, rule.aggregate[name].every)
                starts = sorted(dict.fromkeys(time_ns - time_ns % every_ns for time_ns in times))
                assert [round(one.start_s * SECOND_NS) for one in found] == starts
                assert sum(one.count for one in found) == len(times)
            else:
                assert not found


@given(RULES, logs(), st.data())
def test_a_sieve_that_begins_at_the_horizon_is_the_same(
    rule: UplinkRule, log: list[Commit], data: st.DataObject
) -> None:
    whole = Sieve(rule)
    taken = [whole.take(one) for one in log]
    cut = data.draw(st.integers(1, len(log)))
    begun = Sieve(rule)
    horizon_ns = begun.horizon(log[cut - 1].runs[0].time_ns)
    for one in log[:cut]:
        if one.runs[-1].time_ns >= horizon_ns:
            begun.take(one)
    assert [begun.take(one) for one in log[cut:]] == taken[cut:]
