"""A sum that nobody can take apart, after Bonawitz et al. 2017. Pure: what is secret comes from a seed of the caller.

Each member adds two kinds of masks to its numbers: one of its own, and one for each other member, which that one takes
away. The secrets of both are shared out among all. The server adds up what came; with at least `threshold` members it
removes the own masks of those that are in the sum, and the pair masks of those that vanished. A member opens one of the
two kinds for each other member, never both: with both, the server would read that member's numbers.

What the caller must do: give every round a seed of its own and never mask two vectors with one, since their
difference is that of the masked ones; open once. The vault sees to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from blake3 import blake3
from msgspec import Struct
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError
from numpy.typing import NDArray

from stigmergy.base.errors import DeviceRefused
from stigmergy.federated.shares import SHARE_BYTES, put_together, share_out

MEMBERS_COUNT_MAX = 32
"""Members of one sum: each has a secret with each. More learners are several cohorts, or a sample of them."""
VALUES_COUNT_MAX = 2_048
"""Numbers in one vector: 16 KiB. With keys and shares of all members an input and what follows from it stay below the
80 KiB that one input may cause."""
_CONTEXT = "stigmergy 2026 federated: "
_NONCE = bytes(12)
"""Fixed, because every key encrypts one message only."""
Numbers = NDArray[np.uint64]


class SumRefused(DeviceRefused):
    """What the server asks, or a member answers, is against the protocol; trying again is of no use."""


class SumPlan(Struct, frozen=True):
    """What all members of one sum agree on before they say anything."""

    round: str
    members: tuple[str, ...]
    """Those invited, by name, in an order that numbers them."""
    threshold: int
    """So many must be left at each step, or nothing is opened. Over half, so that the members who answer two different
    questions of the server are never enough for both."""
    values_count: int

    def check(self) -> None:
        """Raises SumRefused for a plan under which numbers could be read, or that is too large."""
        count = len(self.members)
        if len({*self.members}) != count or not 2 <= count <= MEMBERS_COUNT_MAX:
            raise SumRefused(f"{count} members; a sum is of 2 to {MEMBERS_COUNT_MAX}, each named once")
        if not count < 2 * self.threshold <= 2 * count:
            raise SumRefused(f"threshold {self.threshold} of {count} members; it must be over half of them")
        if not 1 <= self.values_count <= VALUES_COUNT_MAX:
            raise SumRefused(f"{self.values_count} values; a vector has 1 to {VALUES_COUNT_MAX}")

    def number(self, member: str) -> int:
        """A member's number, from 1."""
        return self.members.index(member) + 1


class MemberKeys(Struct, frozen=True):
    """What a member shows to all: two public keys of X25519, and a digest of the seed of its own mask."""

    member: str
    sealing: bytes
    masking: bytes
    own_digest: bytes
    """Tells a wrong share from a right one; the seed is random, so the digest does not give it away."""


class SealedShare(Struct, frozen=True):
    """The shares of one member's two secrets for another one, encrypted to it."""

    giver: str
    taker: str
    box: bytes


class OpenedShares(Struct, frozen=True):
    """One share of each giver, in their order: of its own mask if it is in the sum, else of its masking key."""

    taker: str
    shares: tuple[bytes, ...]


def derived(secret: bytes, purpose: str, *names: str) -> bytes:
    """A key for one purpose between these members. Lengths are told, so no two lists of names give the same."""
    said = b"".join(len(name.encode()).to_bytes(4, "little") + name.encode() for name in names)
    return blake3(secret + said, derive_key_context=_CONTEXT + purpose).digest()


def keys_of(seed: bytes, me: str) -> MemberKeys:
    """What this member shows."""
    own = derived(seed, "own mask")
    return MemberKeys(
        member=me,
        sealing=crypto_scalarmult_base(derived(seed, "sealing key")),
        masking=crypto_scalarmult_base(derived(seed, "masking key")),
        own_digest=derived(own, "digest of the own mask"),
    )


def check_roster(seed: bytes, plan: SumPlan, me: str, roster: Sequence[MemberKeys]) -> None:
    """Raises SumRefused unless these are keys of at least `threshold` members, each of its own, ours among them."""
    plan.check()
    names = check_members(plan, me, [keys.member for keys in roster], plan.members)
    if len({key for keys in roster for key in (keys.sealing, keys.masking)}) != 2 * len(names):
        raise SumRefused(f"{plan.round}: a public key is there twice")
    if keys_of(seed, me) not in roster:
        raise SumRefused(f"{plan.round}: the keys of {me} are not those that it has shown")


def check_members(plan: SumPlan, me: str, names: Sequence[str], among: Iterable[str]) -> Sequence[str]:
    """The names, if they are enough, each is told once, all are among those of the step before, and `me` is there."""
    known = {*among}
    if len({*names}) != len(names) or not known.issuperset(names):
        raise SumRefused(f"{plan.round}: members are named twice, or were not there at the step before")
    if len(names) < plan.threshold:
        raise SumRefused(f"{plan.round}: {len(names)} members are left, {plan.threshold} are needed")
    if me not in names:
        raise SumRefused(f"{plan.round}: {me} is not in this round any more")
    return names


def seal_shares(seed: bytes, plan: SumPlan, me: str, roster: Sequence[MemberKeys]) -> tuple[SealedShare, ...]:
    """The shares of this member's two secrets, one box for each member of the roster, itself included."""
    count = len(plan.members)
    own = share_out(derived(seed, "own mask"), plan.threshold, count, derived(seed, "shares of the own mask"))
    key = share_out(derived(seed, "masking key"), plan.threshold, count, derived(seed, "shares of the key"))
    boxes = []
    for keys in roster:
        at = plan.number(keys.member) - 1
        box_key = _box_key(seed, keys.sealing, plan.round, me, keys.member)
        box = crypto_aead_chacha20poly1305_ietf_encrypt(own[at] + key[at], b"", _NONCE, box_key)
        boxes.append(SealedShare(giver=me, taker=keys.member, box=box))
    return tuple(boxes)


def _box_key(seed: bytes, theirs: bytes, round: str, giver: str, taker: str) -> bytes:
    return derived(_agreed(derived(seed, "sealing key"), theirs), "box", round, giver, taker)


def _agreed(private: bytes, public: bytes) -> bytes:
    try:
        return crypto_scalarmult(private, public)
    except (CryptoError, ValueError, TypeError) as error:
        raise SumRefused("a public key is none") from error


def expand(key: bytes, count: int) -> Numbers:
    """So many numbers modulo 2**64 that look random to everybody without the key."""
    stream = blake3(key, derive_key_context=_CONTEXT + "mask").digest(length=8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def pair_mask(private: bytes, me: str, other: MemberKeys, plan: SumPlan) -> Numbers:
    """What `me` adds for another member: the other adds the same with the opposite sign."""
    first, second = sorted((me, other.member), key=plan.number)
    mask = expand(derived(_agreed(private, other.masking), "pair", plan.round, first, second), plan.values_count)
    return mask if me == first else np.negative(mask)


def mask(
    seed: bytes, plan: SumPlan, me: str, roster: Sequence[MemberKeys], sharers: Sequence[str], numbers: Numbers
) -> Numbers:
    """The numbers with the own mask, and a mask for each other member whose shares are there."""
    check_members(plan, me, sharers, [keys.member for keys in roster])
    if numbers.shape != (plan.values_count,):
        raise SumRefused(f"{plan.round}: {numbers.size} values, {plan.values_count} were agreed")
    total = numbers + expand(derived(seed, "own mask"), plan.values_count)
    private = derived(seed, "masking key")
    for keys in roster:
        if keys.member != me and keys.member in sharers:
            total = total + pair_mask(private, me, keys, plan)
    return total


def open_shares(
    seed: bytes,
    plan: SumPlan,
    me: str,
    roster: Sequence[MemberKeys],
    boxes: Sequence[SealedShare],
    masked: Sequence[str],
) -> OpenedShares:
    """The shares that `me` has, one kind for each giver."""
    givers = check_members(plan, me, [box.giver for box in boxes], [keys.member for keys in roster])
    check_members(plan, me, masked, givers)
    sealing = {keys.member: keys.sealing for keys in roster}
    opened = []
    for box in boxes:
        key = _box_key(seed, sealing[box.giver], plan.round, box.giver, me)
        try:
            both = crypto_aead_chacha20poly1305_ietf_decrypt(box.box, b"", _NONCE, key)
        except CryptoError as error:
            raise SumRefused(f"{plan.round}: the shares of {box.giver} are not for {me}, or damaged") from error
        opened.append(both[:SHARE_BYTES] if box.giver in masked else both[SHARE_BYTES:])
    return OpenedShares(me, tuple(opened))


def unmask(
    plan: SumPlan,
    roster: Sequence[MemberKeys],
    sharers: Sequence[str],
    masked: Sequence[str],
    total: Numbers,
    opened: Sequence[OpenedShares],
) -> Numbers:
    """The sum of the numbers of `masked`, from the sum of what they sent. Raises SumRefused if a share was wrong."""
    if len(masked) < plan.threshold:
        raise SumRefused(f"{plan.round}: {len(masked)} members are in the sum, {plan.threshold} are needed")
    known = {keys.member: keys for keys in roster}
    for at, name in enumerate(sharers):
        try:
            secret = put_together({plan.number(one.taker): one.shares[at] for one in opened}, plan.threshold)
        except ValueError as error:
            raise SumRefused(f"{plan.round}: the secret of {name}: {error}") from error
        if name in masked:
            if derived(secret, "digest of the own mask") != known[name].own_digest:
                raise SumRefused(f"{plan.round}: the shares of the own mask of {name} do not fit; somebody lies")
            total = total - expand(secret, plan.values_count)
            continue
        if crypto_scalarmult_base(secret) != known[name].masking:
            raise SumRefused(f"{plan.round}: the shares of the key of {name} do not fit; somebody lies")
        for other in masked:  # what the members that are in the sum have added for the one that is not
            total = total + pair_mask(secret, name, known[other], plan)
    return total
