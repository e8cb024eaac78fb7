"""The table of members, what is passed on, and the round of questions."""

import random

from hypothesis import given
from hypothesis import strategies as st

from stigmergy.membership.packets import MemberStatus, MemberTable, SwimUpdate
from stigmergy.membership.swim import NAMES_COUNT_MAX, Probe, Round, Rumours

A, B = b"run-aaaa", b"run-bbbb"


def alive(node: str, incarnation: int = 1, run: bytes = A) -> SwimUpdate:
    return SwimUpdate(node, incarnation, MemberStatus.ALIVE, run, f"{node}:1", b"about")


def said(node: str, status: MemberStatus, incarnation: int = 1, run: bytes = A) -> SwimUpdate:
    return SwimUpdate(node, incarnation, status, run)


# The table.

updates = st.builds(
    SwimUpdate, st.sampled_from("abc"), st.integers(0, 3), st.sampled_from(MemberStatus), st.sampled_from([A, B])
)


@given(st.lists(updates), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(news: list[SwimUpdate], chance: random.Random) -> None:
    one, other = MemberTable(), MemberTable()
    for table in (one, other):
        for node in "abc":
            table.take(SwimUpdate(node, 0, MemberStatus.ALIVE, b"first-000"[:8]), 0)
    for update in news:
        one.take(update, 1)
    again = news * 2
    chance.shuffle(again)
    for update in again:
        other.take(update, 2)
    for node in "abc":
        assert one[node].rank == other[node].rank
    assert one.digests() == other.digests()
    assert one.differing(other.digests()) == []
    assert one.present() == other.present()


def test_higher_rank_holds() -> None:
    table = MemberTable()
    assert table.take(alive("a"), 0)
    for update in (
        said("a", MemberStatus.SUSPECT),
        alive("a", 2),
        said("a", MemberStatus.SUSPECT, 2),
        said("a", MemberStatus.DEAD, 2),
        said("a", MemberStatus.LEFT, 2),
        alive("a", 3),
    ):
        assert table.take(update, 0)
        assert not table.take(update, 0)
        assert table["a"].rank == update.rank
        assert (table["a"].contact, table["a"].about) == ("a:1", b"about")
    assert not table.take(said("a", MemberStatus.LEFT, 2), 0)
    assert table.take(alive("a", 3, B), 0)


def test_only_the_living_become_members() -> None:
    table = MemberTable()
    for status in (MemberStatus.SUSPECT, MemberStatus.DEAD, MemberStatus.LEFT):
        assert not table.take(said("a", status), 0)
    assert table.get("a") is None
    assert table.present_count == 0


def test_present_lost_and_left() -> None:
    table = MemberTable()
    for node in "dbca":
        table.take(alive(node), 0)
    table.take(said("b", MemberStatus.SUSPECT), 0)
    table.take(said("c", MemberStatus.DEAD), 0)
    table.take(said("d", MemberStatus.LEFT), 0)
    assert table.present() == ["a", "b"]
    assert table.lost() == ["c"]
    assert table.is_present("b")
    assert not table.is_present("c")
    assert table.get("c") == table["c"] != None  # noqa: E711


def test_too_many_are_not_taken_and_the_first_gone_is_forgotten() -> None:
    table = MemberTable(members_count_max=2, gone_count_max=1)
    table.take(alive("a"), 0)
    table.take(alive("b"), 0)
    assert not table.take(alive("c"), 0)
    assert table.full_count == 1
    assert table.take(said("a", MemberStatus.SUSPECT), 0)  # who is in stays in
    table.take(said("a", MemberStatus.DEAD), 0)
    table.take(said("b", MemberStatus.DEAD), 0)
    assert table.get("a") is None
    assert table.get("b") is not None
    assert table.take(alive("c"), 0)


def test_gone_are_forgotten_after_their_time() -> None:
    table = MemberTable()
    for number, node in enumerate("abc"):
        table.take(alive(node), 0)
        table.take(said(node, MemberStatus.DEAD), number)
    table.forget(before_ns=2)
    assert [table.get(node) is None for node in "abc"] == [True, True, False]
    table.forget(before_ns=10)
    assert table.get("c") is None


def test_digests_tell_where_tables_differ_and_suspicion_does_not_count() -> None:
    one, other = MemberTable(), MemberTable()
    for number in range(50):
        for table in (one, other):
            table.take(alive(f"n{number}"), 0)
    one.take(said("n7", MemberStatus.SUSPECT), 0)
    assert one.differing(other.digests()) == []
    one.take(alive("n7", 2), 0)
    (bucket,) = one.differing(other.digests())
    assert "n7" in [update.node for update in one.in_bucket(bucket)]
    other.take(alive("n7", 2), 0)
    assert one.digests() == other.digests()
    one.take(said("n7", MemberStatus.DEAD, 2), 0)
    assert one.differing(other.digests()) == [bucket]
    assert "n7" in [update.node for update in one.in_bucket(bucket)]
    assert sum(len(one.in_bucket(number)) for number in range(64)) == 50


# What is passed on.


def test_least_told_goes_first_and_enough_is_enough() -> None:
    rumours = Rumours()
    first, second = alive("a"), alive("b")
    rumours.add(first)
    for _ in range(2):
        rumours.went([first], members_count=1)
    rumours.add(second)
    assert rumours.choose() == [second, first]
    rumours.went([first], members_count=1)
    assert rumours.choose() == [second]
    for _ in range(9):
        rumours.went([second], members_count=7)
    assert len(rumours) == 0


def test_newer_word_replaces_the_older() -> None:
    rumours = Rumours()
    old, new = alive("a"), alive("a", 2)
    rumours.add(old)
    rumours.went([old], 100)
    rumours.add(new)
    rumours.went([old], 100)  # it was on its way when the newer came
    assert rumours.choose() == [new]
    assert len(rumours) == 1


def test_rumours_are_bounded() -> None:
    rumours = Rumours(count_max=3)
    told = alive("told")
    rumours.add(told)
    rumours.went([told], 100)
    for node in "abc":
        rumours.add(alive(node))
    assert [update.node for update in rumours.choose()] == ["a", "b", "c"]
    rumours.add(alive("b", 2))
    assert [update.node for update in rumours.choose()] == ["a", "c", "b"]


# Whom to ask.


def chooser(seed: int = 1) -> random.Random:
    return random.Random(seed)


def test_everybody_has_a_turn_in_each_round() -> None:
    order = Round(chooser().randrange, lambda _: True)
    assert order.next() is None
    names = [f"n{number}" for number in range(20)]
    for name in names:
        order.add(name)
        order.add(name)
    rounds = [[order.next() for _ in names] for _ in range(3)]
    assert [sorted(filter(None, turn)) for turn in rounds] == [sorted(names)] * 3
    assert rounds[0] != rounds[1] != rounds[2]


def test_who_is_gone_is_passed_over_and_who_is_new_comes_in_this_round() -> None:
    here = dict.fromkeys("acde")
    order = Round(chooser().randrange, here.__contains__)
    for name in "abcd":
        order.add(name)
    turn = [order.next()]
    order.add("e")
    turn += [order.next() for _ in range(3)]
    assert sorted(filter(None, turn)) == ["a", "c", "d", "e"]
    here.clear()
    assert order.next() is None


def test_names_of_those_who_came_and_went_do_not_pile_up() -> None:
    order = Round(chooser().randrange, lambda node: node == "here")
    order.add("here")
    for number in range(NAMES_COUNT_MAX + 10):
        order.add(f"gone-{number}")
    assert len(order._order) < 100
    assert order.next() == "here"


def test_probe_is_due_twice() -> None:
    probe = Probe("a", 7, ack_ns=3, until_ns=10)
    assert probe.due_ns == 3
    probe.repeat()
    assert probe.due_ns == 10


def test_probe_is_answered_by_word_of_its_target_only() -> None:
    def answered(*subjects: str) -> tuple[bool, int]:
        probe = Probe("a", 7, ack_ns=3, until_ns=10)
        for subject in subjects:
            probe.hear(subject)
        return probe.is_answered, probe.due_ns

    assert answered() == answered("b") == (False, 3)
    assert answered("a") == (True, 10)
