"""ORMap, with each of the other types in it."""

from __future__ import annotations

from stigmergy.crdt.flags import EnableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from tests.crdt.replicas import exchange, pair


def test_a_key_is_there_while_something_is_alive_below_it() -> None:
    one, other = pair(ORMap[str, ORSet[str]])
    assert len(one.value["north"]) == 0
    assert "north" not in one.value
    one.write(lambda areas: areas["north"].add("x"))
    one.write(lambda areas: areas["east"].add("y"))
    exchange(one, other)
    assert other.value.keys() == ("east", "north")
    assert list(other.value) == ["east", "north"]
    assert "north" in other.value
    assert 5 not in other.value
    assert len(other.value) == 2
    assert {key: list(names) for key, names in other.value.items()} == {"east": ["y"], "north": ["x"]}
    assert repr(other.value) == "ORMap({'east': ORSet(['y']), 'north': ORSet(['x'])})"
    other.write(lambda areas: areas["east"].remove("y"))
    assert other.value.keys() == ("north",)


def test_an_update_wins_over_the_removal_of_its_key() -> None:
    one, other = pair(ORMap[str, ORSet[str]])
    one.write(lambda areas: areas["north"].add("x"))
    exchange(one, other)
    one.write(lambda areas: areas.remove("north"))
    assert "north" not in one.value
    other.write(lambda areas: areas["north"].add("y"))
    exchange(one, other)
    assert list(one.value["north"]) == ["y"]


def test_removing_what_is_not_there_changes_nothing() -> None:
    one, _ = pair(ORMap[str, GCounter])
    assert one.value.remove("north").changes_nothing


def test_a_counter_begins_anew_after_its_key_was_removed() -> None:
    one, other = pair(ORMap[str, GCounter])
    one.write(lambda counts: counts["cars"].add(5))
    exchange(one, other)
    other.write(lambda counts: counts.remove("cars"))
    exchange(one, other)
    one.write(lambda counts: counts["cars"].add(1))
    assert one.value["cars"].value == 1


def test_maps_in_maps() -> None:
    one, other = pair(ORMap[str, ORMap[int, LWWRegister[str]]])
    one.write(lambda grid: grid["a"][1].set("red"), now_ns=5)
    other.write(lambda grid: grid["a"][2].set("green"), now_ns=5)
    exchange(one, other)
    assert {key: register.value for key, register in one.value["a"].items()} == {1: "red", 2: "green"}
    one.write(lambda grid: grid["a"].remove(1))
    assert one.value["a"].keys() == (2,)
    one.write(lambda grid: grid.remove("a"))
    assert one.value.keys() == ()
    assert one.store.live_count == 0
    assert len(one.store.root.children) == 0, "empty nodes are left behind"


def test_a_view_below_a_key_follows_its_store() -> None:
    one, _ = pair(ORMap[str, EnableWinsFlag])
    lamp = one.value["lamp"]
    one.write(lambda _: lamp.enable())
    assert not lamp
    assert lamp.with_store(one.store)
