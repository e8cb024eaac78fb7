"""Rows of groups."""

import msgspec

from stigmergy.shard.commit import CommitRow, Sealed, row_of, sealed_of
from stigmergy.testing.journal_contract import make_commit


def test_a_commit_comes_back_from_its_row_as_it_was() -> None:
    sealed = make_commit(3, 7, payload=b"x" * 300)
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(row_of(sealed)), type=CommitRow)
    assert sealed_of(row) == sealed


def test_a_row_has_the_fields_of_a_commit_in_their_order() -> None:
    assert CommitRow.__struct_fields__ == Sealed.__struct_fields__
