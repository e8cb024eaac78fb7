"""Who may write under which replica id, and what exactly is signed. Pure: the caller's functions use the keys.

A replica's id is a digest of its node's public key, the incarnation of its journal, the fleet and the agent's address
(`agents/shared.py`; the caller passes the function). So a node can only make changes of replicas of its own key, and
everybody can check it. A restored or cloned journal has a new incarnation and so new replicas: it cannot use a number
twice.

Signatures cover bytes, never objects, and each kind has its own domain:

    a change    `stigmergy.delta@1` 0   [fleet, object, replica, address, incarnation, first, last, bytes of the delta]
    a message   `stigmergy.gossip@1` 0  [fleet, node, bytes of the message]

Whom to believe: `trusted` keys, or, if none are configured, every valid key. A node's name belongs to the key that was
first heard under it, until the node leaves. So without trusted keys a stranger can join, take an unused name, and write
replicas of its own, though never those of others.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.crdt.anti_entropy.rules import KEYS_COUNT_MAX
from stigmergy.crdt.delta import Delta

OBJECT_BYTES = 8
"""How an object is named between nodes: the beginning of the digest of its name."""
DELTA_DOMAIN = b"stigmergy.delta@1\x00"
GOSSIP_DOMAIN = b"stigmergy.gossip@1\x00"
_OBJECT_CONTEXT = "stigmergy 2026 name of an object"

Sign = Callable[[bytes], bytes]
Verify = Callable[[int, bytes, bytes, bytes], bool]
"""Algorithm, public key, statement, signature: as the Verifier port."""
Acceptable = Callable[[int, bytes], str | None]
IdOf = Callable[[bytes, int, str], bytes]
"""Public key, incarnation, address: under which id this agent of this node may write."""

_encode = msgspec.msgpack.Encoder().encode


class NodeIdentity(Struct, frozen=True):
    """Who we are to the others."""

    fleet: str
    name: str
    algorithm: int
    key: bytes
    incarnation: int


class Trust(Struct, frozen=True):
    """How signatures are made and checked, and which keys are believed."""

    sign: Sign
    verify: Verify
    acceptable: Acceptable
    id_of: IdOf
    trusted: frozenset[bytes] | None = None
    """None: every key that is acceptable, on first use."""


def object_id(name: str) -> bytes:
    """The short id of an object in messages."""
    return blake3(name.encode(), derive_key_context=_OBJECT_CONTEXT).digest(length=OBJECT_BYTES)


def delta_statement(fleet: str, name: str, address: str, incarnation: int, delta: Delta, body: bytes) -> bytes:
    """The bytes that the author of a change signs."""
    said = [fleet, name, delta.replica, address, incarnation, delta.first, delta.last, body]
    return DELTA_DOMAIN + _encode(said)


def gossip_statement(fleet: str, node: str, body: bytes) -> bytes:
    """The bytes that the sender of a message signs."""
    return GOSSIP_DOMAIN + _encode([fleet, node, body])


class KnownKeys:
    """Which keys are believed, and who was first heard under which name."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._good: dict[tuple[int, bytes], bool] = {}
        self._names: dict[str, bytes] = {}

    def believes(self, algorithm: int, key: bytes) -> bool:
        """Whether this key may speak at all."""
        known = self._good.get((algorithm, key))
        if known is None:
            trusted = self._trust.trusted
            known = (trusted is None or key in trusted) and self._trust.acceptable(algorithm, key) is None
            if len(self._good) >= KEYS_COUNT_MAX:
                del self._good[next(iter(self._good))]
            self._good[algorithm, key] = known
        return known

    def is_whose(self, name: str, key: bytes) -> bool:
        """Whether this key may speak under this name: the first that did, until the node has left."""
        if name not in self._names and len(self._names) >= KEYS_COUNT_MAX:
            del self._names[next(iter(self._names))]
        return self._names.setdefault(name, key) == key

    def forget_name(self, name: str) -> None:
        """The name is free again: its node has left."""
        self._names.pop(name, None)

    def signed_by(self, algorithm: int, key: bytes, statement: bytes, signature: bytes) -> bool:
        """Whether a key that we believe has signed exactly this."""
        return self.believes(algorithm, key) and self._trust.verify(algorithm, key, statement, signature)


# Quarantine: keys and replicas from which nothing more is taken until an operator lifts it. Pure.
#
# Only proven lies lead here: two different changes under one number, signed by one key, or a state, signed by its
# sender, with a change of ours that we never made. Different stores prove nothing. A quarantine lasts until it is
# lifted or the node restarts; then the others show it the proof again. It covers what its author signed, on whatever
# path it comes. What others already hold of it still comes with their states: they vouch for that.

QUARANTINED_COUNT_MAX = 10_000
"""When so many are shut out, the first goes."""


class Quarantined(Struct, frozen=True):
    """One that is shut out, and why."""

    key: bytes
    """Of the node that has signed the lie, or that told it."""
    node: str
    """Its name, as far as it is known."""
    object: str
    replica: bytes
    """Whose changes they were."""
    why: str
    since_ns: int
    """By the wall clock."""


class Quarantine:
    """All that are shut out."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Quarantined] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, one: Quarantined) -> bool:
        """Shuts one out; False if it is already."""
        if one.key in self._by_key:
            return False
        if len(self._by_key) >= QUARANTINED_COUNT_MAX:
            del self._by_key[next(iter(self._by_key))]
        self._by_key[one.key] = one
        return True

    def lift(self, key: bytes) -> bool:
        """Lets it take part again; False if it was not shut out."""
        return self._by_key.pop(key, None) is not None

    def all(self) -> list[Quarantined]:
        """All of them, the first first."""
        return list(self._by_key.values())
