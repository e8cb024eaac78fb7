"""Windows, late events and joins: the same rows in whatever order shards are read, and whatever is killed."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.agents.view import Key, Origin, View, ViewPlan, plan_of, project
from stigmergy.agents.view_time import tumbling
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import DefinitionError, ViewFailed
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.shard.commit import COMMIT_FORMAT, GENESIS, Commit, EventRun, HashAlgorithm
from stigmergy.shard.directory import Directory
from stigmergy.sim.node import SimNode
from stigmergy.testing import given as given_log
from stigmergy.views import joins
from stigmergy.views.fold import Fold
from stigmergy.views.port import shard_name
from tests.node.rig import play
from tests.views.deliveries import (
    VIEWS,
    Arrived,
    ArrivedPerMinute,
    Carrier,
    Deliveries,
    Departed,
    Measured,
    PerMinute,
)

Timed = tuple[int, Event]
"""An event and the second at which it is kept."""


def commits_of(shard: int, events: Sequence[Timed]) -> list[Commit]:
    """A log with a commit for each event."""
    return [
        Commit(
            COMMIT_FORMAT,
            HashAlgorithm.BLAKE3_256,
            shard,
            number,
            1,
            GENESIS,
            [EventRun(1, second * SECOND_NS, "test")],
            [(f"Carrier/{shard}", encode(event))],
        )
        for number, (second, event) in enumerate(events, start=1)
    ]


def fold_of(plan: ViewPlan, commits: Sequence[Commit]) -> tuple[list[Any], Fold]:
    """The rows that commits make in this order, and how."""
    fold = Fold(plan, empty=True)
    for commit in commits:
        fold.gather(commit, Directory(), "carriers")
        fold.apply()
    return sorted(fold.take_changes()[0]), fold


def interleaved(logs: Sequence[Sequence[Commit]], chance: random.Random) -> list[Commit]:
    """The commits of all logs, each in its order, in a random order of logs."""
    order = [number for number, commits in enumerate(logs) for _ in commits]
    chance.shuffle(order)
    lanes = [iter(commits) for commits in logs]
    return [next(lanes[number]) for number in order]


def growing(events: st.SearchStrategy[Event]) -> st.SearchStrategy[list[Timed]]:
    """A log: its times never go back."""
    return st.lists(st.tuples(st.integers(0, 40), events), max_size=12).map(
        lambda steps: [
            (1_000 + sum(step for step, _ in steps[: number + 1]), event) for number, (_, event) in enumerate(steps)
        ]
    )


def departures_or_arrivals() -> st.SearchStrategy[Event]:
    parcels = st.integers(1, 3)
    return st.one_of(
        st.builds(Departed, parcel=parcels, weight=st.integers(1, 9)),
        st.builds(Arrived, parcel=parcels, depot=st.sampled_from(["north", "south"])),
    )


def pairs_of(logs: Sequence[Sequence[Timed]], within_s: int) -> list[tuple[int, Departed, int, Arrived]]:
    """All pairs, by looking at all of them."""
    all_events = [one for log in logs for one in log]
    return [
        (left, departed, came, arrived)
        for left, departed in all_events
        if isinstance(departed, Departed)
        for came, arrived in all_events
        if isinstance(arrived, Arrived) and arrived.parcel == departed.parcel and 0 <= came - left <= within_s
    ]


@given(st.lists(growing(departures_or_arrivals()), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_join_has_each_pair_once_in_any_order_of_shards(logs: list[list[Timed]], chance: random.Random) -> None:
    expected: dict[str, tuple[str, int, int, int]] = {}
    for left, departed, came, arrived in pairs_of(logs, 60):
        _, count, weight, micros = expected.get(arrived.depot, ("", 0, 0, 0))
        micros += (came - left) * 1_000_000
        expected[arrived.depot] = (arrived.depot, count + 1, weight + departed.weight, micros)
    commits = [commits_of(shard, log) for shard, log in enumerate(logs)]
    for _ in range(3):
        rows, fold = fold_of(plan_of(Deliveries), interleaved(commits, chance))
        assert rows == sorted(expected.values())
        assert fold.halves.count == sum(map(len, logs))


@given(st.lists(growing(departures_or_arrivals()), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_expiry_and_a_start_in_between_change_no_pair(logs: list[list[Timed]], chance: random.Random) -> None:
    """Halves are let go as a projector does it, and it is killed now and then: it then reads again what waits."""
    plan = plan_of(Deliveries)
    commits = [commits_of(shard, log) for shard, log in enumerate(logs)]
    expected, _ = fold_of(plan, [commit for log in commits for commit in log])
    fold, kept = Fold(plan, empty=True), dict[Any, tuple[Any, ...]]()
    times = {shard: 0 for shard, log in enumerate(commits) if log}
    read = dict.fromkeys(times, 0)
    behind: list[Commit] = []

    def write() -> None:
        fold.add(missing := fold.missing(), [plan.row_of(kept[key]) for key in missing if key in kept])
        fold.apply()
        kept.update((plan.key_of(values), values) for values in fold.take_changes()[0])

    for commit in interleaved(commits, chance):
        if not behind and chance.random() < 0.3:
            from_where = {shard: fold.halves.oldest(shard_name("carriers", shard)) for shard in read}
            fold = Fold(plan, empty=False)
            behind = [
                again
                for shard, upto in read.items()
                for again in commits[shard][max(0, (from_where[shard] or upto + 1) - 1) : upto]
            ]
        # What waits is read again shard by shard, each before its new commits: others may be ahead.
        for again in [one for one in behind if one.shard == commit.shard]:
            fold.remember(again, Directory(), "carriers")
            behind.remove(again)
        fold.gather(commit, Directory(), "carriers")
        write()
        read[commit.shard], times[commit.shard] = commit.position, commit.runs[-1].time_ns
        if not behind:
            fold.halves.expire(min(times.values()))
    for again in behind:
        fold.remember(again, Directory(), "carriers")
    write()
    assert sorted(kept.values()) == expected


def test_halves_without_a_partner_are_counted_and_let_go() -> None:
    events: list[Timed] = [(0, Departed(parcel=1)), (10, Arrived(parcel=1)), (20, Departed(parcel=2))]
    _, fold = fold_of(plan_of(Deliveries), commits_of(0, events))
    fold.halves.expire(61 * SECOND_NS)
    assert (fold.halves.count, fold.halves.unmatched, fold.halves.oldest("carriers/0")) == (1, 0, 3)
    fold.halves.expire(81 * SECOND_NS)
    assert (fold.halves.count, fold.halves.unmatched, fold.halves.oldest("carriers/0")) == (0, 1, 0)


def test_too_many_halves_drop_the_oldest_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "HALVES_MAX", 5)
    events: list[Timed] = [(number, Departed(parcel=number)) for number in range(8)]
    rows, fold = fold_of(plan_of(Deliveries), commits_of(0, [*events, (8, Arrived(parcel=0)), (9, Arrived(parcel=7))]))
    assert (fold.halves.count, fold.halves.dropped) == (5, 5)
    assert [row[1] for row in rows] == [1]


# ---------------------------------------------------------------------- windows and late events

measured = st.builds(Measured, at=st.integers(900, 1_200).map(float), zone=st.sampled_from("AB"))


@given(st.lists(growing(measured), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_the_same_events_are_late_in_any_order_of_shards(logs: list[list[Timed]], chance: random.Random) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    late = 0
    for log in logs:
        newest = float("-inf")
        for _, event in log:
            assert isinstance(event, Measured)
            if event.at < newest - 30:
                late += 1
            else:
                counts[event.zone, int(event.at // 60) * 60] += 1
            newest = max(newest, event.at)
    commits = [commits_of(shard, log) for shard, log in enumerate(logs)]
    for _ in range(3):
        rows, fold = fold_of(plan_of(PerMinute), interleaved(commits, chance))
        assert rows == sorted((*key, count) for key, count in counts.items())
        assert fold.late == late


def test_late_events_may_be_applied_and_are_counted_all_the_same() -> None:
    class Forgiving(View, window=tumbling(seconds=60), lateness_s=0, late="apply"):
        window: Key[int]
        count: int = 0

        @project(at=lambda event: event.at)
        def measured(self, event: Measured) -> None:
            self.count += 1

    log: list[Timed] = [(0, Measured(at=130.0)), (1, Measured(at=10.0))]
    rows, fold = fold_of(plan_of(Forgiving), commits_of(0, log))
    assert (rows, fold.late) == ([(0, 1), (120, 1)], 1)


def test_a_window_without_at_goes_by_the_log() -> None:
    rows = given_log(Measured(at=0.0), Departed(parcel=1), Arrived(parcel=1), at=119.0).project(ArrivedPerMinute)
    assert rows == [ArrivedPerMinute(window=60, count=1), ArrivedPerMinute(window=120, pairs=1)]


def test_an_event_time_may_be_a_datetime_with_its_zone() -> None:
    class Noted(Event):
        when: datetime.datetime

    class PerDay(View, window=tumbling(seconds=86_400)):
        window: Key[int]
        count: int = 0

        @project(at=lambda event: event.when)
        def noted(self, event: Noted) -> None:
            self.count += 1

    when = datetime.datetime(1970, 1, 3, 1, tzinfo=datetime.UTC)
    assert given_log(Noted(when=when)).project(PerDay) == [PerDay(window=2 * 86_400, count=1)]
    with pytest.raises(ViewFailed, match="it must be seconds since 1970, or a datetime with its zone"):
        given_log(Noted(when=when.replace(tzinfo=None))).project(PerDay)


# ---------------------------------------------------------------------- projectors


def declare(shards: int = 3) -> Declaration:
    return Declaration("carriers", agents=[Carrier], shards=shards, views=VIEWS)


async def carry(live: Live, chance: random.Random, count: int) -> None:
    async def one() -> None:
        agent = f"Carrier/{chance.randrange(9)}"
        event: Event = chance.choice(
            (
                Departed(parcel=chance.randrange(20), weight=chance.randrange(5)),
                Arrived(parcel=chance.randrange(20), depot=chance.choice("NS")),
                Measured(at=float(chance.randrange(2_000))),
            )
        )
        await live.observe(agent, event)

    await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize("seed", range(8))
def test_killed_at_any_moment_pairs_and_windows_are_right(seed: int) -> None:
    """At each stop the simulator compares the rows with a fold of the whole log, shard by shard."""

    async def main(node: SimNode) -> None:
        chance = random.Random(seed)
        live = await node.start()
        for _ in range(10):
            carrying = asyncio.ensure_future(carry(live, chance, 30))
            await asyncio.sleep(chance.choice((0.0, 0.001, 0.3, 6.0, 40.0)))
            how: Callable[[], Awaitable[None]] = chance.choice((node.kill, node.lose_power, node.stop))
            await how()
            await asyncio.gather(carrying, return_exceptions=True)
            live = await node.start()
        await carry(live, chance, 10)
        await node.stop()

    play(declare(), main, seed=seed)


DROPPING = Settings(
    snapshots=Snapshots(every_events=10, every_s=1e9, tail_ratio=0.0, share_max=1.0),
    retention=Retention(reserve_bytes=0, check_every_s=0.1, keep_s=0.001),
)
"""Everything goes that may go."""


def test_retention_keeps_what_waits_for_a_partner() -> None:
    """Otherwise a start could not read it again, and the pair would be missing."""

    async def main(node: SimNode) -> None:
        live = await node.start()
        for number in range(40):
            await live.observe("Carrier/a", Measured(at=float(number)))
        await live.observe("Carrier/a", Departed(parcel=1))
        for number in range(40):
            await live.observe("Carrier/a", Measured(at=float(number)))
            await asyncio.sleep(0.5)
        (position,) = [
            commit.position for commit in node.logbook.commits[0] for _, body in commit.events if b"Departed" in body
        ]
        assert 1 < live.host.journal.first_position(0) <= position
        await node.kill()
        live = await node.start()
        await live.observe("Carrier/b", Arrived(parcel=1))
        await node.stop()

    play(declare(shards=1), main, settings=DROPPING)


async def test_a_pair_across_a_restart_on_disk(tmp_path: Path) -> None:
    fleet = Fleet("carriers", agents=[Carrier], views=[Deliveries])
    journal = f"sqlite:{tmp_path / 'carriers.db'}"
    async with fleet.running(journal=journal) as live:
        await live.observe("Carrier/a", Departed(parcel=7, weight=3))
        assert live.views is not None
        await live.views.projectors["Deliveries"].wait_written({"carriers/0": 1}, 240.0)
    for expected in (1, 2):
        async with fleet.running(journal=journal) as live:
            await live.observe("Carrier/b", Arrived(parcel=7, depot="S"))
            end = {shard_name("carriers", 0): live.host.feed.positions()[0].position}
            row = await live.view(Deliveries).after(end, within_s=240.0).get("S")
            assert row is not None
            assert (row.count, row.weight) == (expected, 3 * expected)


# ---------------------------------------------------------------------- what is refused


class Counted(Event):
    number: int
    parcel: str = ""


def without_a_window_key() -> None:
    class A(View, window=tumbling(seconds=60)):
        zone: Key[str]

        @project
        def measured(self, event: Measured) -> None: ...


def lateness_by_the_log() -> None:
    class A(View, lateness_s=5):
        zone: Key[str]

        @project
        def measured(self, event: Measured) -> None: ...


def join_without_the_field() -> None:
    class A(View):
        depot: Key[str]

        @project(join="shipment", within_s=60)
        def both(self, departed: Departed, arrived: Arrived) -> None: ...


def join_of_other_types() -> None:
    class A(View):
        depot: Key[str]

        @project(join="parcel", within_s=60)
        def both(self, counted: Counted, arrived: Arrived) -> None: ...


def join_with_itself() -> None:
    class A(View):
        depot: Key[str]

        @project(join="parcel", within_s=60)
        def both(self, first: Arrived, second: Arrived) -> None: ...


def join_without_a_row() -> None:
    class A(View):
        zone: Key[str]

        @project(join="parcel", within_s=60)
        def both(self, departed: Departed, arrived: Arrived) -> None: ...


def join_of_one_event() -> None:
    class A(View):
        depot: Key[str]

        @project(join="parcel", within_s=60)
        def both(self, arrived: Arrived) -> None: ...


def join_without_an_end() -> None:
    project(join="parcel")


def join_by_event_time() -> None:
    project(join="parcel", within_s=1, at=lambda event: event.at)


def within_without_join() -> None:
    project(within_s=1)


def join_by_a_number() -> None:
    project(join=5, within_s=1)  # type: ignore[call-overload]


def at_that_is_no_function() -> None:
    project(at="measured_at")  # type: ignore[call-overload]


def window_that_is_none() -> None:
    class A(View, window=60):
        window: Key[int]


def lateness_that_is_none() -> None:
    class A(View, lateness_s=-1):
        zone: Key[str]


def late_that_is_none() -> None:
    class A(View, late="ignore"):
        zone: Key[str]


def origins_that_are_none() -> None:
    class A(View):
        depot: Key[str]

        @project(join="parcel", within_s=60)
        def both(self, departed: Departed, arrived: Arrived, left: Origin, came: int) -> None: ...


def events_without_a_type() -> None:
    class A(View):
        depot: Key[str]

        @project(join="parcel", within_s=60)
        def both(self, departed: Departed, arrived) -> None: ...  # type: ignore[no-untyped-def]


def key_of_one_event() -> None:
    class A(View):
        depot: Key[str]

        @project(join="parcel", within_s=60, key=lambda arrived: arrived.depot)
        def both(self, departed: Departed, arrived: Arrived) -> None: ...


def window_of_nothing() -> None:
    tumbling(seconds=0)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (
            without_a_window_key,
            r"A \(test_time.py\): a row of a window needs its beginning .* write window: Key\[int\]",
        ),
        (lateness_by_the_log, "by the time of the log nothing is late, so leave it out"),
        (join_without_the_field, r"A.both \(test_time.py:\d+\): Departed has no field 'shipment' to be joined by"),
        (join_of_other_types, "str and int cannot be joined; declare both fields alike"),
        (join_with_itself, "a join is of two different events; fold Arrived by itself"),
        (join_without_a_row, "neither Arrived nor Departed has a field 'zone' of this type"),
        (join_of_one_event, "takes self and two events, and may take the Origin of each"),
        (join_without_an_end, r"within_s=None\): give more than 0"),
        (join_by_event_time, "joins go by the time of the log; leave at= out"),
        (within_without_join, "is for a join; name its field too: join='parcel'"),
        (window_of_nothing, "give 1 to 31622400 whole seconds"),
        (join_by_a_number, "give the field that must be equal in both events, join='parcel', or its two names"),
        (at_that_is_no_function, "give a function, such as at=lambda event: event.measured_at"),
        (window_that_is_none, r"A: window=60; give tumbling\(seconds=60\)"),
        (lateness_that_is_none, "lateness_s=-1; give 0 to 31622400 seconds"),
        (late_that_is_none, "late='ignore'; give 'drop' or 'apply'"),
        (origins_that_are_none, "annotate 'came' with Origin"),
        (events_without_a_type, "annotate 'arrived' with the event that this handler is for"),
        (key_of_one_event, "key= of a join takes both events"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_defined(definition: Callable[[], None], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        definition()


def test_an_event_without_a_row_is_in_no_window_and_a_pair_may_have_several_keys() -> None:
    class SomePerMinute(View, window=tumbling(seconds=60)):
        zone: Key[str]
        window: Key[int]
        count: int = 0

        @project(key=lambda event: event.zone if event.at else None)
        def measured(self, event: Measured) -> None:
            self.count += 1

    log = given_log(Measured(at=0.0), Measured(at=1.0, zone="B"), at=60.0)
    assert log.project(SomePerMinute) == [SomePerMinute(zone="B", window=60, count=1)]

    class Each(View):
        depot: Key[str]
        weight: Key[int]
        count: int = 0

        @project(join="parcel", within_s=60)
        def both(self, departed: Departed, arrived: Arrived) -> None:
            self.count += 1

    log = given_log(Departed(parcel=1, weight=5), Arrived(parcel=1))
    assert log.project(Each) == [Each(depot="north", weight=5, count=1)]

    class SomePairs(View):
        depot: Key[str]
        count: int = 0

        @project(join="parcel", within_s=60, key=lambda departed, arrived: None if departed.weight > 4 else "x")
        def both(self, departed: Departed, arrived: Arrived) -> None:
            self.count += 1

    assert log.project(SomePairs) == []


def test_a_join_may_use_fields_of_two_names_and_a_key_of_both() -> None:
    class Sent(Event):
        number: int

    class Both(View):
        what: Key[str]
        seconds: float = 0.0

        @project(join=("number", "parcel"), within_s=5, key=lambda sent, arrived: f"{sent.number} {arrived.depot}")
        def both(self, sent: Sent, arrived: Arrived, left: Origin, came: Origin) -> None:
            self.seconds = came.time - left.time

    rows = given_log(Sent(number=4), Arrived(parcel=4), Arrived(parcel=5)).project(Both)
    assert rows == [Both(what="4 north", seconds=1.0)]
