"""How a host stops, and how it fails."""

import asyncio
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.effects import Effects, Events, Order
from stigmergy.agents.messages import Action
from stigmergy.agents.supervision import SafeAction
from stigmergy.base.errors import Bug, JournalUnknown, NotRunning, StigmergyError
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from tests.node.counting import (
    Add,
    Counted,
    Land,
    Sampled,
    declare,
    envelope,
)
from tests.node.rig import play


class Press(Action):
    pass


class Presser(Agent):
    safe = SafeAction(then=Land())

    @decide
    def add(self, command: Add) -> Events:
        yield Counted(number=command.number)

    @react
    def press(self, event: Counted) -> Effects:
        yield Press()


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
            node.disk.fail(node.disk.calls + 1, DiskFault.EIO)
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
            live.host.shards[0]._dispatcher = None  # type: ignore[assignment]
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
            node.disk.fail(node.disk.calls + 1, DiskFault.EIO)
            with pytest.raises(StigmergyError):
                await live.send("Counter/a", Add(number=2))
            await live.host.stop()
            assert landed == ["Counter/a"]
            await node.kill()

        play(fleet, main)

    @pytest.mark.parametrize("raised", [GeneratorExit, SystemExit, KeyboardInterrupt])
    def test_a_hand_that_raises_what_ends_programs_leaves_nobody_waiting(self, raised: type[BaseException]) -> None:
        """Such a thing passed by everything that was to be told once the commit was durable."""
        fleet = Declaration("pressing", agents=[Presser])
        landed: list[str] = []
        told: list[asyncio.Future[Any]] = []
        lives: list[Live] = []

        @fleet.actuator(Press)
        def press(order: Order[Press]) -> None:
            raise raised

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            landed.append(order.agent)

        async def main(node: SimNode) -> None:
            live = await node.start()
            lives.append(live)
            told.append(asyncio.ensure_future(live.send("Presser/a", Add(number=1))))
            told.append(
                asyncio.ensure_future(live.deliver(pack_envelope("s", [("Presser/a", Counted(number=2))], sequence=1)))
            )
            await asyncio.sleep(5.0)
            assert raised is GeneratorExit, "programs end"
            assert all(one.done() and one.exception() is None for one in told)
            assert live.failure is None
            assert live.standing().counters["failed"] >= 1

        if raised is GeneratorExit:
            play(fleet, main, settings=Settings(effect_tries=1))
            return
        with pytest.raises(raised):
            play(fleet, main, settings=Settings(effect_tries=1))
        assert isinstance(lives[0].failure, Bug)
        assert landed == ["Presser/a"]

    @pytest.mark.parametrize("raised", [GeneratorExit, SystemExit])
    def test_a_handler_that_ends_programs_takes_nothing_away_from_what_is_durable(
        self, raised: type[BaseException]
    ) -> None:
        """It is stepped at the end of a write, right before what that write made durable is told."""

        class Fragile(Agent):
            safe = SafeAction(then=Land())

            @evolve
            def counted(self, event: Counted) -> None:
                if event.number == 13:
                    raise raised

        fleet = Declaration("fragile", agents=[Fragile])
        landed: list[str] = []
        lives: list[Live] = []
        told: list[asyncio.Future[None]] = []
        ends: list[Any] = []

        @fleet.actuator(Land)
        def land(order: Order[Land]) -> None:
            landed.append(order.agent)

        async def main(node: SimNode) -> None:
            live = await node.start()
            lives.append(live)
            await live.observe("Fragile/a", Counted(number=1))
            node.latency.before_s = 0.001
            node.latency.jitter = False
            told.append(asyncio.ensure_future(live.observe("Fragile/a", Counted(number=2))))
            await asyncio.sleep(0.0005)
            told.append(asyncio.ensure_future(live.observe("Fragile/a", Counted(number=13))))
            ends.extend(await asyncio.gather(*told, return_exceptions=True))
            await node.kill()

        if raised is SystemExit:
            with pytest.raises(SystemExit):
                play(fleet, main)
        else:
            play(fleet, main)
            assert ends[0] is None, "it was durable"
            assert isinstance(ends[1], Bug)
        assert isinstance(lives[0].failure, Bug)
        assert landed == ["Fragile/a"]
