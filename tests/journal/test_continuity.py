"""Which groups continue their shards, and which drops are allowed."""

import pytest

from stigmergy.base.errors import Bug, JournalConflict
from stigmergy.shard.commit import advance, check_drop, head_of
from stigmergy.testing.journal_contract import CommitChain, make_commit, make_group

HEAD = head_of(make_commit(1, 4))


def test_group_moves_the_heads_of_its_shards() -> None:
    chain = CommitChain()
    chain.continue_from(make_commit(1, 4))
    group = chain.group([1, 0, 1])
    moved = advance({1: HEAD}, group, shards=2)
    assert moved == {0: head_of(group.commits[1]), 1: head_of(group.commits[2])}


@pytest.mark.parametrize("position", [1, 4])
def test_taken_position_conflicts(position: int) -> None:
    with pytest.raises(JournalConflict, match="the next is 5"):
        advance({1: HEAD}, make_group(make_commit(1, position)), shards=2)


@pytest.mark.parametrize("position", [6, 9])
def test_gap_is_a_bug(position: int) -> None:
    with pytest.raises(Bug, match=f"position {position} leaves a gap, the next is 5"):
        advance({1: HEAD}, make_group(make_commit(1, position)), shards=2)


def test_a_shard_begins_with_position_one() -> None:
    first = make_group(make_commit(1, 1))
    assert advance({}, first, shards=2) == {1: head_of(first.commits[0])}
    with pytest.raises(Bug, match="position 2 leaves a gap, the next is 1"):
        advance({}, make_group(make_commit(1, 2)), shards=2)
    with pytest.raises(JournalConflict, match="position 0 is taken, the next is 1"):
        advance({}, make_group(make_commit(1, 0)), shards=2)


@pytest.mark.parametrize("shard", [-1, 2])
def test_unknown_shard_is_a_bug(shard: int) -> None:
    with pytest.raises(Bug, match=f"shard {shard} does not exist: the journal was made for shards 0 to 1"):
        advance({}, make_group(make_commit(shard, 1)), shards=2)


def test_empty_group_is_a_bug() -> None:
    with pytest.raises(Bug, match="without commits"):
        advance({}, make_group(), shards=2)


def test_drop_may_take_all_but_the_head() -> None:
    check_drop({1: HEAD}, 1, 3)
    check_drop({1: HEAD}, 0, 99)
    for upto in (4, 5):
        with pytest.raises(Bug, match="head"):
            check_drop({1: HEAD}, 1, upto)
