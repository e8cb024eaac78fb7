"""Tests rosters: names by number and numbers by name against a dict, enrolments and their checks."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import NO_CHECK
from stigmergy.base.errors import Bug
from stigmergy.compiled import names as names_module
from stigmergy.compiled.names import REBUILD_SHARE, NameTable

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
ENROLMENTS = st.lists(st.lists(NAMES, max_size=30), max_size=12)


def check_equal(roster: NameTable, names: list[str]) -> None:
    assert len(roster) == len(names)
    assert [roster.name(number) for number in range(len(names))] == names
    assert [roster.find(name) for name in names] == list(range(len(names)))


@given(ENROLMENTS)
def test_finds_what_a_dict_finds(enrolments: list[list[str]]) -> None:
    roster, numbers = NameTable(), dict[str, int]()
    for enrolment in enrolments:
        new = [name for name in dict.fromkeys(enrolment) if name not in numbers]
        roster.enroll(new)
        for name in new:
            numbers[name] = len(numbers)
    check_equal(roster, list(numbers))
    for name in ("", "x", "not one of them", *(name + "." for name in numbers)):
        assert roster.find(name) == numbers.get(name, -1)


def test_many_and_few_at_a_time_are_the_same() -> None:
    names = [f"D-{number:05}" for number in range(20_000)]
    at_once, one_by_one, in_portions = NameTable(), NameTable(), NameTable()
    at_once.enroll(names)
    for name in names:
        one_by_one.enroll([name])
    for start in range(0, len(names), 700):
        in_portions.enroll(names[start : start + 700])
    for roster in (at_once, one_by_one, in_portions):
        check_equal(roster, names)
        assert roster.find("D-20000") == -1


def test_no_agent_is_enrolled_twice() -> None:
    names = [f"D-{number}" for number in range(1000)]
    roster = NameTable()
    roster.enroll(names)
    before = roster.check_of(1)
    few = ["new-1", "new-2", "D-7", "new-3"]
    many = [f"new-{number}" for number in range(1000 // REBUILD_SHARE + 10)] + ["D-8"]
    for again in (few, ["new", "new"], many, [*many[:-1], many[0]]):
        with pytest.raises(Bug, match="is enrolled already"):
            roster.enroll(again)
        check_equal(roster, names)
        assert roster.find(again[0]) == -1
        assert (roster.generation, roster.check_of(1), roster.check_of(2)) == (1, before, None)
    roster.enroll(["new-1"])
    assert roster.find("new-1") == 1000


def test_names_of_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """All entries crowd at one end of the index, behind its last slot too; nothing may get lost or run over."""
    monkeypatch.setattr(names_module, "hash", lambda name: -1 - (len(name) << 32), raising=False)
    names = [f"D-{number:03}" for number in range(300)]
    many, few = NameTable(), NameTable()
    many.enroll(names)
    few.enroll(names[:100])
    for name in names[100:]:
        few.enroll([name])
    check_equal(many, names)
    check_equal(few, names)
    assert many.find("D-300") == few.find("D-300") == -1
    for roster in (many, few):
        with pytest.raises(Bug, match="D-299 is enrolled already"):
            roster.enroll(["D-299"])
        with pytest.raises(Bug, match="is enrolled already"):
            roster.enroll([*(f"E-{number:03}" for number in range(100)), "D-000"])
        check_equal(roster, names)


def test_each_enrolment_has_a_check_that_stands_for_all_names_so_far() -> None:
    roster = NameTable()
    assert roster.check_of(0) == (0, NO_CHECK)
    assert roster.check_of(1) is roster.check_of(-1) is None
    roster.enroll(["a", "b"])
    roster.enroll([])
    roster.enroll(["c"])
    assert roster.generation == 3
    context = "stigmergy 2026 roster of agents"
    check = NO_CHECK
    for generation, (count, names) in enumerate([(2, ["a", "b"]), (2, []), (3, ["c"])], start=1):
        check = blake3(check + encode(names), derive_key_context=context).digest(length=8)
        assert roster.check_of(generation) == (count, check)
    other = NameTable()
    other.enroll(["a"])
    other.enroll(["b", "c"])
    assert other.check_of(2) != roster.check_of(3)


def test_a_name_is_refused_that_could_not_be_told_from_two() -> None:
    roster = NameTable()
    for bad in (["a\0b"], ["a", "\0"], ["a", "b\0"]):
        with pytest.raises(Bug, match="zero byte"):
            roster.enroll(bad)
    assert len(roster) == roster.generation == 0
    with pytest.raises(Bug, match="agent number 0 of 0"):
        roster.name(0)


@given(ENROLMENTS, st.integers(1, 40))
def test_comes_back_from_its_bytes_in_portions(enrolments: list[list[str]], bytes_max: int) -> None:
    roster, seen = NameTable(), dict[str, None]()
    for enrolment in enrolments:
        new = [name for name in dict.fromkeys(enrolment) if name not in seen]
        seen.update(dict.fromkeys(new))
        roster.enroll(new)
    again, first, generation = NameTable(), 0, 0
    while first < len(roster) or generation < roster.generation:
        end = roster.end_of(first, len(roster), bytes_max)
        assert first < end or first == len(roster)
        last = roster.generation_at(end, roster.generation)
        counts, checks = roster.generations_from(generation, last)
        if first % 2 == 0:  # so that names are looked for now and then, before all of them are there
            assert (again.find("sought") >= 0) == ("sought" in list(seen)[:first])
        again.restore(roster.names_from(first, end), list(memoryview(counts).cast("I")), checks)
        first, generation = end, last
    check_equal(again, list(seen))
    assert [again.check_of(number) for number in range(again.generation + 1)] == [
        roster.check_of(number) for number in range(roster.generation + 1)
    ]
