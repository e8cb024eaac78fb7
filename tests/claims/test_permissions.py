"""Claims on a node: what is heard first after a start, and what is denied without a ledger; shared fields beside."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy import (
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Events,
    Fleet,
    Granted,
    Lost,
    Ordered,
    ORSet,
    Released,
    Shared,
    WakeMe,
    Woken,
    decide,
    evolve,
    ordered,
    react,
)
from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.shared import Merged, SharedChanged
from stigmergy.claims.permissions import NO_LEDGER, RESTARTED
from stigmergy.node.host import Connections
from stigmergy.shard.inputs import VerdictCame
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Arrived(Event):
    vehicle: str


class Gone(Event):
    pass


class Car(Agent):
    slot: Ordered[Claim] = ordered(of="slot-1")
    seen: Shared[ORSet[str]]
    heard: tuple[str, ...] = ()

    @decide
    def arrived(self, event: Arrived) -> Events:
        yield event
        yield self.seen.add(event.vehicle)

    @react
    def ask(self, event: Arrived) -> Effects:
        yield WakeMe(name="look", after_s=30)
        yield self.slot.claim(for_s=3600)

    @react
    def give_back(self, event: Gone) -> Effects:
        yield self.slot.release()

    @evolve
    def hear(self, event: Granted | Denied | Lost | Released | Woken) -> None:
        self.heard = (*self.heard, f"{type(event).__name__} {self.slot.held}")


CAR = "Car/1"
GRANTED = encode(Granted(claim="slot", resource="slot-1", token=7, for_s=3600))


def fleet() -> Fleet:
    return Fleet("cars", agents=[Car])


def tags(node: SimNode, after: int) -> list[str]:
    """Of what was kept behind this position."""
    commits = [commit for commit in node.logbook.commits[0] if commit.position > after]
    return [tag_of(body) for commit in commits for address, body in commit.events if address == CAR]


def test_without_a_ledger_a_claim_is_denied_and_a_release_is_taken() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe(CAR, Arrived(vehicle="V-1"))
        await asyncio.sleep(1)
        await live.observe(CAR, Gone())
        await asyncio.sleep(1)
        car = live.query(CAR)
        assert car.heard == ("Denied False", "Released False")
        assert not node.host.shards[0].state.outbox.count
        denied = [body for commit in node.logbook.commits[0] for _, body in commit.events if b"Denied" in body]
        assert NO_LEDGER.encode() in denied[0]

    play(fleet(), main)


@pytest.mark.parametrize("seed", range(5))
def test_after_a_start_nothing_is_held_before_anything_else_is_heard(seed: int) -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        node.host.intake.put_inside(0, VerdictCame(CAR, GRANTED))  # for nobody yet: passed over
        await live.observe(CAR, Arrived(vehicle="V-1"))
        await asyncio.sleep(1)
        node.host.intake.put_inside(0, VerdictCame(CAR, GRANTED))
        await asyncio.sleep(1)
        assert live.query(CAR).heard == ("Denied False", "Granted True")
        assert not live.query(CAR).slot.held  # a query has no time
        # What is owed when the power goes: this claim perhaps, and a timer that is overdue by the next start.
        await live.observe(CAR, Arrived(vehicle="V-2"))
        await node.lose_power()
        await asyncio.sleep(60)
        live = await node.start()
        position = node.host.durable_position(0)
        await live.observe(CAR, Arrived(vehicle="V-3"))
        await asyncio.sleep(1)
        after = tags(node, position)
        assert after[0] == "stigmergy.Lost@1"
        assert after.count("stigmergy.Lost@1") == 1
        assert "stigmergy.Woken@1" in after
        heard = live.query(CAR).heard
        assert all(one.endswith("False") for one in heard[heard.index("Lost False") :])
        assert live.query(CAR).slot.until_ns == 0

    play(fleet(), main, seed=seed, shuffle=True)


def test_a_claim_that_was_lost_at_one_start_is_not_lost_again_at_the_next() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe(CAR, Arrived(vehicle="V-1"))
        node.host.intake.put_inside(0, VerdictCame(CAR, GRANTED))
        await asyncio.sleep(1)
        for _ in range(2):
            await node.lose_power()
            live = await node.start()
            await asyncio.sleep(1)
        assert live.query(CAR).heard.count("Lost False") == 1
        lost = [body for commit in node.logbook.commits[0] for _, body in commit.events if b"Lost" in body]
        assert RESTARTED.encode() in lost[0]

    play(fleet(), main)


class Listener:
    """Stands for the replicas."""

    def __init__(self) -> None:
        self.told: list[tuple[str, type]] = []

    @property
    def connections(self) -> Connections:
        return Connections(shared=lambda _, news: self.told.extend((address, type(event)) for address, event in news))

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def kill(self) -> None: ...


def test_shared_fields_are_told_once_they_are_durable_and_survive_a_power_loss() -> None:
    listener = Listener()

    async def main(node: SimNode) -> None:
        live, told = await node.start(), listener.told
        await live.observe(CAR, Arrived(vehicle="V-1"))
        assert told == [(CAR, type(None)), (CAR, SharedChanged)]
        seen = live.query(CAR).seen
        assert list(seen) == ["V-1"]
        await node.lose_power()
        live = await node.start()
        assert live.query(CAR).seen == seen
        await live.observe(CAR, Arrived(vehicle="V-2"))
        assert told[2:] == [(CAR, SharedChanged)]
        assert Merged not in [kind for _, kind in told]

    play(fleet(), main, parts=lambda *_: [listener])
