"""The demonstration runs without a terminal, proves what it shows, and says so when it cannot."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demonstration.evidence import prove
from examples.demonstration.frames import Answered, Ask, Ordered, Stopped
from examples.demonstration.world import World

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(120)
def test_everything_is_proved(tmp_path: Path) -> None:
    command = [sys.executable, "examples/demo.py", "--pace", "3", "--seed", "5"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nproved  ") == 7
    assert "kill -9 after" in done.stdout
    assert "recovered 12 drones in" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
def test_a_world_that_remembers_more_is_not_convinced(tmp_path: Path) -> None:
    """The control: the same journal, held against a memory that says something else, proves nothing."""
    world = World(tmp_path / "patrol.db")
    world.start_node()
    world.start_missions()
    for _ in range(5):
        world.tick()
        world.listen(0.05)
    while world.in_flight or len(world.answers) < 12:
        world.listen(0.05)
    world.stop_node()
    assert world.broken is None
    holds = [finding.holds for finding in prove(tmp_path / "patrol.db", world, random.Random(1))]
    assert holds == [True, False, True, False, True, True, True], "no action and no silence in so short a time"
    world.acknowledged[10**6] = None
    world.sizes[10**6] = 1
    world.asked["one-more"] = Ask("one-more", "D-1", "parcel-1")
    world.answers_differ.append(str(Answered("one-more", True, "other")))
    world.done[1] = Ordered(1, "1.0.1.0", "D-1", "DropParcel", "parcel-1")
    world.stopped = Stopped(b"another state")
    holds = [finding.holds for finding in prove(tmp_path / "patrol.db", world, random.Random(1))]
    assert holds == [False, False, False, False, True, False, True]
