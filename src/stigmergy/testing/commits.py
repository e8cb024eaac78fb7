"""Builds small, real commits and groups for tests of journals: true bodies, true digests, chained per shard.

The signatures are made up: a journal stores them and never checks them. Recovery tests need a real signer.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import msgpack

from stigmergy.core.commit import (
    COMMIT_FORMAT,
    GENESIS,
    Commit,
    Group,
    HashAlgorithm,
    Run,
    Sealed,
    Signature,
    SignatureAlgorithm,
    head_of,
    seal,
)


def make_commit(
    shard: int, position: int, previous: bytes = GENESIS, *, payload: bytes = b"", epoch: int = 1
) -> Sealed:
    """One commit with one event that carries the payload."""
    return seal(
        Commit(
            format=COMMIT_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            shard=shard,
            position=position,
            epoch=epoch,
            previous=previous,
            runs=[Run(events=1, time_ns=1_000_000 * position, source="test")],
            events=[(f"agent/{shard}", msgpack.encode(payload))],
        )
    )


def make_group(*commits: Sealed) -> Group:
    """A group of these commits, with a signature that has the right shape and covers the last head of each shard."""
    last = {sealed.shard: head_of(sealed) for sealed in commits}
    heads = [last[shard] for shard in sorted(last)]
    value = b"".join(head.digest[:8] for head in heads)[:64].ljust(64, b"s")
    return Group(
        commits=commits,
        signature=Signature(algorithm=SignatureAlgorithm.ED25519, key=b"k" * 32, heads=heads, value=value),
    )


class CommitChain:
    """Continues each shard where it was left: the next commit has the next position and cites the one before."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}

    def continue_from(self, sealed: Sealed) -> None:
        """Takes this commit as the newest of its shard."""
        self.positions[sealed.shard] = sealed.position
        self._digests[sealed.shard] = sealed.digest

    def commit(self, shard: int = 0, payload: bytes = b"") -> Sealed:
        """The shard's next commit."""
        position = self.positions.get(shard, 0) + 1
        sealed = make_commit(shard, position, self._digests.get(shard, GENESIS), payload=payload)
        self.continue_from(sealed)
        return sealed

    def group(self, shards: Iterable[int] = (0,), payload: bytes = b"") -> Group:
        """One commit for each of the shards, in the given order; a shard may occur more than once."""
        return make_group(*[self.commit(shard, payload) for shard in shards])
