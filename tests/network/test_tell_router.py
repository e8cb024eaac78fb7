"""Tells between nodes over a bus, in virtual time: once, in order for each pair, kept while the other is away."""

import asyncio
import random
from collections.abc import Callable

import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, Tell, TellFailed
from stigmergy.agents.messages import Command, Event
from stigmergy.bus.memory import MemoryBroker
from stigmergy.bus.port import BusMessage
from stigmergy.bus.tells import TellAcknowledgement, TellFrame, TellItem, read_acknowledgement, read_frame, write_tells
from stigmergy.bus.topics import parse_topic
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings, TellSettings
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.node.fleets import Outsider, cloud
from tests.node.rig import play


class Pass(Command):
    to: str
    number: int
    within_s: float = 0.0


class Passed(Event):
    to: str
    number: int
    within_s: float = 0.0


class Got(Event):
    by: str
    number: int


class Odd(Event):
    number: int


class Cart(Agent):
    heard: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @decide
    def passes(self, command: Pass) -> Events:
        yield Passed(to=command.to, number=command.number, within_s=command.within_s)

    @react
    def passed(self, event: Passed) -> Effects:
        message = Odd(number=event.number) if event.number < 0 else Got(by=self.address, number=event.number)
        yield Tell(event.to, message, within_s=event.within_s or None)

    @evolve
    def got(self, event: Got) -> None:
        self.heard = (*self.heard, f"{event.by} {event.number}")

    @evolve
    def failed(self, event: TellFailed) -> None:
        self.lost = (*self.lost, f"{event.to} {event.message}: {event.reason}")


class Pilot(Cart):
    pass


def yard(_: SimNode | None = None, *, shards: int = 2) -> Declaration:
    return Declaration("yard", agents=[Cart], shards=shards)


def ground(_: SimNode | None = None) -> Declaration:
    return Declaration("ground", agents=[Pilot], shards=1)


class Stage:
    """Nodes a and b of a fleet, each with its carts, and one of another fleet."""

    def __init__(self, seed: int = 1, settings: Settings | None = None, broker: MemoryBroker | None = None) -> None:
        self.world = Run(seed, deadline_s=500_000.0)
        self.broker = broker or MemoryBroker()
        self.nodes = {
            name: SimNode(
                self.world,
                fleet,
                name=name,
                broker=self.broker,
                agents=agents,
                settings=settings or Settings(),
                in_memory=True,
            )
            for name, fleet, agents in (
                ("a", yard, ("Cart/a*",)),
                ("b", yard, ("Cart/b*",)),
                ("g", ground, ()),
            )
        }

    async def start(self, *names: str) -> list[Live]:
        lives = [await self.nodes[name].start() for name in names or self.nodes]
        await asyncio.sleep(5)
        return lives

    def live(self, name: str) -> Live:
        live = self.nodes[name].live
        assert live is not None
        return live

    async def stop(self) -> None:
        for node in self.nodes.values():
            if node.live is not None:
                await node.stop()
            assert not node.logbook.findings


def heard(live: Live, address: str) -> list[str]:
    return list(live.query(address).heard)


async def wait(condition: Callable[[], bool], within_s: float = 4_000.0) -> None:
    for _ in range(int(within_s)):
        if condition():
            return
        await asyncio.sleep(1)
    raise AssertionError("it does not come")


def test_a_tell_reaches_the_node_that_runs_the_agent_and_nobody_is_invented() -> None:
    stage = Stage()

    async def scene() -> None:
        a, b, g = await stage.start()
        for number in range(20):
            await a.send("Cart/a1", Pass(to="Cart/b1", number=number))
            await b.send("Cart/b2", Pass(to="yard/Cart/a2", number=number))
        await wait(lambda: len(heard(b, "Cart/b1")) == 20 and len(heard(a, "Cart/a2")) == 20)
        assert heard(b, "Cart/b1") == [f"Cart/a1 {number}" for number in range(20)]
        assert heard(a, "Cart/a2") == [f"Cart/b2 {number}" for number in range(20)]
        assert (a.agents(), b.agents(), g.agents()) == (["Cart/a1", "Cart/a2"], ["Cart/b1", "Cart/b2"], [])
        await wait(lambda: a.standing().owed == b.standing().owed == 0)
        assert a.standing().counters["tells_confirmed"] == 20
        assert a.dead_letters() == b.dead_letters() == []
        await stage.stop()

    stage.world.run(scene())


def test_fleets_tell_each_other() -> None:
    stage = Stage()

    async def scene() -> None:
        a, _, g = await stage.start()
        for number in range(5):
            await a.send("Cart/a1", Pass(to="ground/Pilot/p", number=number))
            await g.send("Pilot/p", Pass(to="yard/Cart/a9", number=number))
        await wait(lambda: len(heard(g, "Pilot/p")) == 5 and len(heard(a, "Cart/a9")) == 5)
        assert heard(g, "Pilot/p") == [f"Cart/a1 {number}" for number in range(5)]
        assert heard(a, "Cart/a9") == [f"Pilot/p {number}" for number in range(5)]
        await wait(lambda: a.standing().owed == g.standing().owed == 0)
        await stage.stop()

    stage.world.run(scene())


def test_what_is_told_to_a_node_that_is_away_waits_also_over_a_restart_and_delays_nobody() -> None:
    stage = Stage()

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        await stage.nodes["b"].stop()
        for number in range(300):
            await a.send("Cart/a1", Pass(to="Cart/b1", number=number))
        await stage.nodes["a"].kill()
        a = await stage.nodes["a"].start()
        (g,) = await stage.start("g")
        await a.send("Cart/a1", Pass(to="ground/Pilot/p", number=1))
        await wait(lambda: heard(g, "Pilot/p") == ["Cart/a1 1"])
        await asyncio.sleep(3_600)
        assert a.standing().counters["tells_kept"] == 300
        # An announcement of each node every half minute; hardly any repetitions of what is told.
        assert stage.broker.held_count("b") < 150
        b = await stage.nodes["b"].start()
        await wait(lambda: len(heard(b, "Cart/b1")) == 300, 60)
        assert heard(b, "Cart/b1") == [f"Cart/a1 {number}" for number in range(300)]
        await wait(lambda: a.standing().owed == 0)
        await stage.stop()

    stage.world.run(scene())


def test_a_tell_whose_time_is_over_is_a_dead_letter_and_can_be_told_again() -> None:
    stage = Stage(settings=Settings(tells=TellSettings(keep_s=7_200)))

    async def scene() -> None:
        (a,) = await stage.start("a")
        await a.send("Cart/a1", Pass(to="Cart/b1", number=1))
        await a.send("Cart/a1", Pass(to="Cart/b1", number=2, within_s=60))
        await a.send("Cart/a1", Pass(to="Cart/b1", number=3))
        await asyncio.sleep(120)
        (letter,) = a.dead_letters()
        assert (letter.agent, letter.source) == ("Cart/b1", "told/Cart/a1")
        assert "did not take it in time; no node says that it runs it" in letter.error
        (lost,) = a.query("Cart/a1", Cart).lost
        assert lost.startswith("Cart/b1 Got: Cart/b1 did not take it in time")
        assert a.standing().counters["tells_undelivered"] == 1
        (b,) = await stage.start("b")
        await wait(lambda: len(heard(b, "Cart/b1")) == 2, 60)
        a.retry(letter)
        await wait(lambda: len(heard(b, "Cart/b1")) == 3, 60)
        assert heard(b, "Cart/b1") == ["Cart/a1 1", "Cart/a1 3", "Cart/a1 2"], "the gap that it left holds up nobody"
        assert a.dead_letters() == []
        await stage.nodes["b"].stop()
        await a.send("Cart/a1", Pass(to="Cart/b1", number=4))
        await asyncio.sleep(7_300)
        assert [letter.agent for letter in a.dead_letters()] == ["Cart/b1"]
        assert "node 'b' runs it, and is away" in a.dead_letters()[0].error
        await wait(lambda: a.standing().owed == 0)
        await stage.stop()

    stage.world.run(scene())


def test_a_frame_that_comes_too_late_is_refused_by_its_receiver() -> None:
    """The broker held it: the sender has given up meanwhile, and said so."""
    stage = Stage()

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        await a.send("Cart/a1", Pass(to="Cart/b1", number=1))
        await wait(lambda: heard(b, "Cart/b1") == ["Cart/a1 1"])
        stage.broker.cut("b")
        await a.send("Cart/a1", Pass(to="Cart/b1", number=2, within_s=5))
        await a.send("Cart/a1", Pass(to="Cart/b1", number=3))
        await asyncio.sleep(60)
        assert len(a.dead_letters()) == 1
        stage.broker.restore("b")
        await wait(lambda: len(heard(b, "Cart/b1")) == 2, 120)
        assert heard(b, "Cart/b1") == ["Cart/a1 1", "Cart/a1 3"]
        await stage.stop()

    stage.world.run(scene())


def test_more_than_there_is_room_for_is_given_up_and_its_teller_hears_of_it() -> None:
    stage = Stage(settings=Settings(tells=TellSettings(kept_max=10, kept_all_max=15)))

    async def scene() -> None:
        (a,) = await stage.start("a")
        for number in range(12):
            await a.send("Cart/a1", Pass(to="Cart/b1", number=number))
        for number in range(7):
            await a.send("Cart/a1", Pass(to=f"Cart/b{number + 2}", number=number))
        await asyncio.sleep(10)
        lost = a.query("Cart/a1", Cart).lost
        assert len(lost) == 4
        assert "10 tells are kept for Cart/b1 already" in lost[0]
        assert "15 tells to other nodes are kept already" in lost[-1]
        assert any("10 tells for Cart/b1 are not acknowledged" in trouble for trouble in a.standing().troubles)
        (b,) = await stage.start("b")
        await wait(lambda: a.standing().owed == 0)
        assert heard(b, "Cart/b1") == [f"Cart/a1 {number}" for number in range(10)]
        await stage.stop()

    stage.world.run(scene())


def test_what_nobody_claims_is_refused_where_that_is_declared() -> None:
    stage = Stage(settings=Settings(tells=TellSettings(unclaimed="refuse")))

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        await a.send("Cart/a1", Pass(to="Cart/c1", number=1))
        await a.send("Cart/a1", Pass(to="nowhere/Cart/c1", number=2))
        await a.send("Cart/a1", Pass(to="Crat/c1", number=3))
        await a.send("Cart/a1", Pass(to="Cart/b1", number=4))
        await asyncio.sleep(20)
        lost = a.query("Cart/a1", Cart).lost
        assert "this fleet has no agent kind 'Crat'; there are Cart: correct the address" in lost[0]
        assert "no node says that it runs it, and tells.unclaimed is 'refuse'" in lost[1] + lost[2]
        assert "nobody of that fleet has answered on this bus" in lost[1] + lost[2]
        assert heard(b, "Cart/b1") == ["Cart/a1 4"]
        assert a.agents() == ["Cart/a1"]
        # A node that is away has said that the agent is its own: that is kept.
        await stage.nodes["b"].stop()
        await a.send("Cart/a1", Pass(to="Cart/b1", number=5))
        await asyncio.sleep(60)
        assert len(a.dead_letters()) == 3
        await stage.stop()

    stage.world.run(scene())


def test_kept_tells_are_listed_with_the_reason_and_are_a_trouble_after_a_while() -> None:
    stage = Stage()

    async def scene() -> None:
        a, _ = await stage.start("a", "b")
        await stage.nodes["b"].stop()
        for to in ("Cart/b1", "Cart/b1", "Cart/z", "grond/Pilot/p"):
            await a.send("Cart/a1", Pass(to=to, number=1))
        await asyncio.sleep(60)
        assert a.link is not None
        listed = {one.agent: (one.tells, one.standing) for one in a.link.router.on_their_way()}
        assert listed == {
            "Cart/b1": (2, "waiting: node 'b' runs it, and is away for 60 s or longer"),
            "Cart/z": (1, "waiting: no node says that it runs it"),
            "grond/Pilot/p": (1, "waiting: nobody of that fleet has answered on this bus"),
        }
        (away,) = a.standing().troubles
        assert away.startswith("node 'b' is away, since ")
        await asyncio.sleep(600)
        troubles = [one for one in a.standing().troubles if one != away]
        assert "1 tells for Cart/z are not acknowledged; no node says that it runs it" in troubles
        assert len(troubles) == 3
        await stage.start("b")
        await wait(lambda: len(a.standing().troubles) == 2)
        stage.broker.cut("a")
        await asyncio.sleep(1)
        assert [one.standing for one in a.link.router.on_their_way()] == ["waiting: the link to the bus is down"] * 2
        await stage.stop()

    stage.world.run(scene())


def test_a_misspelt_kind_is_the_reason_also_without_a_bus() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        for to in ("Crat/c1", "ground/Cart/c1"):
            await live.send("Cart/a1", Pass(to=to, number=1))
        await asyncio.sleep(1)
        misspelt, foreign = sorted(live.query("Cart/a1", Cart).lost)
        assert misspelt.endswith("this fleet has no agent kind 'Crat'; there are Cart: correct the address")
        assert "over a bus only" in foreign

    play(yard(), main)


def test_a_receiver_that_cannot_read_a_tell_says_so_and_takes_the_others() -> None:
    stage = Stage()

    async def scene() -> None:
        a, b, g = await stage.start()
        for number in (1, -2, 3):
            await a.send("Cart/a1", Pass(to="Cart/b1", number=number))
        await a.send("Cart/a1", Pass(to="ground/Cart/p", number=1))
        await wait(lambda: a.standing().owed == 0)
        assert heard(b, "Cart/b1") == ["Cart/a1 1", "Cart/a1 3"]
        assert b.dead_letters() == g.dead_letters() == []
        lost = sorted(a.query("Cart/a1", Cart).lost)
        assert len(lost) == 2
        assert lost[0].startswith("Cart/b1 Odd: node 'b' refuses it: ")
        assert "ground/Cart/p Got: node 'g' refuses it: 'Cart/p' is no address of an agent here" in lost[1]
        assert sorted(letter.agent for letter in a.dead_letters()) == ["Cart/b1", "ground/Cart/p"]
        assert g.agents() == []
        await stage.stop()

    stage.world.run(scene())


def test_a_crash_while_a_tell_is_given_up_does_not_make_it_count_as_delivered() -> None:
    """Its receiver may pass over it only when it is durable here that it was given up."""
    stage = Stage()

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        await a.send("Cart/a1", Pass(to="Cart/b1", number=1))
        await wait(lambda: heard(b, "Cart/b1") == ["Cart/a1 1"])
        await asyncio.gather(
            *(a.send("Cart/a1", Pass(to="Cart/b1", number=number)) for number in (-2, 3)), return_exceptions=True
        )
        stage.nodes["a"].latency.before_s = 4.0
        await asyncio.sleep(1)
        await stage.nodes["a"].kill()
        stage.nodes["a"].latency.before_s = 0.0
        a = await stage.nodes["a"].start()
        await wait(lambda: len(heard(b, "Cart/b1")) == 2)
        await wait(lambda: a.standing().owed == 0)
        (lost,) = a.query("Cart/a1", Cart).lost
        assert lost.startswith("Cart/b1 Odd: node 'b' refuses it: ")
        assert [letter.agent for letter in a.dead_letters()] == ["Cart/b1"]
        await stage.stop()

    stage.world.run(scene())


def test_a_node_that_runs_everything_leaves_tells_to_the_node_that_names_the_agent() -> None:
    stage = Stage()
    stage.nodes["g"] = SimNode(
        stage.world, lambda _: yard(), name="g", broker=stage.broker, settings=Settings(), in_memory=True
    )

    async def scene() -> None:
        a, b, g = await stage.start()
        await stage.nodes["b"].stop()
        for number in range(3):
            await a.send("Cart/a1", Pass(to="Cart/b1", number=number))
            await a.send("Cart/a1", Pass(to="Cart/z", number=number))
        await asyncio.sleep(60)
        assert heard(g, "Cart/z") == [f"Cart/a1 {number}" for number in range(3)], "nobody names it"
        assert g.agents() == ["Cart/z"], "the other belongs to a node that is away"
        b = await stage.nodes["b"].start()
        await wait(lambda: len(heard(b, "Cart/b1")) == 3, 60)
        # What it tells such an agent itself goes there too.
        assert await g.send("Cart/z", Pass(to="Cart/b1", number=7))
        assert await g.send("Cart/z", Pass(to="Cart/y", number=8))
        await wait(lambda: heard(b, "Cart/b1")[3:] == ["Cart/z 7"], 60)
        await wait(lambda: heard(g, "Cart/y") == ["Cart/z 8"], 60)
        # And so does what comes for it over the bus.
        outsider = await Outsider(stage.broker).start("yard/local/agents/+/+/answers")
        for address in ("Cart/b2", "Cart/w"):
            fields = {"to": address, "number": 9}
            await outsider.send(f"yard/local/agents/{address}/commands", cloud("Pass", fields, id=address))
        assert g.agents() == ["Cart/w", "Cart/y", "Cart/z"]
        assert [one.subject for one in outsider.events("answers")] == ["Cart/b2", "Cart/w"], "one answers each"
        await outsider.bus.close()
        await stage.stop()

    stage.world.run(scene())


def test_a_receiver_that_is_here_and_does_not_answer_is_a_trouble() -> None:
    """As where the broker does not let it acknowledge."""
    stage = Stage()

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        assert b.link is not None
        answers, b.link.router._say = b.link.router._say, mute  # type: ignore[method-assign]
        await a.send("Cart/a1", Pass(to="Cart/b1", number=1))
        await asyncio.sleep(30)
        assert a.standing().troubles == []
        await asyncio.sleep(60)
        (trouble,) = a.standing().troubles
        assert trouble.startswith("1 tells for Cart/b1 are not acknowledged although node 'b' runs it: look whether")
        b.link.router._say = answers  # type: ignore[method-assign]
        await wait(lambda: a.standing().owed == 0)
        assert (a.standing().troubles, heard(b, "Cart/b1")) == ([], ["Cart/a1 1"])
        await stage.stop()

    stage.world.run(scene())


def test_a_receiver_that_is_slow_is_not_sent_everything_twice() -> None:
    """The broker keeps what it has not taken yet. To send that again puts more load on who has too much already; in a
    swarm of 10,000 drones that grew until nothing arrived in time."""
    stage = Stage()

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        assert a.link is not None
        assert b.link is not None
        counters, answer = a.link.router.counters, b.link.router._say

        async def answer_late(message: BusMessage) -> None:
            await asyncio.sleep(5)
            await answer(message)

        b.link.router._say = answer_late  # type: ignore[method-assign]
        sent = 0
        for number in range(40):
            if number == 20:
                assert counters.tells_sent > 20  # until it knows how long an answer takes
                sent = counters.tells_sent
            await a.send("Cart/a1", Pass(to=f"Cart/b{number}", number=number))
            await asyncio.sleep(1)
        await wait(lambda: a.standing().owed == 0)
        assert counters.tells_sent - sent == 20
        b.link.router._say = answer  # type: ignore[method-assign]
        for number in range(40, 80):
            await a.send("Cart/a1", Pass(to=f"Cart/b{number}", number=number))
            await wait(lambda: a.standing().owed == 0)
        b.link.router._say = mute  # type: ignore[method-assign]
        sent = counters.tells_sent
        await a.send("Cart/a1", Pass(to="Cart/b99", number=99))
        await asyncio.sleep(4)
        assert counters.tells_sent - sent == 2  # with quick answers a lost frame is sent again soon
        b.link.router._say = answer  # type: ignore[method-assign]
        await wait(lambda: a.standing().owed == 0)
        assert all(heard(b, f"Cart/b{number}") == [f"Cart/a1 {number}"] for number in range(80))
        await stage.stop()

    stage.world.run(scene())


def test_a_receiver_that_has_fallen_behind_is_not_kept_there_by_copies() -> None:
    """Each copy costs it as much as a new frame. In a swarm of 10,000 drones a busy half minute never ended: all that
    a node could take were copies of what it had."""
    stage = Stage()

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        assert a.link is not None
        assert b.link is not None
        counters, answer, turn = a.link.router.counters, b.link.router._say, asyncio.Lock()

        async def answer_in_turn(message: BusMessage) -> None:
            async with turn:
                await asyncio.sleep(0.2)
                await answer(message)

        b.link.router._say = answer_in_turn  # type: ignore[method-assign]
        for number in range(400):
            await a.send("Cart/a1", Pass(to=f"Cart/b{number}", number=number))
        await wait(lambda: a.standing().owed == 0, within_s=200)
        assert counters.tells_sent < 500
        assert all(heard(b, f"Cart/b{number}") == [f"Cart/a1 {number}"] for number in range(400))
        await stage.stop()

    stage.world.run(scene())


async def mute(message: BusMessage) -> None:
    del message


def test_nobody_can_settle_tells_with_what_no_receiver_can_say() -> None:
    stage = Stage()

    async def scene() -> None:
        outsider = await Outsider(stage.broker).start()
        (a,) = await stage.start("a")
        await a.send("Cart/a1", Pass(to="Cart/b1", number=1))
        await asyncio.sleep(5)
        frame = next(read_frame(one.payload) for one in outsider.heard if one.topic.endswith("/tells"))
        topic = "yard/local/nodes/a/acknowledgements"
        said = TellAcknowledgement("yard", "local", "x", "Cart/b1", frame.shard, frame.incarnation, frame.epoch)
        for forged in (
            b"nonsense",
            write_tells(TellAcknowledgement("yard", "local", "x", "Cart/b2", 0, 0, 0, durable=1)),
            write_tells(msgspec_replace(said, durable=7)),
            write_tells(msgspec_replace(said, durable=1, incarnation=frame.incarnation + 1)),
        ):
            await outsider.send(topic, forged)
        assert a.standing().counters["tells_kept"] == 1
        assert any("the end of the log is lost" in trouble for trouble in a.standing().troubles)
        await stage.stop()
        await outsider.bus.close()

    stage.world.run(scene())


def msgspec_replace(said: TellAcknowledgement, **what: object) -> TellAcknowledgement:
    from msgspec import structs

    return structs.replace(said, **what)


def test_a_frame_of_an_owner_that_was_replaced_is_refused_and_repetitions_are_passed_over() -> None:
    stage = Stage()

    async def scene() -> None:
        outsider = await Outsider(stage.broker).start()
        (b,) = await stage.start("b")
        body = Got(by="x", number=1)
        from stigmergy.agents.codec import encode

        item = TellItem(encode(body), 2**61)

        def frame(epoch: int, after: int, first: int, count: int = 1) -> bytes:
            return write_tells(TellFrame("yard", "local", "x", 0, 7, epoch, after, first, [item] * count))

        topic = "yard/local/agents/Cart/b1/tells"
        for payload in (frame(5, 0, 1), frame(5, 0, 1), frame(4, 1, 2), frame(6, 4, 5), frame(6, 1, 2, 3)):
            await outsider.send(topic, payload)
        said = [
            read_acknowledgement(one.payload)
            for one in outsider.heard
            if parse_topic(one.topic).name == "x" and one.topic.endswith("acknowledgements")
        ]
        assert [(one.durable, one.stale, one.resume) for one in said] == [
            (1, False, None),
            (1, False, None),
            (0, True, None),
            (0, False, 1),
            (4, False, None),
        ]
        assert len(heard(b, "Cart/b1")) == 4
        await stage.stop()
        await outsider.bus.close()

    stage.world.run(scene())


TROUBLE = ("cut", "kill", "vanish", "stop", "drop")


async def trouble(stage: Stage, dice: random.Random) -> None:
    """Something bad, and its end."""
    name = dice.choice(sorted(stage.nodes))
    match dice.choice(TROUBLE):
        case "cut":
            stage.broker.cut(name)
            await asyncio.sleep(dice.choice((0.1, 3, 60)))
            stage.broker.restore(name)
        case "vanish":
            stage.broker.vanish(name)
            await asyncio.sleep(dice.choice((0.1, 3)))
            stage.broker.restore(name)
        case "drop":
            stage.broker.drop_acknowledgements(name)
        case "kill":
            await stage.nodes[name].kill()
            await asyncio.sleep(dice.choice((0.0, 5)))
            await stage.nodes[name].start()
        case _:
            await stage.nodes[name].stop()
            await asyncio.sleep(dice.choice((0.0, 5)))
            await stage.nodes[name].start()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(3, 60))])
def test_nothing_is_lost_doubled_or_out_of_order_whatever_breaks(seed: int) -> None:
    dice = random.Random(seed)
    stage = Stage(seed, broker=MemoryBroker(redeliver_after_s=dice.choice((None, 30.0))))
    told: dict[tuple[str, str], list[int]] = {}

    async def scene() -> None:
        await stage.start()
        homes = {"Cart/a1": "a", "Cart/a2": "a", "Cart/b1": "b", "Pilot/p": "g"}
        for number in range(120):
            by = dice.choice(sorted(homes))
            to = dice.choice([address for address in sorted(homes) if homes[address] != homes[by]])
            fleet = "ground" if to == "Pilot/p" else "yard"
            named = to if (fleet == "ground") == (by == "Pilot/p") else f"{fleet}/{to}"
            assert await stage.live(homes[by]).send(by, Pass(to=named, number=number))
            told.setdefault((by, to), []).append(number)
            if dice.random() < 0.2:
                await trouble(stage, dice)
            await asyncio.sleep(dice.choice((0.0, 0.01, 1)))
        await wait(lambda: all(stage.live(name).standing().owed == 0 for name in stage.nodes))
        for (by, to), numbers in told.items():
            got = [int(one.split()[1]) for one in heard(stage.live(homes[to]), to) if one.startswith(f"{by} ")]
            assert got == numbers, (by, to)
        assert all(stage.live(name).dead_letters() == [] for name in stage.nodes)
        await stage.stop()

    stage.world.run(scene())
