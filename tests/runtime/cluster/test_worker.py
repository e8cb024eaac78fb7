"""Workers that share a fleet, in virtual time and under load: they come, go, die, sleep and are cut off."""

import asyncio

import pytest

from tests.runtime.cluster.town import SHARDS, Town, play

SEEDS = range(2)


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
        first = sleeper.worker.roster
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
        assert sleeper.worker.roster is not None
        assert sleeper.worker.roster.me != first.me
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


@pytest.mark.parametrize("seed", range(3))
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
