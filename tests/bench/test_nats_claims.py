"""The measurement of claims: it goes the way that ships, and its figures belong together."""

import asyncio

import pytest

from bench.nats import claims
from stigmergy.claims.memory_ledger import forget_ledger, open_ledger


def test_claims_are_measured_from_question_to_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "WARM_UP_S", 0.05)

    async def run() -> claims.Figures:
        return await claims.measure_claims(open_ledger("memory:measured", "measured"), agents=20, seconds=0.3)

    try:
        found = asyncio.run(run())
    finally:
        forget_ledger("measured")
    assert found.agents == 20
    assert found.claims_per_s > 0
    # What was asked or given back at one end of the measurement may be written or granted beyond it.
    claims_count, moves_count = found.claims_per_s * found.seconds, found.moves_per_s * found.seconds
    assert moves_count == pytest.approx(2 * claims_count, rel=0.1, abs=4 * found.agents), "asked and given back"
    assert 1 <= found.moves_per_append <= 256
    assert 0 < found.p50_ms <= found.p99_ms
    assert found.seconds >= 0.3
