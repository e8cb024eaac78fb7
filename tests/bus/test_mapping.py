"""Devices that speak plain JSON: what they mean, and what is refused."""

import json
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event
from stigmergy.base.errors import DefinitionError, Malformed, PeerError, TooLarge, UnknownTag
from stigmergy.bus.mapping import read_device_command, read_device_event, write_device_answer, write_device_order
from stigmergy.node.declaration import Declaration


class BatteryMeasured(Event):
    percent: float
    cell: int = 0


class StartMission(Command):
    mission: str = "default"


class AbortMission(Command):
    pass


class Ordered(Event):
    mission: str
    raw: bytes = b""


class Unhandled(Event):
    pass


class Drone(Agent):
    battery: float = 100.0

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        self.battery = event.percent

    @decide
    def start(self, command: StartMission) -> Events:
        return []

    @decide
    def abort(self, command: AbortMission) -> Events:
        return []


def fleet() -> Declaration:
    declared = Declaration("delivery", agents=[Drone])
    declared.device(
        "agents/{id}/battery",
        to="Drone/{id}",
        event=BatteryMeasured,
        fields={"percent": "level", "cell": "pack.cell"},
        same={"id": "agent_id"},
    )
    declared.device_commands(
        "agents/{id}/command",
        to="Drone/{id}",
        commands=[StartMission, AbortMission],
        same={"id": "agent_id"},
        answers="agents/{id}/answer",
    )
    declared.device_hears(
        "Drone/{id}/orders",
        topic="agents/{id}/command",
        fields={"mission": "plan.mission"},
        constants={"type": "StartMission"},
    )
    return declared


def battery(document: Any) -> tuple[str, Event]:
    payload = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_device_event(fleet().device_events[0], {"id": "drone-001"}, payload)


def test_a_battery_of_a_plain_device_is_an_event() -> None:
    found = battery({"agent_id": "drone-001", "level": 87.5, "pack": {"cell": 3}, "extra": None})
    assert found == ("Drone/drone-001", BatteryMeasured(percent=87.5, cell=3))
    assert battery({"level": 12}) == ("Drone/drone-001", BatteryMeasured(percent=12.0))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"agent_id": "drone-002", "level": 1}, "belongs to 'drone-001'"),
        ({"agent_id": "drone-001"}, "'level' is missing"),
        ({"level": "full"}, "level is not a valid BatteryMeasured.percent"),
        ([1], "'level' is missing"),
        (b"{", "invalid JSON"),
        (b'{"level": 1, "level": 2}', "twice"),
        (b'{"level": NaN}', "NaN"),
        (b'"' + b"x" * 70_000 + b'"', "at most"),
    ],
)
def test_what_is_no_battery_is_refused(document: Any, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        battery(document)


def test_a_bare_value_is_a_field() -> None:
    declared = Declaration("delivery", agents=[Drone])
    declared.device("gauge/{id}", to="Drone/{id}", event=BatteryMeasured, fields={"percent": ""})
    assert read_device_event(declared.device_events[0], {"id": "1"}, b"87.5") == (
        "Drone/1",
        BatteryMeasured(percent=87.5),
    )


def command(document: Any) -> tuple[str, str, Command]:
    spec = fleet().device_commands_taken[0]
    return read_device_command(spec, {"id": "1"}, json.dumps(document).encode())


def test_orders_in_plain_json_are_commands() -> None:
    assert command({"type": "StartMission"}) == ("Drone/1", "", StartMission())
    assert command({"type": "StartMission", "mission": "M1", "id": 7}) == ("Drone/1", "7", StartMission(mission="M1"))
    assert command({"type": "AbortMission", "id": True}) == ("Drone/1", "", AbortMission())
    wrong: list[Any] = [{}, {"type": "Explode"}, {"type": 7}, []]
    for document in wrong:
        with pytest.raises(UnknownTag, match="AbortMission, StartMission"):
            command(document)
    with pytest.raises(Malformed, match="belongs to"):
        command({"type": "AbortMission", "agent_id": "2"})


def test_a_device_is_answered_where_it_wants_it() -> None:
    spec = fleet().device_commands_taken[0]
    answer = write_device_answer(spec, {"id": "1"}, "7", "battery low")
    assert answer is not None
    assert answer.topic == "agents/1/answer"
    assert json.loads(answer.payload) == {"id": "7", "accepted": False, "reason": "battery low"}


def test_what_an_agent_publishes_becomes_an_order_for_a_device() -> None:
    spec = fleet().device_orders[0]
    order = write_device_order(spec, "Drone/1", "orders", encode(Ordered(mission="M1")))
    assert order is not None
    assert order.topic == "agents/1/command"
    assert json.loads(order.payload) == {"type": "StartMission", "plan": {"mission": "M1"}, "raw": ""}
    assert write_device_order(spec, "Drone/1", "other", encode(Ordered(mission="M1"))) is None
    assert write_device_order(spec, "Robot/1", "orders", encode(Ordered(mission="M1"))) is None
    with pytest.raises(Malformed):
        write_device_order(spec, "Drone/1", "orders", b"\xc1")


def test_wrong_declarations_are_told_at_once() -> None:
    declared = Declaration("delivery", agents=[Drone])
    wrong: list[Any] = [
        lambda: declared.device("a/{id}", to="Robot/{id}", event=BatteryMeasured),
        lambda: declared.device("a/{id}", to="Drone", event=BatteryMeasured),
        lambda: declared.device("a/{id}", to="Drone/{name}", event=BatteryMeasured),
        lambda: declared.device("a/{id}", to="Drone/{id}", event=BatteryMeasured, fields={"volt": "v"}),
        lambda: declared.device("a/{id}", to="Drone/{id}", event=BatteryMeasured, same={"name": "v"}),
        lambda: declared.device("a/{id}", to="Drone/{id}", event=Unhandled),
        lambda: declared.device("a/#", to="Drone/1", event=BatteryMeasured),
        lambda: declared.device_commands("a/{id}", to="Drone/{id}", commands=[StartMission], answers="b/{x}"),
        lambda: declared.device_hears("Drone/{id}", topic="a/{id}"),
        lambda: declared.device_hears("Drone/{id}/orders", topic="a/{x}"),
        lambda: declared.listen("Drone/battery", to="Drone/1"),
        lambda: declared.listen("Drone/{id}/battery", to="Drone/{x}"),
        lambda: declared.members(to="Drone/1"),
    ]
    for declare in wrong:
        with pytest.raises(DefinitionError):
            declare()


class Guarded(Event):
    percent: float

    def __post_init__(self) -> None:
        if self.percent < 0:
            raise RuntimeError("below nothing")


class Curve(Event):
    points: tuple[float, ...] = ()


class Gauge(Agent):
    @evolve
    def guarded(self, event: Guarded) -> None:
        pass

    @evolve
    def curve(self, event: Curve) -> None:
        pass


def test_what_an_events_own_check_raises_is_the_devices_fault() -> None:
    declared = Declaration("delivery", agents=[Gauge])
    declared.device("agents/{id}/guarded", to="Gauge/{id}", event=Guarded)
    with pytest.raises(Malformed, match="below nothing"):
        read_device_event(declared.device_events[0], {"id": "1"}, b'{"percent": -1}')


@pytest.mark.parametrize("percent", ['"87.5"', "null", "true", "[1]", "{}", "1e999", "NaN"])
def test_a_number_is_a_number(percent: str) -> None:
    with pytest.raises(PeerError):
        read_device_event(fleet().device_events[0], {"id": "1"}, f'{{"level": {percent}}}'.encode())


def test_what_grows_beyond_a_message_when_it_is_written_is_too_large() -> None:
    """A number of four characters has nine bytes in a message."""
    declared = Declaration("delivery", agents=[Gauge])
    declared.device("agents/{id}/curve", to="Gauge/{id}", event=Curve)
    payload = json.dumps({"points": [1.5] * 12_000}, separators=(",", ":")).encode()
    with pytest.raises(TooLarge, match="65536"):
        read_device_event(declared.device_events[0], {"id": "1"}, payload)
