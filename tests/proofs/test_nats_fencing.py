"""The comparison of the fencing proof can fail; `make prove` runs it, tests/nats/journal tries it in small."""

from __future__ import annotations

from proofs.nats_fencing import Books, compare
from stigmergy.journal.port import StoredCommit
from stigmergy.testing.journal_contract import CommitChain


def test_what_owners_were_told_is_held_against_the_log() -> None:
    chain = CommitChain()
    first, second, third, elsewhere = (chain.group([0], bytes([number])) for number in range(4))
    found = [StoredCommit(group.commits[0], group.signature) for group in (first, second, third)]
    digests = [stored.sealed.digest for stored in found]
    books = Books(
        acknowledged={digests[0]: (1, 4), digests[1]: (2, 7)},
        unknown={digests[2]: 7},
        refused={elsewhere.commits[0].digest: 4},
        claims=[4, 7],
    )
    assert compare(0, books, found) == []

    lost = Books(acknowledged={**books.acknowledged, elsewhere.commits[0].digest: (4, 7)}, unknown=books.unknown)
    assert "acknowledged to claim 7, is not in it" in compare(0, lost, found)[0]
    lied_to = Books(acknowledged={digests[0]: (1, 4)}, refused={digests[1]: 7}, claims=[4, 4])
    said = " ".join(compare(0, lied_to, found))
    for word in ("refused to claim 7, is in it", "the same number", "know of 1"):
        assert word in said
    late = Books(acknowledged={digests[0]: (1, 7), digests[1]: (2, 4)}, unknown=books.unknown)
    assert "behind the claim of the next" in compare(0, late, found)[0]
    assert "one after the other" in compare(0, books, [found[0], found[2], found[1]])[0]
