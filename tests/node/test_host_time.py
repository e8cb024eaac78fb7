"""A host and time: timers and moments, what is overdue after a restart, a clock that begins in 1970."""

import asyncio

from stigmergy.sim.node import SimNode
from tests.node.counting import (
    Add,
    SetTimers,
    declare,
)
from tests.node.rig import play


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

    def test_a_timer_set_before_a_boot_in_1970_waits_as_long_as_it_had_left(self) -> None:
        """By the clock of that boot it would be due in half a century."""

        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.send("Counter/a", SetTimers(after_s=(5.0,), at_s=()))
            await asyncio.sleep(1.0)
            await live.send("Counter/a", Add(number=1))
            await node.lose_power()
            node.clock.boot_in_1970()
            live = await node.start()
            await asyncio.sleep(3.9)
            assert live.query("Counter/a").woken == ()
            await asyncio.sleep(0.2)
            assert live.query("Counter/a").woken == ("after 5",)

        play(declare(), main)
