"""Types as protobuf messages: what goes in comes out, in protoc's own bytes, and what is absent is not zero."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

import stigmergy as st
from stigmergy.base.errors import DefinitionError, Malformed
from stigmergy.proto.descriptors import message_classes
from stigmergy.proto.service import FleetProto, package_of
from stigmergy.proto.shapes import snake
from tests.proto.fleet import Drone, Flown, FlyTo, fleet

PROTO = FleetProto(fleet, None)
CLASSES = message_classes(PROTO.describe())[1]
TAG, FLY_TO = PROTO.commands["fly_to"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What protoc makes of the file that we write."""
    folder: Path = tmp_path_factory.mktemp("protoc")
    (folder / "delivery.proto").write_text(PROTO.text("delivery.proto.lock"), encoding="utf-8")
    compile = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={folder}", "delivery.proto"]
    subprocess.run(compile, check=True, timeout=240)
    spec = importlib.util.spec_from_file_location("delivery_pb2", folder / "delivery_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


numbers = some.integers(-(2**63), 2**63 - 1)
floats = some.floats(allow_nan=False, allow_infinity=False)
texts = some.text(some.characters(exclude_categories=["Cs"]), max_size=5)
points = some.fixed_dictionaries({"lat": floats, "lon": floats})
trees = some.recursive(
    some.fixed_dictionaries({"name": texts}),
    lambda below: some.fixed_dictionaries({"name": texts, "below": some.lists(below, max_size=2)}),
    max_leaves=4,
)
areas = some.one_of(
    some.fixed_dictionaries({"type": some.just("Circle"), "radius": floats}),
    some.fixed_dictionaries({"type": some.just("Box"), "a": points, "b": points}),
)
commands = some.fixed_dictionaries(
    {"to": points, "limit": some.none() | numbers},
    optional={
        "via": some.lists(points, max_size=3),
        "area": some.none() | areas,
        "phase": some.sampled_from("gr"),
        "when": some.none() | some.datetimes().map(lambda one: f"{one.isoformat()}Z"),
        "mode": some.none() | texts,
        "grid": some.lists(some.lists(numbers, max_size=3), max_size=3),
        "names": some.dictionaries(texts, numbers, max_size=3),
        "zones": some.dictionaries(numbers, points, max_size=3),
        "raw": some.binary(max_size=5).map(msgspec.to_builtins),
        "tags": some.lists(texts, max_size=2),
        "which": numbers | texts | some.booleans(),
        "pair": some.tuples(numbers, texts).map(list),
        "corner": some.tuples(floats, floats).map(list),
        "mixed": some.tuples(numbers, texts).map(list),
        "order": some.none() | some.uuids().map(str),
        "tree": some.none() | trees,
        "maybe": some.lists(some.none() | numbers, max_size=3),
        "word": some.sampled_from("ab"),
        "altitude_m": floats,
    },
)


@given(commands)
def test_a_command_goes_through_protobuf_unchanged(fields: dict[str, Any]) -> None:
    message = CLASSES["SendRequest"]()
    FLY_TO.put_into(message, fields)
    again = CLASSES["SendRequest"].FromString(message.SerializeToString())
    taken = FLY_TO.take_from(again, "")
    assert taken.pop("type") == TAG
    assert msgspec.convert(taken, FlyTo, str_keys=True) == msgspec.convert(fields, FlyTo, str_keys=True)


@given(fields=commands)
def test_the_bytes_are_those_of_protoc(compiled: Any, fields: dict[str, Any]) -> None:
    ours = CLASSES["SendRequest"](agent="Drone/D-17", command_id="c-1")
    FLY_TO.put_into(ours, fields)
    theirs = compiled.SendRequest.FromString(ours.SerializeToString())
    theirs.DiscardUnknownFields()
    assert theirs.SerializeToString(deterministic=True) == ours.SerializeToString(deterministic=True)


def test_protoc_has_the_same_descriptor(compiled: Any) -> None:
    from google.protobuf import descriptor_pb2

    theirs = descriptor_pb2.FileDescriptorProto.FromString(compiled.DESCRIPTOR.serialized_pb)
    ours = PROTO.describe()
    for message in theirs.message_type:
        for field in message.field:
            field.ClearField("json_name")
        for entry in message.nested_type:
            for field in entry.field:
                field.ClearField("json_name")
    assert theirs == ours


def test_what_is_not_given_is_refused_or_gets_the_default_and_is_never_zero() -> None:
    message = CLASSES["SendRequest"]()
    message.fly_to.SetInParent()
    with pytest.raises(Malformed, match=r"^fly_to\.to is missing; it is Point$"):
        FLY_TO.take_from(message, "")
    message.fly_to.to.lat = 1.0
    with pytest.raises(Malformed, match=r"^fly_to\.to\.lon is missing; it is double$"):
        FLY_TO.take_from(message, "")
    message.fly_to.to.lon = 0.0
    taken = FLY_TO.take_from(message, "")
    del taken["type"]
    command = msgspec.convert(taken, FlyTo)
    assert (command.altitude_m, command.tags, command.mode, command.limit) == (10.0, ("a",), "fast", None)


def test_a_wrong_value_is_refused_with_its_path() -> None:
    message = CLASSES["SendRequest"]()
    message.fly_to.to.lat = message.fly_to.to.lon = 0.0
    message.fly_to.phase = 0
    with pytest.raises(Malformed, match=r"^fly_to\.phase: 0 is no Phase; it has PHASE_GREEN, PHASE_RED$"):
        FLY_TO.take_from(message, "")
    message.fly_to.ClearField("phase")
    message.fly_to.maybe.add()
    with pytest.raises(Malformed, match=r"^fly_to\.maybe\[0\]: give one of int, none$"):
        FLY_TO.take_from(message, "")
    message.fly_to.ClearField("maybe")
    message.fly_to.when.seconds = 2**60
    with pytest.raises(Malformed, match=r"^fly_to\.when: .* is no time"):
        FLY_TO.take_from(message, "")


def test_a_state_has_its_types_and_what_is_shared_as_plain_values() -> None:
    reply = CLASSES["GetAgentReply"]()
    state = {"id": "D-17", "at": {"lat": 1, "lon": 2}, "phase": "g", "crossing": {"token": 3}, "last": [1, None, True]}
    PROTO.states["Drone"].put_into(reply, state)
    assert (reply.drone.id, reply.drone.at.lon, reply.drone.phase.string_value) == ("D-17", 2.0, "g")
    taken = PROTO.states["Drone"].take_from(reply, "")
    assert taken == {**state, "at": {"lat": 1.0, "lon": 2.0}, "crossing": {"token": 3.0}, "last": [1.0, None, True]}
    PROTO.states["Drone"].put_into(CLASSES["GetAgentReply"](), {"id": "D-17", "phase": None})
    with pytest.raises(ValueError, match="drone: at: 5 is no Point"):
        PROTO.states["Drone"].put_into(CLASSES["GetAgentReply"](), {"at": 5})


def made_of(*fields: tuple[str, Any]) -> FleetProto:
    """The service of a fleet whose one command has these fields."""
    command = type("Go", (st.Command,), {"__annotations__": dict(fields), "__module__": __name__})

    class Robot(st.Agent):
        @st.decide
        def go(self, command: command) -> st.Events:  # type: ignore[valid-type]
            yield from ()

    return FleetProto(st.Fleet("robots", agents=[Robot]), None)


class Listed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    x: int


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (msgspec.Raw, r"Go\.field: Raw has no mapping"),
        (Listed, r"Go\.field: Listed has array_like=True and a tag"),
        (tuple[msgspec.Raw, ...], r"Go\.field: Raw has no mapping"),
        ("frozenset[msgspec.Raw] | int", r"Go\.field: Raw has no mapping"),
    ],
)
def test_what_has_no_mapping_is_refused_with_its_field(hint: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        made_of(("other", int), ("field", hint))


def test_names_that_protobuf_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"Go\.aB: protobuf cannot tell it from 'a_b'"):
        made_of(("a_b", int), ("aB", int))
    with pytest.raises(DefinitionError, match=r"Go\.größe: 'größe' is no name of a protobuf field"):
        made_of(("größe", int))


def test_names() -> None:
    assert [snake(name) for name in ("StartMission", "GPSLost", "drone", "V2Seen")] == [
        "start_mission",
        "gps_lost",
        "drone",
        "v2_seen",
    ]
    assert [package_of(name) for name in ("delivery", "City-North.2", "7up")] == [
        "delivery",
        "city_north_2",
        "fleet_7up",
    ]
    assert list(PROTO.states) == [Drone.__agent_kind__]
    assert [tag for tag, _ in PROTO.events.values()] == [st.spec_of(Flown).tag if hasattr(st, "spec_of") else "Flown@1"]


class Recheck(st.Timer):
    zone: int = 0


class Press(st.Action):
    button: int = 0


@pytest.mark.parametrize(
    "event",
    [
        st.ActionDone,
        st.ActionFailed,
        st.Denied,
        st.Done[Press],
        st.Failed[Press],
        st.Granted,
        st.Lost,
        st.MemberJoined,
        st.MemberLeft,
        st.MembersReset,
        st.Merged,
        st.Released,
        st.SharedChanged,
        st.TellFailed,
        st.WindowClosed,
        st.WorkFailed,
        st.Woken[Recheck],
    ],
    ids=str,
)
def test_an_event_of_the_framework_has_no_field_and_comes_as_json(event: Any) -> None:
    class Stall(st.Agent):
        heard: int = 0

        def hear(self, event: st.Event) -> None:
            self.heard += 1

        hear.__annotations__["event"] = event
        hear = st.evolve(hear)

    proto = FleetProto(st.Fleet("hospital", agents=[Stall]), None)
    assert not proto.watched
    assert not proto.events
    assert "Fleet" in proto.text("hospital.proto.lock")
