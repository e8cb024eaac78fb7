"""What comes through the doors of a node wrongly: refused at once, and neither the node nor its journal is harmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stigmergy import (
    Action,
    Agent,
    CancelWake,
    Command,
    Effects,
    Event,
    Events,
    Order,
    Settings,
    Supervise,
    WhenStale,
    Work,
    WorkFailed,
    decide,
    evolve,
    pack_envelope,
    react,
)
from stigmergy.agents.codec import open_envelope
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import Bug, ConfigError, DefinitionError, Malformed, TrustError, UnknownKind, WrongKey
from stigmergy.shard.inputs import Refused
from stigmergy.testing import given


class Cancel(Command):
    pass


class Cancelled(Event):
    pass


class Interrupt(Command):
    pass


class Measured(Event):
    value: float


class Land(Action):
    pass


class Gauge(Agent):
    cancelled: int = 0
    silent = WhenStale(Measured, after_s=0.2, then=Land())

    @decide
    def cancel(self, command: Cancel) -> Events:
        yield Cancelled()

    @evolve
    def was_cancelled(self, event: Cancelled) -> None:
        self.cancelled += 1

    @react
    def forget(self, event: Cancelled) -> Effects:
        name: Any = None
        yield CancelWake(name=name)

    @decide
    def interrupt(self, command: Interrupt) -> Events:
        raise asyncio.CancelledError

    @decide
    def measure(self, event: Measured) -> Events:
        raise ValueError("broken")


def fleet() -> Fleet:
    doors = Fleet("doors", agents=[Gauge])
    doors.no_actuator(Land, because="nothing is flown here")
    return doors


async def test_a_timer_without_a_name_fails_the_input_and_keeps_nothing_of_it() -> None:
    async with fleet().running(journal="memory:") as live:
        answer = await live.send("Gauge/a", Cancel())
        assert isinstance(answer, Refused)
        assert "a timer's name is a text" in answer.reason
        assert live.query("Gauge/a", Gauge).cancelled == 0
        assert live.failure is None


def test_window_timers_cannot_be_cancelled_by_agents() -> None:
    class Canceller(Agent):
        @decide
        def cancel(self, command: Cancel) -> Events:
            yield Cancelled()

        @react
        def forget(self, event: Cancelled) -> Effects:
            yield CancelWake(name="window:minute")

    with pytest.raises(AssertionError, match="belong to windows"):
        given(Canceller).when(Cancel())


@pytest.mark.parametrize("address", [5, None, b"Gauge/a"])
async def test_an_address_that_is_no_text_is_refused_at_once(address: Any) -> None:
    async with fleet().running(journal="memory:") as live:
        with pytest.raises(UnknownKind, match="no address"):
            await live.send(address, Cancel())
        with pytest.raises(UnknownKind, match="no address"):
            await live.observe(address, Cancelled())
        assert live.failure is None


async def test_a_handler_that_ends_programs_fails_the_node_and_whoever_waits() -> None:
    landed: list[str] = []
    running = fleet()
    running.actuator(Land)(lambda order: landed.append(order.agent))
    async with running.running(journal="memory:") as live:
        await live.observe("Gauge/a", Cancelled())
        sent, observed = live.send("Gauge/a", Interrupt()), live.observe("Gauge/b", Cancelled())
        results = await asyncio.wait_for(asyncio.gather(sent, observed, return_exceptions=True), 240)
        assert all(isinstance(result, Exception) for result in results)
        assert isinstance(live.failure, Bug)
        assert landed == ["Gauge/a"]


async def test_readings_that_all_fail_are_silence() -> None:
    landed = asyncio.Event()
    running = fleet()
    running.actuator(Land)(lambda order: landed.set())
    async with running.running(journal="memory:") as live:
        await live.observe("Gauge/a", Cancelled())
        for _ in range(50):
            await live.observe("Gauge/a", Measured(value=1.0))
            if landed.is_set():
                break
            await asyncio.sleep(0.02)
        assert landed.is_set()


@pytest.mark.parametrize("numbers", [{"sequence": 2**64 - 1}, {"sequence": 1, "epoch": 2**63}])
def test_numbers_of_an_envelope_have_an_end(numbers: dict[str, int]) -> None:
    with pytest.raises(Malformed, match="below"):
        open_envelope(pack_envelope("s", [("Gauge/a", Cancelled())], **numbers))


async def test_signers_are_checked_at_every_door() -> None:
    async with fleet().running(journal="memory:") as live:
        await live.send("Gauge/a", Cancel())
        with pytest.raises(TrustError):
            live.enroll_signer(1, b"abc")
        algorithm, key = live.host.key
        with pytest.raises(WrongKey):
            live.revoke_signer(algorithm, key, 1)
        live.resume("Gauge/a", "x" * 600_000)
        await live.send("Gauge/a", Cancel())
        assert live.failure is None


def test_supervision_counts_only_so_far() -> None:
    with pytest.raises(DefinitionError, match="stop_after=1100"):
        Supervise(stop_after=1100)


@pytest.mark.parametrize(
    "wrong", [{"owed_count_max": 0}, {"write_within_s": 0.0}, {"drain_s": float("nan")}, {"batch_events_max": 1.5}]
)
def test_settings_that_would_stall_a_node(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Settings(**wrong)


class Plan(Work):
    how: str


class Asked(Event):
    how: str


class Planned(Event):
    route: str


class Unheard(Event):
    pass


class Planner(Agent):
    failed_because: str = ""

    @react
    def ask(self, event: Asked) -> Effects:
        yield Plan(how=event.how)

    @evolve
    def planned(self, event: Planned) -> None:
        pass

    @evolve
    def failed(self, event: WorkFailed) -> None:
        self.failed_because = event.reason


@pytest.mark.parametrize(("how", "why"), [("large", "bytes"), ("unheard", "no handler"), ("wrong", "does not decode")])
async def test_a_result_that_its_agent_cannot_read_is_failed_work(how: str, why: str) -> None:
    running = Fleet("doors", agents=[Planner])

    @running.worker(Plan)
    async def plan(order: Order[Plan]) -> Event:
        wrong: Any = 5
        results = {"large": Planned(route="x" * 70_000), "unheard": Unheard(), "wrong": Planned(route=wrong)}
        return results[order.effect.how]

    async with running.running(journal="memory:") as live:
        await live.observe("Planner/a", Asked(how=how))
        for _ in range(100):
            if live.query("Planner/a", Planner).failed_because:
                break
            await asyncio.sleep(0.01)
        assert why in live.query("Planner/a", Planner).failed_because
