"""An old log with writes to shared fields, merges and verdicts against today's code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stigmergy import (
    Action,
    Agent,
    Claim,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    GCounter,
    Granted,
    LWWRegister,
    Merged,
    Ordered,
    ORSet,
    Settings,
    Shared,
    Snapshots,
    decide,
    ordered,
    react,
    reject,
    shared,
)
from stigmergy.agents.codec import encode
from stigmergy.audit.differences import Compared
from stigmergy.audit.replay import JournalReplay
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.crdt.store import EMPTY, mint
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.host import Host, open_host
from stigmergy.shard.inputs import LetterRetried, SharedReceived, VerdictCame
from stigmergy.shard.state import Limits, plan_agents

SIGNER = Ed25519Signer(bytes(range(32)))
CAR = "Car/1"
broken: list[str] = []


class Note(Command):
    name: str
    ending: str = ""


class Noted(Event):
    total: int


class Seen(Event):
    names: int


class Stop(Action):
    pass


def car(*, amount: int = 1, extra: bool = False) -> type[Agent]:
    """The agent as it was when the log was written, or with one thing changed since."""

    class Car(Agent, kind="Car"):
        names: Shared[ORSet[str]]
        count: Shared[GCounter] = shared(by="all")
        last: Shared[LWWRegister[str]]
        slot: Ordered[Claim] = ordered(of="slot")

        @decide
        def note(self, command: Note) -> Events:
            yield self.names.add(command.name)
            yield self.count.add(amount)
            yield Noted(total=self.count.value)
            yield self.count.add(amount)
            if command.name != "early":
                yield self.last.set(command.name)
            if extra:
                yield self.names.add("extra")
            if command.ending == "reject":
                reject("no")
            if command.ending == "raise":
                raise RuntimeError("on purpose")

        @decide
        def merged(self, event: Merged) -> Events:
            if "merged" in broken:
                raise RuntimeError("not mended")
            yield Seen(names=len(self.names))
            yield self.count.add(1)

        @react
        def granted(self, verdict: Granted) -> Effects:
            if self.slot.held:
                yield Stop()

    return Car


async def live_a_little(host: Host, live: Live) -> None:
    async def told(one: Any) -> None:
        await host.intake.take(0, one)

    broken.clear()
    await live.send(CAR, Note(name="early"))
    state = host.shards[0].state
    store = EMPTY.apply(mint(state.plans["Car"].cls().names.add("theirs"), EMPTY, b"peer-rep", 1))  # type: ignore[attr-defined]
    await told(SharedReceived(CAR, "names", state=store.to_bytes()))
    await live.send(CAR, Note(name="late"))
    for ending in ("reject", "raise"):
        await live.send(CAR, Note(name="never", ending=ending))
    await told(VerdictCame(CAR, encode(Granted(claim="slot", resource="slot", token=3, for_s=5))))
    broken.append("merged")
    theirs = mint(state.agents[CAR].names.add("more"), state.agents[CAR].names.store, b"peer-rep", 1)
    await told(SharedReceived(CAR, "names", (theirs.to_bytes(),)))
    broken.clear()
    (letter,) = [one for one in state.letters.all() if one.source == "peers"]
    await told(LetterRetried(letter.letter))
    await live.send(CAR, Note(name="last"))


def recorded(every: int) -> MemoryJournal:
    store = MemoryJournalStore(JournalIdentity("cars", 1, 7))
    snapshots = Snapshots(every_events=every, tail_ratio=0.0, share_max=1.0)
    settings = Settings(snapshots=snapshots, drain_s=0.2, effect_tries=1)

    async def main() -> MemoryJournal:
        host = open_host(
            Fleet("cars", agents=[car()], settings=settings),
            MemoryJournal(store),
            SIGNER,
            Ed25519Verifier(),
            SystemClock(),
        )
        await host.start()
        live = Live(host, SystemEntropy())
        await live_a_little(host, live)
        await host.stop()
        return MemoryJournal(store)

    return asyncio.run(main())


def replayed(journal: MemoryJournal, agent: type[Agent]) -> Compared:
    return JournalReplay(journal, plan_agents([agent]), Limits(), Ed25519Verifier()).run()


@pytest.mark.parametrize("every", [3, 10_000])
def test_the_same_code_says_the_same(every: int) -> None:
    found = replayed(recorded(every), car())
    assert found.commands == 4
    assert found.failures == 1
    assert not [(one.kind, one.what, one.field, one.old, one.new) for one in found.differences]


def test_another_amount_and_another_write_are_found() -> None:
    journal = recorded(10_000)
    found = replayed(journal, car(amount=5))
    assert next((one.kind, one.what) for one in found.differences) == ("event", "event 2 of Note@1")
    found = replayed(journal, car(extra=True))
    assert {(one.kind, one.field) for one in found.differences} == {("event", "type")}
    assert {one.new for one in found.differences} == {"stigmergy.SharedChanged@1"}
