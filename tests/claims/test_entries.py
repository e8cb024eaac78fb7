"""Entries: what is written is read back, and what is not in order says nothing, whoever reads it."""

from __future__ import annotations

import msgspec
import pytest

from stigmergy.agents.codec import encode
from stigmergy.base.errors import Malformed
from stigmergy.claims.entries import (
    CLAIMANT_CHARS_MAX,
    FOR_MS_MAX,
    FOR_MS_MIN,
    RESOURCE_CHARS_MAX,
    ROSTER_COUNT_MAX,
    SEALED_COUNT_MAX,
    Ask,
    Checkpointed,
    ClaimBody,
    ClaimRecord,
    Expire,
    Move,
    Release,
    Renew,
    SealedRecord,
    Take,
    Withdraw,
    WriterList,
    Written,
    claimant_id,
    claimant_of,
    read_record,
    statement,
    write_record,
    write_records,
    writer_id,
)
from tests.claims.moves import CELL, LEDGER, Node, sign_with, verify

MOVES: tuple[Move, ...] = (
    Ask(CELL, 1_000),
    Ask(CELL, FOR_MS_MAX, waits=True),
    Take(CELL, 4, FOR_MS_MIN),
    Renew(CELL, 4, 1_000),
    Release(CELL, 4),
    Withdraw(CELL),
    Expire(CELL, 9),
    WriterList((b"one", b"two")),
    Checkpointed(9, bytes(32)),
)


@pytest.mark.parametrize("move", MOVES, ids=lambda move: type(move).__name__)
def test_what_is_written_is_read(move: Move) -> None:
    node = Node("north")
    assert read_record(LEDGER, node.record(move, "Drone/1 cell"), verify) == Written(
        b"north", node.writer, node.claimant("Drone/1 cell"), 1, 1, move
    )


def test_whom_an_entry_names() -> None:
    node = Node("north")
    named = (node.claimant("Drone/1 cell"), (b"north", "Drone/1 cell", node.body(Ask(CELL, 1_000)).incarnation))
    assert claimant_of(node.record(Ask(CELL, 1_000), "Drone/1 cell")) == named


def signed(body: bytes, record_format: int = 1, key: bytes = b"north", ledger: str = LEDGER) -> bytes:
    """A record with any body, signed as it should be."""
    return encode(ClaimRecord(record_format, 1, key, body, sign_with(key, statement(ledger, 1, key, body))))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "malformed"),
        (b"\xc1", "malformed"),
        (encode({"a": 1}), "malformed"),
        (signed(b"\xc1"), "malformed"),
        (signed(encode([1, 1, 1, "a", [99, CELL]])), "malformed"),
        (signed(encode(ClaimBody(1, 1, 0, "a", Withdraw(CELL)))), "malformed"),
        (signed(encode(ClaimBody(1, 1, 1, "a", Withdraw(CELL))), key=bytes(65)), "malformed"),
        (signed(encode(ClaimBody(1, 1, 1, "a", Withdraw(CELL))), record_format=3), "unknown"),
        (signed(encode(ClaimBody(1, 1, 1, "a", Withdraw(CELL))), record_format=2), "malformed"),
        (signed(encode(ClaimBody(1, 1, 1, "a", Withdraw(CELL))), ledger="another"), "forged"),
    ],
)
def test_what_says_nothing(data: bytes, why: str) -> None:
    assert read_record(LEDGER, data, verify) == why


def test_every_changed_byte_is_noticed() -> None:
    record = Node("north").record(Ask(CELL, 1_000))
    good = read_record(LEDGER, record, verify)
    for index in range(len(record)):
        changed = record[:index] + bytes([record[index] ^ 1]) + record[index + 1 :]
        found = read_record(LEDGER, changed, verify)
        assert isinstance(found, str), f"byte {index} was changed, and the record was taken as {found}"
        assert found != good


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 64, SEALED_COUNT_MAX])
def test_entries_that_are_written_together_share_a_signature_and_are_read_one_by_one(count: int) -> None:
    node, asked = Node("north"), list[bytes]()

    def counting(algorithm: int, key: bytes, signed: bytes, signature: bytes) -> bool:
        asked.append(signature)
        return verify(algorithm, key, signed, signature)

    bodies = [node.body(Ask(f"cell/{number}", 1_000)) for number in range(count)]
    records = write_records(LEDGER, 1, node.key, bodies, lambda data: sign_with(node.key, data))
    for number in (*range(count), 0, count - 1):
        found = read_record(LEDGER, records[number], counting)
        assert isinstance(found, Written)
        assert (found.sequence, found.move) == (number + 1, Ask(f"cell/{number}", 1_000))
        assert claimant_of(records[number])[0] == found.claimant
    assert len(dict.fromkeys(asked)) == 1


def test_every_changed_byte_of_a_sealed_entry_is_noticed() -> None:
    node = Node("north")
    bodies = [node.body(Ask(f"cell/{number}", 1_000)) for number in range(6)]
    record = write_records(LEDGER, 1, node.key, bodies, lambda data: sign_with(node.key, data))[5]
    for index in range(len(record)):
        changed = record[:index] + bytes([record[index] ^ 1]) + record[index + 1 :]
        assert isinstance(read_record(LEDGER, changed, verify), str), f"byte {index} was changed"


def test_a_sealed_entry_counts_in_its_own_place_and_ledger_only() -> None:
    node = Node("north")
    bodies = [node.body(Ask(f"cell/{number}", 1_000)) for number in range(6)]
    records = write_records(LEDGER, 1, node.key, bodies, lambda data: sign_with(node.key, data))
    one, other = (msgspec.msgpack.decode(data, type=SealedRecord) for data in records[:2])
    for wrong, why in (
        (msgspec.structs.replace(one, body=other.body), "forged"),
        (msgspec.structs.replace(one, index=1), "forged"),
        (msgspec.structs.replace(one, index=-1), "malformed"),
        (msgspec.structs.replace(one, index=16), "malformed"),
        (msgspec.structs.replace(one, path=one.path[:-1]), "malformed"),
        (msgspec.structs.replace(one, path=one.path * 3), "malformed"),
        (msgspec.structs.replace(one, path=b""), "forged"),
    ):
        assert read_record(LEDGER, encode(wrong), verify) == why
    assert read_record("another", records[0], verify) == "forged"


def test_among_entries_that_are_written_together_none_may_be_faulty() -> None:
    bodies = [ClaimBody(1, 1, 1, "a", Withdraw(CELL)), ClaimBody(1, 1, 0, "a", Withdraw(CELL))]
    with pytest.raises(Malformed):
        write_records(LEDGER, 1, b"north", bodies, lambda data: sign_with(b"north", data))


FAULTS: tuple[ClaimBody, ...] = (
    ClaimBody(-1, 1, 1, "a", Withdraw(CELL)),
    ClaimBody(1, -1, 1, "a", Withdraw(CELL)),
    ClaimBody(1, 1, 0, "a", Withdraw(CELL)),
    ClaimBody(1, 1, 2**63, "a", Withdraw(CELL)),
    ClaimBody(1, 1, 1, "a" * (CLAIMANT_CHARS_MAX + 1), Withdraw(CELL)),
    ClaimBody(1, 1, 1, "a", Withdraw("")),
    ClaimBody(1, 1, 1, "a", Release("c" * (RESOURCE_CHARS_MAX + 1), 1)),
    ClaimBody(1, 1, 1, "a", Ask("", 1_000)),
    ClaimBody(1, 1, 1, "a", Ask(CELL, FOR_MS_MIN - 1)),
    ClaimBody(1, 1, 1, "a", Take(CELL, 1, FOR_MS_MAX + 1)),
    ClaimBody(1, 1, 1, "a", Renew(CELL, 1, 0)),
    ClaimBody(1, 1, 1, "a", Renew("", 1, 1_000)),
    ClaimBody(1, 1, 1, "a", WriterList(())),
    ClaimBody(1, 1, 1, "a", WriterList((b"key",) * (ROSTER_COUNT_MAX + 1))),
    ClaimBody(1, 1, 1, "a", WriterList((b"",))),
    ClaimBody(1, 1, 1, "a", Checkpointed(1, b"short")),
)


@pytest.mark.parametrize("body", FAULTS, ids=lambda body: f"{type(body.move).__name__}")
def test_what_no_reader_takes_is_not_written(body: ClaimBody) -> None:
    with pytest.raises(Malformed):
        write_record(LEDGER, 1, b"north", body, lambda data: sign_with(b"north", data))


def test_a_claimant_belongs_to_a_key_an_incarnation_and_a_name() -> None:
    ids = {
        claimant_id(1, b"north", 1, "a"),
        claimant_id(1, b"south", 1, "a"),
        claimant_id(1, b"north", 2, "a"),
        claimant_id(1, b"north", 1, "b"),
        writer_id(1, b"north", 1),
        writer_id(1, b"north", 2),
    }
    assert len(ids) == 6
    assert all(len(one) == 16 for one in ids)


def test_nobody_writes_for_a_claimant_of_another_key() -> None:
    """The id is computed from the key that signed, and never read."""
    mine, other = Node("north"), Node("south")
    stolen = msgspec.msgpack.decode(other.record(Withdraw(CELL)), type=ClaimRecord)
    found = read_record(LEDGER, mine.record(Withdraw(CELL)), verify)
    assert isinstance(found, Written)
    assert found.claimant == mine.claimant() != other.claimant()
    assert read_record(LEDGER, encode(ClaimRecord(1, 1, mine.key, stolen.body, stolen.signature)), verify) == "forged"
