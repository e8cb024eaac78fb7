"""Profiles the hosts of a process while it runs: where turns spend their time, and what is written to the disk.

What is measured once for a turn or a group is measured always (`HostMeasures`), and a profile takes the difference.
Handlers and decoders are counted only while a profile runs: the plans of the agents get functions that read the clock
before and after, and then their own ones again. So a node without a profile runs the code that it would run if there
were none. One profile at a time in a process, for a bounded time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any, ClassVar, TypeVar

from msgspec import Struct, structs

from stigmergy.agents.agent import Handlers
from stigmergy.agents.codec import tag_of
from stigmergy.agents.plans import AgentPlan, short_of
from stigmergy.base.errors import ConfigError, Overloaded
from stigmergy.journal.port import sync_times
from stigmergy.metrics.histogram import Histogram
from stigmergy.metrics.profile import (
    AWAITED,
    COMPILED,
    ON_LOOP,
    HandlerTime,
    PhaseTime,
    Profile,
    by_cause,
    counted_stacks,
    listed,
)
from stigmergy.node.host import Host
from stigmergy.shard.draft import Ready

T = TypeVar("T")
PROFILE_S_MIN, PROFILE_S_MAX = 0.1, 50.0
"""Less than a client waits for an answer. For a longer look, profile again."""
STACKS_LATE_S = 5.0
"""So long the sampler of stacks may take to end."""
LOOKED_AT_MAX = 200
"""Events of a commit that are looked at for what they are; of more, so many."""


def check_length(seconds: float) -> None:
    """Raises ConfigError for a profile that is too long or too short."""
    if not PROFILE_S_MIN <= seconds <= PROFILE_S_MAX:
        raise ConfigError(f"a profile of {seconds:g} s: give {PROFILE_S_MIN:g} to {PROFILE_S_MAX:g} s")


class ProcessReadings(Struct, frozen=True):
    """What the system says of this process, which is the worker `name`, or a number."""

    name: str
    now_ns: Callable[[], int]
    """A clock for short times: it is read for each call of a handler."""
    cpu_ns: Callable[[], tuple[int, int]]
    """Processor time of all its threads, and of the calling one."""
    written_bytes: Callable[[str], dict[str, int]]
    """Bytes for its disks, by the names of its threads, of those that begin so; empty if not known."""
    sample_stacks: Callable[[float], Awaitable[dict[str, int]]]
    """The stacks of all threads in the next so many seconds. Raises ConfigError where they may not be seen."""


class Profiler:
    """Profiles the process that has these hosts. Shards may come and go meanwhile."""

    _is_running: ClassVar[bool] = False
    """Of the process, because hosts of one fleet share its plans."""

    def __init__(self, hosts: Callable[[], Sequence[Host]], process: ProcessReadings) -> None:
        self._hosts = hosts
        self._process = process

    async def run(self, seconds: float) -> Profile:
        """What happens in the next so many seconds. Raises Overloaded while another profile runs."""
        check_length(seconds)
        hosts = self._hosts()
        if not hosts:
            raise ConfigError("this process owns no shard at the moment; ask again")
        if Profiler._is_running:
            raise Overloaded("a profile of this process runs already; ask again when it is over")
        Profiler._is_running = True
        counting = ProfileCounters(self._process, hosts)
        try:
            counting.begin()
            stacks, why = await self._look(seconds)
            return counting.end(self._hosts(), stacks, why)
        finally:
            counting.undo()
            Profiler._is_running = False

    async def _look(self, seconds: float) -> tuple[dict[str, int], str]:
        """The stacks of the next so many seconds, or why there are none."""
        sampling = asyncio.ensure_future(self._process.sample_stacks(seconds))
        try:
            await asyncio.sleep(seconds)
            async with asyncio.timeout(STACKS_LATE_S):
                return await sampling, "py-spy saw all threads idle"
        except ConfigError as error:
            return {}, str(error)
        except TimeoutError:
            return {}, f"py-spy has not ended within {STACKS_LATE_S:g} s"
        finally:
            sampling.cancel()


class ProfileCounters:
    """What one profile counts."""

    def __init__(self, process: ProcessReadings, hosts: Sequence[Host]) -> None:
        self._process = process
        self._hosts = hosts
        self._now_ns = process.now_ns
        self._cpu_ns = self._loop_ns = self._took_ns = self._events = 0
        self._counts: Counter[str] = Counter()
        self._spent_ns: Counter[str] = Counter()
        """By phase, how often and how long."""
        self._decoded = [0, 0]
        self._handlers: dict[tuple[str, str, str], list[int]] = {}
        """How often they were called, and how many nanoseconds they took."""
        self._contents: Counter[str] = Counter()
        self._flash: Counter[str] = Counter()
        self._write_cause = ""
        self._journal_bytes = 0
        self._failure: Exception | None = None
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Counts from now on, until `undo`."""
        for host in self._hosts:
            self._attach(host)
        for plan in {id(plan): plan for host in self._hosts for plan in host.declaration.plans.values()}.values():
            self._time_plan(plan)
        self._journal_bytes = self._read_journal()
        self._read(self._hosts, -1)

    def undo(self) -> None:
        """All is as it was before."""
        while self._undo:
            self._undo.pop()()

    def _read(self, hosts: Sequence[Host], sign: int) -> None:
        """Adds what has been measured since the start of everything, or takes it away."""
        for host in hosts:
            for phase, one in _histograms(host):
                self._counts[phase] += sign * sum(one.counts)
                self._spent_ns[phase] += sign * one.sum
            self._contents["snapshots"] += sign * host.housekeeper.counters.snapshot_bytes
        for cause, size_bytes in by_cause(self._process.written_bytes("")).items():
            self._flash[cause] += sign * size_bytes
        cpu_ns, loop_ns = self._process.cpu_ns()
        self._cpu_ns += sign * cpu_ns
        self._loop_ns += sign * loop_ns
        self._took_ns += sign * self._now_ns()

    def _attach(self, host: Host) -> None:
        """Has a host say what it writes, and how long its compiled agents take."""
        measures = host.measures
        if measures is None:
            raise ConfigError("this node measures nothing: take record = false out of [settings.metrics], and start it")
        host.committer.on_write, measures.on_group = self._harmless(self._write), self._harmless(self._group)

        def detach() -> None:
            host.committer.on_write = measures.on_group = None

        self._undo.append(detach)
        for shard in host.shards:
            for kind, table in shard.state.tables.items():
                self._time_table(kind, table)

    def _harmless(self, note: Callable[[T], None]) -> Callable[[T], None]:
        """A mistake in what the host calls must fail the profile, and not the host."""

        def noted(what: T) -> None:
            try:
                note(what)
            except Exception as error:
                self._failure = error

        return noted

    def _time_table(self, kind: str, table: Any) -> None:
        step, spent, now_ns = table.step, self._handler(kind, COMPILED, "decide"), self._now_ns

        def timed(*given: Any, **named: Any) -> Any:
            began_ns = now_ns()
            stretch = step(*given, **named)
            spent[0] += stretch.taken
            spent[1] += now_ns() - began_ns
            return stretch

        table.step = timed
        self._undo.append(lambda: delattr(table, "step"))

    def _time_plan(self, plan: AgentPlan) -> None:
        decode, plans, shorts = plan.decode, dict(plan.plans), dict(plan.shorts)

        def put_back() -> None:
            structs.force_setattr(plan, "decode", decode)
            plan.plans.update(plans)
            plan.shorts.update(shorts)

        self._undo.append(put_back)
        structs.force_setattr(plan, "decode", _timed(decode, self._decoded, self._now_ns))
        for message, one in plans.items():
            declared, timed = plan.cls.__agent_handlers__.get(message, Handlers()), {}
            for role in ("decide", "evolve", "react"):
                if (function := getattr(one, role)) is not None:
                    name = getattr(getattr(declared, role), "__name__", message.__name__)
                    timed[role] = _timed(function, self._handler(plan.kind, name, role), self._now_ns)
            plan.plans[message] = structs.replace(one, **timed)
            if message in shorts:
                plan.shorts[message] = short_of(plan.plans[message])

    def _handler(self, kind: str, name: str, role: str) -> list[int]:
        return self._handlers.setdefault((kind, name, role), [0, 0])

    def _group(self, readies: Sequence[Ready]) -> None:
        """A group is durable: what is in it, by size."""
        for ready in readies:
            commit, found = ready.commit, Counter[str]()
            self._events += ready.sealed.events
            stride = 1 + len(commit.events) // LOOKED_AT_MAX
            for address, body in commit.events[::stride]:
                found[f"{address.partition('/')[0] or 'shard'} {tag_of(body)}"] += stride * (len(address) + len(body))
            for run in commit.columns:
                found[f"{run.kind} records"] += len(run.records)
                found["outbox"] += len(run.actions)
            found["outbox"] += sum(len(owed.agent) + len(owed.sink) + len(owed.body) for owed in commit.owed)
            found["answers to commands"] += sum(len(answer.command) for answer in commit.answers)
            found["marks and framing"] = len(ready.sealed.body) - found.total()
            self._contents.update(found)

    def _write(self, cause: str) -> None:
        """From now on the journal's thread writes for this cause; without one the write is over, and it tidies up."""
        before, self._journal_bytes = self._journal_bytes, self._read_journal()
        written = self._journal_bytes - before
        self._flash[f"journal: {self._write_cause or 'checkpoints and spare files'}"] += written
        self._flash["journal"] -= written
        self._write_cause = cause

    def _read_journal(self) -> int:
        return sum(self._process.written_bytes("journal ").values())

    def end(self, hosts: Sequence[Host], stacks: dict[str, int], why: str) -> Profile:
        """What was counted up to now."""
        self._write("")
        if self._failure is not None:
            raise self._failure
        self._read(list({id(host): host for host in (*self._hosts, *hosts)}.values()), 1)
        handlers = [HandlerTime(*one, spent[0], spent[1] / 1e9) for one, spent in self._handlers.items() if spent[0]]
        handlers.sort(key=lambda one: -one.seconds)
        phases = self._phases()
        seconds = self._took_ns / 1e9
        return Profile(
            fleet=self._hosts[0].declaration.name,
            process=self._process.name,
            seconds=seconds,
            loop_cpu_s=self._loop_ns / 1e9,
            cpu_s=self._cpu_ns / 1e9,
            events=self._events,
            phases=phases,
            handlers=handlers,
            flash=listed(self._flash, seconds),
            contents=listed(self._contents, seconds),
            source="py-spy" if stacks else "counters",
            why="" if stacks else why,
            stacks=stacks or counted_stacks(phases, handlers),
        )

    def _phases(self) -> list[PhaseTime]:
        counts, spent_ns = self._counts, self._spent_ns
        turns_ns = spent_ns["step"] + spent_ns["seal"] + spent_ns["release"]
        counts["decode"], spent_ns["decode"] = self._decoded
        counts["decide"] = sum(calls for calls, _ in self._handlers.values())
        spent_ns["decide"] = sum(took_ns for _, took_ns in self._handlers.values())
        spent_ns["step"] = max(0, spent_ns["step"] - spent_ns["decode"] - spent_ns["decide"])
        spent_ns["other"] = max(0, self._loop_ns - turns_ns)
        return [PhaseTime(phase, counts[phase], spent_ns[phase] / 1e9) for phase in (*ON_LOOP, *AWAITED)]


def _histograms(host: Host) -> Iterator[tuple[str, Histogram]]:
    """What a host measures of its turns."""
    measures, syncs = host.measures, sync_times(host.journal)
    if measures is not None:
        yield from (("step", measures.step), ("seal", measures.seal))
        yield from (("write", measures.commit), ("release", measures.release))
    if syncs is not None:
        yield "sync", syncs


def _timed(function: Callable[..., Any], spent: list[int], now_ns: Callable[[], int]) -> Callable[..., Any]:
    """The same function, counted. Of a generator each step is counted where it is taken: what its caller does between
    two of them is not the handler's."""

    def timed(*given: Any) -> Any:
        began_ns = now_ns()
        try:
            result = function(*given)
        finally:
            spent[0] += 1
            spent[1] += now_ns() - began_ns
        return _each(result, spent, now_ns) if result.__class__ is GeneratorType else result

    def timed_steps(*given: Any) -> Any:
        spent[0] += 1
        return _each(function(*given), spent, now_ns)

    return timed_steps if inspect.isgeneratorfunction(function) else timed


def _each(steps: Iterator[Any], spent: list[int], now_ns: Callable[[], int]) -> Iterator[Any]:
    while True:
        began_ns = now_ns()
        try:
            one = next(steps)
        except StopIteration:
            return
        finally:
            spent[1] += now_ns() - began_ns
        yield one
