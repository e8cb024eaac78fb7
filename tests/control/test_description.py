"""What an agent shares and claims, as its state says: who wrote what, and what it held at a time."""

import asyncio

import pytest

from stigmergy import Agent, Claim, Event, Events, Fleet, Ordered, ORSet, Shared, decide, ordered, shared
from stigmergy.agents.ordered import Granted, Lost
from stigmergy.agents.plans import plan_agent
from stigmergy.control import description
from stigmergy.control.description import claims_of, shared_fields_of, unnamed

NOW_NS = 1_800_000_000 * 10**9
WAIT_S_MAX = 240.0


class Seen(Event):
    what: str


class Gate(Agent):
    seen: Shared[ORSet[str]] = shared(by="all")

    @decide
    def see(self, event: Seen) -> Events:
        yield self.seen.add(event.what)


class Train(Agent):
    lane: Ordered[Claim] = ordered(of="lane-1")


async def test_each_entry_has_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("gates", agents=[Gate]).running(journal="memory:") as live, asyncio.timeout(WAIT_S_MAX):
        for name in ("east", "west"):
            await live.observe(f"Gate/{name}", Seen(what=name))
        while len(live.query("Gate/east").seen) < 2:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        assert live.replication is not None
        assert live.replication.replicas is not None
        asked = ("Gate/east", live.query("Gate/east"), plan_agent(Gate))
        (found,) = shared_fields_of(*asked, live.replication.replicas.machine.author)
        names = {one.replica: one.agent for one in found.writers}
        assert {one.at[0]: names[one.replica] for one in found.entries} == {"east": "Gate/east", "west": "Gate/west"}
        assert (found.field, found.object) == ("seen", "Gate.seen/all")
        monkeypatch.setattr(description, "ENTRIES_MAX", 1)
        (found,) = shared_fields_of(*asked, unnamed)
        assert [one.agent for one in found.writers] == ["", ""]
        assert (len(found.entries), found.entries_count, found.writers_count) == (1, 2, 2)


def test_a_claim_is_held_from_its_grant_to_its_end() -> None:
    plan, claim = plan_agent(Train), Claim(field="lane", of="lane-1")
    granted = claim.after(Granted(claim="lane", resource="lane-1", token=7, for_s=5.0), NOW_NS)
    lost = granted.after(Lost(claim="lane", resource="lane-1", token=7, reason="over"), NOW_NS)
    (found,) = claims_of(Train(id="east", lane=granted), plan, NOW_NS + 10**9)
    assert (found.claim, found.resource, found.token, found.held) == ("lane", "lane-1", 7, True)
    assert found.until == "2027-01-15T08:00:05.000000Z"
    for lane, now_ns in ((claim, NOW_NS), (granted, NOW_NS + 6 * 10**9), (lost, NOW_NS)):
        (found,) = claims_of(Train(id="east", lane=lane), plan, now_ns)
        assert (found.held, found.until) == (False, None)
