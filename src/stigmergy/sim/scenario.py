"""A scenario: a fleet, what happens to it, and what must hold, under a name that `stigmergy sim` can run.

    scenario = Scenario(setup=Setup(fleet=fleet, agents=16), test=watch)

`stigmergy sim module:scenario` runs it, and so it does any function that `@simulate` has decorated. A package that
brings one for others names it in the entry point group `stigmergy.scenarios`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import entry_points
from typing import Any

from msgspec import Struct, structs

from stigmergy.core.errors import ConfigError
from stigmergy.sim.fleet.fleet import Setup
from stigmergy.sim.world import World

GROUP = "stigmergy.scenarios"
Test = Callable[[World], Coroutine[Any, Any, None] | None]
"""Called at the beginning of each run."""


class Scenario(Struct, frozen=True, kw_only=True):
    """Everything that a run needs but its seed."""

    setup: Setup
    test: Test
    about: str = ""
    """What it is, in a sentence."""
    names: Callable[[int], Sequence[str]] | None = None
    """The addresses of so many agents, where it matters which they are. Otherwise they are counted from 1."""

    def with_agents(self, count: int) -> Scenario:
        """The same with so many agents."""
        if count < 1:
            raise ConfigError(f"{count} agents: give 1 or more")
        agents = count if self.names is None else tuple(self.names(count))
        return structs.replace(self, setup=structs.replace(self.setup, agents=agents))


def find_scenario(name: str) -> Scenario:
    """The scenario that a text names: `module:scenario`, or one that an installed package brings."""
    module, colon, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not colon:
        found = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name not in found:
            known = ", ".join(sorted(found)) or "none"
            raise ConfigError(f"{name!r} is no scenario; there are {known}; or give module:scenario")
        try:
            return _scenario(name, found[name].load())
        except ModuleNotFoundError as error:
            where = found[name].module
            raise ConfigError(f"{name!r}: there is no module {error.name!r}; run it where {where} is") from None
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name!r}: there is no module {error.name!r} here; run it where {module}.py is") from None
    if not hasattr(loaded, attribute):
        raise ConfigError(f"{name!r}: {module} has no {attribute!r}; name a Scenario, or a test with @simulate")
    return _scenario(name, getattr(loaded, attribute))


def _scenario(name: str, found: object) -> Scenario:
    scenario = getattr(found, "scenario", found)
    if not isinstance(scenario, Scenario):
        raise ConfigError(f"{name!r} is {type(found).__name__}; name a Scenario, or a test with @simulate")
    return scenario
