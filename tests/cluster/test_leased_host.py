"""A host whose worker is no member any more does nothing: no turn, no effect, no safe action, no answer."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from stigmergy.agents.effects import Order
from stigmergy.base.errors import JournalConflict, JournalUnknown, NotOwned, NotRunning, StigmergyError
from stigmergy.cluster.fencing import LeasedService
from stigmergy.cluster.standby import Standby
from stigmergy.control import protocol
from stigmergy.control.live import Live
from stigmergy.control.protocol import checked
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.journal.memory import MemoryShard, MemoryShardLog
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.host import Host
from stigmergy.shard.inputs import Accepted
from stigmergy.sim.loop import SimClock, SimEntropy
from stigmergy.sim.run import Run
from tests.cluster.town import KEY, Add, Fleet, Land, Ring


class Stage:
    """One leased host on a log in memory, with hands that write down what they do."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.member = True
        self.takes_s = 0.0
        self.done: list[str] = []
        self.shard = MemoryShard(JournalIdentity("meters", 1, 1, (0, 0)))
        self.fleet = Fleet(shards=1)
        self.fleet.actuator(Land)(self._land)
        self.fleet.actuator(Ring)(self._ring)

    def _land(self, order: Order[Land]) -> None:
        self.done.append("land")

    async def _ring(self, order: Order[Ring]) -> None:
        self.done.append(f"ring {order.effect.number}")
        await asyncio.sleep(self.takes_s)

    async def host(self) -> Host:
        fleet = self.fleet
        claimed = await Standby(
            MemoryShardLog(self.shard), fleet.plans, Ed25519Verifier(), fleet.settings.limits
        ).claim("a")
        signer, clock = Ed25519Signer(KEY), SimClock(self.run.loop)
        host = Host(
            claimed.recovered,
            fleet,
            claimed.journal,
            signer,
            Ed25519Verifier(),
            clock,
            guard=lambda: self.member,
            claim=claimed.number,
        )
        await host.start()
        return host


async def add(host: Host, number: int) -> object:
    return await host.intake.ask("Meter/a", Add(number=number), f"c{number}")


def play(scene: object) -> Stage:
    run = Run(1)
    stage = Stage(run)
    run.run(scene(stage))  # type: ignore[operator]
    return stage


def test_as_a_member_it_is_a_host_like_any_other() -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()
        assert isinstance(await add(host, 1), Accepted)
        await asyncio.sleep(0.1)
        assert host.may_act()
        await host.stop()

    assert play(scene).done == ["ring 1"]


def test_after_its_lease_it_takes_no_turn_and_tells_nobody() -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()
        await add(host, 1)
        await asyncio.sleep(0.1)
        waiting = asyncio.ensure_future(add(host, 2))
        stage.member = False
        with pytest.raises(StigmergyError):
            await waiting
        assert isinstance(host.failure, NotOwned)
        assert "lost its lease" in str(host.failure)
        await host.kill()

    assert play(scene).done == ["ring 1"]


def test_what_became_durable_while_it_slept_is_left_to_the_next_owner() -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()
        await add(host, 1)
        await asyncio.sleep(0.1)
        append = host.journal.append

        async def slow(group: object) -> None:
            await append(group)  # type: ignore[arg-type]
            stage.member = False  # it sleeps between the write and its answer

        host.journal.append = slow  # type: ignore[method-assign]
        with pytest.raises(StigmergyError):
            await add(host, 2)
        await host.kill()
        assert stage.done == ["ring 1"], "the effect is the next owner's"
        stage.member = True
        following = await stage.host()
        await asyncio.sleep(0.1)
        assert stage.done == ["ring 1", "ring 2"]
        assert isinstance(await add(following, 2), Accepted), "who asks again hears that it was taken"
        await following.stop()

    assert play(scene).done == ["ring 1", "ring 2"]


def test_orders_that_wait_behind_one_under_way_are_not_begun_after_the_lease() -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()
        stage.takes_s = 1.0
        await add(host, 1)
        await add(host, 2)
        await asyncio.sleep(0.5)
        assert stage.done == ["ring 1"]
        stage.member = False  # no turn of the host comes in between: the hand itself asks
        await asyncio.sleep(1)
        assert stage.done == ["ring 1"]
        await host.kill()

    play(scene)


def test_one_that_is_fenced_makes_nobody_safe() -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()
        await add(host, 1)
        await asyncio.sleep(0.1)
        host.fail(JournalConflict("another owner wrote"))
        await asyncio.sleep(1)
        assert isinstance(host.failure, JournalConflict)
        await host.kill()

    assert play(scene).done == ["ring 1"]


def test_one_whose_disk_fails_while_it_owns_makes_its_agents_safe() -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()
        await add(host, 1)
        await asyncio.sleep(0.1)
        host.fail(OSError("the disk is gone"))
        await asyncio.sleep(1)
        await host.kill()

    assert play(scene).done == ["ring 1", "land"]


@pytest.mark.parametrize("late", [False, True])
def test_queries_are_answered_by_members_only_also_when_the_lease_ends_on_the_way(late: bool) -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()

        class Desk:
            async def answer(self, request: protocol.AnyRequest) -> Iterator[protocol.Answer]:
                stage.member = not late
                return iter((b"the state",))

        desk = LeasedService(Desk(), host.may_act)
        request = protocol.StateRequest(agent="Meter/a")
        answer = list(await desk.answer(request))
        if late:
            # Not that nothing was done: it may be, and who sent something without an id must not send it again.
            with pytest.raises(JournalUnknown, match="another may own the shard"):
                checked(answer[0])  # type: ignore[arg-type]
        else:
            assert answer == [b"the state"]
        stage.member = False
        with pytest.raises(NotOwned):
            checked(next(await desk.answer(request)))  # type: ignore[arg-type]
        await host.kill()

    play(scene)


def test_what_was_taken_and_may_be_kept_is_not_said_to_be_untaken() -> None:
    """After NotOwned and NotRunning an observation is said again: they are no answer where the first may be kept."""

    async def scene(stage: Stage) -> None:
        host = await stage.host()
        live = Live(host, SimEntropy(1, "ids"))
        desk = LeasedService(
            ControlService(live, Ed25519Verifier(), NodeDescription("1", "memory:", (1, b"")), lambda: None),
            host.may_act,
        )
        request = protocol.ObserveRequest(agent="Meter/a", event="Passed", fields={"by": "x", "number": 1})
        append = host.journal.append

        async def slow(group: object) -> None:
            await append(group)  # type: ignore[arg-type]
            host.retire(NotOwned("the shard is another worker's; ask again"))

        host.journal.append = slow  # type: ignore[method-assign]
        with pytest.raises(JournalUnknown, match="whether it is kept is not known"):
            checked(next(await desk.answer(request)))  # type: ignore[arg-type]
        with pytest.raises(NotRunning, match="nothing was taken"):
            checked(next(await desk.answer(request)))  # type: ignore[arg-type]
        await host.kill()

    play(scene)


def test_a_long_answer_ends_with_the_lease() -> None:
    async def scene(stage: Stage) -> None:
        host = await stage.host()

        class Desk:
            async def answer(self, request: protocol.AnyRequest) -> Iterator[protocol.Answer]:
                return iter((b"one", b"two", b"three"))

        answer = await LeasedService(Desk(), host.may_act).answer(protocol.StateRequest(agent="Meter/a"))
        heard: list[Any] = []
        while len(heard) < 2:
            heard.append(next(answer))
            stage.member = False  # as after a long sleep between two lines
        assert heard[0] == b"one"
        with pytest.raises(JournalUnknown, match="lost its lease while it answered"):
            checked(heard[1])
        assert list(answer) == []
        await host.kill()

    play(scene)
