"""The fold of a ledger of users' own: what counts, what does not, and that a checkpoint forgets nothing that counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import Malformed
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.ledgers.fold import EntryFate, EntryFold
from stigmergy.ledgers.records import Body, EntriesStored, EntryBody, EntryWriters, read_record, write_records

NORTH, SOUTH = (Ed25519Signer(bytes([number]) * 32) for number in (1, 2))
verify = Ed25519Verifier().verify


def entry(id: str, proposal: str = "p1") -> EntryBody:
    return EntryBody(proposal, "Sensor/1", id, b"\x80")


def records(*bodies: Body, by: Ed25519Signer = NORTH, name: str = "city.incidents") -> list[bytes]:
    return write_records(name, by.algorithm, by.public_key, bodies, by.sign)


def fold(*data: bytes, ids: int = 100) -> tuple[EntryFold, list[EntryFate]]:
    made = EntryFold("city.incidents", ids)
    return made, [made.take(position, one, verify)[0] for position, one in enumerate(data, start=1)]


def test_the_first_of_an_id_counts() -> None:
    made, fates = fold(*records(entry("a"), entry("b"), entry("a", "p2")), *records(entry("a"), by=SOUTH))
    assert fates == [EntryFate.ENTERED, EntryFate.ENTERED, EntryFate.DUPLICATE, EntryFate.DUPLICATE]
    found = made.find("a")
    assert found is not None
    assert found.position == 1
    assert [made.has_entered(position) for position in (0, 1, 2, 3, 4, 5)] == [False, True, True, False, False, False]


def test_what_is_not_signed_for_this_ledger_does_not_count() -> None:
    (good,), (other,) = records(entry("a")), records(entry("a"), name="city.others")
    changed = good.replace(b"Sensor/1", b"Sensor/2")
    later = bytes([good[0], 9]) + good[2:]
    _, fates = fold(other, changed, b"nonsense", later, good)
    assert [fate.value for fate in fates] == ["forged", "forged", "malformed", "unknown", "entered"]


@pytest.mark.parametrize(
    "body",
    [
        entry(""),
        entry("x" * 201),
        entry("a", ""),
        EntryWriters(()),
        EntriesStored(1, 2),
        EntryBody("p", "", "a", bytes(9999)),
    ],
)
def test_bodies_beyond_their_bounds_do_not_count(body: Body) -> None:
    assert read_record("city.incidents", records(body)[0], verify) == "malformed"


def test_only_listed_writers_count_once_there_is_a_list() -> None:
    _, fates = fold(
        *records(entry("a"), by=SOUTH),
        *records(EntryWriters((NORTH.public_key,))),
        *records(entry("b"), EntryWriters((SOUTH.public_key,)), by=SOUTH),
        *records(entry("b"), EntryWriters((NORTH.public_key, SOUTH.public_key))),
        *records(entry("c"), by=SOUTH),
    )
    assert [fate.value for fate in fates] == [
        "entered", "noted", "strangers", "strangers", "entered", "noted", "entered",
    ]  # fmt: skip


def test_an_id_is_forgotten_after_so_many_entries() -> None:
    _, fates = fold(*records(*map(entry, "abcda")), *records(entry("d", "p2")), ids=3)
    assert [fate.value for fate in fates] == ["entered"] * 5 + ["duplicate"]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.integers(0, 40), st.integers(1, 9), st.integers(0, 40))
def test_going_on_from_a_checkpoint_changes_nothing(ids: list[str], at: int, window: int, cut: int) -> None:
    at = min(at, len(ids))
    data = [record for number, id in enumerate(ids) for record in records(entry(id, f"p{number}"))]
    whole, fates = fold(*data, ids=window)
    begun, _ = fold(*data[:at], ids=window)
    begun.take(at + 1, records(EntriesStored(at, min(cut, at)))[0], verify)
    again = EntryFold("city.incidents", window)
    assert again.restore(begun.checkpoint(NORTH.algorithm, NORTH.public_key, NORTH.sign), verify) == NORTH.public_key
    later = [again.take(at + 2 + number, record, verify)[0] for number, record in enumerate(data[at:])]
    assert later == fates[at:]
    assert again.count == whole.count
    assert again.first == min(cut, at) + 1
    kept = range(again.first, at + 1)
    assert [again.has_entered(position) for position in kept] == [whole.has_entered(position) for position in kept]


def test_a_checkpoint_of_another_ledger_or_changed_is_refused() -> None:
    made, _ = fold(*records(entry("a")))
    data = made.checkpoint(NORTH.algorithm, NORTH.public_key, NORTH.sign)
    for wrong, name in (
        (data, "city.others"),
        (data[:-1] + bytes([data[-1] ^ 1]), "city.incidents"),
        (b"?", "city.incidents"),
    ):
        with pytest.raises(Malformed):
            EntryFold(name, 100).restore(wrong, verify)
