"""The real runtime over simulated ports: time, disk, network and randomness, all from one seed.

from stigmergy.sim import ALL, World, simulate

@simulate(fleet, agents=16, seeds=200, faults=ALL)
def test_never_two_greens(world: World) -> None: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stigmergy.sim.faults import (
        ALL,
        BIT_FLIP,
        CLOCK_DRIFT,
        CLOCK_JUMP,
        CRASH,
        DELAY,
        DEVICES,
        DISK_FULL,
        DUPLICATION,
        IO_ERROR,
        LIAR,
        LOSS,
        NETWORK,
        NONE,
        ONE_WAY,
        PARTITION,
        PAUSE,
        POWER,
        REORDERING,
        SLOW_DISK,
        VERSIONS,
        Fault,
    )
    from stigmergy.sim.node import Replaced
    from stigmergy.sim.simulation import Outcome, SimulationFailed, simulate
    from stigmergy.sim.world import Node, World

_PLACES = {
    "Node": "stigmergy.sim.world",
    "Outcome": "stigmergy.sim.simulation",
    "Replaced": "stigmergy.sim.node",
    "SimulationFailed": "stigmergy.sim.simulation",
    "World": "stigmergy.sim.world",
    "simulate": "stigmergy.sim.simulation",
}
"""Where what is not a fault comes from. Loaded when asked for: the parts of this package know each other."""

__all__ = [
    "ALL",
    "BIT_FLIP",
    "CLOCK_DRIFT",
    "CLOCK_JUMP",
    "CRASH",
    "DELAY",
    "DEVICES",
    "DISK_FULL",
    "DUPLICATION",
    "IO_ERROR",
    "LIAR",
    "LOSS",
    "NETWORK",
    "NONE",
    "ONE_WAY",
    "PARTITION",
    "PAUSE",
    "POWER",
    "REORDERING",
    "SLOW_DISK",
    "VERSIONS",
    "Fault",
    "Node",
    "Outcome",
    "Replaced",
    "SimulationFailed",
    "World",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES.get(name, "stigmergy.sim.faults")), name)
