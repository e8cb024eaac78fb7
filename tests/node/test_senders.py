"""The senders' side of a running host: ids of commands, declared losses, and bytes that are passed on as they came."""

import asyncio

import msgspec
import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import encode, pack_envelope
from stigmergy.agents.effects import PUBLISH, Effects, Events, Publish, Tell
from stigmergy.agents.messages import Command, Event, spec_of
from stigmergy.agents.supervision import InputsSkipped
from stigmergy.base.errors import StaleEpoch
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings, Snapshots
from stigmergy.shard.homes import shard_of
from stigmergy.shard.inputs import Accepted, Refused
from stigmergy.sim.node import SimNode
from tests.node.rig import play

NEVER = Settings(snapshots=Snapshots(every_events=10**9, every_s=1e9))
OFTEN = Settings(snapshots=Snapshots(every_events=3, every_s=1e9, tail_ratio=0.0, share_max=1000.0, incremental_max=0))

A, B = "Counter/a", "Counter/b"
HERE = next(f"Passer/{number}" for number in range(100) if shard_of(f"Passer/{number}", 2) == 0)
THERE = next(f"Counter/{number}" for number in range(100) if shard_of(f"Counter/{number}", 2) == 1)


class Add(Command):
    number: int


class Added(Event):
    number: int


class Heard(Event):
    number: int


class Counter(Agent):
    numbers: tuple[int, ...] = ()

    @decide
    def add(self, command: Add) -> Events:
        if command.number in self.numbers:
            reject(f"{command.number} is there already")
        yield Added(number=command.number)

    @evolve
    def added(self, event: Added) -> None:
        self.numbers = (*self.numbers, event.number)


class Passer(Agent):
    """Passes on what it observes: some as it came, some after a decision."""

    @decide
    def heard(self, event: Heard) -> Events:
        yield event

    @react
    def pass_heard(self, event: Heard) -> Effects:
        yield Publish("heard", event)

    @react
    def pass_added(self, event: Added) -> Effects:
        yield Tell(THERE, event)
        yield Publish("added", event)


def declare(shards: int = 1) -> Declaration:
    return Declaration("counters", agents=[Counter, Passer], shards=shards)


class TestCommandIds:
    @pytest.mark.parametrize("settings", [NEVER, OFTEN], ids=["from the log", "from snapshots"])
    def test_the_same_id_for_two_agents_of_one_shard_is_two_commands(self, settings: Settings) -> None:
        async def ask(live: Live) -> list[Accepted | Refused]:
            asks = [live.send(address, Add(number=1), command_id="x") for address in (A, B, A)]
            return list(await asyncio.gather(*asks))

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe(B, Added(number=1))
            answers = await ask(live)
            assert isinstance(answers[0], Accepted)
            assert answers[1] == Refused("1 is there already")
            assert answers[2] == answers[0]
            assert await ask(live) == answers
            for number in range(10):
                await live.observe("Counter/c", Added(number=number))
            await asyncio.sleep(1.0)
            await node.lose_power()
            live = await node.start()
            assert bool(live.recovered.snapshots) == (settings is OFTEN)
            assert await ask(live) == answers
            assert (live.query(A).numbers, live.query(B).numbers) == ((1,), (1,))

        play(declare(), main, settings=settings)


def envelope(first: int, count: int, *, lost: int = 0, epoch: int = 0) -> bytes:
    numbers = range(first, first + count)
    return pack_envelope("s", [(A, Added(number=n)) for n in numbers], sequence=first, lost=lost, epoch=epoch)


def skipped(node: SimNode) -> list[tuple[int, int, str]]:
    """What the log of shard 0 says was given up."""
    tag = spec_of(InputsSkipped).tag
    bodies = [body for commit in node.logbook.commits[0] for _, body in commit.events]
    found = [msgspec.msgpack.decode(body) for body in bodies]
    return [(one["first"], one["last"], one["because"]) for one in found if one["type"] == tag]


DECLARED = "lost: their sender says so"


@pytest.mark.parametrize("shards", [1, 4])
class TestDeclaredLosses:
    def test_what_its_sender_declares_lost_is_not_waited_for(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(1, 2))
            await live.deliver(envelope(6, 2, lost=3))
            assert node.world.loop.time() < 0.1
            assert live.query(A).numbers == (1, 2, 6, 7)
            assert skipped(node) == [(3, 5, DECLARED)]
            duplicates = live.standing().counters["duplicates"]
            await live.deliver(envelope(3, 3))
            assert live.query(A).numbers == (1, 2, 6, 7), "they come after all, and too late"
            assert live.standing().counters["duplicates"] == duplicates + 3 * shards
            await node.lose_power()
            live = await node.start()
            await live.deliver(envelope(3, 6))
            assert live.query(A).numbers == (1, 2, 6, 7, 8)

        play(declare(shards), main)

    def test_more_may_be_declared_than_is_missing(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(1, 2))
            await live.deliver(envelope(4, 1, lost=100))
            await live.deliver(envelope(5, 1, lost=100))
            assert live.query(A).numbers == (1, 2, 4, 5)
            assert skipped(node) == [(3, 3, DECLARED)]
            assert node.world.loop.time() < 0.1

        play(declare(shards), main)

    def test_one_that_came_early_is_taken_when_its_turn_comes(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            early = asyncio.ensure_future(live.deliver(envelope(6, 2, lost=3)))
            await asyncio.sleep(1.0)
            assert not early.done()
            await asyncio.gather(live.deliver(envelope(1, 2)), early)
            assert node.world.loop.time() < 1.1
            assert live.query(A).numbers == (1, 2, 6, 7)
            assert skipped(node) == [(3, 5, DECLARED)]

        play(declare(shards), main)

    def test_an_owner_who_was_replaced_declares_nothing(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(1, 2, epoch=2))
            with pytest.raises(StaleEpoch):
                await live.deliver(envelope(6, 2, lost=3, epoch=1))
            await live.deliver(envelope(3, 1, epoch=2))
            assert live.query(A).numbers == (1, 2, 3)
            assert skipped(node) == []

        play(declare(shards), main)


class TestBytes:
    @pytest.mark.parametrize("shards", [1, 2])
    def test_what_an_agent_passes_on_arrives_with_fields_that_it_does_not_know(self, shards: int) -> None:
        body = msgspec.msgpack.encode({"colour": "red", "type": "Added@1", "number": 3, "nested": [{"a": None}]})

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(msgspec.msgpack.encode([1, "s", 0, 0, 1, [[HERE, body]]]))
            await asyncio.sleep(1.5)
            assert live.query(THERE).numbers == (3,)
            owed = [one for commit in node.logbook.commits[0] for one in commit.owed]
            sink = f"shard/{shards - 1}"
            assert {one.sink: one.body for one in owed} == {
                sink: encode((THERE, body)),
                PUBLISH: encode(("added", body)),
            }
            kept = {address: said for log in node.logbook.commits for commit in log for address, said in commit.events}
            assert kept[HERE] == kept[THERE] == body

        play(declare(shards), main)

    def test_also_what_it_has_decided_to_keep(self) -> None:
        body = msgspec.msgpack.encode({"type": "Heard@1", "number": 3, "colour": "red"})

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(msgspec.msgpack.encode([1, "s", 0, 0, 1, [[HERE, body]]]))
            (owed,) = [one for commit in node.logbook.commits[0] for one in commit.owed]
            assert owed.body == encode(("heard", body))
            assert (HERE, body) in [event for commit in node.logbook.commits[0] for event in commit.events]

        play(declare(), main)
