"""Maps plain JSON or binary payloads of devices to our messages, and our messages to their JSON. Pure.

    {"agent_id": "drone-001", "level": 87.5}   on agents/drone-001/battery   ->  BatteryMeasured(percent=87.5)
    {"type": "StartMission", "mission": "M1"}  on agents/drone-001/command   ->  StartMission(mission="M1")

A field of a message is read from the JSON key of the same name, or from the path in `fields`: `battery.level` is a key
in a nested object, and an empty text is the whole value. Other keys are ignored. `same` names fields that must agree
with the topic, so a device that sends in the name of another is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct, structs

from stigmergy.agents.codec import MESSAGE_BYTES_MAX, UNDECODABLE, encode
from stigmergy.agents.messages import Command, Event, Message
from stigmergy.base.errors import Malformed, TooLarge, UnknownTag
from stigmergy.bus.cloudevents import read_json
from stigmergy.bus.layout import PayloadLayout
from stigmergy.bus.port import BusMessage
from stigmergy.bus.topics import TopicTemplate, fill_address

JSON_TYPE = "application/json"
SURELY_SMALL_BYTES = MESSAGE_BYTES_MAX // 16
"""JSON up to this size is within a message's limit, whatever it contains."""
_ABSENT: Any = object()


class DeviceEvent(Struct, frozen=True):
    """A device's message on a topic becomes an observed event of an agent."""

    topic: TopicTemplate
    to: str
    event: type[Event]
    fields: Mapping[str, str]
    same: Mapping[str, str]
    """By place of the topic: the path where the JSON must have the same value."""
    layout: PayloadLayout | None = None
    """The payload is binary, and its values are these, not JSON."""


class DeviceCommands(Struct, frozen=True):
    """Orders in plain JSON become commands of an agent; `by` is the path of the command's name."""

    topic: TopicTemplate
    to: str
    commands: Mapping[str, type[Command]]
    by: str
    id: str
    """The path of the command's id. An order without one is carried out as often as it comes."""
    same: Mapping[str, str]
    answers: TopicTemplate | None
    """Where the verdict is published, as plain JSON too."""


class DeviceOrder(Struct, frozen=True):
    """What an agent publishes on its own topic goes to a device instead, as plain JSON."""

    topic: TopicTemplate
    agent: TopicTemplate
    about: str
    fields: Mapping[str, str]
    """The path of each field in the JSON; fields that are not named keep their names."""
    constants: Mapping[str, Any]
    """Fixed values that the JSON also has."""


def read_device_event(spec: DeviceEvent, places: Mapping[str, str], payload: bytes) -> tuple[str, Event]:
    """The agent and the event of a device's message. Raises PeerError with the reason."""
    document = read_json(payload, MESSAGE_BYTES_MAX) if spec.layout is None else spec.layout.read(payload)
    _check_same(spec.same, places, document)
    event: Event = _convert(document, spec.event, spec.fields)
    if len(payload) > SURELY_SMALL_BYTES and (size_bytes := len(encode(event))) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {size_bytes} bytes, {MESSAGE_BYTES_MAX} at most")
    return fill_address(spec.to, places), event


def read_device_command(spec: DeviceCommands, places: Mapping[str, str], payload: bytes) -> tuple[str, str, Command]:
    """The agent, the command's id (empty if it has none) and the command."""
    document = read_json(payload, MESSAGE_BYTES_MAX)
    _check_same(spec.same, places, document)
    name = _at(document, spec.by)
    kind = spec.commands.get(name) if isinstance(name, str) else None
    if kind is None:
        shown = "nothing" if name is _ABSENT else repr(name)[:60]
        raise UnknownTag(f"{spec.by!r} is {shown}; send one of {', '.join(sorted(spec.commands))}")
    command_id = _at(document, spec.id)
    if not isinstance(command_id, str | int) or isinstance(command_id, bool):
        command_id = ""
    return fill_address(spec.to, places), str(command_id), _convert(document, kind, {})


def write_device_answer(
    spec: DeviceCommands, places: Mapping[str, str], command_id: str, refused: str | None
) -> BusMessage | None:
    """The verdict for a device that asks for one."""
    if spec.answers is None:
        return None
    answer = {"id": command_id, "accepted": refused is None, "reason": refused}
    return BusMessage(spec.answers.fill(places), msgspec.json.encode(answer), content_type=JSON_TYPE)


def write_device_order(spec: DeviceOrder, agent: str, about: str, body: bytes) -> BusMessage | None:
    """The message for a device when an agent publishes; None if it is not for this device."""
    places = spec.agent.match(agent) if about == spec.about else None
    if places is None:
        return None
    try:
        published = msgspec.msgpack.decode(body)
    except UNDECODABLE as error:
        raise Malformed(f"not a message: {error}") from None
    published.pop("type", None)
    document: dict[str, Any] = dict(spec.constants)
    for name, value in published.items():
        _put(document, spec.fields.get(name, name), value)
    try:
        payload = msgspec.json.encode(document)
    except (TypeError, ValueError) as error:
        raise Malformed(f"what {agent} published as {about!r} is not JSON: {error}") from None
    return BusMessage(spec.topic.fill(places), payload, content_type=JSON_TYPE)


@functools.lru_cache(maxsize=1_024)
def _fields_of(kind: type[Any]) -> tuple[structs.FieldInfo, ...]:
    """Kept: msgspec works them out anew at each call, which took most of the time of a device's message."""
    return structs.fields(kind)


def _convert(document: Any, kind: type[Any], fields: Mapping[str, str]) -> Any:
    values: dict[str, Any] = {}
    for field in _fields_of(cast(Any, kind)):
        path = fields.get(field.name, field.name)
        value = _at(document, path)
        if value is not _ABSENT:
            try:
                values[field.name] = msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                raise Malformed(f"{path or 'the value'} is not a valid {kind.__name__}.{field.name}: {error}") from None
        elif field.required:
            raise Malformed(f"{path!r} is missing; it is {kind.__name__}.{field.name}")
    try:
        message: Message = kind(**values)
    except Exception as error:
        # The class's own check failed.
        raise Malformed(f"not a valid {kind.__name__}: {error}") from None
    return message


def _check_same(same: Mapping[str, str], places: Mapping[str, str], document: Any) -> None:
    for place, path in same.items():
        said = _at(document, path)
        if said is not _ABSENT and str(said) != places[place]:
            raise Malformed(f"{path!r} is {str(said)[:60]!r}, but the topic belongs to {places[place]!r}")


def _at(document: Any, path: str) -> Any:
    """The value at a path of keys; the whole document for an empty path."""
    for key in path.split(".") if path else ():
        if not isinstance(document, dict) or key not in document:
            return _ABSENT
        document = document[key]
    return document


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        inner = document.setdefault(key, {})
        document = inner if isinstance(inner, dict) else {}
    document[last] = value
