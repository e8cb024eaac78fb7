"""What comes over a bus: commands are answered, inputs are taken once, and what may not come is refused and told."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, Publish
from stigmergy.agents.messages import Event
from stigmergy.base.errors import LinkDown
from stigmergy.bus.cloudevents import MSGPACK, STRUCTURED
from stigmergy.bus.port import BusMessage
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.sim.node import SimNode
from tests.network.subscriber_scenes import BATTERY, COMMANDS, INPUTS, counter, numbered, play
from tests.node.fleets import (
    Dispatcher,
    Drone,
    Measured,
    MissionStarted,
    Monitor,
    Outsider,
    StartMission,
    cloud,
    drones,
    monitors,
)


def test_a_command_is_answered_and_done_once() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        command = cloud("StartMission@1", {"mission": "M1"}, id="c-1")
        await outsider.send(COMMANDS, command)
        await outsider.send(COMMANDS, command)
        assert live.query("Drone/1", Drone).mission == "M1"
        answers = outsider.events("/answers")
        assert [answer.data["accepted"] for answer in answers] == [True, True]
        assert answers[0].data == answers[1].data
        assert (answers[0].data["command"], answers[0].subject) == ("c-1", "Drone/1")
        assert counter(live, "accepted") == 1
        # The same command without its version, in binary form, with another id.
        properties = (("specversion", "1.0"), ("id", "c-2"), ("source", "/x"), ("type", "StartMission"))
        await outsider.send(COMMANDS, b'{"mission":"M2"}', content_type="application/json", properties=properties)
        assert live.query("Drone/1", Drone).mission == "M2"

    play(drones, scene)


def test_a_command_is_answered_also_when_node_or_link_break() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        broker = node.broker
        assert broker is not None
        broker.cut("node")
        await outsider.send(COMMANDS, cloud("StartMission", {"mission": "M1"}, id="c-1"))
        assert not outsider.events("/answers")
        await node.kill()
        await node.start()
        broker.restore("node")
        await asyncio.sleep(5)
        assert [answer.data["accepted"] for answer in outsider.events("/answers")] == [True]

    play(drones, scene)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (cloud("StartMission", {"mission": ""}), "no mission without a name"),
        (cloud("Explode", {}), "has no command 'Explode'"),
        (cloud("Measured@1", {"number": 1}), "is no command"),
        (cloud("StartMission", {"mission": 7}), "does not decode"),
        (cloud("StartMission", {}), "does not decode"),
        (cloud("StartMission", [1]), "an object of its fields"),
        (cloud("StartMission", {"mission": "M"}, subject="Drone/2"), "belongs to 'Drone/1'"),
        (cloud("stigmergy.AgentResumed@1", {"by": "me"}), "by the framework alone"),
        (cloud("StartMission", {"mission": "x" * 70_000}), "65536 at most"),
    ],
)
def test_a_command_that_cannot_be_taken_is_answered_with_the_reason(command: dict[str, Any], why: str) -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(COMMANDS, command)
        (answer,) = outsider.events("/answers")
        assert answer.data["accepted"] is False
        assert why in answer.data["reason"]
        assert counter(live, "bus_refused") + counter(live, "refused") == 1
        assert live.agents() == []
        assert live.dead_letters() == []

    play(drones, scene)


def test_an_agent_of_an_unknown_kind_is_refused() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(COMMANDS.replace("Drone", "Robot"), cloud("StartMission", {"mission": "M"}))
        (answer,) = outsider.events("/answers")
        assert "Robot/1" in answer.data["reason"]

    play(drones, scene)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "invalid JSON"),
        (b"{", "invalid JSON"),
        (b"\xff\xfe", "utf-8"),
        (b"[]", "a JSON object"),
        (b'{"specversion":"1.0","specversion":"1.0"}', "twice"),
        (json.dumps(cloud("T", specversion="0.3")).encode(), "0.3"),
        (json.dumps(cloud("T", id="")).encode(), "without 'id'"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "deeper"),
        (b'"' + b"x" * 300_000 + b'"', "at most"),
        (b'{"specversion":"1.0","id":"1","source":"a","type":"T","data":NaN}', "NaN"),
    ],
)
@pytest.mark.parametrize("topic", [COMMANDS, INPUTS])
def test_what_is_no_cloudevent_is_refused_and_told_on_the_nodes_topic(topic: str, payload: bytes, why: str) -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(topic, payload)
        assert counter(live, "bus_refused") == 1
        (refusal,) = outsider.events("nodes/node/refusals")
        assert refusal.data["topic"] == topic
        assert why in refusal.data["reason"]

    play(drones, scene)


def test_refusals_are_told_within_a_bound_and_counted_without() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await asyncio.gather(*(outsider.send(INPUTS, b"{") for _ in range(500)))
        assert counter(live, "bus_refused") == 500
        assert 1 <= len(outsider.events("/refusals")) <= 25

    play(drones, scene)


def test_inputs_without_numbers_are_taken_once_per_id() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        for identity in ("a", "b", "a", "a"):
            await outsider.send(INPUTS, cloud("Measured", {"number": 1}, id=identity))
        assert live.query("Drone/1", Drone).count == 2
        assert counter(live, "bus_repeated") == 2
        packed = cloud("Measured", None, id="c", data_base64="gaZudW1iZXIB", datacontenttype=MSGPACK)
        await outsider.send(INPUTS, packed, content_type=STRUCTURED)
        assert live.query("Drone/1", Drone).count == 3
        # What an agent is told about the fleet nobody may make up, nor what is a command.
        for kind in ("stigmergy.MemberJoined@1", "StartMission", "Nothing"):
            await outsider.send(INPUTS, cloud(kind, {"mission": "M", "node": "x"}, id=kind))
        assert counter(live, "bus_refused") == 3
        assert live.dead_letters() == []

    play(drones, scene)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([COMMANDS, INPUTS, BATTERY, "delivery/local/agents/Drone/%zz/commands"]),
            st.binary(max_size=80)
            | st.dictionaries(
                st.sampled_from(["specversion", "id", "source", "type", "data", "sequence", "previous", "epoch", "x"]),
                st.sampled_from(["1.0", "1", "StartMission", "Measured@1", 7, -1, None, {"number": 1}, [], "\n"]),
            ).map(lambda document: json.dumps(document).encode()),
            st.sampled_from(["", "application/json", "application/cloudevents+json", "x"]),
            st.lists(
                st.tuples(st.sampled_from(["specversion", "id", "type", "source"]), st.sampled_from(["1.0", "T"]))
            ),
        ),
        max_size=20,
    )
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_nothing_from_the_network_stops_a_node(messages: list[tuple[str, bytes, str, list[tuple[str, str]]]]) -> None:
    def both(_: SimNode) -> Declaration:
        fleet = Declaration("delivery", agents=[Drone, Monitor])
        fleet.listen("Drone/{id}/battery", to="Monitor/{id}")
        return fleet

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        for topic, payload, content_type, properties in messages:
            message = BusMessage(topic, payload, content_type=content_type, properties=tuple(properties))
            await outsider.bus.publish(message)
        await asyncio.sleep(100)
        assert live.failure is None
        assert live.dead_letters() == []
        await outsider.send(COMMANDS, cloud("StartMission", {"mission": "still here"}, id="the last"))
        assert live.query("Drone/1", Drone).mission == "still here"

    play(both, scene)


def test_a_node_takes_commands_only_for_the_agents_it_carries() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        for name in ("1", "2"):
            await outsider.send(COMMANDS.replace("Drone/1", f"Drone/{name}"), cloud("StartMission", {"mission": "M"}))
        assert live.agents() == ["Drone/1"]
        assert len(outsider.events("/answers")) == 1

    play(drones, scene, agents=("Drone/1",))


def test_a_node_listens_only_for_the_agents_it_carries() -> None:
    """Otherwise one drone would come to life on the node of another, and have that one's aircraft landed."""

    def declare(_: SimNode) -> Declaration:
        fleet = Declaration("ground", agents=[Monitor, Copter])
        fleet.listen("Drone/{id}/battery", to="Copter/{id}", fleet="delivery")
        fleet.listen("Drone/{id}/battery", to="Monitor/{id}", fleet="delivery")
        fleet.device("plain/{id}", to="Copter/{id}", event=Measured)
        fleet.device_commands("pilots/{id}", to="Copter/{id}", commands=[StartMission], answers="pilots/{id}/answer")
        return fleet

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        for name in ("1", "2"):
            await outsider.send(BATTERY.replace("Drone/1", f"Drone/{name}"), numbered(1))
            await outsider.send(f"plain/{name}", {"number": 7})
            await outsider.send(f"pilots/{name}", {"type": "StartMission", "mission": "M1", "id": "7"})
        assert live.agents() == ["Copter/1", "Monitor/2"]
        assert counter(live, "bus_refused") == 0
        assert len([message for message in outsider.heard if message.topic.endswith("/answer")]) == 1

    play(declare, scene, agents=("Copter/1", "Monitor/2*"))


class Copter(Agent):
    level: int = 0
    mission: str = ""

    @evolve
    def measured(self, event: Measured) -> None:
        self.level = event.number

    @decide
    def start(self, command: StartMission) -> Events:
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @react
    def order(self, event: MissionStarted) -> Effects:
        yield Publish(topic="orders", event=event)


def test_plain_devices_take_part() -> None:
    def declare(_: SimNode) -> Declaration:
        fleet = Declaration("seed", agents=[Copter])
        fleet.device(
            "agents/{id}/battery", to="Copter/{id}", event=Measured, fields={"number": "level"}, same={"id": "agent_id"}
        )
        fleet.device_commands(
            "pilots/{id}/command", to="Copter/{id}", commands=[StartMission], answers="pilots/{id}/answer"
        )
        fleet.device_hears("Copter/{id}/orders", topic="agents/{id}/command", constants={"type": "StartMission"})
        return fleet

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send("agents/drone-001/battery", {"agent_id": "drone-001", "level": 87})
        await outsider.send("agents/drone-001/battery", {"agent_id": "drone-002", "level": 1})
        assert live.query("Copter/drone-001", Copter).level == 87
        assert counter(live, "bus_refused") == 1
        await outsider.send("pilots/drone-001/command", {"type": "StartMission", "mission": "M1", "id": "7"})
        await outsider.send("pilots/drone-001/command", {"type": "StartMission", "mission": "M1", "id": "7"})
        answers = [json.loads(message.payload) for message in outsider.heard if message.topic.endswith("/answer")]
        assert answers == [{"id": "7", "accepted": True, "reason": None}] * 2
        orders = [message for message in outsider.heard if message.topic == "agents/drone-001/command"]
        assert [json.loads(order.payload) for order in orders] == [{"type": "StartMission", "mission": "M1"}]
        await outsider.send("pilots/drone-001/command", {"type": "StartMission", "mission": "M2", "id": "7"})
        answer = json.loads(next(one.payload for one in reversed(outsider.heard) if one.topic.endswith("/answer")))
        assert (answer["id"], answer["accepted"]) == ("7", False)
        assert "another command had the id" in answer["reason"]

    play(declare, scene)


def test_dispatchers_are_declared_with_handlers() -> None:
    fleet = monitors()
    fleet.members(to="Dispatcher/main")
    assert fleet.interested == ["Dispatcher/main"]
    assert Dispatcher().here == ()


def test_a_repetition_without_numbers_is_not_acknowledged_before_the_first_is_durable() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        assert live.link is not None
        subscriber = live.link.subscriber
        handle = subscriber._guard(subscriber._input)
        node.latency.before_s = 0.3
        message = BusMessage(INPUTS, json.dumps(cloud("Measured", {"number": 1}, id="a")).encode())
        first = asyncio.ensure_future(handle(message))
        again = asyncio.ensure_future(handle(BusMessage(INPUTS, message.payload)))
        await asyncio.sleep(0.01)
        assert not first.done()
        assert not again.done()
        await first
        await again
        assert live.query("Drone/1", Drone).count == 1

    play(drones, scene)


def test_two_commands_with_the_same_id_do_not_get_the_same_answer() -> None:
    """Whoever counts its commands from 1 meets others who do: nobody may hear that something was done which was not."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        for source, mission in (("/pilot/a", "M1"), ("/pilot/b", "M2"), ("/pilot/a", "M1")):
            await outsider.send(COMMANDS, cloud("StartMission", {"mission": mission}, id="1", source=source))
        # The same is the same, however it is written.
        await outsider.send(COMMANDS, cloud("StartMission@1", {"note": "again", "mission": "M1"}, id="1"))
        assert live.query("Drone/1", Drone).mission == "M1"
        answers = outsider.events("/answers")
        assert [answer.data["accepted"] for answer in answers] == [True, False, True, True]
        assert "another command had the id '1'" in answers[1].data["reason"]
        assert counter(live, "refused") == 1

    play(drones, scene)


def test_ids_are_remembered_for_each_source_of_commands() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        for number, source in enumerate(("/pilot/a", "/pilot/b" * 100)):
            await outsider.send(COMMANDS, cloud("StartMission", {"mission": "M1"}, id=str(number), source=source))
        short, long = live.host.shards.first.state.answers.clients()
        assert short == "bus//pilot/a"
        assert long.startswith("bus//pilot/b/pilot/b")
        assert len(long) == 256

    play(drones, scene)


def test_what_the_check_of_a_class_raises_holds_up_nobody() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(INPUTS.replace("Drone", "Picky"), cloud("Checked", {"number": -1}, id="a"))
        await outsider.send(INPUTS.replace("Drone", "Picky"), cloud("Checked", {"number": 1}, id="b"))
        assert live.query("Picky/1", Picky).number == 1
        assert counter(live, "bus_refused") == 1
        assert live.dead_letters() == []

    play(lambda _: Declaration("delivery", agents=[Picky]), scene)


class Checked(Event):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise RuntimeError("below nothing")


class Picky(Agent):
    number: int = 0

    @evolve
    def checked(self, event: Checked) -> None:
        self.number = event.number


def test_an_answer_that_was_lost_with_the_link_is_given_again_and_nothing_is_done_twice() -> None:
    """The command is durable, and the link breaks under its answer: the broker repeats the one, and we the other."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        assert live.link is not None
        assert node.broker is not None
        bus, broker = live.link._bus, node.broker
        publish, broken = bus.publish, 0

        async def breaking(message: BusMessage) -> None:
            nonlocal broken
            if message.topic.endswith("/answers") and broken < 3:
                broken += 1
                broker.cut("node")
                raise LinkDown("broke")
            await publish(message)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bus, "publish", breaking)
            await outsider.send(COMMANDS, cloud("StartMission", {"mission": "M1"}, id="c-1"))
            for _ in range(4):
                await asyncio.sleep(1)
                broker.restore("node")
            await asyncio.sleep(30)
        assert broken == 3
        answers = outsider.events("/answers")
        assert answers
        assert all(answer.data == answers[0].data and answer.data["accepted"] for answer in answers)
        assert counter(live, "accepted") == 1

    play(drones, scene)


def test_after_a_stop_nothing_is_published_and_nothing_taken_that_is_not_kept() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        assert live.link is not None
        node.latency.before_s = 0.2
        bus, said = live.link._bus, []
        publish = bus.publish

        async def counted(message: BusMessage) -> None:
            await publish(message)
            said.append(message.topic)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bus, "publish", counted)
            for number in range(100):
                event = cloud("Measured", {"number": number}, id=str(number))
                await outsider.bus.publish(BusMessage(INPUTS, json.dumps(event).encode()))
            await asyncio.sleep(0.05)
            await node.stop()
            count = len(said)
            await asyncio.sleep(60)
            assert len(said) == count
        again = await node.start()
        await asyncio.sleep(60)
        # What the broker heard of is kept, and it gives the rest again. Without numbers some may come twice.
        assert again.query("Drone/1", Drone).count >= 100
        assert {event.data["number"] for event in outsider.events("/battery")} == set(range(100))

    play(drones, scene)
