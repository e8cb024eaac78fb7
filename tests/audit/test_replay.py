"""An old log against today's code: what is the same is called the same, and every change in behaviour is found."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Settings,
    Snapshots,
    Supervise,
    Tell,
    WakeMe,
    Work,
    decide,
    evolve,
    latest,
    react,
    reject,
    transient,
    upcast,
)
from stigmergy.audit.differences import Compared, Difference
from stigmergy.audit.replay import JournalReplay
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.journal import sqlite
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.host import open_host
from stigmergy.shard.state import Limits, plan_agents
from tests.formats import golden

SIGNER = Ed25519Signer(bytes(range(32)))


class Start(Command):
    mission: str


class Stumble(Command):
    pass


class Started(Event):
    mission: str


class Planned(Event):
    legs: int


class Measured(Event):
    percent: float


class Seen(Event, keep=latest):
    number: int


class Glimpsed(Event, keep=transient):
    number: int


class Filtered(Event):
    number: int


class Land(Action):
    reason: str


class Plan(Work):
    mission: str


def drone(**changes: Any) -> type[Agent]:
    """The agent as it was when the log was written, or with one thing changed since."""
    low = changes.get("low", 15.0)
    reason = changes.get("reason", "battery")
    needed = changes.get("needed", 20.0)
    legs: Sequence[int] = changes.get("legs", (1, 2))
    factor = changes.get("factor", 1.0)
    error = changes.get("error", "over its own feet")

    class Drone(Agent, kind="Drone"):
        battery: float = 100.0
        mission: str = ""
        legs: int = 0
        supervision = Supervise(stop_after=5)

        @decide
        def start(self, command: Start) -> Events:
            if self.battery < needed:
                reject(f"{self.battery:.0f} %, {needed:.0f} % needed")
            yield Started(mission=command.mission)
            for number in legs:
                yield Planned(legs=number)

        @decide
        def stumble(self, command: Stumble) -> Events:
            if error:
                raise RuntimeError(error)
            return ()

        @decide
        def filter(self, event: Filtered) -> Events:
            if event.number % 2:
                yield event

        @evolve
        def started(self, event: Started) -> None:
            self.mission = event.mission

        @evolve
        def planned(self, event: Planned) -> None:
            self.legs += event.legs

        @evolve
        def measured(self, event: Measured) -> None:
            if event.percent < 0:
                raise ValueError("below zero")
            self.battery = event.percent * factor

        @evolve
        def seen(self, event: Seen) -> None:
            self.legs = event.number

        @react
        def plan(self, event: Started) -> Effects:
            yield Plan(mission=event.mission)
            yield WakeMe(name="check", after_s=1e6)
            yield Tell(to="Drone/other", message=Measured(percent=50.0))

        @react
        def land(self, event: Measured) -> Effects:
            if self.battery < low:
                yield Land(reason=reason)

        @react
        def glimpsed(self, event: Glimpsed) -> Effects:
            yield Land(reason="glimpsed")

    return Drone


async def live_a_little(live: Live) -> None:
    await live.send("Drone/1", Start(mission="M1"))
    for percent in (80.0, 30.0, 10.0):
        await live.observe("Drone/1", Measured(percent=percent))
    await live.send("Drone/1", Start(mission="M2"))
    await live.send("Drone/2", Stumble())
    await live.observe("Drone/2", Measured(percent=-1.0))
    await live.observe("Drone/2", Glimpsed(number=1))
    for number in range(4):
        await live.observe("Drone/3", Filtered(number=number))
        await live.observe("Drone/3", Seen(number=number))


def recorded(
    life: Callable[[Live], Any] = live_a_little, agent: type[Agent] | None = None, *, shards: int = 1, every: int = 6
) -> MemoryJournal:
    store = MemoryJournalStore(JournalIdentity("drones", shards, 7))
    settings = Settings(
        snapshots=Snapshots(every_events=every, tail_ratio=0.0, share_max=1.0), drain_s=0.2, effect_tries=1
    )

    async def main() -> MemoryJournal:
        fleet = Fleet("drones", agents=[agent or drone()], shards=shards, settings=settings)
        host = open_host(fleet, MemoryJournal(store), SIGNER, Ed25519Verifier(), SystemClock())
        await host.start()
        live = Live(host, SystemEntropy())
        await life(live)
        await host.stop()
        return MemoryJournal(store)

    return asyncio.run(main())


def replayed(journal: MemoryJournal, agent: type[Agent], differences_max: int = 1_000) -> Compared:
    plans = plan_agents([agent])
    return JournalReplay(journal, plans, Limits(), Ed25519Verifier(), differences_max=differences_max).run()


def kinds(found: Compared) -> set[str]:
    return {difference.kind for difference in found.differences}


@pytest.fixture(scope="module")
def journal() -> MemoryJournal:
    return recorded()


@pytest.mark.parametrize("shards", [1, 3])
def test_the_same_code_does_the_same(shards: int) -> None:
    journal = recorded(shards=shards)
    found = replayed(journal, drone())
    assert found.differences == []
    assert found.same
    assert (
        found.commits
        == journal.size().commits
        == JournalReplay(journal, plan_agents([drone()]), Limits(), Ed25519Verifier()).commits_expected
    )
    assert found.commands == 2
    assert found.failures == 2
    assert found.effects >= 4
    assert found.snapshots >= 1
    assert found.states >= 1
    assert found.ignored == {}
    assert sorted(found.not_compared) == [
        "decisions about observed events, of which only the result is kept",
        "effects of transient events, which are not kept",
    ]
    assert found.digests == replayed(journal, drone()).digests
    assert len(found.digests) == len(journal.heads())


def test_an_effect_that_changed(journal: MemoryJournal) -> None:
    (difference,) = replayed(journal, drone(reason="low battery")).differences
    assert (difference.kind, difference.agent, difference.field) == ("effect", "Drone/1", "reason")
    assert (difference.old, difference.new) == ("battery", "low battery")
    assert difference.position > 1


def test_effects_that_are_new_or_gone(journal: MemoryJournal) -> None:
    (more,) = replayed(journal, drone(low=40.0)).differences
    assert (more.kind, more.old) == ("effect", "(none)")
    assert "Land" in more.new
    (less,) = replayed(journal, drone(low=5.0)).differences
    assert (less.kind, less.new) == ("effect", "(none)")
    assert "Land" in less.old


def test_an_answer_that_changed(journal: MemoryJournal) -> None:
    (accepted,) = replayed(journal, drone(needed=5.0)).differences
    assert (accepted.kind, accepted.field, accepted.old, accepted.new) == (
        "answer",
        "refused",
        "10 %, 20 % needed",
        None,
    )
    found = replayed(journal, drone(needed=101.0)).differences
    assert [(one.kind, one.old, one.new) for one in found] == [
        ("answer", None, "100 %, 101 % needed"),
        ("answer", "10 %, 20 % needed", "10 %, 101 % needed"),
    ]


def test_events_of_a_decision_that_changed(journal: MemoryJournal) -> None:
    (other,) = replayed(journal, drone(legs=(1, 3))).differences
    assert (other.kind, other.field, other.old, other.new) == ("event", "legs", 2, 3)
    assert other.what == "event 3 of Start@1"
    (more,) = replayed(journal, drone(legs=(1, 2, 3))).differences
    assert (more.kind, more.old, more.new) == ("event", "(none)", "Planned@1")
    (less,) = replayed(journal, drone(legs=(1,))).differences
    assert (less.kind, less.old, less.new) == ("event", "Planned@1", "(none)")


def test_what_follows_a_command_may_be_an_input_of_its_own() -> None:
    """A command and an observed event of one step are neighbours in the log; that is no difference."""

    async def life(live: Live) -> None:
        for number in range(5):
            await asyncio.gather(
                live.send("Drone/1", Start(mission=f"M{number}")), live.observe("Drone/1", Planned(legs=number))
            )
        await live.observe("Drone/1", Planned(legs=7))

    journal = recorded(life)
    assert replayed(journal, drone()).same
    fewer = replayed(journal, drone(legs=()))
    assert fewer.differences_count or fewer.not_compared


def test_a_failure_that_changed(journal: MemoryJournal) -> None:
    (other,) = replayed(journal, drone(error="over a stone")).differences
    assert (other.kind, other.field, other.old, other.new) == (
        "failure",
        "error",
        "RuntimeError: over its own feet",
        "RuntimeError: over a stone",
    )
    (mended,) = replayed(journal, drone(error="")).differences
    assert (mended.kind, mended.new) == ("failure", None)


def test_a_state_that_a_snapshot_knows_otherwise(journal: MemoryJournal) -> None:
    found = replayed(journal, drone(factor=2.0))
    states = [one for one in found.differences if one.kind == "state"]
    assert states
    assert {(one.agent, one.field) for one in states} <= {("Drone/1", "battery"), ("Drone/other", "battery")}


def test_an_event_that_cannot_be_folded_any_more() -> None:
    class Strict(Agent, kind="Drone"):
        battery: float = 100.0

        @evolve
        def measured(self, event: Measured) -> None:
            if event.percent < 50:
                raise ValueError("what is this?")

    journal = recorded()
    found = replayed(journal, Strict)
    folds = [one for one in found.differences if one.kind == "fold"]
    assert {one.agent for one in folds} == {"Drone/1"}
    assert "ValueError: what is this?" in folds[0].new
    assert found.commits == journal.size().commits, "the others are still compared"
    assert found.ignored["Started@1"] == 1
    assert found.digests == {}


def test_a_kind_that_is_gone(journal: MemoryJournal) -> None:
    class Bird(Agent):
        pass

    found = replayed(journal, Bird)
    assert {one.kind for one in found.differences} <= {"fold", "answer", "table"}
    assert any("no address of an agent here" in str(one.new) for one in found.differences)


def test_an_upcast_event_counts_as_what_it_became() -> None:
    class OldStarted(Event, name="Launched", version=1):
        mission: str

    class Launched(Event, name="Launched", version=2):
        mission: str
        crew: int = 0

    @upcast
    def launched(old: OldStarted) -> Launched:
        return Launched(mission=old.mission, crew=1)

    def pilot(event: type[Event], **fields: Any) -> type[Agent]:
        class Pilot(Agent, kind="Pilot"):
            mission: str = ""

            @decide
            def start(self, command: Start) -> Events:
                yield event(mission=command.mission, **fields)

        return Pilot

    async def life(live: Live) -> None:
        await live.send("Pilot/1", Start(mission="M1"))

    journal = recorded(life, pilot(OldStarted))
    found = replayed(journal, pilot(Launched, crew=1))
    assert [(one.kind, one.field) for one in found.differences] == [("event", "type"), ("event", "crew")]


def test_a_log_whose_beginning_was_dropped() -> None:
    journal = recorded()
    position = journal.snapshots(0)[0]
    asyncio.run(journal.drop(0, position))
    found = replayed(journal, drone())
    assert found.same
    assert found.commits == journal.size().commits
    for snapshot in journal.snapshots(0):
        asyncio.run(journal.drop_snapshot(0, snapshot))
    (gone,) = replayed(journal, drone()).differences
    assert "no snapshot to begin from" in gone.new


def test_the_golden_journal_is_the_same_today(tmp_path: Path) -> None:
    """Written once and never again: what its agents do may not change by accident."""
    shutil.copy(golden.FOLDER / "journal-1.sqlite3", tmp_path / "golden.db")
    journal = sqlite.inspect_journal(f"sqlite:{tmp_path / 'golden.db'}")
    found = JournalReplay(journal, plan_agents([golden.Drone, golden.Tower]), Limits(), Ed25519Verifier()).run()
    asyncio.run(journal.close())
    assert found.differences == []
    assert (found.commands, found.failures, found.snapshots, found.not_compared) == (4, 2, 3, {})


def test_differences_are_counted_and_listed_up_to_a_bound(journal: MemoryJournal) -> None:
    whole = replayed(journal, drone(low=101.0, needed=101.0, legs=()))
    bounded = replayed(journal, drone(low=101.0, needed=101.0, legs=()), differences_max=1)
    assert whole.differences_count > 1
    assert bounded.differences_count == whole.differences_count
    assert len(bounded.differences) == 1
    assert isinstance(bounded.differences[0], Difference)
