"""Edits become deltas; deltas are joined, written and read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.crdt import delta as delta_module
from stigmergy.crdt import store as store_module
from stigmergy.crdt.bounds import COUNTER_MAX, DELTA_BYTES_MAX, ELEMENT_BYTES_MAX, PATH_DEPTH_MAX, PAYLOAD_BYTES_MAX
from stigmergy.crdt.causality import Context, Dot
from stigmergy.crdt.delta import Delta, Edit, check_replica, join_deltas, read_delta
from stigmergy.crdt.errors import BadDelta, LimitReached, NotContiguous
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.payloads import total_payload, value_payload
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint
from stigmergy.crdt.tree import BARE
from tests.crdt.replicas import A, B, C, Replica, exchange, hand_made, pair

X, Y = b"\xa1x", b"\xa1y"


def test_what_changes_nothing_says_so_and_does_no_harm() -> None:
    one, _ = pair(ORSet[str])
    assert one.value.remove("x").changes_nothing
    assert not one.value.add("x").changes_nothing
    delta = one.write(lambda names: names.remove("x"))
    assert (delta.added, delta.removed) == ((), ())
    assert one.store.context.counter(A) == 1


def test_places_are_sorted_and_come_once() -> None:
    edit = Edit("field", (((Y,), b""), ((X,), b"")))
    assert [path for path, _, _ in mint(edit, EMPTY, A, 0).added] == [(X,), (Y,)]
    one, other = pair(ORSet[str])
    one.write(lambda names: names.add("y"))
    one.write(lambda names: names.add("x"))
    exchange(one, other)
    cleared = other.write(lambda names: names.clear())
    assert [path for path, _ in cleared.removed] == [(X,), (Y,)]
    assert len(other.value) == 0


def test_an_edit_that_was_made_before_other_own_writes_is_still_right() -> None:
    one, other = pair(ORSet[str])
    one.write(lambda names: names.add("x"))
    exchange(one, other)
    add, remove = other.value.add("x"), other.value.remove("x")
    other.write(lambda _: add)
    second = other.write(lambda _: remove)
    assert second.removed == ()
    assert "x" in other.value
    third = other.write(lambda _: add)
    assert third.removed == ()


def test_what_an_older_edit_removes_is_not_what_was_written_since() -> None:
    one, _ = pair(ORSet[str])
    one.write(lambda names: names.add("x"))
    add, remove = one.value.add("x"), one.value.remove("x")
    one.keep(add)
    assert one.keep(remove).removed == ()
    assert "x" in one.value


def test_removed_dots_are_sorted() -> None:
    replicas = [Replica(ORSet[str], replica) for replica in (C, A, B)]
    for replica in replicas:
        replica.write(lambda names: names.add("x"))
    exchange(replicas[0], replicas[1])
    exchange(replicas[0], replicas[2])
    removal = replicas[0].write(lambda names: names.remove("x"))
    assert removal.removed == (((X,), (Dot(A, 1), Dot(B, 1), Dot(C, 1))),)


def test_the_newest_stamp_can_be_read() -> None:
    one, other = pair(LWWRegister[int])
    assert one.write(lambda register: register.set(1), now_ns=50).stamp_ns_max == 50
    assert one.write(lambda register: register.set(1), now_ns=20).stamp_ns_max == 51
    assert hand_made(added=(((), 1, total_payload(1)), ((X,), 1, b""))).stamp_ns_max == 0
    with pytest.raises(BadDelta, match="stamp"):
        other.value.check(hand_made(added=(((), 1, value_payload(b"\x05")),)))


# Bounds of writers.


def test_a_writer_is_held_to_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair(ORSet[str])
    for name in "abc":
        one.keep(one.value.add(name))
    monkeypatch.setattr(store_module, "LIVE_COUNT_MAX", 3)
    with pytest.raises(LimitReached, match="3 live entries"):
        one.write(lambda names: names.add("d"))
    one.write(lambda names: names.clear())
    monkeypatch.setattr(store_module, "CHANGE_BYTES_MAX", 30)
    with pytest.raises(LimitReached, match="make several changes"):
        mint(Edit("field", (((X,), b""), ((Y,), b""))), one.store, A, 0)
    monkeypatch.undo()
    monkeypatch.setattr(store_module, "REPLICAS_COUNT_MAX", 1)
    exchange(one, other)
    with pytest.raises(LimitReached, match="in its whole life; divide it into groups"):
        other.write(lambda names: names.add("x"))


def test_concurrent_writes_in_one_place_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair(ORSet[str])
    for replica in (one, other):
        replica.write(lambda names: names.add("x"))
    exchange(one, other)
    monkeypatch.setattr(store_module, "PLACE_DOTS_COUNT_MAX", 1)
    with pytest.raises(LimitReached, match="concurrent writes"):
        one.write(lambda names: names.add("x"))


def test_values_and_totals_are_bounded() -> None:
    one, _ = pair(PNCounter)
    one.write(lambda counter: counter.add(COUNTER_MAX))
    one.write(lambda counter: counter.add(0))
    with pytest.raises(LimitReached, match="63 bits"):
        one.write(lambda counter: counter.add(1))
    one.write(lambda counter: counter.subtract(5))
    assert one.value.value == COUNTER_MAX - 5
    with pytest.raises(LimitReached, match="at most"):
        mint(Edit("field", (((), b"\x03" + bytes(PAYLOAD_BYTES_MAX)),)), EMPTY, A, 0)


def test_changes_are_counted_to_the_end() -> None:
    last = ReplicaStore(BARE, Context.of([(A, COUNTER_MAX)]), EMPTY._frontier, 0, 0, 0)
    with pytest.raises(LimitReached, match="new id"):
        mint(Edit("field"), last, A, 0)


@pytest.mark.parametrize("replica", [b"", b"short", bytes(9)])
def test_who_has_no_id_cannot_write(replica: bytes) -> None:
    with pytest.raises(ValueError, match="no replica's id"):
        mint(Edit("field"), EMPTY, replica, 0)
    check_replica(A)


# Joining.


def test_joined_deltas_do_what_they_did_one_by_one() -> None:
    one, other = pair(ORSet[str])
    first = one.write(lambda names: names.add("x"))
    second = one.write(lambda names: names.add("y"))
    third = one.write(lambda names: names.remove("x"))
    joined = join_deltas(join_deltas(first, second), third)
    assert (joined.first, joined.last) == (1, 3)
    assert joined.added == (((Y,), 2, b""),)
    assert joined.removed == (((X,), (Dot(A, 1),)),)
    assert read_delta(joined.to_bytes()) == joined
    for known in ((), (first,), (first, second), (first, second, third)):
        replica = Replica(ORSet[str], C)
        replica.take(*known)
        replica.take(joined)
        assert replica.store == one.store
    other.take(joined, first, second, third)
    assert other.store == one.store


def test_what_a_joined_addition_replaced_goes_with_it() -> None:
    """An addition replaces the author's older one without a word, and may be removed again in the same delta."""
    one, other = pair(ORSet[str])
    other.take(one.write(lambda names: names.add("x")))
    again = one.write(lambda names: names.add("x"))
    removal = one.write(lambda names: names.remove("x"))
    other.take(join_deltas(again, removal))
    assert other.store == one.store
    assert "x" not in other.value


def test_what_is_known_of_a_joined_delta_is_not_added_again() -> None:
    one, other = pair(ORSet[str])
    first = one.write(lambda names: names.add("x"))
    other.take(first)
    removal = other.write(lambda names: names.remove("x"))
    second = one.write(lambda names: names.add("y"))
    other.take(join_deltas(first, second))
    assert list(other.value) == ["y"]
    one.take(removal)
    assert one.store == other.store


def test_an_addition_stays_joined_with_a_removal_that_had_not_seen_it() -> None:
    """What the removal had seen was somebody else's addition."""
    one, other = pair(ORSet[str])
    own = other.value.add("x")
    other.take(one.write(lambda names: names.add("x")))
    remove = other.value.remove("x")
    joined = join_deltas(other.keep(own), other.keep(remove))
    assert (joined.added, joined.removed) == ((((X,), 1, b""),), (((X,), (Dot(A, 1),)),))
    one.take(joined)
    assert list(one.value) == ["x"]
    assert one.store == other.store


def test_own_removals_are_not_listed_where_something_is_added() -> None:
    one, _ = pair(ORSet[str])
    one.write(lambda names: names.add("x"))
    removal = one.write(lambda names: names.remove("x"))
    again = one.write(lambda names: names.add("x"))
    joined = join_deltas(removal, again)
    assert (joined.added, joined.removed) == ((((X,), 3, b""),), ())


def test_only_what_follows_can_be_joined() -> None:
    one, other = pair(ORSet[str])
    first = one.write(lambda names: names.add("x"))
    second = one.write(lambda names: names.add("y"))
    foreign = other.write(lambda names: names.add("y"))
    for earlier, later in ((second, first), (first, first), (foreign, second)):
        with pytest.raises(NotContiguous):
            join_deltas(earlier, later)


def test_what_builds_upon_more_is_not_joined() -> None:
    """Or two authors' joined deltas could wait for each other."""
    one, other = pair(ORSet[str])
    first = one.write(lambda names: names.add("x"))
    other.take(first)
    one.take(other.write(lambda names: names.add("y")))
    second = one.write(lambda names: names.add("z"))
    assert second.seen == ((B, 1),)
    with pytest.raises(NotContiguous, match="builds upon more"):
        join_deltas(first, second)
    third = one.write(lambda names: names.add("w"))
    assert join_deltas(second, third).seen == second.seen
    repeated = msgspec.structs.replace(third, seen=second.seen)
    assert join_deltas(second, repeated).seen == second.seen


def test_a_joined_delta_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair(ORSet[str])
    first = one.write(lambda names: names.add("x"))
    second = one.write(lambda names: names.add("y"))
    monkeypatch.setattr(delta_module, "DELTA_ENTRIES_COUNT_MAX", 1)
    with pytest.raises(LimitReached):
        join_deltas(first, second)


# Bytes.


def test_the_bytes_of_a_delta_stay_what_they_are() -> None:
    delta = Delta(A, 3, 3, (Dot(B, 1),), (((X,), 3, b""),), (((Y,), (Dot(B, 1),)),))
    assert delta.to_bytes().hex() == (
        "9701c40841414141414141410303"  # format, author, first, last
        "9192c408424242424242424201"  # seen
        "919391c402a17803c400"  # added
        "919291c402a1799192c408424242424242424201"  # removed
    )
    assert read_delta(delta.to_bytes()) == delta


BAD: list[tuple[dict[str, Any], str]] = [
    ({"replica": b"short"}, "length"),
    ({"first": 2}, "changes from 2 to 1"),
    ({"first": 0}, ">= 1"),
    ({"last": COUNTER_MAX + 1}, "<="),
    ({"seen": (Dot(A, 1),)}, "builds upon"),
    ({"seen": (Dot(B, 0),)}, "builds upon"),
    ({"seen": (Dot(C, 1), Dot(B, 1))}, "not sorted"),
    ({"seen": (Dot(B, 1), Dot(B, 2))}, "not sorted"),
    ({"added": (((Y,), 1, b""), ((X,), 1, b""))}, "added is not sorted"),
    ({"added": (((X,), 1, b""), ((X,), 1, b""))}, "added is not sorted"),
    ({"added": (((X,), 2, b""),)}, "not one of its own"),
    ({"added": (((X,), 0, b""),)}, "not one of its own"),
    ({"added": (((X,), 1, b"\x09"),)}, "kind 9"),
    ({"added": (((b"",), 1, b""),)}, "length"),
    ({"added": (((X,) * (PATH_DEPTH_MAX + 1), 1, b""),)}, "length"),
    ({"added": (((bytes(ELEMENT_BYTES_MAX + 1),), 1, b""),)}, "length"),
    ({"added": (((X,), 1, bytes(PAYLOAD_BYTES_MAX + 1)),)}, "length"),
    ({"removed": (((Y,), (Dot(B, 1),)), ((X,), (Dot(B, 1),)))}, "removed is not sorted"),
    ({"removed": (((X,), ()),)}, "length"),
    ({"removed": (((X,), (Dot(B, 2), Dot(B, 1))),)}, "dots are not sorted"),
    ({"removed": (((X,), (Dot(B, 0),)),)}, "removes change 0"),
    ({"removed": (((X,), (Dot(A, 2),)),)}, "of its own"),
    ({"added": (((X,), 1, b""),), "removed": (((X,), (Dot(A, 1),)),)}, "of its own"),
]


@pytest.mark.parametrize(("changed", "fault"), BAD)
def test_bad_deltas_are_refused(changed: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadDelta, match=fault):
        read_delta(hand_made(**changed).to_bytes())


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body + b"\0",
        lambda body: b"\x98" + body[1:] + b"\0",
        lambda body: body[:1] + b"\x02" + body[2:],
        lambda body: body[:-1],
        lambda body: b"\xdc\x00\x07" + body[1:],
        lambda body: b"",
        lambda body: b"\x91" * 100_000,
        lambda body: bytes(DELTA_BYTES_MAX + 1),
    ],
)
def test_only_canonical_bytes_are_read(change: Any) -> None:
    with pytest.raises(BadDelta):
        read_delta(change(hand_made(added=(((X,), 1, b""),)).to_bytes()))


DOTS = st.builds(Dot, st.sampled_from([A, B, C]), st.integers(0, 5))
PATHS = st.lists(st.sampled_from([X, Y]), max_size=2).map(tuple)
DELTAS = st.builds(
    Delta,
    st.sampled_from([A, B]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(DOTS, max_size=3).map(tuple),
    st.lists(st.tuples(PATHS, st.integers(0, 5), st.sampled_from([b"", b"\x01\x05", b"\x02"])), max_size=3).map(tuple),
    st.lists(st.tuples(PATHS, st.lists(DOTS, max_size=3).map(tuple)), max_size=3).map(tuple),
)


@given(DELTAS)
def test_what_is_read_is_what_was_written(delta: Delta) -> None:
    try:
        read = read_delta(delta.to_bytes())
    except BadDelta:
        return
    assert read == delta


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        delta = read_delta(body)
    except BadDelta:
        return
    assert delta.to_bytes() == body


@given(DELTAS, st.integers(0, 200), st.integers(0, 255))
def test_one_wrong_byte_is_another_delta_or_none(delta: Delta, at: int, byte: int) -> None:
    body = bytearray(delta.to_bytes())
    body[at % len(body)] = byte
    try:
        read = read_delta(bytes(body))
    except BadDelta:
        return
    assert read.to_bytes() == bytes(body)
