"""The life of a host: what it takes, in which order, what it tells whom and when, how it stops and how it fails."""

import asyncio
from typing import Any

import pytest

from stigmergy.core.agent import Agent, decide, evolve, react, reject
from stigmergy.core.codec import pack_envelope
from stigmergy.core.effects import Effects, Events, Order, Tell, WakeMe, WakeMeAt, Woken
from stigmergy.core.errors import (
    JournalUnknown,
    NotRunning,
    Overloaded,
    SequenceGap,
    StaleEpoch,
    StigmergyError,
    UnknownKind,
)
from stigmergy.core.inputs import Accepted, Refused
from stigmergy.core.messages import Action, Command, Event, transient, within
from stigmergy.core.supervision import SafeAction, Supervise
from stigmergy.runtime.declaration import Declaration
from stigmergy.runtime.mailbox import DROP_OLDEST
from stigmergy.runtime.settings import Settings
from stigmergy.sim.disk import Fault
from stigmergy.sim.node import SimNode
from tests.runtime.rig import play


class Counted(Event):
    number: int
    padding: bytes = b""


class Sampled(Event, keep=within(seconds=1)):
    number: int


class Glimpsed(Event, keep=transient):
    number: int


class Spoilt(Event):
    number: int


class Add(Command):
    number: int


class SetTimers(Command):
    after_s: tuple[float, ...] = ()
    at_s: tuple[float, ...] = ()


class TimersWanted(Event):
    after_s: tuple[float, ...]
    at_s: tuple[float, ...]


class Hello(Event):
    by: str
    number: int


class Land(Action):
    reason: str = "stopped"


class Counter(Agent):
    numbers: tuple[int, ...] = ()
    woken: tuple[str, ...] = ()
    greeted: tuple[tuple[str, int], ...] = ()

    supervision = Supervise(stop_after=2, within_s=10)
    safe = SafeAction(then=Land())

    @decide
    def add(self, command: Add) -> Events:
        if command.number < 0:
            reject("only what is positive is added")
        yield Counted(number=command.number)

    @evolve
    def counted(self, event: Counted) -> None:
        self.numbers = (*self.numbers, event.number)

    @react
    def greet(self, event: Counted) -> Effects:
        if event.number >= 100:
            yield Tell(f"Counter/t{event.number % 5}", Hello(by=self.address, number=event.number))

    @evolve
    def sampled(self, event: Sampled) -> None:
        self.numbers = (*self.numbers, event.number)

    @decide
    def glimpsed(self, event: Glimpsed) -> Events:
        if event.number % 2:
            yield Counted(number=event.number)

    @evolve
    def spoilt(self, event: Spoilt) -> None:
        raise ValueError(f"spoilt {event.number}")

    @decide
    def timers(self, command: SetTimers) -> Events:
        yield TimersWanted(after_s=command.after_s, at_s=command.at_s)

    @react
    def set_timers(self, event: TimersWanted) -> Effects:
        for seconds in event.after_s:
            yield WakeMe(f"after {seconds:g}", after_s=seconds)
        for seconds in event.at_s:
            yield WakeMeAt(f"at {seconds:g}", at_s=self.now + seconds)

    @evolve
    def wake(self, event: Woken) -> None:
        self.woken = (*self.woken, event.name)

    @evolve
    def hello(self, event: Hello) -> None:
        self.greeted = (*self.greeted, (event.by, event.number))


def declare(shards: int = 1, **streams: Any) -> Declaration:
    return Declaration("counters", agents=[Counter], shards=shards, streams=streams or None)


def envelope(first: int, numbers: range, source: str = "s", epoch: int = 0, address: str = "Counter/a") -> bytes:
    return pack_envelope(source, [(address, Counted(number=n)) for n in numbers], sequence=first, epoch=epoch)


class TestTaking:
    def test_an_answer_comes_when_it_is_durable_and_not_before(self) -> None:
        async def main(node: SimNode) -> None:
            node.latency.jitter = False
            node.latency.before_s = 1.0
            live = await node.start()
            asked = asyncio.ensure_future(live.send("Counter/a", Add(number=1)))
            await asyncio.sleep(0.9)
            assert not asked.done()
            assert live.query("Counter/a").numbers == ()
            assert live.agents() == []
            assert isinstance(await asked, Accepted)
            assert live.query("Counter/a").numbers == (1,)
            assert live.agents() == ["Counter/a"]

        play(declare(), main)

    def test_a_refusal_is_durable_too(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            refused = await live.send("Counter/a", Add(number=-1), command_id="x")
            assert refused == Refused("only what is positive is added")
            await node.lose_power()
            live = await node.start()
            assert await live.send("Counter/a", Add(number=5), command_id="x") == refused

        play(declare(), main)

    def test_the_same_id_asked_twice_at_once_is_done_once(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            asks = [live.send("Counter/a", Add(number=1), command_id="x") for _ in range(5)]
            answers = await asyncio.gather(*asks)
            assert len(set(answers)) == 1
            assert live.query("Counter/a").numbers == (1,)

        play(declare(), main)

    def test_the_same_id_for_agents_of_different_shards_is_two_commands(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            agents = [f"Counter/{number}" for number in range(8)]
            answers = await asyncio.gather(*(live.send(a, Add(number=1), command_id="x") for a in agents))
            done = [address for address in agents if live.query(address).numbers]
            shards = {live.host.intake.shard_of(address) for address in agents}
            assert len(shards) > 1
            assert len(done) >= len(shards)
            assert all(isinstance(answer, Accepted) for answer in answers)

        play(declare(shards=4), main)

    def test_an_event_that_may_wait_is_taken_at_once_and_written_in_time(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/b", Counted(number=0))
            for number in range(10):
                await live.observe("Counter/a", Sampled(number=number))
                await asyncio.sleep(0.05)
            assert live.query("Counter/a").numbers == ()
            groups = node.logbook.groups
            await asyncio.sleep(0.6)
            assert live.query("Counter/a").numbers == tuple(range(10))
            assert node.logbook.groups == groups + 1

        play(declare(), main)

    def test_an_envelope_is_acknowledged_when_all_of_it_is_durable(self) -> None:
        """Larger than a commit may be, so that it is split."""

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.1
            live = await node.start()
            items = [("Counter/a", Counted(number=n, padding=bytes(50_000))) for n in range(15)]
            await live.deliver(pack_envelope("s", list(items), sequence=1))
            assert node.logbook.states[0].marks.consumed("s", 0) == 15
            assert len(node.logbook.states[0].agents["Counter/a"].numbers) == 15
            assert len([commit for commit in node.logbook.commits[0] if commit.events]) > 2

        play(declare(), main)

    @pytest.mark.parametrize("shards", [1, 4])
    def test_what_comes_early_waits_and_everybody_is_told(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            late = [asyncio.ensure_future(live.deliver(envelope(4, range(3, 6)))) for _ in range(2)]
            await asyncio.sleep(1.0)
            assert not any(one.done() for one in late)
            await live.deliver(envelope(1, range(3)))
            await asyncio.gather(*late)
            assert live.query("Counter/a").numbers == (0, 1, 2, 3, 4, 5)

        play(declare(shards), main)

    @pytest.mark.parametrize("shards", [1, 4])
    def test_a_gap_that_nobody_fills_is_declared_and_what_came_early_is_taken(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(10, range(3)))
            assert node.world.loop.time() >= 5.0
            assert live.query("Counter/a").numbers == (0, 1, 2)
            assert live.standing().counters["skipped"] == 9 * shards
            await live.deliver(envelope(1, range(50, 59)))
            assert live.query("Counter/a").numbers == (0, 1, 2), "what was declared lost comes too late"

        play(declare(shards), main)

    def test_a_releaser_that_was_replaced_is_refused_and_nothing_of_it_is_taken(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(1, range(2), epoch=2))
            with pytest.raises(StaleEpoch):
                await live.deliver(envelope(3, range(9), epoch=1))
            assert live.query("Counter/a").numbers == (0, 1)
            await live.deliver(envelope(3, range(2, 4), epoch=2))
            assert live.query("Counter/a").numbers == (0, 1, 2, 3)

        play(declare(), main)

    def test_a_replaced_releaser_cannot_declare_a_gap(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(1, range(2), epoch=2))
            with pytest.raises((StaleEpoch, SequenceGap)):
                await live.deliver(envelope(100, range(9), epoch=1))
            await live.deliver(envelope(3, range(2, 4), epoch=2))
            assert live.query("Counter/a").numbers == (0, 1, 2, 3)

        play(declare(), main)

    def test_an_overload_is_told_to_its_sender_and_to_nobody_else(self) -> None:
        small = Settings(telemetry_items_max=10, batch_events_max=5)

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.05
            live = await node.start()
            told = await asyncio.gather(
                *(live.observe("Counter/a", Counted(number=number)) for number in range(1_500)), return_exceptions=True
            )
            refused = [one for one in told if isinstance(one, Overloaded)]
            assert refused
            assert all(one is None or isinstance(one, Overloaded) for one in told)
            assert len(live.query("Counter/a").numbers) == len(told) - len(refused)
            assert live.failure is None

        play(declare(), main, settings=small)

    def test_envelopes_that_find_no_room_fail_and_come_through_when_repeated(self) -> None:
        """Early ones that were let through together, more than can wait."""
        small = Settings(telemetry_items_max=1, telemetry_bytes_max=200, batch_events_max=1)

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.2
            live = await node.start()
            late = [asyncio.ensure_future(live.deliver(envelope(n, range(n, n + 1)))) for n in range(2, 60)]
            await asyncio.sleep(0.1)
            first = asyncio.ensure_future(live.deliver(envelope(1, range(1, 2))))
            told = await asyncio.gather(first, *late, return_exceptions=True)
            assert any(isinstance(one, Overloaded) for one in told)
            assert live.failure is None
            for number in range(1, 60):
                await live.deliver(envelope(number, range(number, number + 1)))
            assert live.query("Counter/a").numbers == tuple(range(1, 60))

        play(declare(), main, settings=small)

    def test_shed_telemetry_moves_the_mark_and_is_in_the_log(self) -> None:
        small = Settings(telemetry_items_max=5, batch_events_max=2)

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.1
            live = await node.start()
            await asyncio.gather(*(live.deliver(envelope(n, range(n, n + 1), "cam")) for n in range(1, 80)))
            taken = live.query("Counter/a").numbers
            assert live.standing().counters["shed_items"] == 79 - len(taken)
            assert taken[-1] == 79
            assert list(taken) == sorted(taken)
            assert node.logbook.states[0].marks.consumed("cam", 0) == 79

        play(declare(cam=DROP_OLDEST), main, settings=small)

    def test_transient_events_do_not_wear_the_disk_out_and_do_not_wedge_the_host(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/a", Counted(number=0))
            groups = node.logbook.groups
            for _ in range(40):
                await asyncio.gather(*(live.observe("Counter/a", Glimpsed(number=0)) for _ in range(200)))
            assert node.logbook.groups == groups
            await live.observe("Counter/a", Glimpsed(number=1))
            assert live.query("Counter/a").numbers == (0, 1)

        play(declare(), main)

    def test_when_too_much_is_owed_no_telemetry_is_taken_and_the_host_does_not_spin(self) -> None:
        fleet = declare()
        go = asyncio.Event()

        @fleet.actuator(Land)
        async def land(order: Order[Land]) -> None:
            await go.wait()

        few = Settings(owed_count_max=1, effect_within_s=1_000.0)

        async def main(node: SimNode) -> None:
            live = await node.start()
            host = live.host
            host.shards[0].state.outbox.count += 1
            told = asyncio.ensure_future(live.observe("Counter/a", Counted(number=1)))
            steps = node.world.loop.steps
            await asyncio.sleep(5.0)
            assert node.world.loop.steps - steps < 1_000
            assert not told.done()
            assert isinstance(await live.send("Counter/b", Add(number=1)), Accepted)
            host.shards[0].state.outbox.count -= 1
            await live.send("Counter/b", Add(number=2))
            await told

        play(fleet, main, settings=few)


class TestTime:
    def test_durations_and_moments_fire_in_their_own_time(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", SetTimers(after_s=(1.0, 3.0), at_s=(2.0,)))
            await asyncio.sleep(1.01)
            assert live.query("Counter/a").woken == ("after 1",)
            node.clock.jump(-3600)
            await asyncio.sleep(2.0)
            assert live.query("Counter/a").woken == ("after 1", "after 3")
            node.clock.jump(3600)
            await asyncio.sleep(1.5)
            assert live.query("Counter/a").woken == ("after 1", "after 3", "at 2")

        play(declare(), main)

    def test_what_is_overdue_after_a_restart_fires_once_in_order_before_anything_else(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", SetTimers(after_s=(5.0, 2.0), at_s=(3.0,)))
            await live.send("Counter/b", SetTimers(after_s=(4.0,)))
            await node.lose_power()
            await asyncio.sleep(60.0)
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            fired = [(agent, name) for commit in node.logbook.commits[0] for agent, name, _ in commit.fired]
            assert fired == [
                ("Counter/a", "after 2"),
                ("Counter/a", "at 3"),
                ("Counter/b", "after 4"),
                ("Counter/a", "after 5"),
            ]
            await asyncio.sleep(60.0)
            assert live.query("Counter/a").woken == ("after 2", "at 3", "after 5")

        play(declare(), main)

    def test_booting_in_1970_time_does_not_go_back(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            before = node.logbook.states[0].time_ns
            await node.lose_power()
            node.clock.boot_in_1970()
            live = await node.start()
            await live.send("Counter/a", SetTimers(after_s=(2.0,)))
            await asyncio.sleep(2.01)
            assert live.query("Counter/a").woken == ("after 2",)
            assert node.logbook.states[0].time_ns >= before
            times = [run.time_ns for commit in node.logbook.commits[0] for run in commit.runs]
            assert times == sorted(times)

        play(declare(), main)


class TestEnd:
    def test_a_stop_finishes_what_was_taken_and_takes_nothing_more(self) -> None:
        fleet = declare()
        landed: list[str] = []

        @fleet.actuator(Land)
        async def land(order: Order[Land]) -> None:
            await asyncio.sleep(0.5)
            landed.append(order.agent)

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.2
            live = await node.start()
            told = [asyncio.ensure_future(live.observe("Counter/a", Counted(number=n))) for n in range(20)]
            sampled = asyncio.ensure_future(live.observe("Counter/b", Sampled(number=1)))
            asked = asyncio.ensure_future(live.send("Counter/a", Add(number=99)))
            await asyncio.sleep(0)
            await node.stop()
            assert all(one.done() and one.exception() is None for one in (*told, sampled, asked))
            with pytest.raises(NotRunning, match="nothing was taken"):
                await live.send("Counter/a", Add(number=1))
            with pytest.raises(NotRunning):
                await live.observe("Counter/a", Counted(number=1))
            with pytest.raises(NotRunning):
                await live.deliver(envelope(1, range(1)))
            with pytest.raises(NotRunning):
                live.resume("Counter/a", "me")
            with pytest.raises(NotRunning):
                live.enroll_signer(1, bytes(32))
            live = await node.start()
            assert sorted(live.query("Counter/a").numbers) == [*range(20), 99]
            assert live.query("Counter/b").numbers == (1,)

        play(fleet, main)

    def test_a_stop_ends_although_a_gap_is_open_and_an_effect_hangs(self) -> None:
        fleet = declare()

        @fleet.actuator(Land)
        async def land(order: Order[Land]) -> None:
            await asyncio.sleep(1e6)

        async def main(node: SimNode) -> None:
            live = await node.start()
            late = asyncio.ensure_future(live.deliver(envelope(9, range(3))))
            await live.observe("Counter/a", Counted(number=1))
            began = node.world.loop.time()
            await node.stop()
            assert node.world.loop.time() - began < 3 * node.settings.drain_s
            with pytest.raises(NotRunning):
                await late

        play(fleet, main, settings=Settings(drain_s=2.0))

    def test_a_kill_tells_everybody_and_writes_nothing_more(self) -> None:
        async def main(node: SimNode) -> None:
            node.latency.before_s = 1.0
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            told = asyncio.ensure_future(live.observe("Counter/a", Counted(number=2)))
            await asyncio.sleep(0.1)
            await node.kill()
            with pytest.raises(NotRunning):
                await told
            live = await node.start()
            assert live.query("Counter/a").numbers == (1,)

        play(declare(), main)

    def test_a_failing_journal_wakes_everybody_who_waits(self) -> None:
        fleet = declare()
        landed: list[str] = []

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            landed.append(order.agent)

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            node.disk.fail(node.disk.calls + 1, Fault.EIO)
            waits: list[Any] = [
                live.send("Counter/a", Add(number=2)),
                live.send("Counter/b", Add(number=2), command_id="x"),
                live.observe("Counter/a", Counted(number=3)),
                live.deliver(envelope(1, range(3))),
                live.deliver(envelope(50, range(3))),
                live.wait_failure(),
            ]
            told = await asyncio.gather(*waits, return_exceptions=True)
            assert all(isinstance(one, JournalUnknown) for one in told), told
            assert sorted(landed) == ["Counter/a", "Counter/b"]
            assert isinstance(live.failure, JournalUnknown)
            assert live.standing().agents == 1, "people want to see it now more than ever, as far as it is kept"
            with pytest.raises(NotRunning):
                await live.observe("Counter/a", Counted(number=4))
            await node.kill()

        play(fleet, main)

    def test_our_own_bug_stops_the_node_safely_too(self) -> None:
        fleet = declare()
        landed: list[str] = []

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            landed.append(order.agent)

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            live.host.shards[0]._handling = None  # type: ignore[assignment]
            with pytest.raises(AttributeError):
                await live.send("Counter/a", Add(number=2))
            assert landed == ["Counter/a"]
            await node.kill()
            live = await node.start()
            assert live.query("Counter/a").numbers == (1,)

        play(fleet, main)

    def test_safe_actions_under_way_are_not_cut_short_by_the_stop(self) -> None:
        fleet = declare()
        landed: list[str] = []

        @fleet.actuator(Land)
        async def land(order: Order[Land]) -> None:
            await asyncio.sleep(1.0)
            landed.append(order.agent)

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            node.disk.fail(node.disk.calls + 1, Fault.EIO)
            with pytest.raises(StigmergyError):
                await live.send("Counter/a", Add(number=2))
            await live.host.stop()
            assert landed == ["Counter/a"]
            await node.kill()

        play(fleet, main)


class TestSupervision:
    def test_a_stopped_agent_is_made_safe_now_and_after_every_start(self) -> None:
        fleet = declare()
        keys: list[str] = []

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            keys.append(order.key)

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/a", Counted(number=1))
            for number in range(2):
                await live.observe("Counter/a", Spoilt(number=number))
            await asyncio.sleep(0.1)
            assert len(keys) == 1
            assert list(live.standing().stopped) == ["Counter/a"]
            refused = await live.send("Counter/a", Add(number=1))
            assert isinstance(refused, Refused)
            await node.lose_power()
            live = await node.start()
            await asyncio.sleep(0.1)
            assert len(set(keys)) == 2
            live.resume("Counter/a", by="me")
            assert isinstance(await live.send("Counter/a", Add(number=7)), Accepted)
            assert live.query("Counter/a").numbers == (1, 7)

        play(fleet, main)

    def test_dead_letters_are_retried_and_dropped(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/a", Counted(number=1))
            await live.observe("Counter/a", Spoilt(number=1))
            await live.observe("Nobody/a", Counted(number=1))
            letters = live.dead_letters()
            assert [letter.agent for letter in letters] == ["Counter/a", "Nobody/a"]
            live.drop(letters[1])
            live.retry(letters[0])
            await asyncio.sleep(0.1)
            (again,) = live.dead_letters()
            assert again.letter != letters[0].letter

        play(declare(), main)


class TestTells:
    @pytest.mark.parametrize("shards", [1, 4])
    def test_tells_arrive_once_and_in_order_over_crashes(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            number = 100
            for _ in range(12):
                chance = node.world.chance(f"crash {number}")
                node.disk.fail(node.disk.calls + chance.randint(1, 40), chance.choice((Fault.POWER_LOSS, Fault.KILL)))
                for _ in range(10):
                    number += 1
                    try:
                        await live.send(f"Counter/{number % 3}", Add(number=number), command_id=str(number))
                    except StigmergyError:
                        break
                await node.lose_power()
                node.disk.forgive()
                live = await node.start()
            await asyncio.sleep(2.0)
            told = {
                (f"Counter/{source}", f"Counter/t{target}"): [
                    n for n in live.query(f"Counter/{source}").numbers if n % 5 == target
                ]
                for source in range(3)
                for target in range(5)
            }
            for (source, target), numbers in told.items():
                assert [n for by, n in live.query(target).greeted if by == source] == numbers
            assert sum(map(len, told.values())) > 20

        play(declare(shards), main)


class TestLive:
    def test_queries_are_copies_and_know_their_kind(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            seen = live.query("Counter/a", Counter)
            seen.numbers = ()
            assert live.query("Counter/a", Counter).numbers == (1,)
            assert live.query("Counter/never").numbers == ()
            with pytest.raises(UnknownKind):
                live.query("Nobody/a")
            with pytest.raises(UnknownKind):
                live.agents("Nobody")
            assert live.agents(Counter) == live.agents("Counter") == live.agents() == ["Counter/a"]

        play(declare(), main)

    def test_the_standing_adds_up(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", Add(number=1))
            await live.send("Counter/a", Add(number=-1))
            standing = live.standing()
            assert (standing.fleet, standing.agents, standing.owed, standing.dead_letters) == ("counters", 1, 0, 0)
            assert standing.counters["accepted"] == standing.counters["refused"] == 1
            assert [head.position for head in standing.heads] == list(node.logbook.positions)
            assert standing.journal_bytes > 0

        play(declare(), main)

    def test_ids_are_made_up_where_none_is_given(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await asyncio.gather(*(live.send("Counter/a", Add(number=n)) for n in range(20)))
            assert sorted(live.query("Counter/a").numbers) == list(range(20))
            assert isinstance(await live.send("Counter/a", Add(number=1), command_id=""), Refused)

        play(declare(), main)
