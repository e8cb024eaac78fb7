"""A profile counts exactly, changes nothing that is decided, and leaves nothing behind."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from stigmergy.base.errors import ConfigError, Overloaded
from stigmergy.control.live import Live
from stigmergy.metrics.profile import Profile, by_cause
from stigmergy.node.host import Host
from stigmergy.node.profiling import PROFILE_S_MAX, ProcessReadings, Profiler
from stigmergy.node.settings import MetricsSettings, Settings
from stigmergy.sim.node import SimNode
from tests.node.counting import Add, Counted, declare
from tests.node.rig import play

STACKS = {"main;turn": 7}


class Disk:
    """A journal's thread that has written so much."""

    def __init__(self) -> None:
        self.written = 0

    def by_thread(self, begin: str) -> dict[str, int]:
        self.written += 4096
        return {name: self.written for name in ("journal /x.db", "views-1") if name.startswith(begin)}


async def no_stacks(seconds: float) -> dict[str, int]:
    raise ConfigError("py-spy is on holiday")


async def some_stacks(seconds: float) -> dict[str, int]:
    await asyncio.sleep(seconds)
    return STACKS


def profiler(*hosts: Host, sample: Any = no_stacks) -> Profiler:
    now_ns = hosts[0].clock.monotonic_ns if hosts else int
    return Profiler(lambda: hosts, ProcessReadings("here", now_ns, lambda: (0, 0), Disk().by_thread, sample))


async def profiled(live: Live, sample: Any = no_stacks) -> Profile:
    """A profile of a second in which ten numbers are added, and one is refused."""
    running = asyncio.ensure_future(profiler(live.host, sample=sample).run(1.0))
    await asyncio.sleep(0.1)
    for number in range(100, 110):
        await live.send("Counter/a", Add(number=number))
    await live.send("Counter/a", Add(number=-1))
    return await running


def functions(host: Host) -> dict[Any, Any]:
    """All that a profile may put something else in place of."""
    found: dict[Any, Any] = {"write": host.committer.on_write}
    assert host.measures is not None
    found["group"] = host.measures.on_group
    for kind, plan in host.declaration.plans.items():
        found[kind] = plan.decode
        found |= {(kind, message): one for message, one in plan.plans.items()}
        found |= {(kind, message, "short"): one for message, one in plan.shorts.items()}
    return found


def test_handlers_are_counted_one_by_one_and_phases_make_up_the_turns() -> None:
    async def main(node: SimNode) -> Profile:
        live = await node.start()
        await live.send("Counter/a", Add(number=1))  # before it, so not counted
        found = await profiled(live)
        await live.send("Counter/a", Add(number=2))
        return found

    found = play(declare(), main)
    assert found == play(declare(), main), "the same seed profiles the same"
    calls = {(one.handler, one.role): one.calls for one in found.handlers}
    assert calls[("add", "decide")] == 11, "the refused one was decided too"
    assert calls[("counted", "evolve")] == 2 * 10, "the agent, and the simulator, which folds the log as it grows"
    assert calls[("greet", "react")] == 10
    assert calls[("hello", "evolve")] == 2 * 10, "what they were told"
    assert {one.kind for one in found.handlers} == {"Counter"}
    counts = {one.phase: one.count for one in found.phases}
    assert counts["decide"] == sum(calls.values())
    assert counts["decode"] > 20, "commands, what they decided, and tells"
    assert counts["seal"] == counts["write"] == counts["release"] > 10
    assert found.events == 20
    assert (found.source, found.why) == ("counters", "py-spy is on holiday")
    assert found.seconds == pytest.approx(1.0)


def test_bytes_are_told_by_what_they_were_written_for() -> None:
    async def main(node: SimNode) -> Profile:
        return await profiled(await node.start())

    found = play(declare(), main)
    contents = {one.cause: one.bytes for one in found.contents}
    assert contents["Counter Counted@1"] > 100
    assert contents["outbox"] > 100, "tells to others"
    assert contents["answers to commands"] > 100
    assert all(one.per_hour == pytest.approx(one.bytes * 3600, rel=0.01) for one in found.contents)
    flash = {one.cause: one.bytes for one in found.flash}
    assert flash["journal: commits"] >= 10 * 4096
    assert "views" in flash
    assert by_cause({"journal a": 1, "journal b": 2, "views-1": 4, "stigmergy-3": 8, "MainThread": 16})["journal"] == 3


def test_nothing_is_left_behind_whatever_happens() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Counter/a", Add(number=1))
        before = functions(live.host)
        await profiled(live)
        assert functions(live.host) == before
        running = asyncio.ensure_future(profiler(live.host).run(10.0))
        await asyncio.sleep(0.1)
        assert functions(live.host) != before
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert functions(live.host) == before
        for missing in (ValueError("a bug"), TimeoutError()):

            async def sample(seconds: float, missing: Exception = missing) -> dict[str, int]:
                raise missing

            if isinstance(missing, TimeoutError):
                assert "py-spy has not ended" in (await profiler(live.host, sample=sample).run(0.1)).why
            else:
                with pytest.raises(ValueError, match="a bug"):
                    await profiler(live.host, sample=sample).run(0.1)
            assert functions(live.host) == before
        assert (await profiled(live)).events, "the next one runs"

    play(declare(), main)


def test_a_mistake_of_the_profile_is_not_the_hosts() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        readings = 0

        def written(thread: str) -> dict[str, int]:
            nonlocal readings
            readings += 1
            if readings >= 4:
                raise ZeroDivisionError
            return {}

        process = ProcessReadings("here", live.host.clock.monotonic_ns, lambda: (0, 0), written, no_stacks)
        running = asyncio.ensure_future(Profiler(lambda: [live.host], process).run(1.0))
        await asyncio.sleep(0.1)
        for number in range(5):
            await live.send("Counter/a", Add(number=number))
        with pytest.raises(ZeroDivisionError):
            await running
        assert live.host.failure is None

    play(declare(), main)


def test_one_at_a_time_and_not_for_long() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        running = asyncio.ensure_future(profiler(live.host).run(1.0))
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="runs already"):
            await profiler(live.host).run(1.0)
        await running
        for seconds in (0.0, -1.0, PROFILE_S_MAX + 1, float("nan")):
            with pytest.raises(ConfigError, match=r"give 0\.1 to 50 s"):
                await profiler(live.host).run(seconds)
        with pytest.raises(ConfigError, match="owns no shard"):
            await profiler().run(1.0)

    play(declare(), main)


def test_stacks_are_those_of_the_sampler_where_it_may_look() -> None:
    async def main(node: SimNode) -> Profile:
        return await profiled(await node.start(), some_stacks)

    found = play(declare(), main)
    assert (found.source, found.stacks) == ("py-spy", STACKS)


def test_a_log_is_the_same_with_a_profile_and_without() -> None:
    """Also what fails: an endless handler is cut off, and its error says the same."""

    async def main(node: SimNode, *, profile: bool) -> list[bytes]:
        live = await node.start()
        running = asyncio.ensure_future(profiler(live.host).run(2.0) if profile else asyncio.sleep(2.0))
        for number in (1, 2, -3, 104):
            await live.send("Counter/a", Add(number=number))
            await live.observe("Counter/b", Counted(number=number))
        await running
        return [shard.state.digest for shard in live.host.shards]

    async def without(node: SimNode) -> list[bytes]:
        return await main(node, profile=False)

    async def within(node: SimNode) -> list[bytes]:
        return await main(node, profile=True)

    assert play(declare(), without) == play(declare(), within)


def test_a_host_that_measures_nothing_says_so() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        with pytest.raises(ConfigError, match="record = false"):
            await profiler(live.host).run(1.0)

    play(declare(), main, settings=structs.replace(Settings(), metrics=MetricsSettings(record=False)))


def test_what_a_caller_does_between_two_steps_is_not_the_handlers() -> None:
    from stigmergy.node.profiling import _timed

    clock = iter(range(0, 1000, 10))
    spent = [0, 0]

    def handler() -> Iterator[int]:
        yield from (1, 2)

    steps = _timed(handler, spent, lambda: next(clock))()
    assert next(steps) == 1
    for _ in range(20):
        next(clock)  # the caller works for 200
    assert list(steps) == [2]
    assert spent == [1, 30], "two steps and the end: each a tick of 10"
