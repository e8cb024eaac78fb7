"""A node runs the agents that its configuration names, and nobody else: by whatever way something comes for another."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from rigs.memory_peers import MemoryPeerHub
from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import encode, pack_envelope
from stigmergy.agents.effects import Effects, Events, Publish, Tell, TellFailed, WakeMe, Woken
from stigmergy.agents.messages import Action, Command, Event
from stigmergy.agents.supervision import WhenStale
from stigmergy.app.fleet import verifier
from stigmergy.base.errors import ConfigError, NotAssigned, UnknownKind
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage
from stigmergy.control.live import Live
from stigmergy.control.protocol import ControlEndpoint
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.diagnostics.logger import LogSubject
from stigmergy.network.peers import PeerProcesses
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings
from stigmergy.shard.homes import shard_of
from stigmergy.shard.inputs import Ask, Delivery
from stigmergy.shard.tracing import TraceContext
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.node.columns.stage import Hand
from tests.node.columns.stage import declare as declare_meters
from tests.node.fleets import Outsider, cloud
from tests.node.rig import play


class Drive(Command):
    to: str


class Driven(Event):
    to: str


class Seen(Event):
    by: str


class Pinged(Event):
    who: str


class Wheels(Action):
    to: str


class Stop(Action):
    reason: str = ""


class Cart(Agent):
    at: str = ""
    seen: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    woken: int = 0

    safe = WhenStale(Seen, after_s=5, then=Stop())

    @decide
    def drive(self, command: Drive) -> Events:
        yield Driven(to=command.to)

    @evolve
    def driven(self, event: Driven) -> None:
        self.at = event.to

    @react
    def go(self, event: Driven) -> Effects:
        yield Wheels(to=event.to)
        yield Publish("place", event)
        yield WakeMe(after_s=30, name="again")
        if event.to.startswith("Cart/"):
            yield Tell(event.to, Pinged(who=self.address))

    @evolve
    def saw(self, event: Seen) -> None:
        self.seen = (*self.seen, event.by)

    @evolve
    def pinged(self, event: Pinged) -> None:
        self.seen = (*self.seen, event.who)

    @evolve
    def undelivered(self, event: TellFailed) -> None:
        self.lost = (*self.lost, f"{event.to} {event.message}: {event.reason}")

    @evolve
    def again(self, event: Woken) -> None:
        self.woken += 1


class Watcher(Agent):
    places: tuple[str, ...] = ()

    @evolve
    def driven(self, event: Driven) -> None:
        self.places = (*self.places, event.to)


class Yard:
    """Notes what carts do in the world."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def declare(self, shards: int = 1) -> Declaration:
        fleet = Declaration("yard", agents=[Cart, Watcher], shards=shards)
        fleet.actuator(Wheels)(lambda order: self.done.append(f"{order.agent} to {order.effect.to}"))
        fleet.actuator(Stop)(lambda order: self.done.append(f"{order.agent} stops"))
        fleet.listen("Cart/{id}/place", to="Watcher/{id}")
        fleet.device("cameras/{id}", to="Cart/{id}", event=Seen)
        return fleet


def test_calls_and_envelopes_for_others_are_refused_and_nobody_is_born() -> None:
    yard = Yard()

    async def main(node: SimNode) -> None:
        live = await node.start()
        assert await live.send("Cart/c01", Drive(to="north"))
        both = pack_envelope("gate", [("Cart/c01", Seen(by="gate")), ("Cart/c07", Seen(by="gate"))], sequence=1)
        for refused in (
            live.send("Cart/c07", Drive(to="north")),
            live.observe("Cart/c07", Seen(by="gate")),
            live.deliver(both),
        ):
            with pytest.raises(NotAssigned, match=r"Cart/c07 does not run on this node, which runs Cart/c01"):
                await refused
        with pytest.raises(NotAssigned):
            live.query("Cart/c07")
        with pytest.raises(NotAssigned):
            live.resume("Cart/c07", "me")
        for misspelt in (
            live.send("Crat/c01", Drive(to="north")),
            live.observe("Crat/c01", Seen(by="gate")),
            live.deliver(pack_envelope("gate", [("Crat/c01", Seen(by="gate"))], sequence=1)),
        ):
            with pytest.raises(UnknownKind, match=r"no agent kind 'Crat'; there are Cart, Watcher"):
                await misspelt
        await asyncio.sleep(1)
        assert live.agents() == ["Cart/c01"]
        assert live.query("Cart/c01", Cart).seen == (), "of an envelope that is refused nothing is taken"
        assert live.dead_letters() == []

    play(yard.declare(), main, agents=("Cart/c01", "Cart/c2*"))
    assert [what for what in yard.done if "c07" in what] == []


def test_the_control_socket_refuses_too() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        desk: Any = ControlEndpoint(
            ControlService(live, verifier(), NodeDescription("1", "memory:", (1, b"")), lambda: None)
        )
        for line in (
            b'{"v":1,"do":"send","agent":"Cart/c07","command":"Drive","texts":{"to":"x"},"command_id":"1"}',
            b'{"v":1,"do":"observe","agent":"Cart/c07","event":"Seen","texts":{"by":"x"}}',
            b'{"v":1,"do":"state","agent":"Cart/c07"}',
            b'{"v":1,"do":"resume","agent":"Cart/c07","by":"me"}',
        ):
            answer = b"".join(await desk.answer(line))
            assert b'"NotAssigned"' in answer, (line, answer)
            answer = b"".join(await desk.answer(line.replace(b"Cart/", b"Crat/")))
            assert b'"UnknownKind"' in answer, (line, answer)
        assert live.agents() == []

    play(Yard().declare(), main, agents=("Cart/c01",))


def test_compiled_agents_of_others_are_not_enrolled() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a1"])
        with pytest.raises(NotAssigned, match="Meter/b1"):
            await live.enroll("Meter", ["a2", "b1"])
        assert live.agents("Meter") == ["Meter/a1"]
        await node.stop()
        node.agents = ("Meter/b*",)
        with pytest.raises(ConfigError, match="Meter/a1 is in this journal, and not among agents; compiled agents"):
            await node.start()
        node.agents = ("Meter/*",)
        await node.start()

    fleet = declare_meters(Hand())
    play(fleet, main, agents=("Meter/a*",))


class Two:
    """Two nodes of one fleet on a bus."""

    def __init__(self, a: tuple[str, ...], b: tuple[str, ...]) -> None:
        self.yard = Yard()
        self.world = Run(1)
        self.broker = MemoryBroker()
        self.a, self.b = (
            SimNode(self.world, lambda _: self.yard.declare(), name=name, broker=self.broker, agents=agents)
            for name, agents in (("a", a), ("b", b))
        )

    async def start(self) -> tuple[Live, Live]:
        a, b = await self.a.start(), await self.b.start()
        await asyncio.sleep(1)
        return a, b

    async def stop(self) -> None:
        for node in (self.a, self.b):
            if node.live is not None:
                await node.stop()


def test_a_refusal_names_the_node_that_runs_it_and_the_bus_brings_it_there() -> None:
    two = Two(("Cart/c0*",), ("Cart/c1*", "Watcher/c01"))

    async def scene() -> None:
        outsider = await Outsider(two.broker).start()
        a, b = await two.start()
        with pytest.raises(NotAssigned, match="node 'b' runs it: send it there"):
            await a.observe("Cart/c12", Seen(by="x"))
        for name in ("c01", "c12"):
            await outsider.send(f"yard/local/agents/Cart/{name}/commands", cloud("Drive", {"to": "dock"}))
            await outsider.send(f"yard/local/agents/Cart/{name}/inputs", cloud("Seen", {"by": "gate"}))
            await outsider.send(f"cameras/{name}", {"by": "camera"})
        assert (a.agents(), b.agents()) == (["Cart/c01"], ["Cart/c12", "Watcher/c01"])
        assert a.query("Cart/c01", Cart).seen == ("gate", "camera")
        assert len(outsider.events("/answers")) == 2, "each command is answered once"
        for live in (a, b):
            counters = live.standing().counters
            assert counters["bus_refused"] == 0, "what is for others is not refused: they have it"
            assert live.standing().troubles == []
        await two.stop()
        await outsider.bus.close()

    two.world.run(scene())


def test_a_device_or_a_command_that_names_an_agent_nobody_runs_is_refused_once_for_each_topic() -> None:
    two = Two(("Cart/a*",), ("Cart/b*",))

    async def scene() -> None:
        outsider = await Outsider(two.broker).start("yard/local/nodes/+/refusals")
        a, b = await two.start()
        await outsider.send("cameras/nowhere", {"by": "camera"})
        assert outsider.events("refusals") == [], "another node may only just have started"
        for _ in range(3):
            for name in ("a1", "b1", "nowhere"):
                await outsider.send(f"cameras/{name}", {"by": "camera"})
        await outsider.send("yard/local/agents/Cart/c9/commands", cloud("Drive", {"to": "x"}))
        await asyncio.sleep(20)
        assert (a.agents(), b.agents()) == (["Cart/a1"], ["Cart/b1"])
        assert a.standing().counters["bus_unclaimed"] == b.standing().counters["bus_unclaimed"] == 2
        told = sorted((one.data["topic"], one.data["kind"]) for one in outsider.events("a/refusals"))
        assert told == [("cameras/nowhere", "NotAssigned"), ("yard/local/agents/Cart/c9/commands", "NotAssigned")]
        assert "no node says that it does: add it to agents of one" in outsider.events("a/refusals")[0].data["reason"]
        await two.b.stop()
        await outsider.send("cameras/b2", {"by": "camera"})
        await asyncio.sleep(20)
        assert a.standing().counters["bus_unclaimed"] == 2, "the node that names it is away"
        await two.stop()
        await outsider.bus.close()

    two.world.run(scene())


def test_the_owner_of_one_shard_passes_over_what_is_for_agents_of_others_unread() -> None:
    """All owners get the messages of devices and what is listened to: of eight owners seven have the work in vain."""
    world, broker, yard = Run(1), MemoryBroker(), Yard()
    names = [f"c{number:02d}" for number in range(20)]
    mine = [name for name in names if shard_of(f"Cart/{name}", 2) == 0]
    watched = [name for name in names if shard_of(f"Watcher/{name}", 2) == 0]
    node = SimNode(world, lambda _: yard.declare(shards=2), broker=broker, part=(0, 0), attach=_without_peers)

    async def scene() -> None:
        live, sender = await node.start(), MemoryBus(broker, "sender")
        await sender.open()
        await asyncio.sleep(1)
        for name in names:
            await sender.publish(BusMessage(f"cameras/{name}", b'{"by": "camera"}'))
            event = cloud("Driven", {"to": "dock"}, subject=f"Cart/{name}")
            topic = f"yard/local/agents/Cart/{name}/events/place"
            await sender.publish(BusMessage(topic, msgspec.json.encode(event)))
        await asyncio.sleep(5)
        assert live.agents() == sorted([f"Cart/{name}" for name in mine] + [f"Watcher/{name}" for name in watched])
        assert node.bus is not None
        receipts = node.bus.receipts
        assert (receipts.again, receipts.refused) == (0, 0)
        assert receipts.shed == 2 * len(names) - len(mine) - len(watched)
        assert live.standing().counters["bus_received"] == len(mine) + len(watched)
        await node.stop()
        await sender.close()

    world.run(scene())


def _without_peers(host: Host) -> PeerProcesses:
    return PeerProcesses(host, MemoryPeerHub().peer_network(1))


def test_two_nodes_that_run_everything_notice_each_other(caplog: pytest.LogCaptureFixture) -> None:
    two = Two((), ())

    async def scene() -> None:
        a, b = await two.start()
        for live, other in ((a, "b"), (b, "a")):
            (trouble,) = live.standing().troubles
            assert f"node '{other}' runs every agent of this fleet, and so does this one" in trouble
            assert "agents = [" in trouble
        await two.b.stop()
        await asyncio.sleep(1)
        (trouble,) = a.standing().troubles
        assert trouble.startswith("node 'b' is away, since ")
        await two.stop()

    with caplog.at_level(logging.WARNING, "stigmergy.presence"):
        two.world.run(scene())
    assert sum("so does this one" in record.getMessage() for record in caplog.records) >= 2


def test_two_nodes_that_name_the_same_agent_notice_each_other() -> None:
    two = Two(("Cart/c01", "Cart/c02"), ("Cart/c02",))

    async def scene() -> None:
        a, _ = await two.start()
        both = "take what both run out of agents of one of the nodes"
        assert a.standing().troubles == [f"node 'b' runs Cart/c02, too: {both}"]
        await two.stop()

    two.world.run(scene())


def test_an_overlap_is_told_in_the_words_of_each_node() -> None:
    two = Two(("Cart/c1*", "Cart/d1"), ("Cart/c11", "Cart/c2*"))

    async def scene() -> None:
        a, b = await two.start()
        both = "take what both run out of agents of one of the nodes"
        assert a.standing().troubles == [f"node 'b' runs Cart/c11, and this one Cart/c1*: {both}"]
        assert b.standing().troubles == [f"node 'a' runs Cart/c1*, and this one Cart/c11: {both}"]
        await two.stop()

    two.world.run(scene())


def test_a_node_that_names_its_agents_and_one_that_names_none_are_no_trouble() -> None:
    two = Two((), ("Cart/c02",))

    async def scene() -> None:
        a, b = await two.start()
        assert a.standing().troubles == b.standing().troubles == []
        await two.stop()

    two.world.run(scene())


@pytest.mark.parametrize("shards", [1, 4])
def test_a_tell_for_one_that_does_not_run_here_is_a_dead_letter_and_its_teller_hears_of_it(
    shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    yard = Yard()

    async def main(node: SimNode) -> None:
        live = await node.start()
        for target in ("Cart/c07", "Cart/c02", "Cart/c08"):
            await live.send("Cart/c01", Drive(to=target), trace=TraceContext(b"t" * 16, b"s" * 8))
        await asyncio.sleep(3)
        assert live.agents() == ["Cart/c01", "Cart/c02"], "no phantom"
        assert live.query("Cart/c02", Cart).seen == ("Cart/c01",), "what comes behind it arrives"
        lost = live.query("Cart/c01", Cart).lost
        assert [one.partition(":")[0] for one in lost] == ["Cart/c07 Pinged", "Cart/c08 Pinged"]
        assert "does not run on this node" in lost[0]
        letters = live.dead_letters()
        assert sorted(letter.agent for letter in letters) == ["Cart/c07", "Cart/c08"]
        assert all("does not run on this node" in letter.error for letter in letters)
        standing = live.standing()
        assert (standing.counters["tells_undelivered"], standing.owed) == (2, 0)
        # Once it runs here, an operator may give it the letter again; only then.
        live.retry(letters[0])
        await asyncio.sleep(1)
        assert len(live.dead_letters()) == 2
        await node.stop()
        node.agents = (*node.agents, "Cart/c07", "Cart/c08")
        live = await node.start()
        for letter in live.dead_letters():
            live.retry(letter)
        await asyncio.sleep(1)
        assert live.query("Cart/c07", Cart).seen == ("Cart/c01",)
        assert live.dead_letters() == []

    with caplog.at_level(logging.WARNING, "stigmergy.tells"):
        play(yard.declare(shards), main, agents=("Cart/c01", "Cart/c02"))
    (record,) = [record for record in caplog.records if record.name == "stigmergy.tells"]
    assert "Cart/c01 told Cart/c07 Pinged@1, which is in the dead letters now" in record.getMessage()
    about: LogSubject = vars(record)["about"]
    assert (about.code, about.agent, about.trace) == ("tell-failed", "Cart/c01", (b"t" * 16).hex())


def test_an_agent_that_is_taken_out_of_the_configuration_is_at_rest(caplog: pytest.LogCaptureFixture) -> None:
    """It does nothing at all: another node may run it by now. What it knew stays in the journal."""
    two = Two(("Cart/c01", "Cart/c02"), ())

    async def scene() -> None:
        outsider = await Outsider(two.broker).start()
        node = two.a
        live = await node.start()
        for name in ("c01", "c02"):
            await live.send(f"Cart/{name}", Drive(to="dock"))
            await live.observe(f"Cart/{name}", Seen(by="gate"))
        await asyncio.sleep(2)
        await node.stop()
        two.yard.done.clear()
        outsider.heard.clear()
        node.agents = ("Cart/c01",)
        live = await node.start()
        with pytest.raises(NotAssigned):
            await live.send("Cart/c02", Drive(to="north"))
        await outsider.send("yard/local/agents/Cart/c02/commands", cloud("Drive", {"to": "north"}))
        await live.send("Cart/c01", Drive(to="Cart/c02"))
        await asyncio.sleep(60)
        assert live.standing().at_rest == ["Cart/c02"]
        assert live.agents() == ["Cart/c01", "Cart/c02"]
        assert live.query("Cart/c02", Cart) == live.query("Cart/c02")
        assert (live.query("Cart/c02", Cart).at, live.query("Cart/c02", Cart).woken) == ("dock", 0)
        assert live.query("Cart/c02", Cart).seen == ("gate",), "what another told it is kept for the node that runs it"
        assert (live.dead_letters(), live.standing().counters["tells_kept"]) == ([], 1)
        assert [what for what in two.yard.done if what.startswith("Cart/c02")] == []
        assert "Cart/c01 stops" in two.yard.done, "while those that run are made safe"
        assert [message.topic for message in outsider.heard if "/c02/events" in message.topic] == []
        await node.stop()
        node.agents = ()
        live = await node.start()
        await asyncio.sleep(40)
        assert live.standing().at_rest == []
        assert live.query("Cart/c02", Cart).woken == 1, "its timer waited"
        assert live.query("Cart/c02", Cart).seen == ("gate", "Cart/c01"), "and so did what it was told"
        assert live.standing().counters["tells_kept"] == 0
        assert "Cart/c02 stops" in two.yard.done
        await node.stop()
        await outsider.bus.close()

    with caplog.at_level(logging.WARNING, "stigmergy.host"):
        two.world.run(scene())
    assert any("at rest, 1 in all: Cart/c02" in record.getMessage() for record in caplog.records)


def test_a_tell_that_an_agent_at_rest_owes_is_sent_and_the_start_says_so(caplog: pytest.LogCaptureFixture) -> None:
    two = Two(("Cart/c01", "Cart/c02"), ("Cart/c11",))

    async def scene() -> None:
        live = await two.a.start()
        await live.send("Cart/c02", Drive(to="Cart/c11"))
        await asyncio.sleep(2)
        await two.a.stop()
        two.a.agents = ("Cart/c01",)
        _, b = await two.start()
        await asyncio.sleep(40)
        assert b.query("Cart/c11", Cart).seen == ("Cart/c02",)
        await two.stop()

    with caplog.at_level(logging.WARNING, "stigmergy.host"):
        two.world.run(scene())
    said = [record.getMessage() for record in caplog.records if "at rest" in record.getMessage()]
    assert [one.partition("in all: ")[2] for one in said] == ["Cart/c02; tells that they still owe are sent: 1"]


def test_what_an_agent_at_rest_owes_stays_owed_until_it_runs_again() -> None:
    yard = Yard()

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Cart/c01", Drive(to="dock"))
        await live.send("Cart/c02", Drive(to="dock"))
        await node.lose_power()
        yard.done.clear()
        node.agents = ("Cart/c01",)
        live = await node.start()
        await asyncio.sleep(3)
        assert [what for what in yard.done if "c02" in what] == []
        await node.stop()
        node.agents = ()
        await node.start()
        await asyncio.sleep(3)
        assert "Cart/c02 to dock" in yard.done

    play(yard.declare(), main, settings=Settings(effect_tries=1))


def test_an_input_in_the_journals_own_bytes_is_refused_as_well() -> None:
    """The step itself asks: whatever door was left open, nobody is born who does not run here."""

    async def main(node: SimNode) -> None:
        live = await node.start()
        live.host.intake.put_inside(0, Delivery("somewhere", [("Cart/c07", encode(Seen(by="x")))]))
        live.host.intake.put_inside(0, Ask("Cart/c07", "1", encode(Drive(to="x"))))
        await asyncio.sleep(1)
        assert live.agents() == []
        assert [letter.agent for letter in live.dead_letters()] == ["Cart/c07"]

    play(Yard().declare(), main, agents=("Cart/c01",))
