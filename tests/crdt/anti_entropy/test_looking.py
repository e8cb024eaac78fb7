"""What a node says about its objects and its peers, to people."""

from __future__ import annotations

from stigmergy.crdt.anti_entropy.rules import SECOND_NS, Rules
from tests.crdt.anti_entropy.fleet import OBJECT, Fleet


def test_who_has_everything_is_known_from_what_it_last_told() -> None:
    fleet = Fleet("a b c").start()
    fleet["a"].add("x")
    fleet.run_until_converged(10)
    fleet.run(5)
    assert fleet["a"].machine.holders(OBJECT) == {"b": True, "c": True}
    fleet["c"].crash()
    fleet["a"].add("y")
    assert fleet["a"].machine.holders(OBJECT) == {"b": False, "c": False}
    fleet.run(5)
    assert fleet["a"].machine.holders(OBJECT) == {"b": True, "c": False}
    fleet["a"].machine.members(["a", "b"], fleet["a"].moment)
    assert fleet["a"].machine.holders(OBJECT) == {"b": True}
    fleet["a"].machine.members(["a", "b", "c"], fleet["a"].moment)
    fleet["c"].start()
    fleet.run(5)
    assert fleet["a"].machine.holders(OBJECT) == {"b": True, "c": True}


def test_members_from_which_nothing_comes_are_named() -> None:
    """Also one that never said what it holds: it may hold the object, and `no peers` would be wrong."""
    fleet = Fleet("a b c")
    fleet.cut = lambda sender, _: sender == "c"
    fleet.start()
    a = fleet["a"].machine
    fleet.run(3)
    assert a.unheard(OBJECT, fleet["a"].moment) == [], "it may just have joined"
    fleet.run(10)
    assert (list(a.holders(OBJECT)), a.unheard(OBJECT, fleet["a"].moment)) == (["b"], ["c"])
    fleet.cut = lambda *_: False
    fleet.run(5)
    assert a.unheard(OBJECT, fleet["a"].moment) == []
    fleet["b"].crash()
    fleet.run(10)
    assert a.unheard(OBJECT, fleet["a"].moment) == ["b"]
    a.members(["a", "c"], fleet["a"].moment)
    assert a.unheard(OBJECT, fleet["a"].moment) == []


def test_who_holds_something_else_is_no_holder() -> None:
    fleet = Fleet("a b").start()
    fleet["b"].hold("Thing.seen/other")
    fleet["b"].add("x", name="Thing.seen/other")
    fleet.run(5)
    fleet["a"].hold("Thing.seen/mine")
    assert fleet["a"].machine.holders("Thing.seen/mine") == {}
    assert fleet["b"].machine.holders("Thing.seen/other") == {}


def test_the_retired_are_named() -> None:
    fleet = Fleet("a b", rules=Rules(retire_ns=30 * SECOND_NS)).start()
    fleet["a"].add("x")
    fleet["b"].add("y")
    fleet.run_until_converged(10)
    a, replica = fleet["a"], fleet["b"].replica().id
    assert a.machine.retired(OBJECT, a.moment) == ()
    assert a.machine.retire(OBJECT, replica, a.moment)
    assert a.machine.retired(OBJECT, a.moment) == (replica,)
    fleet["b"].add("z")
    fleet.run_until_converged(10)
    assert a.machine.retired(OBJECT, a.moment) == ()
    fleet.run(40)
    assert a.machine.retired(OBJECT, a.moment) == (replica,)
