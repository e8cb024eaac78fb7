"""Whole trainings: in one process, over two nodes and a broker, and in the simulator with everything broken."""

from pathlib import Path

import numpy as np

from stigmergy.federated import Learner, SumRound, Training
from stigmergy.sim import ALL, NONE, World, simulate
from stigmergy.testing.bus_rig import wait_until
from tests.federated.site import LEARNERS, Device, is_exact, start

SERVER = ["Training/*", "Round/*"]
NODES = {"server": SERVER, "a": ["Learner/a*"], "b": ["Learner/b*"], "c": ["Learner/c*"]}


async def test_a_training_over_two_nodes_and_a_broker(tmp_path: Path) -> None:
    fleet = Device().make_fleet()
    bus = f"memory:{tmp_path.name}"
    server = fleet.running(bus=bus, node="server", agents=SERVER, journal=f"sqlite:{tmp_path}/server.db")
    device = fleet.running(bus=bus, node="device", agents=["Learner/*"], journal=f"sqlite:{tmp_path}/device.db")
    async with server as here, device as there:
        assert await here.send("Training/t", start(cohorts=1, step_s=240.0))
        await wait_until(lambda: here.query("Training/t", Training).status == "done")
        training = here.query("Training/t", Training)
        weights = np.arange(1, len(LEARNERS) + 1)
        assert training.improved == 2
        assert np.allclose(np.frombuffer(training.model), 2 * weights / weights.sum(), atol=1e-6)
        await wait_until(lambda: all(there.query(f"Learner/{name}", Learner).rounds == 2 for name in LEARNERS))
        assert {here.query(f"Round/t.{number}.0", SumRound).reason for number in (0, 1)} == {""}


simulated = Device()


AGENTS = ["Training/t", *(f"Learner/{name}" for name in LEARNERS)]


@simulate(simulated.make_fleet(), agents=AGENTS, nodes=NODES, seeds=1, faults=NONE, for_s=30.0)
def test_a_client_that_does_not_answer_is_left_out(world: World) -> None:
    simulated.begin(world.chance.randbytes)
    (away,) = [node for node in world.nodes if node.agents == ("Learner/c0",)]
    away.cut()
    world.ask("Training/t", start(rounds=1, step_s=8.0))

    def is_done() -> bool:
        training = world.state("Training/t", Training)
        members = [sorted(one.members) for one in training.sums]
        return training.status == "done" and members == [["a0", "a1", "b0", "b1", "b2"]]

    world.always(lambda: all(map(is_exact, world.state("Training/t", Training).sums)))
    world.eventually(is_done, 60)


@simulate(simulated.make_fleet(), agents=AGENTS, nodes=NODES, seeds=5, faults=ALL, for_s=30.0)
def test_every_sum_is_exact_and_every_training_ends_whatever_goes_wrong(world: World) -> None:
    watch(world)


def watch(world: World) -> None:
    simulated.begin(world.chance.randbytes)
    world.ask("Training/t", start(rounds=4, step_s=8.0))

    def sums_are_exact() -> bool:
        return all(is_exact(one) for one in world.state("Training/t", Training).sums)

    def nothing_was_used_twice() -> bool:
        """Two different vectors under one mask, or two questions opened, would show an update."""
        told: dict[tuple[str, str, int], set[bytes]] = {}
        for answer in simulated.answers:
            one = told.setdefault((answer.round, answer.learner, answer.phase), set())
            one.add(answer.numbers + b"".join(answer.opened.shares if answer.opened else ()))
        return all(len(one) == 1 for one in told.values())

    def has_ended() -> bool:
        return bool(world.replaced("Training/t")) or world.state("Training/t", Training).status in ("done", "given up")

    world.always(sums_are_exact)
    world.always(nothing_was_used_twice)
    world.eventually(has_ended, 600)
