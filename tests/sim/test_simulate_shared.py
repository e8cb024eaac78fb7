"""Shared and ordered fields in simulated fleets: replicas converge, the gate has one keeper, planted bugs are found."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from stigmergy.claims import observer as observing
from stigmergy.crdt.anti_entropy.admission import EquivocationCheck
from stigmergy.crdt.anti_entropy.authorship import Quarantined
from stigmergy.crdt.anti_entropy.context import SharedStatus
from stigmergy.crdt.anti_entropy.held_object import HeldObject
from stigmergy.crdt.anti_entropy.peers import Peer
from stigmergy.crdt.anti_entropy.rules import ClockReading
from stigmergy.crdt.delta import Delta
from stigmergy.crdt.store import ReplicaStore
from stigmergy.network.replicator import Replicator
from stigmergy.sim import ALL, LIAR, LOSS, NETWORK, NONE, World, simulate
from stigmergy.sim.fleet import Setup
from stigmergy.sim.scenarios.garage import Arrived, Door, Left, Pass, fleet
from stigmergy.sim.scenarios.garage import drive as work
from stigmergy.sim.simulation import run_seed


@simulate(fleet, agents=4, nodes=4, seeds=4, faults=ALL, for_s=15.0)
def test_all_three_kinds_of_state_survive_everything(world: World) -> None:
    # Seed 3 has found that a host which waited for company did not look at a verdict, and turned without end.
    work(world)


@simulate(fleet, agents=3, nodes=3, seeds=3, faults=NONE, for_s=20.0)
async def test_what_one_writes_all_read(world: World) -> None:
    for number, door in enumerate(world.agents):
        await world.wait_observed(door, Arrived(car=f"car-{number}"))
    await asyncio.sleep(5.0)  # until the first door has heard of the second one's car: only what is seen is removed
    world.observe("Door/1", Left(car="car-1"))
    world.eventually(lambda: all(list(door.inside) == ["car-0", "car-2"] for door in world.states(Door)), 5)
    world.eventually(lambda: world.count("total", 3) == 3, 5)


@simulate(fleet, agents=3, nodes=3, seeds=2, faults=NONE, for_s=30.0)
def test_the_gate_is_given_to_one_after_the_other(world: World) -> None:
    world.every(0.5, lambda: world.ask(world.chance.choice(world.agents), Pass()))
    world.eventually(lambda: sum(door.tokens for door in world.states(Door)) > 5, 1)


@pytest.mark.parametrize("seeds", [2, pytest.param(6, marks=pytest.mark.prove)])
def test_a_liar_is_shut_out_and_sets_nobody_against_each_other(seeds: int) -> None:
    setup = Setup(fleet=fleet, agents=5, nodes=5, for_s=12.0, faults=(LIAR, LOSS))
    outcomes = [run_seed(setup, seed, work) for seed in range(1, 1 + seeds)]
    assert not [violation for outcome in outcomes for violation in outcome.violations]
    assert any(outcome.counts["lies"] for outcome in outcomes)
    assert sum(outcome.counts["shut out"] for outcome in outcomes) > 0


def test_an_honest_node_that_is_shut_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: who holds something else than we do was shut out for it."""

    def blame(self: EquivocationCheck, peer: Peer, held: HeldObject, moment: ClockReading) -> None:
        assert peer.key is not None
        self._context.shut_out(Quarantined(peer.key, peer.name, held.name, b"", "it differs", moment.wall_ns))

    monkeypatch.setattr(EquivocationCheck, "show", blame)
    setup = Setup(fleet=fleet, agents=5, nodes=5, for_s=12.0, heal_s=20.0, faults=(LIAR,))
    found = (violation for seed in range(1, 7) for violation in run_seed(setup, seed, work).violations)
    assert any("only_liars_are_shut_out" in violation for violation in found)


@pytest.mark.prove
def test_a_liar_that_nobody_sees_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicator, "standing", lambda self: SharedStatus())
    setup = Setup(fleet=fleet, agents=5, nodes=5, for_s=12.0, heal_s=20.0, faults=(LIAR,))
    found = (violation for seed in range(1, 7) for violation in run_seed(setup, seed, work).violations)
    assert any("replicas_converge" in violation for violation in found)


def part_of_a_batch_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A replica keeps the first of several changes that come together, and says that it has all of them."""
    apply = ReplicaStore.apply

    def forgetful(self: ReplicaStore, delta: Delta) -> ReplicaStore:
        return apply(self, msgspec.structs.replace(delta, added=delta.added[:1]))

    patch.setattr(ReplicaStore, "apply", forgetful)


def leases_are_ended_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(observing, "expiry_ns", lambda seen_ns, for_ms: seen_ns + for_ms * 100_000)


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (part_of_a_batch_is_lost, "replicas_converge"),
        pytest.param(leases_are_ended_early, "one_holder_at_a_time", marks=pytest.mark.prove),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    setup = Setup(fleet=fleet, agents=3, nodes=3, for_s=12.0, heal_s=20.0, faults=NETWORK, journal="memory")
    found = (violation for seed in range(1, 12) for violation in run_seed(setup, seed, work).violations)
    assert any(finding in violation for violation in found)


def test_the_runs_have_both_ways_to_gossip() -> None:
    setup = Setup(fleet=fleet, agents=2, nodes=2, for_s=4.0, faults=NETWORK)
    outcomes = [run_seed(setup, seed, work) for seed in range(1, 6)]
    assert not [violation for outcome in outcomes for violation in outcome.violations]
