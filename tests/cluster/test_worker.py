"""Workers that share a fleet, in virtual time and under load: they come, go, die, sleep and are cut off."""

import asyncio
import contextlib
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, react
from stigmergy.agents.effects import Effects, Publish
from stigmergy.agents.ordered import Claim, Ordered, ordered
from stigmergy.agents.shared import Shared, shared
from stigmergy.base.errors import Bug, ConfigError, JournalFull, NotOwned, StoreUnavailable
from stigmergy.base.tasks import end_tasks
from stigmergy.cluster import membership as coordinating
from stigmergy.cluster import worker
from stigmergy.cluster.membership import WorkerMembership
from stigmergy.cluster.owned_shard import ShardServices
from stigmergy.cluster.supervisor import FAILURES_MAX
from stigmergy.cluster.worker import UNHEARD
from stigmergy.crdt.orset import ORSet
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.node.declaration import Declaration
from stigmergy.shard.homes import shard_of
from tests.cluster.town import KEY, SHARDS, Added, Land, Meter, Person, Ring, Town, play

SEEDS = (0, pytest.param(1, marks=pytest.mark.prove))


def moved(before: list[str], after: list[str]) -> list[int]:
    return [shard for shard in range(len(before)) if before[shard] != after[shard]]


def claims(town: Town) -> list[int]:
    return [shard.claims for shard in town.shards]


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_share_the_shards_and_one_that_is_added_takes_only_its_share(seed: int) -> None:
    async def main(town: Town) -> None:
        await town.start("a", "b")
        before = await town.settled()
        assert sorted(before) == ["a", "a", "a", "b", "b", "b"]
        counted = claims(town)
        await asyncio.sleep(2)
        await town.start("c")
        after = await town.settled()
        assert [after[shard] for shard in moved(before, after)] == ["c", "c"]
        assert [new - old for new, old in zip(claims(town), counted, strict=True)] == [
            int(shard in moved(before, after)) for shard in range(SHARDS)
        ]
        await asyncio.sleep(2)
        # Whoever let go says how long the shard was without an owner on its side.
        assert sum(len(person.events("released")) for person in town.people.values()) == 2

    town = play(main, seed=seed)
    assert len(town.acknowledged) == 6


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_is_told_to_stop_hands_over_warm_and_the_rest_does_not_notice(seed: int) -> None:
    async def main(town: Town) -> None:
        people = {person.name: person for person in await town.start("a", "b", "c")}
        before = await town.settled()
        await asyncio.sleep(2)
        town.pauses_s.clear()
        counted = claims(town)
        leaver = people["b"]
        await leaver.stop()
        after = await town.settled()
        assert all(before[shard] == "b" for shard in moved(before, after))
        assert [new - old for new, old in zip(claims(town), counted, strict=True)] == [
            int(before[shard] == "b") for shard in range(SHARDS)
        ]
        assert [fields["to"] for fields in leaver.events("released")] != ["", ""], "each knew who comes"
        assert leaver.said[-1][0] == "left"
        # Nobody waited for a lease to run out: the successor had replayed before the owner let go.
        assert max(town.pauses_s) < 0.5

    play(main, seed=seed)


def test_one_that_starts_before_the_store_answers_waits_for_it_and_says_so() -> None:
    async def main(town: Town) -> None:
        person = Person(town, "a")
        town.people["a"] = person
        await person.start()
        while person.worker is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        person.cut()
        await asyncio.sleep(60)
        assert person.task is not None
        assert not person.task.done()
        assert person.events("waits"), "nobody has to guess why it does nothing"
        assert not person.events("joined")
        person.cut(False)
        await town.settled()

    play(main)


class Crier(Meter, kind="Meter"):
    """One that publishes by a way that nobody sees in its code."""

    @react
    def tell(self, event: Added) -> Effects:
        yield from Meter.tell(self, event)
        yield EFFECTS["publish"]("added", event)


class Sharer(Meter, kind="Meter"):
    seen: Shared[ORSet[str]] = shared(by="town")
    dock: Ordered[Claim] = ordered(of="dock")


EFFECTS: dict[str, type[Any]] = {"publish": Publish}


def test_a_fleet_whose_needs_are_not_met_is_not_worked_for() -> None:
    async def main(town: Town) -> None:
        person = Person(town, "a")
        person.fleet = Declaration("meters", agents=[Sharer], shards=SHARDS)
        await person.start()
        assert person.task is not None
        with pytest.raises(
            ConfigError, match=r"a bus \(Sharer.seen is shared\) and a ledger \(Sharer.dock is claimed\)"
        ):
            await person.task
        await town.start("b")
        await town.settled()

    play(main)


def test_workers_of_one_fleet_run_the_same_agents() -> None:
    """Whether a command is taken must not depend on the worker that has the shard."""

    async def main(town: Town) -> None:
        await town.start("a")
        await town.settled()
        for agents, said in {
            ("Meter/1*",): r"worker a-\w+ on  runs every agent of its fleet, and this one is to run Meter/1\*",
            ("Metre/*",): "agents has 'Metre/\\*'; give addresses",
        }.items():
            person = Person(town, "b")
            person.agents = agents
            await person.start()
            assert person.task is not None
            with pytest.raises(ConfigError, match=said):
                await person.task
        assert town.owners() == ["a"] * SHARDS

    play(main)


def test_an_earlier_version_does_not_say_whom_it_runs_and_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(town: Town) -> None:
        monkeypatch.setattr(worker, "digest_of", lambda _: "")
        await town.start("a")
        await town.settled()
        monkeypatch.undo()
        person = Person(town, "b")
        person.agents = ("Meter/*",)
        town.people["b"] = person
        await person.start()
        await town.settled()

    play(main)


def test_what_is_published_without_a_bus_is_told_once_where_nobody_could_see_it_before() -> None:
    async def main(town: Town) -> None:
        person = Person(town, "a")
        person.fleet = Declaration("meters", agents=[Crier], shards=SHARDS)
        person.fleet.actuator(Ring)(person._ring)
        person.fleet.actuator(Land)(person._land)
        town.people["a"] = person
        await person.start()
        await town.settled()
        await asyncio.sleep(3)
        assert [fields["reason"] for fields in person.events("troubled")] == [UNHEARD]
        assert person.worker is not None
        assert person.worker.membership is not None
        (member,) = person.worker.membership.register.members()
        assert member.unmet == (UNHEARD,)

    play(main)


def test_the_owner_goes_on_until_a_slow_successor_has_replayed() -> None:
    async def main(town: Town) -> None:
        await town.start("a")
        await town.settled()
        await asyncio.sleep(1)
        town.pauses_s.clear()
        await town.start("b", slow_s=3.0)
        after = await town.settled()
        assert sorted(after) == ["a"] * 3 + ["b"] * 3
        await asyncio.sleep(1)
        assert max(town.pauses_s) < 0.5

    play(main)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", ["a", "b"])
def test_one_that_is_killed_is_taken_over_in_time_also_the_coordinator(seed: int, victim: str) -> None:
    async def main(town: Town) -> None:
        people = {person.name: person for person in await town.start("a", "b", "c")}
        before = await town.settled()
        await asyncio.sleep(1)
        town.pauses_s.clear()
        await people[victim].kill()
        after = await town.settled()
        assert all(before[shard] == victim for shard in moved(before, after))
        await asyncio.sleep(2)
        assert max(town.pauses_s) < 5.0

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_is_stopped_and_wakes_is_fenced_does_nothing_and_joins_anew(seed: int) -> None:
    async def main(town: Town) -> None:
        people = {person.name: person for person in await town.start("a", "b", "c")}
        await town.settled()
        await asyncio.sleep(1)
        sleeper = people["a"]
        assert sleeper.worker is not None
        first = sleeper.worker.membership
        assert first is not None
        town.run.loop.hold("a")
        del town.people["a"]
        owners = await town.settled()
        assert sorted(owners) == ["b", "b", "b", "c", "c", "c"]
        done = len([entry for entry in town.done if entry[0] == "a"])
        await asyncio.sleep(5)
        # By its own clock it is no member any more, before anything of it has run.
        assert not first.is_held
        town.people["a"] = sleeper
        town.run.loop.release("a")
        await asyncio.sleep(0.3)
        assert len([entry for entry in town.done if entry[0] == "a"]) == done, "no effects when it wakes"
        assert sorted(await town.settled()) == ["a", "a", "b", "b", "c", "c"]
        assert sleeper.worker.membership is not None
        assert sleeper.worker.membership.me != first.me
        assert len(sleeper.events("fenced")) == 1

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_is_cut_off_ends_what_it_runs_and_comes_back(seed: int) -> None:
    async def main(town: Town) -> None:
        people = {person.name: person for person in await town.start("a", "b")}
        await town.settled()
        await asyncio.sleep(1)
        people["a"].cut()
        await asyncio.sleep(6)
        assert people["a"].owned == []
        assert len(people["b"].owned) == SHARDS
        people["a"].cut(False)
        assert sorted(await town.settled()) == ["a", "a", "a", "b", "b", "b"]

    play(main, seed=seed)


def test_what_keeps_a_worker_from_joining_again_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(town: Town) -> None:
        (person,) = await town.start("a")
        await town.settled()
        attempts: list[str] = []

        async def join(self: WorkerMembership, **_: bool) -> None:
            attempts.append(self.me)
            raise StoreUnavailable(f"worker.{self.me}: the store has no room")

        with monkeypatch.context() as patched:
            patched.setattr(WorkerMembership, "join", join)
            person.cut()
            await asyncio.sleep(6)
            person.cut(False)
            await asyncio.sleep(6)
        assert len(set(attempts)) > 1
        assert person.events("waits") == [{"reason": "worker.a: the store has no room"}]
        assert await town.settled() == ["a"] * SHARDS

    play(main)


def test_a_cut_that_is_shorter_than_a_lease_moves_nothing() -> None:
    async def main(town: Town) -> None:
        people = {person.name: person for person in await town.start("a", "b")}
        before = await town.settled()
        counted = claims(town)
        people["a"].store.line.cut_off = True
        await asyncio.sleep(1)
        people["a"].store.line.cut_off = False
        await asyncio.sleep(5)
        assert town.owners() == before
        assert claims(town) == counted

    play(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_several_hand_overs_at_once(seed: int) -> None:
    async def main(town: Town) -> None:
        people = {person.name: person for person in await town.start("a", "b", "c")}
        await town.settled()
        await asyncio.sleep(1)
        leaving = [asyncio.ensure_future(people[name].stop()) for name in "ab"]
        await town.start("d")
        await asyncio.gather(*leaving)
        assert sorted(await town.settled()) == ["c", "c", "c", "d", "d", "d"]

    play(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_successor_dies_while_the_shard_is_handed_over_to_it(seed: int) -> None:
    async def main(town: Town) -> None:
        await town.start("a")
        await town.settled()
        (second,) = await town.start("b")
        for _ in range(10_000):
            await asyncio.sleep(0.001)
            if second.events("ready"):
                break
        await second.kill()
        assert await town.settled() == ["a"] * SHARDS

    play(main, seed=seed)


def test_all_of_them_end_and_others_go_on_from_the_logs() -> None:
    async def main(town: Town) -> None:
        people = await town.start("a", "b")
        await town.settled()
        await asyncio.sleep(1)
        for person in people:
            await person.stop()
        await asyncio.sleep(1)
        await town.start("c", "d")
        assert sorted(await town.settled()) == ["c", "c", "c", "d", "d", "d"]

    play(main)


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.prove) for seed in (0, 1))])
def test_whatever_happens_to_them_nothing_is_lost_or_doubled(seed: int) -> None:
    async def main(town: Town) -> None:
        chance = town.run.chance("troubles")
        await town.start("a", "b", "c")
        await town.settled()
        names = iter(f"w{n}" for n in range(100))
        for _ in range(6):
            name = chance.choice(sorted(town.people))
            person = town.people[name]
            trouble = chance.choice(["kill", "stop", "hold", "cut", "add"])
            if trouble == "kill" and len(town.people) > 1:
                await person.kill()
            elif trouble == "stop" and len(town.people) > 1:
                await person.stop()
            elif trouble == "hold":
                town.run.loop.hold(name)
                await asyncio.sleep(chance.uniform(0.1, 6))
                town.run.loop.release(name)
            elif trouble == "cut":
                person.cut()
                await asyncio.sleep(chance.uniform(0.1, 6))
                person.cut(False)
            if trouble == "add" or len(town.people) < 3:
                await town.start(next(names))
            await asyncio.sleep(chance.uniform(0, 3))
        await town.settled(60)

    play(main, seed=seed)


OTHER = bytes(range(1, 33))


def public(seed: bytes) -> bytes:
    return Ed25519Signer(seed).public_key


def test_a_worker_with_a_key_of_its_own_is_let_in_by_those_who_trust_it() -> None:
    async def main(town: Town) -> None:
        await town.start("a", trusted=(public(OTHER),))
        await town.settled()
        await asyncio.sleep(1)
        await town.start("b", key=OTHER, trusted=(public(KEY),))
        assert sorted(await town.settled()) == ["a"] * 3 + ["b"] * 3
        await town.people["a"].kill()
        assert await town.settled() == ["b"] * SHARDS

    play(main)


def test_a_worker_with_a_key_that_nobody_trusts_gets_nothing_and_says_why() -> None:
    async def main(town: Town) -> None:
        await town.start("a")
        before = await town.settled()
        counted = claims(town)
        await asyncio.sleep(1)
        (stranger,) = await town.start("b", key=OTHER, trusted=(public(KEY),))
        await asyncio.sleep(20)
        assert town.owners() == before
        assert claims(town) == counted, "nobody lost a shard to one that may not sign"
        assert stranger.owned == []
        assert len(stranger.events("unfit")) >= 3
        assert "is not enrolled in this journal" in stranger.events("unfit")[0]["reason"]

    play(main)


def test_a_worker_that_does_not_trust_the_key_of_the_others_takes_nothing() -> None:
    async def main(town: Town) -> None:
        await town.start("a", trusted=(public(OTHER),))
        before = await town.settled()
        await asyncio.sleep(1)
        (stranger,) = await town.start("b", key=OTHER)
        await asyncio.sleep(20)
        assert town.owners() == before
        assert "which this one does not trust" in stranger.events("unfit")[0]["reason"]

    play(main)


def test_a_shard_that_one_worker_cannot_replay_stays_where_it_is() -> None:
    class Blind(Agent):
        pass

    async def main(town: Town) -> None:
        await town.start("a")
        before = await town.settled()
        await asyncio.sleep(1)
        blind = Person(town, "b")
        # The same fleet by name, with another kind of agent: one that was started with the wrong module.
        blind.fleet = Declaration("meters", agents=[Blind], shards=SHARDS)
        town.people["b"] = blind
        await blind.start(upgrade=True)
        await asyncio.sleep(10)
        assert town.owners() == before
        assert len(blind.events("unfit")) >= 1
        assert "Meter" in blind.events("unfit")[0]["reason"]

    play(main)


def test_what_fails_again_and_again_is_tried_elsewhere() -> None:
    async def main(town: Town) -> None:
        people = {person.name: person for person in await town.start("a", "b")}
        await town.settled()
        await asyncio.sleep(1)
        victim = people["a"].owned[0]
        town.may_land = True
        for _ in range(FAILURES_MAX):
            while victim not in people["a"].owned:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            assert people["a"].worker is not None
            people["a"].worker.live(victim).host.fail(JournalFull("no room"))
            await asyncio.sleep(0.01)
        for _ in range(2_000):
            await asyncio.sleep(0.01)
            if victim in people["b"].owned:
                break
        assert victim in people["b"].owned
        assert [fields["reason"] for fields in people["a"].events("lost")] == ["no room"] * FAILURES_MAX
        await town.settled(60)

    play(main, load=2)


def test_queries_are_answered_only_by_who_is_a_member_by_its_own_clock() -> None:
    async def main(town: Town) -> None:
        (alone,) = await town.start("a")
        await town.settled()
        await asyncio.sleep(1)
        assert alone.worker is not None
        shard = shard_of("Meter/0", SHARDS)
        assert alone.worker.live(shard).query("Meter/0").numbers
        town.run.loop.hold("a")
        await asyncio.sleep(1.9)
        alone.worker.live(shard)  # its lease has not run out yet
        await asyncio.sleep(0.2)
        with pytest.raises(NotOwned, match="is not this worker's now"):
            alone.worker.live(shard)
        town.run.loop.release("a")
        await town.settled()

    play(main)


def test_a_worker_that_does_not_fit_is_refused_at_the_door() -> None:
    async def main(town: Town) -> None:
        await town.start("a")
        await town.settled()
        other = Person(town, "b")
        other.fleet = Declaration("meters", agents=[Meter], shards=SHARDS + 1)
        await other.start()
        assert other.task is not None
        with pytest.raises(ConfigError, match="runs with 6 shards, and this module declares 7"):
            await other.task

    play(main)


def test_more_shards_than_workers_can_share_are_refused() -> None:
    async def main(town: Town) -> None:
        many = Person(town, "a")
        many.fleet = Declaration("meters", agents=[Meter], shards=300)
        await many.start()
        assert many.task is not None
        with pytest.raises(ConfigError, match="300 shards; workers can share 256 at most"):
            await many.task
        await town.start("b")
        await town.settled()

    play(main, load=1)


def test_a_worker_whose_clock_is_off_is_told_by_the_others() -> None:
    async def main(town: Town) -> None:
        one, two = await town.start("a", "b")
        await town.settled()
        two.clock.jump(600)
        await asyncio.sleep(3)
        (ahead,) = one.events("clocks")[-1]["ahead_s"].values()
        assert ahead == pytest.approx(600, abs=2)
        two.clock.jump(-600)
        await asyncio.sleep(3)
        assert one.events("clocks")[-1] == {"ahead_s": {}}

    play(main, load=1)


def test_when_all_lose_their_leases_at_once_each_gets_its_own_shards_again() -> None:
    async def main(town: Town) -> None:
        people = await town.start("a", "b", "c")
        before = await town.settled()
        await asyncio.sleep(1)
        for person in people:
            person.store.line.cut_off = True
        await asyncio.sleep(5)
        assert all(person.owned == [] for person in people)
        for person in people:
            person.store.line.cut_off = False
            await asyncio.sleep(0.4)
        assert await town.settled() == before
        assert [len(person.events("fenced")) for person in people] == [1, 1, 1]

    play(main)


def test_a_bug_of_ours_ends_the_worker_loudly_and_others_go_on() -> None:
    async def main(town: Town) -> None:
        await town.start("a")
        await town.settled()
        broken = Person(town, "b")
        broken.slow_s = "no number"  # type: ignore[assignment]
        town.people["b"] = broken
        await broken.start()
        assert broken.task is not None
        with pytest.raises(TypeError):
            await broken.task
        del town.people["b"]
        assert await town.settled() == ["a"] * SHARDS

    play(main, load=2)


def test_a_bug_while_planning_ends_the_worker_loudly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def misplace(*_: object) -> tuple[str, ...]:
        raise ZeroDivisionError("no place")

    async def main(town: Town) -> None:
        monkeypatch.setattr(coordinating, "place", misplace)
        [alone] = await town.start("a")
        assert alone.task is not None
        async with asyncio.timeout(30):
            with pytest.raises(ZeroDivisionError):
                await alone.task
        del town.people["a"]

    play(main, load=0)


def test_a_shard_that_cannot_be_left_in_good_order_is_left_as_it_is() -> None:
    async def main(town: Town) -> None:
        stuck = Person(town, "a")
        stuck.cannot_leave = True
        town.people["a"] = stuck
        await stuck.start()
        await town.settled()
        await asyncio.sleep(1)
        await town.start("b")
        await town.settled(60)
        reasons = [fields["reason"] for fields in stuck.events("lost")]
        assert reasons == ["the door is stuck"] * 3
        stuck.cannot_leave = False

    play(main, load=2)


def test_a_shard_that_cannot_be_furnished_here_goes_to_others() -> None:
    async def main(town: Town) -> None:
        bare = Person(town, "a")
        bare.cannot_make_services = True
        town.people["a"] = bare
        await bare.start()
        await asyncio.sleep(3)
        assert {fields["reason"] for fields in bare.events("lost")} == {"no chairs"}
        assert bare.owned == []
        await town.start("b")
        await asyncio.sleep(3)
        assert town.owners() == ["b"] * SHARDS
        bare.cannot_make_services = False
        await town.settled(60)

    play(main, load=2)


def test_what_stands_around_a_host_is_ended_to_the_end_when_the_lease_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[ShardServices] = []
    kill = ShardServices.kill

    async def slowly(services: ShardServices) -> None:
        await asyncio.sleep(0.05)  # as to say goodbye to a server
        await kill(services)
        ended.append(services)

    monkeypatch.setattr(ShardServices, "kill", slowly)

    async def main(town: Town) -> None:
        first, _ = await town.start("a", "b")
        await town.settled()
        # Nothing is written, so that it is the lease alone that tells its shards: all at once, and the worker too.
        first.cut()
        await asyncio.sleep(4)
        assert len(ended) == 3
        first.cut(False)
        await town.settled()

    play(main, load=0)


def test_one_whose_shards_do_not_end_after_its_lease_was_lost_stops_and_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck: list[ShardServices] = []
    kill = ShardServices.kill

    async def hang(services: ShardServices) -> None:
        if not stuck:
            stuck.append(services)
            await asyncio.get_running_loop().create_future()
        await kill(services)

    async def main(town: Town) -> None:
        first, _ = await town.start("a", "b")
        await town.settled()
        monkeypatch.setattr(ShardServices, "kill", hang)
        first.cut()
        assert first.task is not None
        async with asyncio.timeout(120):
            with pytest.raises(Bug, match=r"must be started again: .*'abandonment of shard \d' at .* hang"):
                await first.task
        del town.people["a"]
        assert await town.settled() == ["b"] * SHARDS

    play(main, load=2)


def test_a_task_that_does_not_end_with_its_shard_stops_the_worker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    over = False

    async def refuse() -> None:
        while not over:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def main(town: Town) -> None:
        nonlocal over
        first, _ = await town.start("a", "b")
        await town.settled()
        stubborn = asyncio.get_running_loop().create_task(refuse(), name="a session")
        monkeypatch.setattr(ShardServices, "_close_control_server", lambda _: end_tasks(stubborn))
        first.cut()
        assert first.task is not None
        async with asyncio.timeout(60):
            with pytest.raises(Bug, match=r"task 'a session' at .*: cancelled 7 times"):
                await first.task
        over = True
        del town.people["a"]
        assert await town.settled() == ["b"] * SHARDS

    play(main, load=2)
