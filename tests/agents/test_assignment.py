"""Which agents a node runs: names, patterns, kinds; and what it says to whoever asks for another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.assignment import KNOWN_MAX, Assignment
from stigmergy.base.errors import ConfigError, NotAssigned, UnknownKind

KINDS = ("Cart", "Dock")


def test_without_any_it_runs_all() -> None:
    everything = Assignment((), KINDS)
    assert everything.is_everything
    assert everything.runs("Cart/c01")
    everything.check("Cart/c01")
    assert everything.names_of("Cart") == []


def test_names_patterns_and_kinds() -> None:
    some = Assignment(("Cart/c01", "Cart/c1*", "Dock/*", "Cart/*-spare"), KINDS)
    runs = {name: some.runs(name) for name in ("Cart/c01", "Cart/c1", "Cart/c17", "Dock/x", "Cart/old-spare")}
    assert all(runs.values()), runs
    others = {name: some.runs(name) for name in ("Cart/c02", "Cart/c010", "Cart/xc1", "Cart/spare", "Dock2/x", "Cart")}
    assert not any(others.values()), others
    assert some.names_of("Cart") == ["c01"], "what is spelt out is there before its first input"


def test_a_dot_in_a_name_is_a_dot() -> None:
    assert not Assignment(("Cart/a.b*",)).runs("Cart/axb1")


@pytest.mark.parametrize("entry", ["Cart", "Cart/", "/c01", "*/c01", "C*/c01", "Bus/b1", "Cart/c 1", "Cart/a/b", ""])
def test_what_names_no_agent_of_the_fleet_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"give addresses like 'Drone/D-17'.*of the kinds Cart, Dock"):
        Assignment((entry,), KINDS)


def test_a_refusal_says_where_it_runs_or_what_to_do() -> None:
    agents = ("Cart/c01", "Cart/c02", "Cart/c03", "Cart/c04")
    with pytest.raises(NotAssigned, match=r"which runs Cart/c01, Cart/c02, Cart/c03 and 1 more; no node says"):
        Assignment(agents, KINDS).check("Cart/c07")
    some = Assignment(agents, KINDS, lambda address: f"node 'b' runs {address}")
    with pytest.raises(NotAssigned, match=r"Cart/c07 does not run on this node.*node 'b' runs Cart/c07: send it there"):
        some.check("Cart/c07")


def test_a_kind_that_the_fleet_does_not_have_is_no_matter_of_agents() -> None:
    some = Assignment(("Cart/c*",), KINDS)
    said = r"^Crat/c01: this fleet has no agent kind 'Crat'; there are Cart, Dock: correct the address$"
    with pytest.raises(UnknownKind, match=said):
        some.check("Crat/c01")
    assert "add it to agents" not in some.refusal("Crat/c01")
    some = Assignment(("Cart/c*",), KINDS, lambda _: "node 'b' runs it")
    with pytest.raises(NotAssigned, match=r"node 'b' runs it: send it there"):
        some.check("Crane/1")  # of a later version of the fleet, which runs there


def test_what_two_nodes_share_is_found() -> None:
    one = Assignment(("Cart/c01", "Cart/c1*", "Dock/*"))
    assert one.shared_with(Assignment(("Cart/c02",))) == []
    assert one.shared_with(Assignment(("Cart/c0*",))) == ["Cart/c01"]
    assert one.shared_with(Assignment(("Cart/c12", "Dock/d1"))) == ["Cart/c1*", "Dock/*"]
    assert one.shared_with(Assignment(("Cart/c*",))) == ["Cart/c01", "Cart/c1*"]
    assert one.shared_with(Assignment(("Cart/c2*",))) == []
    assert one.shared_with(Assignment()) == [], "a drone and its gateway"
    west = Assignment(("Sector/*@r1", "Drone/a*z"))
    assert west.shared_with(Assignment(("Sector/*@r2", "Drone/ab*"))) == ["Drone/a*z"], "abz fits both"
    assert west.shared_with(Assignment(("Sector/s*r1",))) == ["Sector/*@r1"]


@given(st.text("ab*", min_size=1, max_size=6), st.text("ab", min_size=1, max_size=6))
def test_a_pattern_means_what_a_naive_match_says(pattern: str, name: str) -> None:
    def fits(rest: str, text: str) -> bool:
        if not rest:
            return not text
        if rest[0] == "*":
            return any(fits(rest[1:], text[start:]) for start in range(len(text) + 1))
        return bool(text) and rest[0] == text[0] and fits(rest[1:], text[1:])

    assert Assignment((f"Cart/{pattern}",)).runs(f"Cart/{name}") == fits(pattern, name)


def test_what_is_remembered_is_bounded() -> None:
    some = Assignment(("Cart/c*",))
    some._known.update({f"Cart/x{number}": False for number in range(KNOWN_MAX)})
    assert some.runs("Cart/c1")
    assert len(some._known) == 1
