"""Where shards are placed: balanced to one, moved as little as possible, and always the same."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from stigmergy.cluster.records import NOBODY, place

NAMES = st.lists(st.sampled_from([f"w{n}" for n in range(7)]), unique=True)
CURRENT = st.dictionaries(st.integers(0, 20), st.sampled_from([*(f"w{n}" for n in range(7)), "gone", NOBODY]))
UNFIT = st.lists(st.tuples(st.sampled_from([f"w{n}" for n in range(7)]), st.integers(0, 20)), max_size=40)


def loads(plan: tuple[str, ...], members: list[str]) -> list[int]:
    return [plan.count(member) for member in members]


def moves(before: tuple[str, ...], after: tuple[str, ...]) -> list[int]:
    """The shards that another member is to have."""
    return [shard for shard, (was, now) in enumerate(zip(before, after, strict=True)) if was != now]


def stays(plan: tuple[str, ...], current: dict[int, str]) -> int:
    return sum(current.get(shard) == owner != NOBODY for shard, owner in enumerate(plan))


@given(st.integers(0, 20), NAMES, CURRENT)
def test_members_have_the_same_give_or_take_one(shards: int, members: list[str], current: dict[int, str]) -> None:
    plan = place(shards, members, current)
    assert len(plan) == shards
    if members:
        assert all(owner in members for owner in plan)
        assert max(loads(plan, members)) - min(loads(plan, members)) <= 1
    else:
        assert all(owner == NOBODY for owner in plan)


@given(st.integers(0, 5), st.lists(st.sampled_from("abc"), unique=True, min_size=1), st.data())
def test_no_balanced_plan_moves_fewer(shards: int, members: list[str], data: st.DataObject) -> None:
    current = data.draw(st.dictionaries(st.integers(0, 4), st.sampled_from(["a", "b", "c", "gone"])))
    best = max(
        stays(tried, current)
        for tried in product(members, repeat=shards)
        if max(loads(tried, members)) - min(loads(tried, members)) <= 1
    )
    assert stays(place(shards, members, current), current) == best


@given(st.integers(0, 20), NAMES, CURRENT, UNFIT)
def test_the_same_question_has_the_same_answer_in_any_order(
    shards: int, members: list[str], current: dict[int, str], unfit: list[tuple[str, int]]
) -> None:
    plan = place(shards, members, current, unfit)
    backwards = dict(reversed(list(current.items())))
    assert place(shards, list(reversed(members)), backwards, list(reversed(unfit))) == plan


@given(st.integers(0, 20), NAMES, CURRENT, UNFIT)
def test_a_plan_that_is_carried_out_stays(
    shards: int, members: list[str], current: dict[int, str], unfit: list[tuple[str, int]]
) -> None:
    plan = place(shards, members, current, unfit)
    if not unfit:
        assert place(shards, members, dict(enumerate(plan))) == plan


@given(st.integers(0, 20), NAMES, CURRENT, UNFIT)
def test_nobody_gets_what_it_cannot_have_and_what_somebody_can_have_is_had(
    shards: int, members: list[str], current: dict[int, str], unfit: list[tuple[str, int]]
) -> None:
    for shard, owner in enumerate(place(shards, members, current, unfit)):
        fit = [member for member in members if (member, shard) not in unfit]
        assert owner in fit if fit else owner == NOBODY


def test_one_that_joins_takes_from_those_who_have_the_most_and_nobody_else_moves() -> None:
    before = place(16, ["a", "b", "c"], {})
    after = place(16, ["a", "b", "c", "d"], dict(enumerate(before)))
    assert loads(after, ["a", "b", "c", "d"]) == [4, 4, 4, 4]
    assert [after[shard] for shard in moves(before, after)] == ["d"] * 4


def test_one_that_leaves_moves_only_its_own() -> None:
    before = place(16, ["a", "b", "c", "d"], {})
    after = place(16, ["a", "b", "d"], dict(enumerate(before)))
    assert {before[shard] for shard in moves(before, after)} == {"c"}


def test_what_everybody_is_unfit_for_is_nobodys() -> None:
    assert place(2, ["a", "b"], {0: "a"}, [("a", 0), ("b", 0)]) == (NOBODY, "a")
