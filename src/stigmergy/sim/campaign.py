"""Many seeds of one scenario, over several processes: findings, speed, and one hash over all of it.

Seeds run in worker processes, one after the other in each. So a seed that hangs or crashes its process costs only
itself: it is reported with the node and the stack, and the others go on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import math
import multiprocessing
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError
from stigmergy.sim.errors import SimulationError
from stigmergy.sim.faults import Planned, read_faults
from stigmergy.sim.loop import ACTOR, VirtualLoop
from stigmergy.sim.simulation import Outcome, Scenario, find_scenario, run_seed

HANG_S = 600.0
"""A seed that runs for so many seconds of real time is ended. Most take a few."""
GRACE_S = 5.0
"""So much later it is ended from outside of the interpreter: a call into C may keep every other thread from running."""
SLOW_S = 20.0
SLOW_TIMES = 4
"""A seed is slow when it runs for SLOW_S, and SLOW_TIMES as long as half of those that are done."""
LOOK_S = 0.5
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


class SeedResult(Struct, frozen=True):
    """What one seed gave, without its timeline."""

    seed: int
    trace: str
    violations: list[str]
    plan: list[Planned]
    simulated_ns: int
    messages: int
    seconds: float = 0.0
    """Of real time."""
    stack: str = ""
    """Of one that was ended because it hung: what it did then."""


class Campaign(Struct):
    """All that was found."""

    results: list[SeedResult] = []
    seconds: float = 0.0
    interrupted: bool = False
    """Not all seeds were run: somebody has ended it."""

    @property
    def failing(self) -> list[SeedResult]:
        """The seeds with violations."""
        return [result for result in self.results if result.violations]

    @property
    def ended(self) -> list[SeedResult]:
        """Those of them that came to their end, so that they can be run again. The others hung or crashed."""
        return [result for result in self.failing if result.trace]

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
    name: str,
    options: Options,
    seeds: Sequence[int],
    jobs: int,
    done: Callable[[int], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    hang_s: float = HANG_S,
) -> Campaign:
    """Runs all seeds. `done` is told how many are; `note` gets a sentence about each that fails, hangs or is slow, as
    soon as that is known. One that runs for `hang_s` seconds of real time is ended, and the others go on. After
    KeyboardInterrupt it returns what was found until then."""
    begin_s, interrupted = time.monotonic(), False
    results: list[SeedResult] = []
    pool = ProcessPool(name, options, seeds, jobs, hang_s, note)
    try:
        for result in pool.run():
            results.append(result)
            if result.violations:
                said = "hangs" if result.stack else "fails"
                note(f"seed {result.seed} {said}, after {result.seconds:.1f} s: {result.violations[0]}")
            done(len(results))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        pool.close()
    results.sort(key=lambda result: result.seed)
    return Campaign(results, time.monotonic() - begin_s, interrupted)


# ------------------------------------------------------------------ processes


class ProcessPool:
    """Worker processes, and the seeds that wait for one."""

    def __init__(
        self,
        name: str,
        options: Options,
        seeds: Sequence[int],
        jobs: int,
        hang_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._what = (name, options, hang_s)
        self._waiting = deque(seeds)
        self._jobs = max(1, jobs)
        self._note = note
        self._took_s: list[float] = []
        self._workers: list[_Worker] = []
        self._folder = tempfile.TemporaryDirectory(prefix="stigmergy-sim-")

    def run(self) -> Iterator[SeedResult]:
        """Results as they come. Raises what a scenario raises that is no finding."""
        while self._waiting or any(worker.seed is not None for worker in self._workers):
            self._give_out()
            busy = [worker for worker in self._workers if worker.seed is not None]
            ready = wait([worker.connection for worker in busy], LOOK_S)
            for worker in busy:
                if worker.connection in ready:
                    result = self._take(worker)
                    self._took_s.append(result.seconds)
                    yield result
                else:
                    self._name_if_slow(worker)

    def close(self) -> None:
        """Ends all workers, whatever they do."""
        for worker in self._workers:
            worker.end()
        self._workers = []
        self._folder.cleanup()

    def _give_out(self) -> None:
        while self._waiting and len(self._workers) < self._jobs:
            self._workers.append(_Worker(*self._what, Path(self._folder.name)))
        for worker in self._workers:
            if worker.seed is None and self._waiting:
                worker.begin(self._waiting.popleft())

    def _take(self, worker: _Worker) -> SeedResult:
        try:
            answer = worker.connection.recv()
        except (EOFError, ConnectionError):
            answer = worker.last_words()
        if isinstance(answer, BaseException):
            raise answer
        if answer.stack or not worker.process.is_alive():
            worker.end()
            self._workers.remove(worker)
        worker.seed = None
        result: SeedResult = answer
        return result

    def _name_if_slow(self, worker: _Worker) -> None:
        others_s = statistics.median(self._took_s) if self._took_s else 0.0
        running_s = time.monotonic() - worker.since_s
        if not worker.is_named and running_s > max(SLOW_S, SLOW_TIMES * others_s):
            worker.is_named = True
            others = f"; half of the others took less than {others_s:.1f} s" if self._took_s else ""
            self._note(f"seed {worker.seed} is slow: it has been running for {running_s:.0f} s{others}")


class _Worker:
    """One process, as its owner sees it."""

    def __init__(self, name: str, options: Options, hang_s: float, folder: Path) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        file, self._stack = tempfile.mkstemp(dir=folder)
        os.close(file)
        self._hang_s = hang_s
        self.process = multiprocessing.Process(
            target=serve, args=(theirs, name, options, hang_s, self._stack), daemon=True
        )
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads. The worker uses nothing that a thread may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            # What the worker inherits is never collected there: the end of a gRPC server or channel waits for a thread
            # that only the owner has, and never returns.
            gc.freeze()
            try:
                self.process.start()
            finally:
                gc.unfreeze()
        theirs.close()
        self.seed: int | None = None
        self.since_s = 0.0
        self.is_named = False

    def begin(self, seed: int) -> None:
        self.seed, self.since_s, self.is_named = seed, time.monotonic(), False
        with contextlib.suppress(ConnectionError):  # it has ended already: there will be no answer
            self.connection.send(seed)

    def last_words(self) -> SeedResult:
        """What is known of a seed whose process has ended without an answer."""
        self.process.join()
        stack = Path(self._stack).read_text(encoding="utf-8", errors="replace")
        how = f"its process ended with code {self.process.exitcode}"
        if stack:
            how = f"hung: ended after {self._hang_s + GRACE_S:g} s inside of a call that never returns"
        return SeedResult(self.seed or 0, "", [how], [], 0, 0, time.monotonic() - self.since_s, stack)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def serve(connection: Connection, name: str, options: Options, hang_s: float, stack_path: str) -> None:
    """Runs seed after seed, as its owner says, until that one is gone. In a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner hears of it, and ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    owner = multiprocessing.parent_process()
    sentinels = [] if owner is None else [owner.sentinel]
    scenario: Scenario | None = None
    with Path(stack_path).open("w", encoding="utf-8") as stacks:
        while connection in wait([connection, *sentinels]):
            try:
                seed: int = connection.recv()
            except EOFError:
                return
            begin_s = time.monotonic()
            watchdog = _Watchdog(connection, seed, hang_s)
            faulthandler.dump_traceback_later(hang_s + GRACE_S, exit=True, file=stacks)
            try:
                scenario = scenario or options.apply(find_scenario(name))
                outcome = run_seed(scenario.setup, seed, scenario.test)
            except BaseException as error:
                watchdog.stop()
                connection.send(_portable(error))
                continue
            watchdog.stop()
            faulthandler.cancel_dump_traceback_later()
            found = (outcome.trace, outcome.violations, outcome.plan, outcome.simulated_ns, outcome.messages)
            connection.send(SeedResult(seed, *found, time.monotonic() - begin_s))


class _Watchdog:
    """Ends this process if a seed takes too long, and says before where it is."""

    def __init__(self, connection: Connection, seed: int, hang_s: float) -> None:
        self._connection = connection
        self._seed = seed
        self._hang_s = hang_s
        self._runs = threading.get_ident()
        self._cpu_s = time.process_time()
        self._turn = threading.Lock()
        """Its holder answers: the finished run, or the watchdog."""
        self._timer = threading.Timer(hang_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()
        if not self._turn.acquire(blocking=False):
            self._timer.join()  # it ends the process

    def _end(self) -> None:
        if not self._turn.acquire(blocking=False):
            return
        frame = sys._current_frames().get(self._runs)
        # With little of it, the machine was busy with something else, or the seed waits for something outside.
        cpu_s = time.process_time() - self._cpu_s
        said = f"hung: ended after {self._hang_s:g} s, {cpu_s:.1f} s of them on a processor, {_where(frame)}"
        stack = "".join(traceback.format_stack(frame)) or "no stack"
        self._connection.send(SeedResult(self._seed, "", [said], [], 0, 0, self._hang_s, stack))
        os._exit(1)


def _where(frame: FrameType | None) -> str:
    """On which node, and when, a stack is: the loop's frame knows whose callback it runs."""
    while frame is not None:
        if frame.f_code is VirtualLoop._tick.__code__:
            loop, handle = frame.f_locals["self"], frame.f_locals.get("handle")
            actor = "" if handle is None else handle._context.get(ACTOR, "")
            return f"on {actor or 'no node'} at {loop.time():g} virtual seconds"
        frame = frame.f_back
    return "before or after the run itself"


def _portable(error: BaseException) -> BaseException:
    """An error that another process can raise, with the lines where it came from."""
    where = "".join(traceback.format_exception(error))
    try:
        copy = multiprocessing.reduction.ForkingPickler.loads(multiprocessing.reduction.ForkingPickler.dumps(error))
        if not isinstance(copy, BaseException):
            raise TypeError(type(copy).__name__)
    except Exception:
        return SimulationError(f"{type(error).__name__}: {error}\n{where}")
    copy.add_note(where)
    return copy


# Shrinks a failing run while it still fails in the same way: fewer faults, fewer agents, a shorter run.
#
# The result is usually short enough to read. Each smaller candidate is run, and taken if the same promise is broken.
# Bounded by runs and by time.

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
        # Otherwise fewer agents would be fewer nodes, and other faults. Named nodes stay as they are.
        is_named = isinstance(options.apply(scenario).setup.nodes, Mapping)
        self._best = options if is_named else structs.replace(options, nodes=outcome.counts["nodes"])
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
