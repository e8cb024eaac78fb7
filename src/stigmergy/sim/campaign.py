"""Many seeds of one scenario, over several processes: what was found, how fast, and one hash over all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.sim.fleet.faults import Planned, read_faults
from stigmergy.sim.scenario import Scenario, find_scenario
from stigmergy.sim.simulating import Outcome, run_seed

CHUNK_MAX = 10
_CONTEXT = "stigmergy 2026 simulation campaign"


class Options(Struct, frozen=True, kw_only=True):
    """What a command line may change about a scenario. None leaves it as it is."""

    agents: int | None = None
    nodes: int | None = None
    faults: str | None = None
    for_s: float | None = None
    until_s: float | None = None
    keep: tuple[int, ...] | None = None

    def apply(self, scenario: Scenario) -> Scenario:
        """The scenario with these options."""
        if self.agents is not None:
            scenario = scenario.with_agents(self.agents)
        setup = scenario.setup
        if self.nodes is not None:
            setup = structs.replace(setup, nodes=self.nodes)
        if self.faults is not None:
            setup = structs.replace(setup, faults=read_faults(self.faults))
        if self.for_s is not None:
            setup = structs.replace(setup, for_s=self.for_s)
        return structs.replace(scenario, setup=structs.replace(setup, until_s=self.until_s, keep=self.keep))

    def words(self) -> list[str]:
        """The command line that gives these options."""
        given: list[str] = []
        for flag, value in (("--agents", self.agents), ("--nodes", self.nodes), ("--faults", self.faults)):
            given += [] if value is None else [flag, str(value)]
        for flag, seconds in (("--for", self.for_s), ("--until", self.until_s)):
            given += [] if seconds is None else [flag, f"{seconds:g}"]
        if self.keep is not None:
            given += ["--keep", ",".join(map(str, self.keep)) or "none"]
        return given


class Result(Struct, frozen=True):
    """What one seed gave, without its timeline."""

    seed: int
    trace: str
    violations: list[str]
    plan: list[Planned]
    simulated_ns: int
    messages: int


class Campaign(Struct):
    """All that was found."""

    results: list[Result] = []
    seconds: float = 0.0

    @property
    def failing(self) -> list[Result]:
        """The seeds with violations."""
        return [result for result in self.results if result.violations]

    @property
    def trace(self) -> str:
        """One hash over the traces of all seeds, in the order of the seeds."""
        hasher = blake3(derive_key_context=_CONTEXT)
        for result in self.results:
            hasher.update(result.seed.to_bytes(8, "big", signed=True) + bytes.fromhex(result.trace))
        return hasher.hexdigest()

    @property
    def messages(self) -> int:
        """Inputs and messages that arrived, in all runs."""
        return sum(result.messages for result in self.results)

    @property
    def simulated_s(self) -> float:
        """Virtual seconds, in all runs."""
        return sum(result.simulated_ns for result in self.results) / 1_000_000_000

    @property
    def messages_per_s(self) -> float:
        """Simulated messages per second of real time."""
        return self.messages / self.seconds if self.seconds else 0.0


def run_campaign(
    name: str, options: Options, seeds: Sequence[int], jobs: int, done: Callable[[int], None] = lambda _: None
) -> Campaign:
    """Runs all seeds. `done` is told how many are."""
    begin_s = time.monotonic()
    results: list[Result] = []
    for found in _run(name, options, seeds, jobs):
        results += found
        done(len(results))
    results.sort(key=lambda result: result.seed)
    return Campaign(results, time.monotonic() - begin_s)


def _run(name: str, options: Options, seeds: Sequence[int], jobs: int) -> Iterator[list[Result]]:
    if jobs <= 1 or len(seeds) <= 1:
        scenario = options.apply(find_scenario(name))
        for seed in seeds:
            yield [_result(run_seed(scenario.setup, seed, scenario.test))]
        return
    size = max(1, min(CHUNK_MAX, len(seeds) // (4 * jobs)))
    chunks = [list(seeds[first : first + size]) for first in range(0, len(seeds), size)]
    with ProcessPoolExecutor(jobs) as pool:
        waiting: list[Future[list[Result]]] = [pool.submit(run_chunk, name, options, chunk) for chunk in chunks]
        try:
            for one in as_completed(waiting):
                yield one.result()
        except BaseException:
            for one in waiting:
                one.cancel()
            raise


def run_chunk(name: str, options: Options, seeds: list[int]) -> list[Result]:
    """Runs some seeds, in a process of its own."""
    scenario = options.apply(find_scenario(name))
    return [_result(run_seed(scenario.setup, seed, scenario.test)) for seed in seeds]


def _result(outcome: Outcome) -> Result:
    return Result(outcome.seed, outcome.trace, outcome.violations, outcome.plan, outcome.simulated_ns, outcome.messages)
