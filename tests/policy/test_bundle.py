"""Bundles of policies: read as written, and refused in every other form."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stigmergy.base.errors import PolicyRefused
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.policy.bundle import BUNDLE_BYTES_MAX, PolicyRules, inspect_policy, read_policy, version_of, write_policy
from tests.policy.drones import DATA, OTHER, REGO, SIGNER, policy_bytes

VERIFIER = Ed25519Verifier()
TRUSTED = [SIGNER.public_key]
GOOD = policy_bytes(3)


def test_a_bundle_is_read_as_it_was_written() -> None:
    bundle = read_policy(GOOD, TRUSTED, VERIFIER, "delivery")
    assert bundle.policy == PolicyRules("delivery", 3, (("drones.rego", REGO),), DATA)
    assert (bundle.file_name, bundle.signer) == ("delivery-3.policy", SIGNER.public_key)
    assert inspect_policy(GOOD, VERIFIER) == bundle
    # The digest is that of the content, whoever signs it.
    assert inspect_policy(policy_bytes(3, signer=OTHER), VERIFIER).digest == bundle.digest
    assert inspect_policy(policy_bytes(4), VERIFIER).digest != bundle.digest


@given(some.integers(0, len(GOOD) - 1), some.integers(1, 255))
def test_22_no_changed_byte_is_believed(place: int, change: int) -> None:
    changed = GOOD[:place] + bytes([GOOD[place] ^ change]) + GOOD[place + 1 :]
    with pytest.raises(PolicyRefused):
        read_policy(changed, TRUSTED, VERIFIER, "delivery")


@given(some.integers(0, len(GOOD) - 1))
def test_22_no_truncated_bundle_is_believed(length: int) -> None:
    with pytest.raises(PolicyRefused):
        read_policy(GOOD[:length], TRUSTED, VERIFIER, "delivery")


@given(some.binary(max_size=300))
def test_whatever_bytes_come_they_are_refused(data: bytes) -> None:
    with pytest.raises(PolicyRefused):
        read_policy(data, TRUSTED, VERIFIER, "delivery")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (policy_bytes(3, signer=None), "nobody has signed"),
        (policy_bytes(3, signer=OTHER), "not among the policy_keys"),
        (policy_bytes(3, fleet="other"), "a policy for the fleet 'other'"),
        (GOOD + b"\0", "cut off, damaged"),
        (bytes(BUNDLE_BYTES_MAX + 1), "no policy of ours"),
    ],
)
def test_22_a_refusal_says_why(data: bytes, why: str) -> None:
    with pytest.raises(PolicyRefused, match=why):
        read_policy(data, TRUSTED, VERIFIER, "delivery")


@pytest.mark.parametrize(
    "policy",
    [
        PolicyRules("delivery", 0, (("a.rego", ""),)),
        PolicyRules("delivery", 1, ()),
        PolicyRules("", 1, (("a.rego", ""),)),
        PolicyRules("delivery", 1, (("b.rego", ""), ("a.rego", ""))),
        PolicyRules("delivery", 1, (("a.rego", ""), ("a.rego", ""))),
        PolicyRules("delivery", 1, (("a.rego", "x" * BUNDLE_BYTES_MAX),)),
    ],
)
def test_what_readers_would_refuse_is_not_written(policy: PolicyRules) -> None:
    with pytest.raises(PolicyRefused):
        write_policy(policy, SIGNER)


def test_a_file_name_says_fleet_and_version() -> None:
    assert version_of("delivery-12.policy", "delivery") == 12
    for name in ("delivery-012.policy", "other-12.policy", "delivery-12.model", "delivery-x.policy", "delivery.policy"):
        assert version_of(name, "delivery") is None
