"""What a node says of claims, to people: what its agents believe, and who it is that holds."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.claims import reader as following
from tests.claims.stage import CELL, Stage, simulate


def test_what_agents_believe_is_what_they_were_granted() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        assert one.claims.beliefs() == []
        one.ask(for_s=5.0, renew=True)
        await one.wait_granted()
        other.ask(wait_s=20.0)
        one.ask("Drone/2", "another", for_s=5.0)
        await one.wait_granted()
        await asyncio.sleep(0.1)
        (second, first), (waiting,) = one.claims.beliefs(), other.claims.beliefs()
        assert (first.agent, first.claim, first.resource) == ("Drone/1", "cell", CELL)
        assert (first.holds, first.token, first.renews, first.asking) == (True, 1, True, False)
        assert 4.5 < first.left_s <= 5.0
        assert (second.agent, second.resource, second.renews) == ("Drone/2", "another", False)
        assert (waiting.holds, waiting.token, waiting.asking) == (False, 0, True)
        assert 19.0 < waiting.left_s <= 20.0
        await asyncio.sleep(5.2)
        assert [belief.agent for belief in one.claims.beliefs()] == ["Drone/1"]

    simulate(main)


def test_who_holds_is_named_by_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        for number in range(3):
            one.ask(f"Drone/{number}", f"cell {number}", for_s=60.0)
            await one.wait_granted()
        await asyncio.sleep(1.0)
        grants = [other.claims.folded.resource(f"cell {number}").grant for number in range(3)]
        named = [other.claims.name_of(grant.claimant) for grant in grants if grant is not None]
        key = one.signer.public_key
        assert named == [None, (key, "Drone/1 cell", 1), (key, "Drone/2 cell", 1)]

    monkeypatch.setattr(following, "NAMES_COUNT_MAX", 2)
    simulate(main)
