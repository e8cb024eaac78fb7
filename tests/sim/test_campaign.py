"""Campaigns: a seed that hangs or takes its process down costs only itself, and is named with node and stack."""

import gc
import os
import re
import signal
import time

import pytest

from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.sim import campaign
from stigmergy.sim.campaign import Campaign, Options, run_campaign
from stigmergy.sim.fleet import Setup
from stigmergy.sim.simulation import Scenario
from stigmergy.sim.world import World

HANG_S = 5.0
"""A run of these takes a tenth of a second on an idle machine."""


class Trouble(Exception):
    """Something that cannot be sent to another process as it is."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class Grain(Event):
    stone: bool = False


class Mill(Agent):
    ground: int = 0

    @evolve
    def grind(self, event: Grain) -> None:
        while event.stone:
            time.sleep(0.001)
        self.ground += 1


def watch(world: World) -> None:
    if world.seed == 3:
        world.observe("Mill/2", Grain(stone=True))
    if world.seed == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if world.seed == 5:
        re.match(r"(a+)+$", "a" * 64 + "b")
    if world.seed == 6:
        raise Trouble(1, 2)
    if world.seed == 9:
        gc.collect()
    if world.seed == 7:
        world.always(lambda: False, name="never well")
    world.each(1.0, lambda mill: world.observe(mill, Grain()))


SCENARIO = Scenario(
    setup=Setup(fleet=Fleet("mills", agents=[Mill]), agents=2, nodes=2, faults=(), for_s=3.0), test=watch
)
NAME = f"{__name__}:SCENARIO"


def found(seeds: list[int], notes: list[str], jobs: int = 2) -> Campaign:
    done: list[int] = []
    result = run_campaign(NAME, Options(), seeds, jobs, done.append, notes.append, HANG_S)
    assert done == list(range(1, len(seeds) + 1))
    assert [one.seed for one in result.results] == sorted(seeds)
    return result


class Threaded:
    """Its end waits for a thread of the process that made it, as that of gRPC's servers does."""

    def __init__(self) -> None:
        self.made_in = os.getpid()
        self.itself = self

    def __del__(self) -> None:
        while os.getpid() != self.made_in:
            time.sleep(0.01)


def test_garbage_of_the_owner_is_not_collected_in_a_worker() -> None:
    gc.disable()
    Threaded()
    try:
        result = found([9], [], jobs=1)
    finally:
        gc.enable()
        gc.collect()
    assert not result.failing


def test_a_seed_that_hangs_is_ended_with_node_and_stack_and_the_rest_goes_on() -> None:
    notes: list[str] = []
    result = found([1, 2, 3, 8], notes, jobs=1)
    (hung,) = result.failing
    assert hung.seed == 3
    where = r"hung: ended after 5 s, [0-9.]+ s of them on a processor, on node-2 at [0-9.]+ virtual seconds"
    assert re.fullmatch(where, hung.violations[0])
    assert "in grind" in hung.stack
    assert "test_campaign.py" in hung.stack
    assert not result.ended, "it cannot be run again"
    assert any(note.startswith("seed 3 hangs, after 5.0 s: hung: ended") for note in notes)


def test_one_that_never_leaves_a_call_into_c_is_ended_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "GRACE_S", 1.0)
    (hung,) = found([1, 5], []).failing
    assert hung.violations == ["hung: ended after 6 s inside of a call that never returns"]
    assert "in watch" in hung.stack


def test_one_that_takes_its_process_down_is_named() -> None:
    (died,) = found([1, 4, 8], []).failing
    assert (died.seed, died.violations) == (4, ["its process ended with code -9"])


def test_failing_and_slow_seeds_are_named_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "SLOW_S", 1.0)
    notes: list[str] = []
    result = found([7, 3], notes, jobs=1)
    assert [one.seed for one in result.ended] == [7]
    assert re.match(r"seed 7 fails, after [0-9.]+ s: at [0-9.]+ s: always never well", notes[0])
    slow = [note for note in notes if note.startswith("seed 3 is slow: it has been running for ")]
    assert len(slow) == 1
    assert "half of the others took less than" in slow[0]


def test_an_error_of_the_test_is_raised_here() -> None:
    with pytest.raises(Exception, match="1 and 2") as raised:
        run_campaign(NAME, Options(), [1, 6, 8], 2)
    told = str(raised.value) + "".join(getattr(raised.value, "__notes__", ()))
    assert "in watch" in told
    assert "Trouble" in told
