"""Ed25519, checked against an implementation in this file that is slow and plain and shares no code with ours.

The published vectors are recomputed by it, so that a slip in copying one would be seen.
"""

import copy
import hashlib
import pickle
import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stigmergy.base.errors import TrustError
from stigmergy.base.trust import Signer, Verifier
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.shard.commit import SignatureAlgorithm

ED25519 = SignatureAlgorithm.ED25519

# The curve, from its definition: -x*x + y*y = 1 + d*x*x*y*y over the integers modulo P; the base point has order L.

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_1 = pow(2, (P - 1) // 4, P)


class Point(NamedTuple):
    x: int
    y: int


NEUTRAL = Point(0, 1)


def x_of(y: int) -> int | None:
    """An x for this y, or None if no point of the curve has it."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    if root * root % P != square:
        root = root * ROOT_OF_MINUS_1 % P
    return root if root * root % P == square else None


def add(a: Point, b: Point) -> Point:
    k = D * a.x * b.x * a.y * b.y % P
    return Point(
        (a.x * b.y + b.x * a.y) * pow(1 + k, -1, P) % P,
        (a.y * b.y + a.x * b.x) * pow(1 - k, -1, P) % P,
    )


def times(n: int, point: Point) -> Point:
    result = NEUTRAL
    for bit in f"{n:b}":
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def encode(point: Point) -> bytes:
    return (point.y | (point.x & 1) << 255).to_bytes(32, "little")


def base_point() -> Point:
    y = 4 * pow(5, -1, P) % P
    x = x_of(y)
    assert x is not None
    return Point(x if x % 2 == 0 else P - x, y)


BASE = base_point()


def hashed(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def secret_scalar(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little")
    return scalar & ~(1 << 255) & ~7 & ((1 << 255) - 1) | 1 << 254, digest[32:]


def plain_public_key(seed: bytes) -> bytes:
    return encode(times(secret_scalar(seed)[0], BASE))


def plain_sign(seed: bytes, message: bytes) -> bytes:
    scalar, prefix = secret_scalar(seed)
    nonce = hashed(prefix, message) % L
    commitment = encode(times(nonce, BASE))
    challenge = hashed(commitment, plain_public_key(seed), message) % L
    return commitment + ((nonce + challenge * scalar) % L).to_bytes(32, "little")


def points_of_small_order() -> list[Point]:
    """The eight points that L takes to the neutral one's neighbours: any point, taken L times, lands among them."""
    found: set[Point] = set()
    y = 2
    while len(found) < 8:
        x = x_of(y)
        if x is not None:
            torsion = times(L, Point(x, y))
            found |= {times(k, torsion) for k in range(8)}
        y += 1
    return sorted(found)


def encodings(y: int) -> list[bytes]:
    """All 32-byte strings that a lenient decoder reads as this y: with either sign, reduced or not."""
    return [(value | sign << 255).to_bytes(32, "little") for value in (y, y + P) if value < 2**255 for sign in (0, 1)]


SMALL_ORDER = sorted({encoded for point in points_of_small_order() for encoded in encodings(point.y)})

# RFC 8032, section 7.1: seed, public key, message, signature.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
        "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        hashlib.sha512(b"abc").hexdigest(),
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
]


@pytest.fixture
def verifier() -> Ed25519Verifier:
    return Ed25519Verifier()


def test_the_adapter_fits_the_ports() -> None:
    signer: Signer = Ed25519Signer(bytes(32))
    verifier: Verifier = Ed25519Verifier()
    assert verifier.verify(signer.algorithm, signer.public_key, b"x", signer.sign(b"x"))
    assert verifier.acceptable(signer.algorithm, signer.public_key) is None


@pytest.mark.parametrize(("seed", "public_key", "message", "signature"), VECTORS)
def test_published_vectors(verifier: Ed25519Verifier, seed: str, public_key: str, message: str, signature: str) -> None:
    seed_bytes, statement = bytes.fromhex(seed), bytes.fromhex(message)
    assert plain_public_key(seed_bytes).hex() == public_key
    assert plain_sign(seed_bytes, statement).hex() == signature
    signer = Ed25519Signer(seed_bytes)
    assert signer.public_key.hex() == public_key
    assert signer.sign(statement).hex() == signature
    assert verifier.verify(ED25519, signer.public_key, statement, bytes.fromhex(signature))
    assert verifier.acceptable(ED25519, signer.public_key) is None


@settings(deadline=None, max_examples=15)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_signs_like_the_plain_implementation(seed: bytes, statement: bytes) -> None:
    signer = Ed25519Signer(seed)
    assert signer.public_key == plain_public_key(seed)
    assert signer.sign(statement) == plain_sign(seed, statement)


# Forgeries.


def test_ten_thousand_mutations_are_refused(verifier: Ed25519Verifier) -> None:
    chance = random.Random(17)
    signer = Ed25519Signer(chance.randbytes(32))
    for _ in range(10_000):
        statement = chance.randbytes(chance.randrange(1, 80))
        parts = [bytearray(signer.public_key), bytearray(statement), bytearray(signer.sign(statement))]
        mutated = chance.choice(parts)
        if chance.random() < 0.8:
            mutated[chance.randrange(len(mutated))] ^= 1 << chance.randrange(8)
        elif chance.random() < 0.5:
            del mutated[chance.randrange(len(mutated))]
        else:
            mutated.insert(chance.randrange(len(mutated) + 1), chance.randrange(256))
        key, message, signature = map(bytes, parts)
        if (key, message) != (signer.public_key, statement) or signature != signer.sign(statement):
            assert not verifier.verify(ED25519, key, message, signature)


def test_every_bit_of_key_and_signature_counts(verifier: Ed25519Verifier) -> None:
    signer = Ed25519Signer(bytes(range(32)))
    signature = signer.sign(b"statement")
    for bit in range(512):
        flipped = (int.from_bytes(signature, "big") ^ 1 << bit).to_bytes(64, "big")
        assert not verifier.verify(ED25519, signer.public_key, b"statement", flipped)
    for bit in range(256):
        other_key = (int.from_bytes(signer.public_key, "big") ^ 1 << bit).to_bytes(32, "big")
        assert not verifier.verify(ED25519, other_key, b"statement", signature)


def test_a_signature_has_one_form(verifier: Ed25519Verifier) -> None:
    """Adding L to the scalar satisfies the equation too; accepting it would give two signatures for one statement."""
    signer = Ed25519Signer(bytes(32))
    signature = signer.sign(b"statement")
    scalar = int.from_bytes(signature[32:], "little")
    for multiple in range(1, 16):
        if scalar + multiple * L < 2**256:
            forged = signature[:32] + (scalar + multiple * L).to_bytes(32, "little")
            assert not verifier.verify(ED25519, signer.public_key, b"statement", forged)


def test_another_key_s_signature_is_refused(verifier: Ed25519Verifier) -> None:
    one, other = Ed25519Signer(bytes(32)), Ed25519Signer(bytes(range(32)))
    assert not verifier.verify(ED25519, one.public_key, b"statement", other.sign(b"statement"))


@given(st.binary(max_size=40), st.binary(max_size=100), st.binary(max_size=70))
def test_random_bytes_are_refused(key: bytes, statement: bytes, signature: bytes) -> None:
    assert Ed25519Verifier().verify(ED25519, key, statement, signature) is False


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=100), st.binary(min_size=64, max_size=64))
def test_random_bytes_of_the_right_length_are_refused(key: bytes, statement: bytes, signature: bytes) -> None:
    assert Ed25519Verifier().verify(ED25519, key, statement, signature) is False


@pytest.mark.parametrize("algorithm", [0, 2, -1, 255])
def test_other_algorithms_are_refused(verifier: Ed25519Verifier, algorithm: int) -> None:
    signer = Ed25519Signer(bytes(32))
    assert not verifier.verify(algorithm, signer.public_key, b"x", signer.sign(b"x"))
    assert f"algorithm {algorithm}" in str(verifier.acceptable(algorithm, signer.public_key))


@pytest.mark.parametrize("wrong", [None, "x" * 32, 32, bytearray(32), memoryview(bytes(32)), [0] * 32, ("a",) * 64])
def test_other_types_are_refused(verifier: Ed25519Verifier, wrong: Any) -> None:
    signer = Ed25519Signer(bytes(32))
    signature = signer.sign(b"x")
    assert verifier.verify(ED25519, wrong, b"x", signature) is False
    assert verifier.verify(ED25519, signer.public_key, wrong, signature) is False
    assert verifier.verify(ED25519, signer.public_key, b"x", wrong) is False
    assert verifier.verify(wrong, signer.public_key, b"x", signature) is False
    assert verifier.acceptable(ED25519, wrong) is not None
    with pytest.raises(TrustError, match="32 bytes"):
        Ed25519Signer(wrong)


# Keys that must not be enrolled.


def test_there_are_eight_points_of_small_order_and_fourteen_ways_to_write_them() -> None:
    points = points_of_small_order()
    assert len(points) == 8
    assert all(times(8, point) == NEUTRAL for point in points)
    assert len(SMALL_ORDER) == 14


@pytest.mark.parametrize("key", SMALL_ORDER, ids=bytes.hex)
def test_keys_of_small_order_are_refused(verifier: Ed25519Verifier, key: bytes) -> None:
    assert "small order" in str(verifier.acceptable(ED25519, key))
    # With such a key, a commitment of the same kind and a scalar of zero fit one statement in eight or all of them.
    for commitment in SMALL_ORDER:
        for number in range(16):
            assert not verifier.verify(ED25519, key, bytes([number]), commitment + bytes(32))


@pytest.mark.parametrize("y", range(P, 2**255))
@pytest.mark.parametrize("sign", [0, 1])
def test_non_canonical_keys_are_refused(verifier: Ed25519Verifier, y: int, sign: int) -> None:
    key = (y | sign << 255).to_bytes(32, "little")
    assert verifier.acceptable(ED25519, key) is not None
    if y > P + 1:
        assert "not canonical" in str(verifier.acceptable(ED25519, key))


def test_a_key_that_is_no_point_is_refused(verifier: Ed25519Verifier) -> None:
    off_curve = [y for y in range(2, 40) if x_of(y) is None]
    assert len(off_curve) > 10
    for y in off_curve:
        assert "prime-order group" in str(verifier.acceptable(ED25519, y.to_bytes(32, "little")))


def test_a_key_with_a_small_part_is_refused(verifier: Ed25519Verifier) -> None:
    good = times(12345, BASE)
    for torsion in points_of_small_order():
        reason = verifier.acceptable(ED25519, encode(add(good, torsion)))
        assert reason is None if torsion == NEUTRAL else "prime-order group" in str(reason)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_keys_of_another_length_are_refused(verifier: Ed25519Verifier, size: int) -> None:
    assert "32 bytes" in str(verifier.acceptable(ED25519, bytes(size)))
    assert not verifier.verify(ED25519, bytes(size), b"x", bytes(64))


@given(st.binary(min_size=32, max_size=32))
def test_every_seed_gives_a_key_that_can_be_enrolled(seed: bytes) -> None:
    assert Ed25519Verifier().acceptable(ED25519, Ed25519Signer(seed).public_key) is None


# The secret stays inside.


def test_the_private_key_is_not_shown_or_copied() -> None:
    seed = bytes(range(32))
    signer = Ed25519Signer(seed)
    for text in (repr(signer), str(signer), f"{signer}"):
        assert seed.hex() not in text
        assert signer.public_key.hex() in text
    for leak in (lambda: pickle.dumps(signer), lambda: copy.deepcopy(signer)):
        with pytest.raises(TypeError, match="not pickled"):
            leak()
    with pytest.raises(TrustError) as caught:
        Ed25519Signer(seed[:31])
    assert seed[:31].hex() not in str(caught.value)
