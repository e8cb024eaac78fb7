"""The example agent does what its docstrings say, and the command line can find it."""

import subprocess
import sys
from pathlib import Path

from examples.drone import BatteryMeasured, Drone, Land, MissionStarted, StartMission, fleet
from stigmergy.testing import given

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_starts_a_mission_with_a_full_battery() -> None:
    given(Drone).when(StartMission(mission="M1")).then(MissionStarted(mission="M1"))


def test_refuses_with_a_weak_one() -> None:
    given(Drone, BatteryMeasured(percent=19)).when(StartMission(mission="M1")).refused("battery at 19 %")


def test_lands_before_the_battery_is_empty() -> None:
    low = BatteryMeasured(percent=12)
    given(Drone).when(low).then(low, Land(reason="battery at 12 %"))


def test_is_found_from_its_own_folder() -> None:
    command = [sys.executable, "-c", "import drone; print(drone.fleet.name)"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    assert done.stdout == "delivery\n"
    assert fleet.name == "delivery"
