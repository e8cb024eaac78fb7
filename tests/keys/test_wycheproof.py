"""Wycheproof's vectors for Ed25519: against the verifier, and against the way that messages on a bus take."""

import json
from collections import Counter
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec import json as json_codec

from stigmergy.bus.port import BusMessage
from stigmergy.bus.signatures import BusProof, CheckedRoots
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.commit import SignatureAlgorithm

FILE = Path(__file__).parents[1] / "fixtures" / "wycheproof" / "ed25519.json"
ED25519 = SignatureAlgorithm.ED25519


class Vector(Struct, array_like=True, frozen=True):
    number: int
    comment: str
    flags: str
    key: str
    message: str
    signature: str
    result: str


VECTORS = json_codec.decode(FILE.read_bytes(), type=list[Vector])
VERIFIER = Ed25519Verifier()


def verdict(vector: Vector) -> bool:
    """Whether this signature would be believed: the key must be one that may be enrolled, and the signature fit."""
    key = bytes.fromhex(vector.key)
    if VERIFIER.acceptable(ED25519, key) is not None:
        return False
    return VERIFIER.verify(ED25519, key, bytes.fromhex(vector.message), bytes.fromhex(vector.signature))


def test_all_vectors_are_there() -> None:
    assert Counter(vector.result for vector in VECTORS) == {"valid": 117, "invalid": 64, "acceptable": 29}
    assert len({vector.number for vector in VECTORS}) == len(VECTORS) == 210
    assert json.loads(FILE.read_bytes())[0][0] == 1


@pytest.mark.parametrize("result", ["valid", "invalid"])
def test_the_verdict_is_that_of_wycheproof(result: str) -> None:
    wrong = [one for one in VECTORS if one.result == result and verdict(one) is not (result == "valid")]
    assert wrong == []


def test_small_order_and_mixed_order_keys_are_refused_whatever_is_signed() -> None:
    keys = {one.key for one in VECTORS if "SmallOrderPublicKey" in one.flags}
    assert keys
    assert all(VERIFIER.acceptable(ED25519, bytes.fromhex(key)) is not None for key in keys)
    assert not [one for one in VECTORS if one.result == "acceptable" and verdict(one)]


def test_no_signature_of_the_vectors_is_one_of_a_message_on_a_bus() -> None:
    roots = CheckedRoots(VERIFIER.verify, 1_000)
    for vector in VECTORS:
        message = BusMessage("fleet/site/agents/Kind/name/events/about", bytes.fromhex(vector.message))
        key, signature = bytes.fromhex(vector.key), bytes.fromhex(vector.signature)
        assert not roots.is_signed(message, BusProof("fleet/site/node", False, ED25519, key, signature, 0, ()))
