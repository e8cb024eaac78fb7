"""Agents on several simulated machines tell each other something, whatever goes wrong; and the checker has teeth."""

import pytest

from stigmergy import Agent, Effects, Event, Fleet, Tell, TellFailed, evolve, react
from stigmergy.network.tell_router import TellRouter
from stigmergy.shard.inputs import EffectsSettled
from stigmergy.sim import ALL, World, simulate
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import run_seed


class Seen(Event):
    number: int


class Heard(Event):
    by: str
    number: int


class Post(Agent):
    seen: int = 0
    heard: int = 0
    lost: int = 0

    @evolve
    def saw(self, event: Seen) -> None:
        self.seen += 1

    @react
    def pass_on(self, event: Seen) -> Effects:
        yield Tell(f"Post/{int(self.id) % 4 + 1}", Heard(by=self.address, number=event.number))

    @evolve
    def hears(self, event: Heard) -> None:
        self.heard += 1

    @evolve
    def gave_up(self, event: TellFailed) -> None:
        self.lost += 1


posts = Fleet("posts", agents=[Post])


def work(world: World) -> None:
    numbers = iter(range(1, 1_000_000))
    world.each(0.5, lambda post: world.observe(post, Seen(number=next(numbers))))
    world.eventually(lambda: all(not one.owed for one in world.settling()), 110)


@simulate(posts, agents=4, nodes=4, seeds=3, faults=ALL, for_s=15.0)
def test_what_is_told_across_machines_arrives_whatever_goes_wrong(world: World) -> None:
    work(world)


SETUP = Setup(fleet=posts, agents=4, nodes=4, for_s=15.0)


def test_a_tell_that_counts_as_delivered_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender believes that everything sent is durable at its receiver."""
    plain = TellRouter._publish

    def publish(self: TellRouter, message: object) -> None:
        plain(self, message)  # type: ignore[arg-type]
        for pair in self._pairs.values():
            for sequence in pair.confirm(self._host.journal.identity.incarnation, 1 << 60):
                self._host.intake.put_inside(pair.shard, EffectsSettled(pair.sink, [sequence]))

    monkeypatch.setattr(TellRouter, "_publish", publish)
    found = [finding for seed in range(1, 6) for finding in run_seed(SETUP, seed, work).violations]
    assert any("tells_arrive" in finding and "were not taken" in finding for finding in found), found[:3]
