"""The chain is valid: each commit cites the digest of the one before it, and each group is signed by its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from stigmergy.core.commit import Commit, Signature, digest_commit, genesis_of, statement

Verify = Callable[[int, bytes, bytes, bytes], bool]
"""Algorithm, key, message, signature."""


class Signed(Struct, frozen=True):
    """The log of one shard of one node: its commits, their digests, and the signatures over their heads."""

    node: str
    fleet: str
    shard: int
    commits: Sequence[Commit]
    digests: Sequence[bytes]
    signatures: Sequence[Signature]
    key: bytes


def chain_is_valid(log: Signed, verify: Verify) -> list[str]:
    """Positions without a gap, every digest cited by the next, every signature good and by the node's own key."""
    findings: list[str] = []
    where = f"{log.node}, shard {log.shard}"
    before = genesis_of(log.fleet, log.shard)
    for position, (commit, digest) in enumerate(zip(log.commits, log.digests, strict=True), start=1):
        if commit.position != position:
            findings.append(f"{where}: position {commit.position} stands where {position} should")
        if commit.previous != before:
            findings.append(f"{where}: position {position} does not follow from the one before it")
        before = digest
    for signature in log.signatures:
        if signature.key != log.key:
            findings.append(f"{where}: signed by another key than the node's")
        elif not verify(signature.algorithm, signature.key, statement(signature.heads), signature.value):
            findings.append(f"{where}: a signature over {[head.position for head in signature.heads]} does not verify")
        for head in signature.heads:
            known = head.shard == log.shard and 1 <= head.position <= len(log.digests)
            if known and log.digests[head.position - 1] != head.digest:
                findings.append(f"{where}: what was signed at {head.position} is not what is in the log")
    return findings


def digests_of(bodies: Sequence[bytes]) -> list[bytes]:
    """The digests of commits, from their bytes."""
    return [digest_commit(body) for body in bodies]
