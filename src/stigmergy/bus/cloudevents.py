"""CloudEvents 1.0, both ways: structured (one JSON text) and binary (attributes beside the data). Pure.

    {"specversion": "1.0", "id": "7.0.41.0", "source": "/delivery/north/agents/Drone/D-17", "subject": "Drone/D-17",
     "type": "BatteryMeasured@1", "category": "sensor", "sequence": "41", "incarnation": "7", "epoch": "1",
     "datacontenttype": "application/json", "data": {"percent": 87.5}}

`type` is the message's tag, `data` its fields. What JSON cannot express exactly (bytes, NaN, keys that are not text)
goes as MessagePack in `data_base64`. Our numbers are texts: a CloudEvents integer has 32 bits. Reading is strict and
bounded, because anybody can write to a broker; a refused event raises Malformed or TooLarge with the reason.

Structured mode works over any transport. Binary mode needs a protocol with properties, such as MQTT 5; the attribute
names are the property names, and `datacontenttype` is the content type.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.base.errors import Malformed, TooLarge
from stigmergy.shard.tracing import TraceContext, read_context, write_parent, write_state

# Reads untrusted JSON: ambiguous input is refused, and everything is bounded. Python's own reader accepts repeated
# keys, NaN, infinities, numbers of any size and nesting up to its stack; this one does not.

NESTING_MAX = 32
INTEGER_MAX = 2**63


def read_json(data: bytes, bytes_max: int, nesting_max: int = NESTING_MAX) -> Any:
    """Parses JSON in UTF-8. Raises TooLarge or Malformed with the reason."""
    if len(data) > bytes_max:
        raise TooLarge(f"{len(data)} bytes of JSON, {bytes_max} at most")
    try:
        value = _decoder.decode(data.decode("utf-8"))
        _check(value, nesting_max)
    except RecursionError:
        raise Malformed(f"invalid JSON: nested deeper than {nesting_max} levels") from None
    except ValueError as error:
        raise Malformed(f"invalid JSON: {error}") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:100]!r} occurs twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -INTEGER_MAX <= (value := int(digits)) < 2 * INTEGER_MAX:
        raise ValueError("an integer that does not fit in 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number that is too large")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check(value: Any, levels: int) -> None:
    """Raises for nesting that is too deep, and for text that has no encoding in UTF-8."""
    match value:
        case str():
            value.encode("utf-8")
        case dict() | list() if levels == 0:
            raise RecursionError
        case dict():
            for name, item in value.items():
                name.encode("utf-8")
                _check(item, levels - 1)
        case list():
            for item in value:
                _check(item, levels - 1)
        case _:
            pass


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant, strict=True
)


SPECVERSION = "1.0"
STRUCTURED = "application/cloudevents+json"
JSON = "application/json"
MSGPACK = "application/msgpack"
EVENT_BYTES_MAX = 256 * 1024
"""A whole event on the wire. The message in it has its own, lower limit."""
ATTRIBUTES_COUNT_MAX = 40
ATTRIBUTE_CHARS_MAX = 1_024
INTEGER_END = 2**31

Value = str | int | bool
_NAME = re.compile(r"[a-z0-9]{1,20}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_OWN = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_encoder = msgspec.json.Encoder()


class CloudEvent(Struct, frozen=True):
    """One event with its attributes. An empty text means that the attribute is missing."""

    id: str
    source: str
    type: str
    subject: str = ""
    time: str = ""
    datacontenttype: str = ""
    dataschema: str = ""
    data: Any = None
    """A JSON value; or bytes of the content type."""
    extensions: Mapping[str, Value] = {}

    def text(self, name: str) -> str:
        """An extension attribute as text; empty if missing."""
        return str(self.extensions.get(name, ""))

    def number(self, name: str) -> int | None:
        """An extension attribute as a number from 0 to 2**63 - 1; None if missing."""
        if name not in self.extensions:
            return None
        text = str(self.extensions[name])
        if _NUMBER.fullmatch(text) is None or int(text) >= 2**63:
            raise Malformed(f"the attribute {name}={text[:40]!r} is not a non-negative number")
        return int(text)


def trace_of(event: CloudEvent) -> TraceContext | None:
    """The trace context of an event: the extension for distributed tracing."""
    return read_context(event.text("traceparent"), event.text("tracestate"))


def trace_attributes(context: TraceContext) -> dict[str, str]:
    """The extension attributes for a trace context."""
    return {"traceparent": write_parent(context), "tracestate": write_state(context)}


# ---------------------------------------------------------------------- structured


def write_structured(event: CloudEvent) -> bytes:
    document: dict[str, Any] = {"specversion": SPECVERSION, **_attributes(event)}
    if isinstance(event.data, bytes):
        document["data_base64"] = base64.b64encode(event.data).decode()
    elif event.data is not None:
        document["data"] = event.data
    return _encoder.encode(document)


def read_structured(payload: bytes) -> CloudEvent:
    """Parses an event in one JSON text."""
    # Its data is one level deeper than that of a binary event, and may be nested as deep.
    document = read_json(payload, EVENT_BYTES_MAX, 1 + NESTING_MAX)
    if not isinstance(document, dict):
        raise Malformed("not a CloudEvent: a JSON object with specversion, id, source and type is")
    data = document.pop("data", None)
    encoded = document.pop("data_base64", None)
    if encoded is not None:
        if data is not None:
            raise Malformed("a CloudEvent has data or data_base64, never both")
        data = _from_base64(encoded)
    return _event({name: value for name, value in document.items() if value is not None}, data)


# ---------------------------------------------------------------------- binary


def write_binary(event: CloudEvent) -> tuple[bytes, str, tuple[tuple[str, str], ...]]:
    attributes = {"specversion": SPECVERSION, **_attributes(event)}
    content_type = attributes.pop("datacontenttype", "")
    if isinstance(event.data, bytes):
        payload = event.data
    elif event.data is None:
        payload = b""
    else:
        payload, content_type = _encoder.encode(event.data), content_type or JSON
    return payload, content_type, tuple((name, _as_text(value)) for name, value in attributes.items())


def read_binary(payload: bytes, content_type: str, properties: Sequence[tuple[str, str]]) -> CloudEvent:
    """Parses an event whose attributes are properties."""
    attributes: dict[str, Any] = {}
    for name, value in properties:
        if name in attributes:
            raise Malformed(f"the property {name[:100]!r} occurs twice")
        attributes[name] = value
    attributes.pop("datacontenttype", None)
    if content_type:
        attributes["datacontenttype"] = content_type
    if len(payload) > EVENT_BYTES_MAX:
        raise TooLarge(f"an event of {len(payload)} bytes, {EVENT_BYTES_MAX} at most")
    data: Any = payload or None
    if payload and is_json(content_type):
        data = read_json(payload, EVENT_BYTES_MAX)
    return _event(attributes, data)


def read_event(payload: bytes, content_type: str, properties: Sequence[tuple[str, str]]) -> CloudEvent:
    """Parses an event in either form: binary if it has a property `specversion`, structured otherwise."""
    structured = content_type.partition(";")[0].strip().lower() == STRUCTURED
    if not structured and any(name == "specversion" for name, _ in properties):
        return read_binary(payload, content_type, properties)
    return read_structured(payload)


def is_json(content_type: str) -> bool:
    """Whether data of this content type is JSON; an empty one means JSON, as the specification says."""
    media = content_type.partition(";")[0].strip().lower()
    return media in ("", JSON) or media.endswith("+json")


# ---------------------------------------------------------------------- messages as data


def data_of(body: bytes) -> tuple[str, str, Any]:
    """Tag, content type and data of a message: its fields as JSON if that is exact, else MessagePack."""
    try:
        fields = msgspec.msgpack.decode(body)
    except UNDECODABLE as error:
        raise Malformed(f"not a message: {error}") from None
    if not isinstance(fields, dict) or not isinstance(tag := fields.pop("type", None), str):
        raise Malformed("not a message: a map with its tag under 'type' is")
    if _json_says_all(fields, NESTING_MAX):
        return tag, JSON, fields
    return tag, MSGPACK, msgspec.msgpack.encode(fields)


def body_of(event: CloudEvent, tag: str) -> bytes:
    """The bytes of the message with this tag that an event carries."""
    fields = event.data
    if isinstance(fields, bytes):
        media = event.datacontenttype.partition(";")[0].strip().lower()
        if media != MSGPACK:
            raise Malformed(f"data of type {media or 'unknown'}; send {JSON}, or {MSGPACK} in data_base64")
        try:
            fields = msgspec.msgpack.decode(fields)
        except UNDECODABLE as error:
            raise Malformed(f"data is not MessagePack: {error}") from None
    if fields is None:
        fields = {}
    if not isinstance(fields, dict) or "type" in fields:
        raise Malformed("the data of a message is an object of its fields; its type is the attribute 'type'")
    return msgspec.msgpack.encode({"type": tag, **fields})


def _json_says_all(value: Any, levels: int) -> bool:
    match value:
        case None | bool() | str() | int():
            return True
        case float():
            return math.isfinite(value)
        case dict():
            return levels > 0 and all(
                isinstance(name, str) and _json_says_all(item, levels - 1) for name, item in value.items()
            )
        case list():
            return levels > 0 and all(_json_says_all(item, levels - 1) for item in value)
        case _:
            return False


# ---------------------------------------------------------------------- attributes


def _attributes(event: CloudEvent) -> dict[str, Any]:
    named = {name: getattr(event, name) for name in _OWN}
    return {**{name: value for name, value in named.items() if value}, **event.extensions}


def _event(attributes: dict[str, Any], data: Any) -> CloudEvent:
    version = attributes.pop("specversion", None)
    if version != SPECVERSION:
        shown = "no specversion" if version is None else f"specversion {str(version)[:20]!r}"
        raise Malformed(f"not a CloudEvent of version {SPECVERSION}: {shown}")
    if len(attributes) > ATTRIBUTES_COUNT_MAX:
        raise TooLarge(f"{len(attributes)} attributes, {ATTRIBUTES_COUNT_MAX} at most")
    for name, value in attributes.items():
        _check_attribute(name, value)
    for name in ("id", "source", "type"):
        if not attributes.get(name):
            raise Malformed(f"a CloudEvent without {name!r}; it needs id, source and type")
    own = {name: attributes.pop(name) for name in _OWN if name in attributes}
    return CloudEvent(data=data, extensions=attributes, **own)


def _check_attribute(name: str, value: Any) -> None:
    if _NAME.fullmatch(name) is None:
        raise Malformed(f"the attribute {name[:100]!r}: a name is 1 to 20 of a-z and 0-9")
    match value:
        case bool() if name not in _OWN:
            return
        case int() if name not in _OWN and -INTEGER_END <= value < INTEGER_END:
            return
        case str() if len(value) > ATTRIBUTE_CHARS_MAX:
            raise TooLarge(f"the attribute {name} has {len(value)} characters, {ATTRIBUTE_CHARS_MAX} at most")
        case str() if value.isprintable():
            return
        case _:
            raise Malformed(f"the attribute {name} is not printable text")


def _as_text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise Malformed("data_base64 is not base64") from None
