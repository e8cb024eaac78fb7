"""CloudEvents 1.0: both forms say the same, and nothing that is not one gets in."""

import base64
import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Event
from stigmergy.base.errors import Malformed, StigmergyError, TooLarge
from stigmergy.bus.cloudevents import (
    ATTRIBUTE_CHARS_MAX,
    ATTRIBUTES_COUNT_MAX,
    EVENT_BYTES_MAX,
    JSON,
    MSGPACK,
    NESTING_MAX,
    STRUCTURED,
    CloudEvent,
    Value,
    body_of,
    data_of,
    is_json,
    read_binary,
    read_event,
    read_structured,
    write_binary,
    write_structured,
)

texts = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=30)
values = st.booleans() | st.integers(-(2**31), 2**31 - 1) | texts
RESERVED = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data")


def is_free(name: str) -> bool:
    return name not in RESERVED


names = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(is_free)
json_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def events(draw: st.DrawFn) -> CloudEvent:
    binary = draw(st.booleans())
    return CloudEvent(
        id=draw(texts),
        source=draw(texts),
        type=draw(texts),
        subject=draw(texts | st.just("")),
        time=draw(texts | st.just("")),
        dataschema=draw(texts | st.just("")),
        datacontenttype=MSGPACK if binary else JSON,
        data=draw(st.binary(min_size=1, max_size=20)) if binary else draw(json_values),
        extensions=draw(st.dictionaries(names, values, max_size=4)),
    )


@given(events())
def test_structured_says_everything(event: CloudEvent) -> None:
    assert read_structured(write_structured(event)) == event
    assert read_event(write_structured(event), STRUCTURED + "; charset=utf-8", ()) == event
    assert read_event(write_structured(event), "", ()) == event


def test_an_event_without_data_has_none() -> None:
    event = CloudEvent(id="1", source="a", type="T")
    assert read_structured(write_structured(event)) == event


@given(events())
def test_binary_says_everything_as_texts(event: CloudEvent) -> None:
    payload, content_type, properties = write_binary(event)
    read = read_event(payload, content_type, properties)
    assert read == msgspec.structs.replace(event, extensions={n: as_text(v) for n, v in event.extensions.items()})


def as_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def document(**changes: Any) -> bytes:
    whole = {"specversion": "1.0", "id": "1", "source": "/a", "type": "T@1", **changes}
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def test_a_known_text_is_what_the_specification_says() -> None:
    event = CloudEvent(
        id="7.0.41.0",
        source="/delivery/north/agents/Drone/D-17",
        type="BatteryMeasured@1",
        subject="Drone/D-17",
        datacontenttype=JSON,
        data={"percent": 87.5},
        extensions={"sequence": "41"},
    )
    assert json.loads(write_structured(event)) == {
        "specversion": "1.0",
        "id": "7.0.41.0",
        "source": "/delivery/north/agents/Drone/D-17",
        "type": "BatteryMeasured@1",
        "subject": "Drone/D-17",
        "datacontenttype": "application/json",
        "sequence": "41",
        "data": {"percent": 87.5},
    }
    payload, content_type, properties = write_binary(event)
    assert (payload, content_type) == (b'{"percent":87.5}', "application/json")
    assert dict(properties)["specversion"] == "1.0"
    assert dict(properties)["sequence"] == "41"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"specversion": ...}, "no specversion"),
        ({"specversion": "0.3"}, "'0.3'"),
        ({"specversion": 1.0}, "'1.0'"),
        ({"id": ...}, "without 'id'"),
        ({"id": ""}, "without 'id'"),
        ({"source": None}, "without 'source'"),
        ({"type": 7}, "type is not printable text"),
        ({"Bad": "x"}, "'Bad'"),
        ({"under_score": "x"}, "'under_score'"),
        ({"a" * 21: "x"}, "1 to 20"),
        ({"extra": [1]}, "extra is not printable text"),
        ({"extra": 2**31}, "extra is not printable text"),
        ({"extra": 0.5}, "extra is not printable text"),
        ({"subject": "a\nb"}, "subject is not printable text"),
        ({"data": 1, "data_base64": "YQ=="}, "never both"),
        ({"data_base64": "?"}, "not base64"),
        ({"data_base64": 7}, "not base64"),
        ({"data_base64": "é"}, "not base64"),
    ],
)
def test_what_is_no_cloudevent_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_structured(document(**changes))


def test_bounds_of_structured() -> None:
    assert read_structured(document(subject="x" * ATTRIBUTE_CHARS_MAX)).subject
    with pytest.raises(TooLarge, match="1025 characters"):
        read_structured(document(subject="x" * (ATTRIBUTE_CHARS_MAX + 1)))
    many = {f"a{number}": True for number in range(ATTRIBUTES_COUNT_MAX)}
    with pytest.raises(TooLarge, match="attributes"):
        read_structured(document(**many))
    with pytest.raises(TooLarge, match="bytes of JSON"):
        read_structured(document(data="x" * EVENT_BYTES_MAX))
    with pytest.raises(Malformed, match="a JSON object"):
        read_structured(b"[]")
    with pytest.raises(Malformed, match="twice"):
        read_structured(b'{"specversion":"1.0","specversion":"1.0"}')


def test_an_event_at_its_limits_is_taken() -> None:
    many = {f"a{number}": True for number in range(ATTRIBUTES_COUNT_MAX - 3)}
    assert len(read_structured(document(**many)).extensions) == ATTRIBUTES_COUNT_MAX - 3
    with pytest.raises(TooLarge, match="41 attributes, 40 at most"):
        read_structured(document(**many, more=True))
    frame_bytes = len(document(data=""))
    assert len(read_structured(document(data="x" * (EVENT_BYTES_MAX - frame_bytes))).data) > 200_000
    with pytest.raises(TooLarge, match=f"{EVENT_BYTES_MAX + 1} bytes of JSON, {EVENT_BYTES_MAX} at most"):
        read_structured(document(data="x" * (EVENT_BYTES_MAX - frame_bytes + 1)))
    assert read_structured(document(**{"a" * 20: "x"})).text("a" * 20) == "x"
    properties = (("specversion", "1.0"), ("id", "1"), ("source", "/a"), ("type", "T"))
    assert len(read_binary(b"x" * EVENT_BYTES_MAX, "image/png", properties).data) == EVENT_BYTES_MAX
    with pytest.raises(TooLarge, match=f"an event of {EVENT_BYTES_MAX + 1} bytes"):
        read_binary(b"x" * (EVENT_BYTES_MAX + 1), "image/png", properties)


@pytest.mark.parametrize(("last", "beyond"), [(2**31 - 1, 2**31), (-(2**31), -(2**31) - 1)])
def test_whole_numbers_of_an_event_have_32_bits(last: int, beyond: int) -> None:
    assert read_structured(document(extra=last)).extensions == {"extra": last}
    with pytest.raises(Malformed, match="extra is not printable text"):
        read_structured(document(extra=beyond))
    with pytest.raises(Malformed, match="subject is not printable text"):
        read_structured(document(subject=1))
    with pytest.raises(Malformed, match="subject is not printable text"):
        read_structured(document(subject=True))


def test_what_is_said_of_a_bad_event_stays_short() -> None:
    with pytest.raises(Malformed, match=f"the attribute '{'B' * 100}': a name"):
        read_structured(document(**{"B" * 150: "x"}))
    with pytest.raises(Malformed, match=f"specversion '{'9' * 20}'$"):
        read_structured(document(specversion="9" * 50))
    with pytest.raises(Malformed, match=f"the property '{'p' * 100}' occurs twice"):
        read_binary(b"", "", (("p" * 150, "1"), ("p" * 150, "2")))
    with pytest.raises(Malformed, match=f"the attribute seq='{'7' * 40}' is not a non-negative number"):
        read_structured(document(seq="7" * 50)).number("seq")


def test_bounds_of_binary() -> None:
    properties = (("specversion", "1.0"), ("id", "1"), ("source", "/a"), ("type", "T"))
    assert read_binary(b"", "", properties).data is None
    assert read_binary(b"1", "text/x+json", (*properties, ("datacontenttype", "ignored"))).data == 1
    assert read_binary(b"\x00", "image/png", properties).data == b"\x00"
    with pytest.raises(Malformed, match="twice"):
        read_binary(b"", "", (*properties, ("id", "2")))
    with pytest.raises(TooLarge):
        read_binary(b"x" * (EVENT_BYTES_MAX + 1), "image/png", properties)
    payload, content_type, _ = write_binary(CloudEvent(id="1", source="a", type="T"))
    assert (payload, content_type) == (b"", "")
    assert write_binary(CloudEvent(id="1", source="a", type="T", data=1))[1] == JSON


def test_numbers_are_texts_or_numbers_and_nothing_else() -> None:
    event = read_structured(document(sequence="41", epoch=2, large="9223372036854775808", odd="007", minus=-1))
    last = read_structured(document(last="9223372036854775807", zero="0", longer="92233720368547758070"))
    assert (last.number("last"), last.number("zero")) == (2**63 - 1, 0)
    with pytest.raises(Malformed, match="longer"):
        last.number("longer")
    with pytest.raises(Malformed, match="most"):
        read_structured(document(most="9999999999999999999")).number("most")
    assert event.number("sequence") == 41
    assert event.number("epoch") == 2
    assert event.number("absent") is None
    assert event.text("epoch") == "2"
    assert event.text("absent") == ""
    for name in ("large", "odd", "minus"):
        with pytest.raises(Malformed, match=name):
            event.number(name)


class Measured(Event):
    percent: float
    raw: bytes = b""
    note: str = ""


def cloud(data: Any, content_type: str = JSON) -> CloudEvent:
    return CloudEvent(id="1", source="a", type="T", data=data, datacontenttype=content_type)


@pytest.mark.parametrize(
    ("message", "content_type"),
    [
        (Measured(percent=12.0, note="é"), MSGPACK),
        (Measured(percent=math.inf, raw=b"\x00"), MSGPACK),
    ],
)
def test_a_message_survives_either_way(message: Measured, content_type: str) -> None:
    tag, found, data = data_of(encode(message))
    assert (tag, found) == ("Measured@1", content_type)
    body = body_of(cloud(data, found), tag)
    assert msgspec.msgpack.decode(body, type=Measured) == message


def test_plain_fields_go_as_json_and_come_back_to_the_same_bytes() -> None:
    body = msgspec.msgpack.encode({"type": "T@1", "a": [1, 2.0, None, True, {"b": "c"}]})
    tag, content_type, data = data_of(body)
    assert (content_type, data) == (JSON, {"a": [1, 2.0, None, True, {"b": "c"}]})
    event = read_structured(write_structured(cloud(data)))
    assert body_of(event, tag) == body
    assert body_of(cloud(None), "T@1") == msgspec.msgpack.encode({"type": "T@1"})


@pytest.mark.parametrize("field", [{1: 2}, [math.nan], {"a": b""}])
def test_what_json_cannot_say_goes_as_messagepack(field: Any) -> None:
    body = msgspec.msgpack.encode({"type": "T@1", "f": field})
    assert data_of(body)[1] == MSGPACK


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_data_goes_as_json_as_deep_as_json_is_read(wrap: Any) -> None:
    deep: Any = 1
    for _ in range(NESTING_MAX - 1):
        deep = wrap(deep)
    tag, content_type, data = data_of(msgspec.msgpack.encode({"type": "T@1", "f": deep}))
    assert content_type == JSON
    assert body_of(read_structured(write_structured(cloud(data, content_type))), tag)
    with pytest.raises(Malformed, match="nested deeper"):
        read_structured(write_structured(cloud(wrap(data), content_type)))
    assert data_of(msgspec.msgpack.encode({"type": "T@1", "f": wrap(deep)}))[1] == MSGPACK


def test_the_content_type_tells_structured_from_binary() -> None:
    event = cloud({"a": 1})
    properties = (("specversion", "1.0"), ("id", "2"), ("source", "b"), ("type", "U"))
    for content_type in (STRUCTURED, f" {STRUCTURED.upper()} ; charset=utf-8", f"{STRUCTURED};a;b"):
        assert read_event(write_structured(event), content_type, properties) == event
    for content_type in (JSON, f"{JSON};a={STRUCTURED}"):
        assert read_event(b'{"b":2}', content_type, properties).data == {"b": 2}
    assert read_event(write_structured(event), JSON, (("other", "1.0"),)) == event


@pytest.mark.parametrize(
    ("content_type", "known"),
    [
        ("", True),
        (JSON, True),
        ("Application/JSON; charset=utf-8", True),
        ("text/x+json;a;b", True),
        (f"image/png; {JSON}", False),
        ("application/jso", False),
        ("application/jsonx", False),
        (MSGPACK, False),
    ],
)
def test_which_content_is_json(content_type: str, known: bool) -> None:
    assert is_json(content_type) == known


@pytest.mark.parametrize("content_type", ["", "application/aaa", "image/png", f"x/y; {MSGPACK}"])
def test_bytes_of_another_type_are_no_message(content_type: str) -> None:
    fields = msgspec.msgpack.encode({"a": 1})
    assert body_of(cloud(fields, f"{MSGPACK.upper()}; a=b"), "T@1") == msgspec.msgpack.encode({"type": "T@1", "a": 1})
    with pytest.raises(Malformed, match="data of type"):
        body_of(cloud(fields, content_type), "T@1")


def test_deep_data_goes_as_messagepack() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert data_of(msgspec.msgpack.encode({"type": "T@1", "f": deep}))[1] == MSGPACK
    for _ in range(40):
        deep = {"a": deep}
    assert data_of(msgspec.msgpack.encode({"type": "T@1", "f": deep}))[1] == MSGPACK


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\x01", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode({"type": 1})]
)
def test_what_is_no_message_is_not_sent(body: bytes) -> None:
    with pytest.raises(Malformed, match="not a message"):
        data_of(body)


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (b"x", "image/png"),
        (b"x", ""),
        (b"\xc1", MSGPACK),
        ([1], JSON),
        ({"type": "Other@1"}, JSON),
        (msgspec.msgpack.encode([1]), MSGPACK),
    ],
)
def test_data_that_is_no_message_is_refused(data: Any, content_type: str) -> None:
    with pytest.raises(Malformed):
        body_of(cloud(data, content_type), "T@1")


@given(st.binary(max_size=100), st.sampled_from(["", JSON, MSGPACK, STRUCTURED, "x/y"]), st.booleans())
def test_no_bytes_raise_anything_but_ours(payload: bytes, content_type: str, binary: bool) -> None:
    properties = (("specversion", "1.0"), ("id", "1"), ("source", "a"), ("type", "T")) if binary else ()
    with contextlib.suppress(StigmergyError):
        event = read_event(payload, content_type, properties)
        body_of(event, "T@1")


@given(st.binary(max_size=60))
def test_no_messagepack_raises_anything_but_ours(payload: bytes) -> None:
    encoded = base64.b64encode(payload).decode()
    with contextlib.suppress(StigmergyError):
        body_of(read_structured(document(data_base64=encoded, datacontenttype=MSGPACK)), "T@1")
