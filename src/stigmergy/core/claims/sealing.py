"""One signature for many entries: a tree of digests, whose root is signed, and from each entry a path to the root.

Each entry can be verified by itself, wherever it stands and whoever has the others. A verifier that remembers the last
signatures computes one for a whole batch: they all sign the same statement.

A node is the digest of four below it, one block of the hash; leaves and nodes have keys of their own, so that none can
be taken for the other. Where there are fewer entries than the tree has leaves, the rest is empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

DIGEST_BYTES = 16
SEALED_COUNT_MAX = 256
LEVELS_COUNT_MAX = 4
WIDTH = 4
_LEAF_KEY = blake3(b"", derive_key_context="stigmergy 2026 sealed entry of a ledger").digest()
_NODE_KEY = blake3(b"", derive_key_context="stigmergy 2026 sealed entries of a ledger").digest()
_EMPTY = bytes(DIGEST_BYTES)


def seal(bodies: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """The root of a tree over these, and the path of each: from the leaves upward, at each level the three digests
    beside its own. At most SEALED_COUNT_MAX."""
    assert 0 < len(bodies) <= SEALED_COUNT_MAX
    level = [_leaf(body) for body in bodies]
    levels: list[list[bytes]] = []
    while len(level) > 1:
        level += [_EMPTY] * (-len(level) % WIDTH)
        levels.append(level)
        level = [_node(b"".join(level[start : start + WIDTH])) for start in range(0, len(level), WIDTH)]
    paths: list[bytes] = []
    for number in range(len(bodies)):
        index, path = number, b""
        for below in levels:
            index, place = divmod(index, WIDTH)
            family = below[index * WIDTH : index * WIDTH + WIDTH]
            path += b"".join(family[:place] + family[place + 1 :])
        paths.append(path)
    return level[0], paths


def root_of(body: bytes, index: int, path: bytes) -> bytes | None:
    """The root that this entry leads to; None for a path that no tree of ours has."""
    levels, rest = divmod(len(path), (WIDTH - 1) * DIGEST_BYTES)
    if rest or levels > LEVELS_COUNT_MAX or not 0 <= index < WIDTH**levels:
        return None
    digest = _leaf(body)
    for start in range(0, len(path), (WIDTH - 1) * DIGEST_BYTES):
        index, place = divmod(index, WIDTH)
        split = start + place * DIGEST_BYTES
        digest = _node(path[start:split] + digest + path[split : start + (WIDTH - 1) * DIGEST_BYTES])
    return digest


def _leaf(body: bytes) -> bytes:
    return blake3(body, key=_LEAF_KEY).digest(DIGEST_BYTES)


def _node(below: bytes) -> bytes:
    return blake3(below, key=_NODE_KEY).digest(DIGEST_BYTES)
