"""Shamir's secret sharing of 32 bytes over a prime field. Pure: the coefficients are drawn from a seed.

Fewer shares than the threshold say nothing about the secret.
"""

from __future__ import annotations

from collections.abc import Mapping

from blake3 import blake3

PRIME = 2**256 + 297
"""The smallest prime above all secrets."""
SHARE_BYTES = 33
SECRET_BYTES = 32
_COEFFICIENTS = "stigmergy 2026 federated: coefficients of Shamir's polynomial"


def share_out(secret: bytes, threshold: int, count: int, seed: bytes) -> list[bytes]:
    """Shares for the members 1 to `count`, of which any `threshold` give the secret back."""
    # 64 bytes for each coefficient, so that the remainder is uniform but for 2**-255.
    drawn = blake3(seed, derive_key_context=_COEFFICIENTS).digest(length=64 * threshold)
    coefficients = [int.from_bytes(secret, "little")]
    coefficients += [int.from_bytes(drawn[64 * i : 64 * i + 64], "little") % PRIME for i in range(1, threshold)]
    return [_value_at(coefficients, at).to_bytes(SHARE_BYTES, "little") for at in range(1, count + 1)]


def _value_at(coefficients: list[int], at: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * at + coefficient) % PRIME
    return value


def put_together(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of that many members by their numbers. Wrong shares give a wrong secret."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares; {threshold} are needed")
    used = sorted(shares)[:threshold]
    secret = 0
    for at in used:
        over = under = 1
        for other in used:
            if other != at:
                over, under = over * other % PRIME, under * (other - at) % PRIME
        secret += int.from_bytes(shares[at], "little") * over * pow(under, -1, PRIME)
    return (secret % PRIME % (1 << 8 * SECRET_BYTES)).to_bytes(SECRET_BYTES, "little")
