"""Stores: what is alive and what is known, whatever way it came."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.crdt import store as store_module
from stigmergy.crdt.bounds import STORE_BYTES_MAX
from stigmergy.crdt.errors import BadStore, LimitReached, NotContiguous
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.store import EMPTY, ReplicaStore, read_store
from tests.crdt.replicas import A, B, C, Replica, exchange, hand_made, pair

X, Y = b"\xa1x", b"\xa1y"


def test_a_delta_is_applied_once() -> None:
    one, _ = pair(ORSet[str])
    delta = one.write(lambda names: names.add("x"))
    assert one.store.apply(delta) is one.store
    assert list(one.value) == ["x"]


def test_an_addition_wins_over_a_concurrent_removal() -> None:
    one, other = pair(ORSet[str])
    other.take(one.write(lambda names: names.add("x")))
    base = one.store
    removal = one.write(lambda names: names.remove("x"))
    addition = other.write(lambda names: names.add("x"))
    assert list(one.value) == []
    merged = one.store.join(other.store)
    one.take(addition)
    other.take(removal)
    assert one.store == other.store == merged
    assert hash(one.store) == hash(other.store)
    assert one.store.to_bytes() == other.store.to_bytes() == merged.to_bytes()
    assert one.store.digest() == other.store.digest() != base.digest()
    assert list(one.value) == ["x"]


def test_what_a_delta_builds_upon_must_be_there() -> None:
    one, other = pair(ORSet[str])
    first = one.write(lambda names: names.add("x"))
    second = one.write(lambda names: names.remove("x"))
    other.take(first, second)
    third = other.write(lambda names: names.add("y"))
    with pytest.raises(NotContiguous, match="builds upon change 1 of 4141") as missing:
        EMPTY.apply(second)
    assert missing.value.missing == ((A, 1),)
    with pytest.raises(NotContiguous) as missing:
        EMPTY.apply(first).apply(third)
    assert missing.value.missing == ((A, 2),)


def test_a_removal_waits_for_what_it_removes_also_if_its_author_does_not_say_so() -> None:
    one, other = pair(ORSet[str])
    first = one.write(lambda names: names.add("x"))
    second = one.write(lambda names: names.add("y"))
    other.take(first, second)
    removal = msgspec.structs.replace(other.write(lambda names: names.remove("y")), seen=())
    third = Replica(ORSet[str], C)
    third.take(first)
    with pytest.raises(NotContiguous) as missing:
        third.take(removal)
    assert missing.value.missing == ((A, 2),)
    third.take(second, removal)
    assert third.store == other.store


def test_a_delta_names_only_what_does_not_follow_from_the_rest() -> None:
    one, other = pair(ORSet[str])
    third = Replica(ORSet[str], C)
    other.take(one.write(lambda names: names.add("x")))
    second = other.write(lambda names: names.add("y"))
    assert second.seen == ((A, 1),)
    exchange(other, third)
    assert third.write(lambda names: names.add("z")).seen == ((B, 1),)
    other.value = other.value.with_store(read_store(other.store.to_bytes()))
    assert other.write(lambda names: names.add("w")).seen == ()
    assert other.store.seen_by(A) == ((B, 2),)


def test_what_was_seen_concurrently_is_all_named() -> None:
    one, other = pair(ORSet[str])
    third = Replica(ORSet[str], C)
    for replica in (one, other):
        third.take(replica.write(lambda names: names.add("x")))
    assert third.write(lambda names: names.remove("x")).seen == ((A, 1), (B, 1))
    exchange(one, other)
    assert one.store.seen_by(C) == ((A, 1), (B, 1))
    ahead = other.store
    one.write(lambda names: names.add("y"))
    assert one.store.seen_by(C) == ((A, 2),)
    assert one.store.join(ahead).seen_by(C) == ((A, 2),)
    assert ahead.join(one.store).to_bytes() == one.store.to_bytes()


def test_joining_with_what_is_the_same_or_nothing() -> None:
    one, other = pair(ORSet[str])
    one.write(lambda names: names.add("x"))
    assert one.store.join(EMPTY) is one.store
    assert EMPTY.join(one.store) is one.store
    assert one.store.join(one.store) is one.store
    other.write(lambda names: names.add("x"))
    joined = one.store.join(other.store)
    assert dict(joined.dots_at((X,))) == {A: (1, b""), B: (1, b"")}


def test_of_two_writes_by_one_replica_the_later_stays() -> None:
    one, other = pair(LWWRegister[int])
    early = one.write(lambda register: register.set(1))
    other.take(early)
    one.write(lambda register: register.set(2))
    assert other.store.join(one.store) == one.store == one.store.join(other.store)
    assert other.value.with_store(other.store.join(one.store)).value == 2


def test_it_shows_itself() -> None:
    one, _ = pair(ORSet[str])
    one.write(lambda names: names.add("x"))
    assert repr(one.store) == "Store(1 live, Context(4141414141414141: 1))"
    assert one.store != "store"
    assert (one.store == EMPTY) is False


def test_it_knows_its_size_without_being_written() -> None:
    one, _ = pair(ORSet[str])
    for name in ("x", "yy", "x", "zzz"):
        one.keep(one.value.add(name))
    one.write(lambda names: names.remove("yy"))
    assert one.store.live_bytes == read_store(one.store.to_bytes()).live_bytes > 0
    assert len(one.store.to_bytes()) <= one.store.size_bytes
    one.write(lambda names: names.clear())
    assert (one.store.live_bytes, one.store.live_count) == (0, 0)


# Bounds of those who merge.


def test_far_too_much_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair(ORSet[str])
    deltas = [one.keep(one.value.add(name)) for name in "abc"]
    foreign = other.write(lambda names: names.add("a"))
    monkeypatch.setattr(store_module, "LIVE_COUNT_HARD_MAX", 2)
    replica = Replica(ORSet[str], C)
    with pytest.raises(LimitReached, match="stops converging"):
        replica.take(*deltas)
    assert replica.store.live_count == 2
    monkeypatch.setattr(store_module, "LIVE_COUNT_HARD_MAX", 200)
    monkeypatch.setattr(store_module, "PLACE_DOTS_COUNT_HARD_MAX", 1)
    with pytest.raises(LimitReached, match="stops converging"):
        replica.take(foreign)
    monkeypatch.setattr(store_module, "REPLICAS_COUNT_HARD_MAX", 1)
    with pytest.raises(LimitReached, match="replicas"):
        replica.take(foreign)
    with pytest.raises(LimitReached, match="replicas"):
        EMPTY.apply(foreign).join(EMPTY.apply(hand_made(replica=C)))


# Many who did not know of each other.


def test_a_change_names_so_many_as_seen_and_the_next_one_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SEEN_COUNT_MAX", 2)
    others = [Replica(ORSet[str], bytes([number]) * 8) for number in range(1, 6)]
    deltas = [one.write(lambda names: names.add("x")) for one in others]
    one, late = pair(ORSet[str])
    one.take(*deltas)
    written = [one.keep(one.value.add(name)) for name in "abcd"]
    named = [[dot.replica[0] for dot in delta.seen] for delta in written]
    assert named == [[1, 2], [3, 4], [5], []]
    assert one.store.seen_by(B) == ((A, 4),)
    late.take(*deltas[:2], written[0])
    with pytest.raises(NotContiguous):
        late.take(written[1])
    late.take(*deltas[2:], *written[1:])
    assert late.store == one.store


def test_a_removal_waits_for_what_it_removes_also_where_it_does_not_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SEEN_COUNT_MAX", 1)
    others = [Replica(ORSet[str], bytes([number]) * 8) for number in range(1, 4)]
    deltas = [one.write(lambda names: names.add("x")) for one in others]
    one, late = pair(ORSet[str])
    one.take(*deltas)
    removal = one.write(lambda names: names.remove("x"))
    late.take(deltas[0])
    with pytest.raises(NotContiguous) as caught:
        late.take(removal)
    assert caught.value.missing == ((b"\2" * 8, 1), (b"\3" * 8, 1))
    late.take(*deltas[1:], removal)
    assert list(late.value) == []
    assert late.store == one.store


# Bytes.


def stored(**changed: Any) -> bytes:
    """The bytes of a store, made by hand: one element of A and C, one of B."""
    fields: dict[str, Any] = {
        "vector": ((A, 2), (B, 1), (C, 7)),
        "frontier": (0,),
        "places": (((X,), ((0, 1, b""), (2, 7, b""))), ((Y,), ((1, 1, b""),))),
    }
    return msgspec.msgpack.encode((1, *(fields | changed).values()))


def test_the_bytes_of_a_store_stay_what_they_are() -> None:
    store = read_store(stored())
    assert store.to_bytes() == stored()
    assert stored().hex() == (
        "9401"  # format
        "9392c40841414141414141410292c40842424242424242420192c408434343434343434307"  # vector
        "9100"  # frontier
        "929291c402a17892930001c400930207c400"  # places
        "9291c402a17991930101c400"
    )
    assert store.live_count == 3
    assert store.context.vector() == ((A, 2), (B, 1), (C, 7))
    assert store.seen_by(B) == ((A, 2),)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"vector": ((B, 1), (A, 2), (C, 7))}, "replicas are not sorted"),
    ({"vector": ((A, 2), (A, 3), (C, 7))}, "replicas are not sorted, or come twice"),
    ({"vector": ((A, 0), (B, 1), (C, 7))}, "written nothing"),
    ({"frontier": (1, 0)}, "frontier"),
    ({"frontier": (3,)}, "frontier"),
    ({"places": (((Y,), ((2, 7, b""),)), ((X,), ((0, 1, b""),)))}, "places are not sorted"),
    ({"places": (((X,), ((2, 7, b""), (0, 1, b""))),)}, "dots are not sorted"),
    ({"places": (((X,), ((2, 7, b""), (3, 1, b""))),)}, "replica number 3"),
    ({"places": (((X,), ((0, 3, b""), (2, 7, b""))),)}, "alive and not known"),
    ({"places": (((X,), ((0, 0, b""), (2, 7, b""))),)}, "alive and not known"),
    ({"places": (((X,), ((0, 1, b"\x09"), (2, 7, b""))),)}, "kind 9"),
    ({"places": (((X,), ()),)}, "length"),
    ({"places": (((b"",), ((0, 1, b""),)),)}, "length"),
]


@pytest.mark.parametrize(("changed", "fault"), BAD)
def test_bad_stores_are_refused(changed: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadStore, match=fault):
        read_store(stored(**changed))


def test_too_large_stores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LIVE_COUNT_HARD_MAX", 2)
    with pytest.raises(BadStore, match="3 live entries"):
        read_store(stored())
    with pytest.raises(BadStore, match="at most"):
        read_store(bytes(STORE_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body + b"\0",
        lambda body: body[:1] + b"\x02" + body[2:],
        lambda body: body[:-1],
        lambda body: b"\xdc\x00\x04" + body[1:],
        lambda body: b"",
        lambda body: b"\x91" * 100_000,
    ],
)
def test_only_canonical_bytes_are_read(change: Any) -> None:
    with pytest.raises(BadStore):
        read_store(change(stored()))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        store = read_store(body)
    except BadStore:
        return
    assert store.to_bytes() == body


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=3))
def test_wrong_bytes_are_another_store_or_none(wrong: list[tuple[int, int]]) -> None:
    body = bytearray(stored())
    for at, byte in wrong:
        body[at % len(body)] = byte
    try:
        store = read_store(bytes(body))
    except BadStore:
        return
    assert store.to_bytes() == bytes(body)


def test_a_store_that_lies_about_its_author_is_still_a_store() -> None:
    """Who may say what is not for bytes to know: a delta made by hand is applied like any other."""
    assert isinstance(EMPTY.apply(hand_made(added=(((X,), 1, b""),))), ReplicaStore)
