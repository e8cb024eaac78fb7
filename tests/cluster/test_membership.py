"""Who works for a fleet, in virtual time: joins, leaves, crashes, pauses, cuts, and whose turn it is to plan."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextvars import copy_context

import pytest
from msgspec import structs

from stigmergy.agents.assignment import shown
from stigmergy.base.errors import ConfigError, StaleEpoch, StoreForeign, StoreUnavailable
from stigmergy.cluster.membership import LEASE_S, WorkerMembership
from stigmergy.cluster.records import (
    FLEET,
    NOBODY,
    PLAN,
    FleetShape,
    KindFold,
    ShardPlan,
    WorkerRecord,
    digest_of,
    worker_key,
    write_record,
)
from stigmergy.node.settings import Settings
from stigmergy.sim.loop import ACTOR, SimClock
from stigmergy.sim.run import Run
from stigmergy.store.memory import MemoryStore, MemoryStoreServer
from stigmergy.store.port import NS, KeyValue

SHARDS = 6
SHAPE = FleetShape("town", SHARDS)
SEEN_S = 1.0
"""After so long everybody has heard what a living worker has said."""
GONE_S = LEASE_S + 1.0
"""After so long everybody has heard that a worker is gone."""


class Somebody:
    """A worker without shards: its roster, its own line to the store and its own clock."""

    def __init__(self, town: "Town", name: str) -> None:
        self.name = name
        self.clock = SimClock(town.run.loop)
        self.store = MemoryStore(town.shelf, self.clock)
        self.keys: KeyValue | None = None
        self.me = WorkerRecord(name, host=f"host of {name}", kinds=(KindFold("Drone", 1, "aa"),))
        self.shape = SHAPE
        self.lease_s = LEASE_S
        self.membership: WorkerMembership | None = None

    async def join(self, *, other_folds: bool = False) -> WorkerMembership:
        self.keys = await self.store.key_value("town")
        self.membership = WorkerMembership(self.keys, self.clock, self.shape, self.me, lease_s=self.lease_s)
        await self.membership.join(other_folds=other_folds)
        return self.membership

    @property
    def owners(self) -> tuple[str, ...]:
        assert self.membership is not None
        return tuple(self.membership.register.planned(shard) for shard in range(SHARDS))


class Town:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.shelf = MemoryStoreServer(SimClock(run.loop))
        self.people: dict[str, Somebody] = {}

    def somebody(self, name: str) -> Somebody:
        person = self.people[name] = Somebody(self, name)
        return person

    async def joined(self, name: str, lease_s: int = LEASE_S) -> Somebody:
        """One whose tasks belong to an actor of its name, so that it can be held up alone."""
        person = self.somebody(name)
        person.lease_s = lease_s
        context = copy_context()
        context.run(ACTOR.set, name)
        await asyncio.get_running_loop().create_task(person.join(), context=context)
        return person

    def coordinators(self) -> list[str]:
        return [
            person.name
            for person in self.people.values()
            if person.membership is not None and person.membership.is_held and person.membership.coordinating.is_ours
        ]


def play(main: Callable[[Town], Awaitable[None]], seed: int = 1) -> None:
    run = Run(seed, shuffle=True)
    town = Town(run)

    async def scene() -> None:
        await main(town)
        for person in town.people.values():
            if person.membership is not None:
                await person.membership.abandon()

    run.run(scene())


def loads(owners: tuple[str, ...]) -> dict[str, int]:
    return {name: owners.count(name) for name in sorted({*owners})}


@pytest.mark.parametrize("seed", range(5))
def test_those_who_join_are_planned_for_and_one_has_the_turn(seed: int) -> None:
    async def main(town: Town) -> None:
        people = [await town.joined(name) for name in "abc"]
        await asyncio.sleep(SEEN_S)
        assert {person.owners for person in people} == {people[0].owners}
        assert loads(people[0].owners) == {"a": 2, "b": 2, "c": 2}
        assert len(town.coordinators()) == 1
        # Those that came together were planned for together.
        assert sum(person.membership.coordinating.plans_written for person in people if person.membership) == 1

    play(main, seed)


def test_one_that_leaves_gives_up_its_own_and_nobody_else_moves() -> None:
    async def main(town: Town) -> None:
        people = [await town.joined(name) for name in "abc"]
        await asyncio.sleep(SEEN_S)
        before = people[0].owners
        assert people[1].membership is not None
        people[1].membership.describe(leaving=True)
        await asyncio.sleep(SEEN_S)
        after = people[0].owners
        assert loads(after) == {"a": 3, "c": 3}
        assert all(before[shard] == "b" for shard in range(SHARDS) if before[shard] != after[shard])
        await people[1].membership.leave()
        await asyncio.sleep(SEEN_S)
        assert people[0].membership is not None
        assert [member.id for member in people[0].membership.register.members()] == ["a", "c"]

    play(main)


@pytest.mark.parametrize("name", ["a", "b"])
def test_one_that_dies_is_missed_soon_also_the_coordinator(name: str) -> None:
    async def main(town: Town) -> None:
        people = {name: await town.joined(name) for name in "abc"}
        await asyncio.sleep(SEEN_S)
        assert town.coordinators() == ["a"]
        dead = people.pop(name)
        assert dead.membership is not None
        await dead.membership.abandon()
        await asyncio.sleep(GONE_S)
        assert {person.owners for person in people.values()} == {next(iter(people.values())).owners}
        owners = next(iter(people.values())).owners
        assert loads(owners) == dict.fromkeys(people, 3)
        assert town.coordinators() == ["b" if name == "a" else "a"]

    play(main)


def test_one_that_sleeps_too_long_has_lost_its_lease_the_moment_it_wakes() -> None:
    async def main(town: Town) -> None:
        sleeper, other = await town.joined("a"), await town.joined("b")
        await asyncio.sleep(SEEN_S)
        assert sleeper.membership is not None
        assert other.membership is not None
        assert town.coordinators() == ["a"]
        town.run.loop.hold("a")
        await asyncio.sleep(10)
        assert not sleeper.membership.is_held, "by its own clock, before anything of it has run"
        assert not sleeper.membership.lost.is_set()
        assert loads(other.owners) == {"b": SHARDS}
        plan = other.membership.register.plan
        town.run.loop.release("a")
        await asyncio.sleep(SEEN_S)
        assert sleeper.membership.lost.is_set()
        assert "; this process stood still for " in sleeper.membership.why, "which is not the fault of the servers"
        assert other.membership.register.plan == plan, "who was coordinator changes nothing when it wakes"
        await sleeper.membership.abandon()
        again = await town.joined("a2")
        await asyncio.sleep(SEEN_S)
        assert loads(again.owners) == {"a2": 3, "b": 3}

    play(main)


def test_one_that_is_cut_off_loses_its_lease_by_its_own_clock_before_others_count_it_out() -> None:
    async def main(town: Town) -> None:
        far, near = await town.joined("a"), await town.joined("b")
        await asyncio.sleep(SEEN_S)
        assert far.membership is not None
        assert near.membership is not None
        far.store.line.cut_off = True
        for _ in range(500):
            await asyncio.sleep(0.01)
            if near.membership.register.member("a") is None:
                break
            assert near.membership.register.member("a") is not None
        else:
            raise AssertionError("b never noticed")
        assert far.membership.lost.is_set()
        await asyncio.sleep(SEEN_S)
        assert loads(near.owners) == {"b": SHARDS}

    play(main)


def test_a_short_cut_costs_nothing() -> None:
    async def main(town: Town) -> None:
        people = [await town.joined(name) for name in "ab"]
        await asyncio.sleep(SEEN_S)
        plan = people[0].owners
        people[1].store.line.cut_off = True
        await asyncio.sleep(1)
        people[1].store.line.cut_off = False
        await asyncio.sleep(GONE_S)
        assert people[1].membership is not None
        assert people[1].membership.is_held
        assert people[1].membership.counters.lease_renewals_missed > 0
        assert people[1].owners == plan

    play(main)


def test_one_with_a_longer_lease_survives_a_longer_cut_and_is_missed_after_it() -> None:
    """Also beside one with the usual lease, which must not count it out before."""

    async def main(town: Town) -> None:
        near, slow = await town.joined("a"), await town.joined("b", lease_s=10)
        await asyncio.sleep(SEEN_S)
        assert near.membership is not None
        assert slow.membership is not None
        plan = near.owners
        slow.store.line.cut_off = True
        for _ in range(80):
            await asyncio.sleep(0.1)
            assert near.membership.register.member("b") is not None
        slow.store.line.cut_off = False
        await asyncio.sleep(SEEN_S)
        assert slow.membership.is_held
        assert near.owners == plan
        slow.store.line.cut_off = True
        await asyncio.sleep(11)
        assert slow.membership.why == "our lease could not be renewed for 10 s"
        assert loads(near.owners) == {"a": SHARDS}

    play(main)


@pytest.mark.parametrize("lease_s", [0, 1, 61, 2.5])
def test_a_lease_that_is_too_short_or_too_long_is_refused(lease_s: int) -> None:
    with pytest.raises(ConfigError, match="2 to 60 whole seconds"):
        Settings(lease_s=lease_s)


def test_a_plan_of_an_earlier_turn_does_not_count() -> None:
    async def main(town: Town) -> None:
        people = [await town.joined(name) for name in "ab"]
        await asyncio.sleep(SEEN_S)
        owners = people[1].owners
        assert people[1].membership is not None
        plan = people[1].membership.register.plan
        assert plan is not None
        assert people[0].keys is not None
        stale = structs.replace(plan, term=plan.term - 1, number=plan.number + 5, owners=("a",) * SHARDS)
        await people[0].keys.put(PLAN, write_record(stale))
        await asyncio.sleep(SEEN_S)
        assert people[1].owners == owners
        assert people[1].membership.register.counters.plans_stale == 1

    play(main)


def test_a_shard_that_one_cannot_have_goes_to_another_and_one_that_nobody_can_have_to_nobody() -> None:
    async def main(town: Town) -> None:
        people = [await town.joined(name) for name in "ab"]
        await asyncio.sleep(SEEN_S)
        for person in people:
            assert person.membership is not None
        mine = people[0].owners.index("a")
        assert people[0].membership is not None
        people[0].membership.describe(unfit={mine: "no Drone here"})
        await asyncio.sleep(SEEN_S)
        assert people[0].owners[mine] == "b"
        assert people[1].membership is not None
        people[1].membership.describe(unfit={mine: "nor here"})
        await asyncio.sleep(SEEN_S)
        assert people[0].owners[mine] == NOBODY
        assert people[0].owners.count(NOBODY) == 1

    play(main)


def test_the_last_one_that_leaves_leaves_everything_to_nobody() -> None:
    async def main(town: Town) -> None:
        alone = await town.joined("a")
        await asyncio.sleep(SEEN_S)
        assert alone.membership is not None
        alone.membership.describe(leaving=True)
        await asyncio.sleep(SEEN_S)
        assert alone.owners == (NOBODY,) * SHARDS

    play(main)


def test_who_owns_and_who_waits_is_told_and_forgotten_with_who_said_it() -> None:
    async def main(town: Town) -> None:
        one, two = await town.joined("a"), await town.joined("b")
        assert one.membership is not None
        assert two.membership is not None
        seen = two.membership.register
        await one.membership.say_owner(3, claim=7)
        await one.membership.say_ready(4, position=41)
        await asyncio.sleep(SEEN_S)
        assert (seen.owner(3), seen.awaited_by(4)) == ("a", "a")
        with pytest.raises(StaleEpoch, match="has claimed it after us"):
            await two.membership.say_owner(3, claim=6)
        await two.membership.let_go(3)
        await two.membership.take_back_ready(4)
        await asyncio.sleep(SEEN_S)
        assert (seen.owner(3), seen.awaited_by(4)) == ("a", "a"), "only who said it takes it back"
        await two.membership.say_owner(3, claim=8)
        await one.membership.let_go(3)
        await one.membership.take_back_ready(4)
        await asyncio.sleep(SEEN_S)
        assert (seen.owner(3), seen.awaited_by(4)) == ("b", NOBODY)
        await one.membership.say_owner(5, claim=9)
        await asyncio.sleep(SEEN_S)
        await one.membership.abandon()
        await asyncio.sleep(GONE_S)
        assert seen.owner(5) == NOBODY, "an owner that is no member owns nothing"

    play(main)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (FleetShape("village", SHARDS), "bucket of the fleet 'town'"),
        (FleetShape("town", 7), "runs with 6 shards, and this module declares 7"),
        (FleetShape("town", SHARDS, "zone_of"), "runs with no shard_by, and this module declares shard_by=zone_of"),
    ],
)
def test_a_fleet_of_another_shape_is_refused_and_nothing_changes(shape: FleetShape, said: str) -> None:
    async def main(town: Town) -> None:
        first = await town.joined("a")
        other = town.somebody("b")
        other.shape = shape
        with pytest.raises(ConfigError, match=said):
            await other.join()
        await asyncio.sleep(SEEN_S)
        assert loads(first.owners) == {"a": SHARDS}

    play(main)


def test_another_version_of_an_agent_is_refused_unless_workers_are_replaced_one_by_one() -> None:
    async def main(town: Town) -> None:
        await town.joined("a")
        other = town.somebody("b")
        other.me = structs.replace(other.me, kinds=(KindFold("Drone", 2, "bb"), KindFold("Dock", 1, "cc")))
        with pytest.raises(ConfigError, match="runs Drone with version 1; run the same code in all workers"):
            await other.join()
        other.me = structs.replace(other.me, kinds=(KindFold("Drone", 1, "bb"),))
        with pytest.raises(ConfigError, match="runs Drone with other fields"):
            await other.join()
        other.me = structs.replace(other.me, kinds=(KindFold("Dock", 1, "cc"),))
        with pytest.raises(ConfigError, match="runs Drone, which this module does not declare; run the same code"):
            await other.join()
        await other.join(other_folds=True)
        await asyncio.sleep(SEEN_S)
        assert loads(other.owners) == {"a": 3, "b": 3}

    play(main)


def test_other_agents_than_those_of_the_others_are_refused_unless_workers_are_replaced_one_by_one() -> None:
    def running(me: WorkerRecord, *agents: str) -> WorkerRecord:
        return structs.replace(me, agents=shown(agents), agents_digest=digest_of(agents))

    async def main(town: Town) -> None:
        first, other = town.somebody("a"), town.somebody("b")
        first.me = running(first.me, "Drone/d1*", "Drone/x", "Drone/y", "Drone/z")
        await first.join()
        refused = {
            (): "runs Drone/d1*, Drone/x, Drone/y and 1 more, and this one is to run every agent of its fleet; give",
            ("Drone/d2*",): "and this one is to run Drone/d2*; give all workers of the fleet the same agents",
            ("Drone/d1*", "Drone/x", "Drone/y", "Drone/u"): "Drone/y and 1 more, but others among those; give all",
        }
        for agents, said in refused.items():
            other.me = running(other.me, *agents)
            with pytest.raises(ConfigError, match=re.escape(said)):
                await other.join()
        same = town.somebody("c")
        same.me = running(same.me, "Drone/z", "Drone/y", "Drone/x", "Drone/d1*")
        await same.join()
        await other.join(other_folds=True)
        await asyncio.sleep(SEEN_S)
        assert loads(other.owners) == {"a": 2, "b": 2, "c": 2}

    play(main)


@pytest.mark.parametrize(("ahead_s", "word"), [(3600, "ahead of"), (-3600, "behind")])
def test_a_clock_that_is_far_off_is_refused_at_the_door(ahead_s: int, word: str) -> None:
    async def main(town: Town) -> None:
        await town.joined("a")
        other = town.somebody("b")
        other.clock.jump(ahead_s)
        with pytest.raises(ConfigError, match=f"clock of this machine is 3600 s {word} that of worker a on host of a"):
            await other.join()

    play(main)


def test_what_somebody_said_long_ago_is_no_clock_that_is_slow() -> None:
    """No server took a renewal for a while, nor let a lease run out: who joins then finds what was said before."""

    async def main(town: Town) -> None:
        keys = await MemoryStore(town.shelf, SimClock(town.run.loop)).key_value("town")
        long_ago = WorkerRecord("a", host="host of a", wall_ns=SimClock(town.run.loop).wall_ns() - 60 * NS)
        await keys.put(worker_key("a"), write_record(long_ago))
        other = town.somebody("b")
        other.me = structs.replace(other.me, formerly=("c",))
        itself = structs.replace(long_ago, id="c")
        await keys.put(worker_key("c"), write_record(itself))
        await other.join()
        assert other.membership is not None
        assert other.membership.is_held

    play(main)


def test_a_clock_that_jumps_later_is_seen_by_the_others_and_mends() -> None:
    async def main(town: Town) -> None:
        one, two = await town.joined("a"), await town.joined("b")
        await asyncio.sleep(SEEN_S)
        assert one.membership is not None
        assert one.membership.register.skews == {}
        two.clock.jump(60)
        await asyncio.sleep(SEEN_S)
        assert one.membership.register.skews["b"] == pytest.approx(60, abs=1)
        two.clock.jump(-60)
        await asyncio.sleep(SEEN_S)
        assert one.membership.register.skews == {}

    play(main)


def test_what_somebody_writes_wrongly_is_passed_over_and_counted() -> None:
    async def main(town: Town) -> None:
        one = await town.joined("a")
        assert one.membership is not None
        assert one.keys is not None
        for key, value in (
            (worker_key("x"), b"not JSON"),
            (worker_key("y"), write_record(WorkerRecord("somebody else"))),
            (worker_key("z"), b'{"id": "z", "format": 99}'),
            ("owner.2", b"[]"),
            ("owner.two", b"{}"),
            ("ready.1", b"{}"),
            ("plan.b", b"{}"),
            ("whatever", b"\xff"),
        ):
            await one.keys.put(key, value)
        await one.keys.put(PLAN, b"{}")
        await asyncio.sleep(SEEN_S)
        assert [member.id for member in one.membership.register.members()] == ["a"]
        assert one.membership.register.counters.records_malformed >= 5
        assert loads(one.owners) == {"a": SHARDS}

    play(main)


def test_a_bucket_of_something_else_is_refused() -> None:
    async def main(town: Town) -> None:
        one = town.somebody("a")
        keys = await one.store.key_value("town")
        await keys.put(FLEET, b"\x00")
        with pytest.raises(StoreForeign, match="not a record of ours"):
            await one.join()

    play(main)


def test_a_store_that_does_not_answer_is_said_so() -> None:
    async def main(town: Town) -> None:
        one = town.somebody("a")
        await one.store.key_value("town")
        one.store.line.cut_off = True
        with pytest.raises(StoreUnavailable):
            await one.join()

    play(main)


def test_a_plan_says_nothing_of_shards_that_are_not_there() -> None:
    plan = ShardPlan(1, 1, "a", ("a",), (), ("a", "a"))
    assert [plan.owner_of(shard) for shard in (-1, 0, 1, 2)] == [NOBODY, "a", "a", NOBODY]
