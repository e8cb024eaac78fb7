"""The rule of an uplink: what it lets through, under which numbers, and what its summaries say."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack, structs

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.base.errors import ConfigError, JournalCorrupt
from stigmergy.shard.commit import COMMIT_FORMAT, Commit, EventRun, HashAlgorithm
from stigmergy.shard.commit_reader import learn, walk
from stigmergy.shard.directory import Directory
from stigmergy.uplink.rules import (
    FIRST_EVENT,
    SLOT_BITS,
    WHOLE,
    Aggregate,
    FieldSummary,
    Sieve,
    SieveCounters,
    Summary,
    UplinkRule,
    complete_position,
    duration_ns,
    number_of,
    position_of,
)
from tests.formats.golden_columns import COMMIT, RECORDS, RUN


class Moved(Event):
    x: float = 0.0
    y: float = 0.0
    name: str = ""
    fast: bool = False


class Arrived(Event):
    pass


A, B = "Drone/a", "Drone/b"


def commit(position: int, *taken: tuple[float, str, Event]) -> Commit:
    """A commit of events, each with its time in seconds and its agent; a run for each of them."""
    return Commit(
        format=COMMIT_FORMAT,
        hash_algorithm=HashAlgorithm.BLAKE3_256,
        shard=0,
        position=position,
        epoch=0,
        previous=b"",
        runs=[EventRun(1, round(at_s * SECOND_NS), "s") for at_s, _, _ in taken],
        events=[(address, encode(event)) for _, address, event in taken],
    )


def took(sieve: Sieve, position: int, *taken: tuple[float, str, Event]) -> list[tuple[int, str]]:
    """The slots of what goes up of a commit, and the types."""
    items = sieve.take(commit(position, *taken))
    assert all(position_of(number) == position for number, _, _ in items)
    return [(number & WHOLE, msgspec.msgpack.decode(body)["type"].partition("@")[0]) for number, _, body in items]


def summaries(sieve: Sieve, position: int, *taken: tuple[float, str, Event]) -> list[tuple[str, Summary]]:
    items = sieve.take(commit(position, *taken))
    return [
        (address, msgspec.msgpack.decode(body, type=Summary))
        for number, address, body in items
        if number & WHOLE < FIRST_EVENT
    ]


# Numbers.


def test_a_number_is_a_commit_and_a_slot_of_it() -> None:
    assert (SLOT_BITS, FIRST_EVENT, WHOLE) == (22, 2**21, 2**22 - 1)
    assert number_of(5, 3) == 5 * 2**22 + 3
    assert number_of(5) == 6 * 2**22 - 1
    assert position_of(number_of(5)) == position_of(number_of(5, 0)) == 5
    assert number_of(5) + 1 == number_of(6, 0)


def test_a_commit_is_complete_when_its_last_slot_is() -> None:
    assert complete_position(number_of(5)) == 5
    assert complete_position(number_of(5) - 1) == 4
    assert complete_position(number_of(5, 0)) == 4
    assert complete_position(number_of(6, 0)) == 5


# The rule.


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("1ms", 10**6),
        ("500ms", 500 * 10**6),
        ("0.001s", 10**6),
        ("1s", 10**9),
        ("1.5 s", 1_500_000_000),
        ("5m", 300 * 10**9),
        ("2h", 7_200 * 10**9),
        ("24h", 86_400 * 10**9),
        ("86400s", 86_400 * 10**9),
    ],
)
def test_durations_are_read(text: str, expected_ns: int) -> None:
    assert duration_ns("x", text) == expected_ns


@pytest.mark.parametrize(
    "text", ["", "0s", "0.9ms", "0.999999ms", "25h", "86400.001s", "24.000001h", "1", "s", "1d", "-1s", "1 s ", "1e3s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"what = .*; give from 1ms to 24h"):
        duration_ns("what", text)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"only": ("Moved@1",)}, "is not the name of an event type"),
        ({"only": ("",)}, "is not the name of an event type"),
        ({"sample": {"Moved": "soon"}}, r"sample\.Moved = 'soon'"),
        ({"aggregate": {"Moved": Aggregate(every="25h")}}, r"aggregate\.Moved\.every = '25h'"),
        ({"only": ("Moved",), "sample": {"Moved": "1s"}}, "Moved is in only and in sample"),
        ({"only": tuple(f"E{n}" for n in range(1_001))}, "1001 names of events, 1000 at most"),
        ({"only": tuple(f"E{n}" for n in range(1_000)), "sample": {"Moved": "1s"}}, "1001 names"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        UplinkRule(**rule)


def test_a_rule_may_name_so_many_types() -> None:
    rule = UplinkRule(only=tuple(f"E{n}" for n in range(998)), sample={"S": "1s"}, aggregate={"A": Aggregate("1s")})
    assert len(rule.only or ()) == 998


# What goes up as it is.


def test_without_a_rule_everything_goes_up_in_its_slot() -> None:
    sieve = Sieve(UplinkRule())
    assert took(sieve, 7, (1, A, Moved()), (1, B, Arrived())) == [
        (FIRST_EVENT, "Moved"),
        (FIRST_EVENT + 1, "Arrived"),
    ]
    assert sieve.counters == SieveCounters(uplink_events_passed=2)


def test_what_the_rule_leaves_out_leaves_a_hole_in_the_numbers() -> None:
    sieve = Sieve(UplinkRule(only=("Arrived",)))
    assert took(sieve, 7, (1, A, Moved()), (1, A, Arrived()), (2, A, Moved()), (2, B, Arrived())) == [
        (FIRST_EVENT + 1, "Arrived"),
        (FIRST_EVENT + 3, "Arrived"),
    ]
    assert took(sieve, 8, (3, A, Moved())) == []
    assert sieve.counters == SieveCounters(uplink_events_passed=2, uplink_events_left_out=3)


def test_runs_of_more_events_are_counted_through() -> None:
    events = [(A, encode(Arrived()))] * 5
    taken = msgspec.structs.replace(
        commit(1, (1, A, Arrived())),
        runs=[EventRun(2, 1, "s"), EventRun(0, 2, "t"), EventRun(3, 3, "u")],
        events=events,
    )
    assert [number & WHOLE for number, _, _ in Sieve(UplinkRule()).take(taken)] == [FIRST_EVENT + n for n in range(5)]


def test_of_the_frameworks_own_only_summaries_go_up() -> None:
    sieve = Sieve(UplinkRule())
    bodies = [
        msgspec.msgpack.encode({"type": tag})
        for tag in ("stigmergy.Woken@1", "stigmergy.Summary@1", "stigmergyx@1", "Moved@2")
    ]
    taken = msgspec.structs.replace(
        commit(1, (1, A, Arrived())), runs=[EventRun(5, 1, "s")], events=[(A, body) for body in [*bodies, b"\xc1"]]
    )
    assert [number & WHOLE for number, _, _ in sieve.take(taken)] == [FIRST_EVENT + n for n in (1, 2, 3)]


def test_names_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.uplink.rules.NAMES_COUNT_MAX", 1)
    sieve = Sieve(UplinkRule(only=("Arrived",)))
    for position in (1, 2):
        assert took(sieve, position, (1, A, Moved()), (1, A, Arrived())) == [(FIRST_EVENT + 1, "Arrived")]
    assert len(sieve._names) == 1


# Samples.


def test_of_each_stretch_and_agent_the_first_is_sampled() -> None:
    sieve = Sieve(UplinkRule(sample={"Moved": "10s"}))
    assert sieve.longest_ns == 10 * SECOND_NS
    times = (3, 9.999999999, 10, 10, 19.9, 25, 40)
    sampled = took(sieve, 1, *((at_s, A, Moved()) for at_s in times))
    assert [slot - FIRST_EVENT for slot, _ in sampled] == [0, 2, 5, 6]
    assert took(sieve, 2, (41, A, Moved()), (41, B, Moved()), (41, A, Arrived())) == [
        (FIRST_EVENT + 1, "Moved"),
        (FIRST_EVENT + 2, "Arrived"),
    ]


def test_a_sampled_type_goes_up_beside_what_only_names() -> None:
    sieve = Sieve(UplinkRule(only=("Arrived",), sample={"Moved": "10s"}))
    assert [name for _, name in took(sieve, 1, (1, A, Moved()), (1, A, Arrived()), (2, A, Moved()))] == [
        "Moved",
        "Arrived",
    ]


def test_samples_whose_time_is_over_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.uplink.rules.SAMPLES_COUNT_MAX", 2)
    sieve = Sieve(UplinkRule(sample={"Moved": "10s"}))
    took(sieve, 1, (1, "Drone/1", Moved()), (12, "Drone/2", Moved()))
    assert len(sieve._sampled) == 2
    took(sieve, 2, (12, "Drone/2", Moved()))
    assert len(sieve._sampled) == 2, "one that is known needs no room"
    took(sieve, 3, (19, "Drone/3", Moved()))
    assert [address for address, _ in sieve._sampled] == ["Drone/2", "Drone/3"]
    assert took(sieve, 4, (19.5, "Drone/2", Moved()), (19.5, "Drone/3", Moved())) == []
    took(sieve, 5, (20, "Drone/4", Moved()))
    assert [address for address, _ in sieve._sampled] == ["Drone/4"], "at its end a stretch is over"


# Summaries.


def test_a_summary_says_what_the_fields_were_like() -> None:
    sieve = Sieve(UplinkRule(aggregate={"Moved": Aggregate(every="10s", fields=("x", "y"))}))
    taken = [(12.5, A, Moved(x=3.0, y=-1.0)), (14.0, A, Moved(x=1.0)), (17.25, A, Moved(x=8.0, y=math.inf))]
    assert took(sieve, 1, *taken) == []
    assert took(sieve, 2, (19.999999999, B, Arrived())) == [(FIRST_EVENT, "Arrived")]
    ((address, summary),) = summaries(sieve, 3, (20.0, B, Arrived()))
    assert address == A
    assert (summary.event, summary.count) == ("Moved", 3)
    assert (summary.start_s, summary.end_s, summary.first_s, summary.last_s) == (10.0, 20.0, 12.5, 17.25)
    assert summary.fields == (FieldSummary("x", 3, 1.0, 8.0, 4.0, 8.0), FieldSummary("y", 2, -1.0, 0.0, -0.5, 0.0))
    assert summary.field("y") == FieldSummary("y", 2, -1.0, 0.0, -0.5, 0.0)
    assert summary.field("name") is None
    assert sieve.counters.uplink_summaries == 1
    assert summaries(sieve, 4, (30.0, B, Arrived())) == [], "it is told once"


def test_a_stretch_of_less_than_a_second_has_its_own_times() -> None:
    sieve = Sieve(UplinkRule(aggregate={"Moved": Aggregate(every="500ms")}))
    took(sieve, 1, (1.75, A, Moved()))
    ((_, summary),) = summaries(sieve, 2, (2.0, B, Arrived()))
    assert (summary.start_s, summary.end_s, summary.first_s, summary.last_s) == (1.5, 2.0, 1.75, 1.75)
    took(sieve, 3, (2.25, A, Moved()))
    ((_, summary),) = summaries(sieve, 4, (3.0, B, Arrived()))
    assert (summary.start_s, summary.end_s) == (2.0, 2.5)


def test_without_fields_all_numbers_are_summed_up() -> None:
    sieve = Sieve(UplinkRule(aggregate={"Moved": Aggregate(every="1s")}))
    took(sieve, 1, (1, A, Moved(x=2, y=math.nan, name="n", fast=True)))
    ((_, summary),) = summaries(sieve, 2, (2, A, Arrived()))
    assert summary.fields == (FieldSummary("x", 1, 2.0, 2.0, 2.0, 2.0),)


def test_summaries_come_before_the_events_of_the_commit_that_completes_them() -> None:
    sieve = Sieve(UplinkRule(aggregate={"Moved": Aggregate(every="10s"), "Arrived": Aggregate(every="20s")}))
    took(sieve, 1, (5, B, Moved()), (5, A, Moved()), (6, A, Arrived()), (11, A, Moved()))
    items = sieve.take(commit(2, (20, B, Moved())))
    assert [number & WHOLE for number, _, _ in items] == [1, 2, 3, 4]
    found = [(address, msgspec.msgpack.decode(body, type=Summary)) for _, address, body in items]
    assert [(address, one.event, one.end_s) for address, one in found] == [
        (A, "Moved", 10.0),
        (B, "Moved", 10.0),
        (A, "Arrived", 20.0),
        (A, "Moved", 20.0),
    ]
    assert sieve.counters == SieveCounters(uplink_events_left_out=5, uplink_summaries=4)
    assert [address for address, _ in summaries(sieve, 3, (30, A, Arrived()))] == [B]


def test_a_summary_waits_for_its_own_end_only() -> None:
    sieve = Sieve(UplinkRule(aggregate={"Moved": Aggregate(every="10s"), "Arrived": Aggregate(every="1h")}))
    took(sieve, 1, (5, A, Arrived()), (5, A, Moved()))
    assert [one.event for _, one in summaries(sieve, 2, (10, A, Arrived()))] == ["Moved"]
    took(sieve, 3, (11, A, Moved()))
    assert [one.event for _, one in summaries(sieve, 4, (3599, A, Arrived()))] == ["Moved"]
    assert [(one.event, one.count) for _, one in summaries(sieve, 5, (3600, A, Arrived()))] == [("Arrived", 3)]


def test_the_time_of_a_commits_first_run_completes() -> None:
    sieve = Sieve(UplinkRule(aggregate={"Moved": Aggregate(every="10s")}))
    took(sieve, 1, (5, A, Moved()))
    assert summaries(sieve, 2, (9, A, Moved()), (12, A, Moved())) == []
    found = summaries(sieve, 3, (13, A, Moved()))
    assert [(one.end_s, one.count) for _, one in found] == [(10.0, 2)]


def test_an_aggregated_type_may_go_up_besides() -> None:
    aggregate = {"Moved": Aggregate(every="10s")}
    for rule, expected in (
        (UplinkRule(aggregate=aggregate), []),
        (UplinkRule(aggregate=aggregate, only=("Moved",)), [0, 1, 2]),
        (UplinkRule(aggregate=aggregate, sample={"Moved": "5s"}), [0, 2]),
    ):
        sieve = Sieve(rule)
        sent = took(sieve, 1, (1, A, Moved()), (2, A, Moved()), (6, A, Moved()))
        assert [slot - FIRST_EVENT for slot, _ in sent] == expected
        assert [one.count for _, one in summaries(sieve, 2, (10, A, Arrived()))] == [3]


def test_summaries_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.uplink.rules.BUCKETS_COUNT_MAX", 2)
    sieve = Sieve(UplinkRule(aggregate={"Moved": Aggregate(every="10s")}))
    took(sieve, 1, *((1, f"Drone/{n}", Moved()) for n in (1, 2, 3, 3, 2)))
    assert sieve.counters.uplink_buckets_refused == 2
    found = summaries(sieve, 2, (10, "Drone/3", Moved()))
    assert [(address, one.count) for address, one in found] == [("Drone/1", 1), ("Drone/2", 2)]
    assert [address for address, _ in summaries(sieve, 3, (20, "Drone/3", Moved()))] == ["Drone/3"]


# What has to be read again.


def test_a_sieve_needs_the_log_from_the_beginning_of_its_stretches() -> None:
    plain = Sieve(UplinkRule(only=("Moved",)))
    assert (plain.longest_ns, plain.horizon(1_234)) == (0, 1_235)
    both = Sieve(UplinkRule(sample={"Moved": "10s"}, aggregate={"Arrived": Aggregate(every="1m")}))
    assert both.longest_ns == 60 * SECOND_NS
    assert both.horizon(125 * SECOND_NS) == 120 * SECOND_NS
    assert both.horizon(59 * SECOND_NS) == 0
    assert Sieve(UplinkRule(sample={"Moved": "7s"})).horizon(20 * SECOND_NS) == 14 * SECOND_NS


RULE = UplinkRule(
    only=("Arrived",), sample={"Moved": "3s"}, aggregate={"Moved": Aggregate(every="5s"), "Arrived": Aggregate("7s")}
)
STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([A, B]), st.sampled_from([Moved(x=1), Moved(x=3), Arrived()])),
    min_size=1,
    max_size=30,
)


@given(STEPS, st.integers(0, 29))
def test_who_reads_again_from_the_horizon_finds_the_same(steps: list[tuple[int, str, Event]], stop: int) -> None:
    commits: list[Commit] = []
    at_s = 100
    for position, (later_s, address, event) in enumerate(steps, start=1):
        at_s += later_s
        commits.append(commit(position, (at_s, address, event)))
    first = Sieve(RULE)
    whole = [item for one in commits for item in first.take(one)]
    stop = min(stop, len(commits) - 1)
    again = Sieve(RULE)
    since_ns = again.horizon(commits[stop].runs[-1].time_ns)
    for one in commits[: stop + 1]:
        if one.runs[-1].time_ns >= since_ns:
            again.take(one)
    rest = [item for one in commits[stop + 1 :] for item in again.take(one)]
    assert rest == [item for item in whole if position_of(item[0]) > stop + 1]
    numbers = [number for number, _, _ in whole]
    assert numbers == sorted(set(numbers))


# ---- events of compiled agents


def test_records_go_up_as_the_messages_that_they_are() -> None:
    sieve = Sieve(UplinkRule())
    items = sieve.take(COMMIT, metering())
    expected = [one for one in walk(COMMIT, metering()) if one.address]
    assert [(address, body) for _, address, body in items] == [(one.address, one.body) for one in expected]
    assert [number & WHOLE for number, _, _ in items] == [FIRST_EVENT + one.index for one in expected]
    assert (sieve.counters.uplink_events_passed, sieve.counters.uplink_events_left_out) == (4, 2)


def test_records_that_nobody_wants_are_not_taken_apart() -> None:
    strange = structs.replace(RUN, records=RECORDS[:48] + b"\xff" + RECORDS[49:])
    sieve = Sieve(UplinkRule(only=("Measured",)))
    items = sieve.take(structs.replace(COMMIT, columns=[strange]), metering())
    assert [address for _, address, _ in items] == ["Meter/M-7"]
    assert sieve.counters.uplink_events_left_out == 4


def test_records_are_sampled_and_summed_up() -> None:
    rule = UplinkRule(sample={"Measured": "1s"}, aggregate={"Measured": Aggregate(every="1s", fields=("level",))})
    sieve = Sieve(rule)
    items = sieve.take(COMMIT, metering())
    assert [address for _, address, _ in items if address.startswith("Meter")] == ["Meter/M-7", "Meter/M-1"]
    later = structs.replace(
        COMMIT, runs=[EventRun(0, COMMIT.runs[0].time_ns + SECOND_NS, "")], events=[], owed=[], columns=[]
    )
    ((_, address, body),) = sieve.take(later)
    summary = msgpack.decode(body, type=Summary)
    level = summary.field("level")
    assert (address, summary.event, summary.count) == ("Meter/M-7", "Measured", 2)
    assert level is not None
    assert (level.count, level.min, level.mean) == (2, 99.5, 99.5)


def test_records_need_what_the_log_says_of_them() -> None:
    with pytest.raises(JournalCorrupt, match="does not declare"):
        Sieve(UplinkRule()).take(COMMIT)


def metering() -> Directory:
    directory = Directory()
    learn(directory, COMMIT)
    return directory
