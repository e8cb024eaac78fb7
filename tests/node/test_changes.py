"""Changed agents are named as long as they are few, whatever the order of merging."""

from hypothesis import given
from hypothesis import strategies as st

from stigmergy.node.housekeeping import Changes

names = st.lists(st.integers(0, 30).map(str), max_size=8)


@given(st.lists(names), st.integers(1, 70))
def test_all_are_named_until_they_are_most(commits: list[list[str]], agents: int) -> None:
    changes = Changes()
    changed: dict[str, None] = {}
    for touched in commits:
        changes.note(touched, agents)
        changed |= dict.fromkeys(touched)
    few = changes.few(agents)
    assert (few is None) == (2 * len(changed) > agents)
    assert few is None or dict.fromkeys(sorted(few)) == dict.fromkeys(sorted(changed))


@given(names, names, st.integers(1, 70))
def test_what_a_given_up_snapshot_held_counts_again(earlier: list[str], later: list[str], agents: int) -> None:
    taken, changes = Changes(), Changes()
    taken.note(earlier, agents)
    taken.few(agents)
    changes.note(later, agents)
    changes.add(taken)
    union = dict.fromkeys(earlier + later)
    few = changes.few(agents)
    assert (few is None) == (2 * len(union) > agents)
    assert few is None or few.keys() == union.keys()


def test_nothing_is_collected_once_they_are_most() -> None:
    changes = Changes()
    for number in range(100):
        changes.note((f"Drone/{(number * 1000 + one) % 5000}" for one in range(1000)), 5000)
    assert changes.few(5000) is None
    assert not changes._names
    assert not changes._lately
    changes.note(["Drone/1"], 5000)
    assert changes.few(5000) is None


def test_commits_that_touch_no_agent_leave_nothing_behind() -> None:
    """A node that only settles and moves marks takes no snapshot, so that whatever is collected stays for good."""
    changes = Changes()
    for _ in range(1000):
        changes.note([], 5000)
    assert not changes._lately
    assert changes.few(5000) == {}
