"""Makes a failing run smaller while it still fails in the same way: fewer faults, fewer agents, a shorter run.

What is left is usually short enough to be read. Smaller is only ever tried, never computed: each candidate is run, and
taken if the same promise is broken. Bounded by runs and by time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from msgspec import Struct, structs

from stigmergy.core.errors import ConfigError
from stigmergy.sim.campaign import Options
from stigmergy.sim.scenario import Scenario
from stigmergy.sim.simulating import Outcome, run_seed

RUNS_MAX = 300
SECONDS_MAX = 120.0
_MOMENT = re.compile(r"at (\d+\.\d+) s: ")


class Shrunk(Struct, frozen=True):
    """The smallest run that was found, and how many were tried for it."""

    options: Options
    outcome: Outcome
    runs: int


class Shrinking:
    """One failing seed at work."""

    def __init__(
        self,
        scenario: Scenario,
        options: Options,
        outcome: Outcome,
        *,
        tried: Callable[[int], None] = lambda _: None,
        runs_max: int = RUNS_MAX,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._scenario = scenario
        self._wanted = kind_of(outcome.violations[0])
        self._tried = tried
        self._runs_max = runs_max
        self._deadline_s = time.monotonic() + seconds_max
        self._runs = 0
        # Otherwise fewer agents would be fewer nodes, and other faults.
        self._best = structs.replace(options, nodes=outcome.counts["nodes"])
        self._outcome = outcome

    def run(self) -> Shrunk:
        """Tries until nothing more can be left out, or the bounds are reached."""
        self._fewer_faults()
        self._shorter()
        self._fewer_agents()
        self._fewer_faults()
        return Shrunk(self._best, self._outcome, self._runs)

    def _try(self, options: Options) -> bool:
        """Whether it still fails so; if it does, it is the best that there is."""
        if self._runs >= self._runs_max or time.monotonic() > self._deadline_s:
            return False
        self._runs += 1
        self._tried(self._runs)
        scenario = options.apply(self._scenario)
        try:
            outcome = run_seed(scenario.setup, self._outcome.seed, scenario.test)
        except ConfigError:  # with other nodes the seed draws other faults, and not all that are to be kept
            return False
        if not any(kind_of(violation) == self._wanted for violation in outcome.violations):
            return False
        self._best, self._outcome = options, outcome
        return True

    def _fewer_faults(self) -> None:
        """Leaves out half of them, a quarter, and so on, down to one by one."""
        numbers = [one.number for one in self._outcome.plan]
        if numbers and self._try(structs.replace(self._best, keep=())):
            return
        size = max(1, len(numbers) // 2)
        while numbers:
            begin = 0
            while begin < len(numbers):
                rest = numbers[:begin] + numbers[begin + size :]
                if self._try(structs.replace(self._best, keep=tuple(rest))):
                    numbers = rest
                else:
                    begin += size
            if size == 1:
                return
            size = max(1, size // 2)

    def _shorter(self) -> None:
        """Heals right after the moment of the failure; then ever earlier, as long as it fails."""
        moment = next((found for found in map(_MOMENT.match, self._outcome.violations) if found), None)
        longest = self._best.apply(self._scenario).setup.for_s
        until_s = longest if self._best.until_s is None else self._best.until_s
        if moment is not None:
            after_s = float(math.ceil(float(moment[1]) + 0.5))
            if after_s < until_s and self._try(structs.replace(self._best, until_s=after_s)):
                until_s = after_s
        step_s = until_s / 2
        while step_s >= 1.0:
            shorter_s = float(math.floor(until_s - step_s))
            if shorter_s >= 1.0 and self._try(structs.replace(self._best, until_s=shorter_s)):
                until_s = shorter_s
            else:
                step_s /= 2

    def _fewer_agents(self) -> None:
        agents = self._best.apply(self._scenario).setup.agents
        count = agents if isinstance(agents, int) else len(agents)
        if self._best.agents is not None:
            count = self._best.agents
        while count > 1:
            for fewer in sorted({1, count // 2, count - 1}):
                if self._try(structs.replace(self._best, agents=fewer)):
                    count = fewer
                    break
            else:
                return


def kind_of(violation: str) -> str:
    """What was broken, without when and where: the check's name."""
    return _MOMENT.sub("", violation).partition(":")[0]
