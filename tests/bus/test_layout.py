"""Binary payloads of devices: what a declared layout reads, and what it refuses."""

import math
import struct
from typing import Any

import pytest
from hypothesis import given, strategies

from stigmergy import Agent, Event, PayloadLayout, evolve
from stigmergy.base.errors import DefinitionError, Malformed
from stigmergy.bus.mapping import read_device_event
from stigmergy.node.declaration import Declaration

READING = PayloadLayout(number="u4", co="f4", humidity=">f8", spectrum="f4[3]")


class Sampled(Event):
    number: int
    co: float
    spectrum: tuple[float, ...] = ()


class GasSensor(Agent):
    co: float = 0.0

    @evolve
    def sampled(self, event: Sampled) -> None:
        self.co = event.co


def fleet(**options: Any) -> Declaration:
    declared = Declaration("city", agents=[GasSensor])
    declared.device("sensor/{id}/raw", to="GasSensor/{id}", event=Sampled, **options)
    return declared


def test_a_payload_is_an_event() -> None:
    payload = struct.pack("<If", 7, 1200.5) + struct.pack(">d", 48.9) + struct.pack("<3f", 1.0, 2.0, 3.0)
    assert READING.size_bytes == len(payload) == 28
    (spec,) = fleet(layout=READING).device_events
    event = Sampled(number=7, co=1200.5, spectrum=(1.0, 2.0, 3.0))
    assert read_device_event(spec, {"id": "42"}, payload) == ("GasSensor/42", event)


def test_a_field_may_have_another_name() -> None:
    (spec,) = fleet(layout=PayloadLayout(n="u1", s1="f4"), fields={"number": "n", "co": "s1"}).device_events
    assert read_device_event(spec, {"id": "42"}, b"\x05" + struct.pack("<f", 0.5))[1] == Sampled(number=5, co=0.5)


@given(strategies.binary(max_size=64))
def test_any_other_length_is_refused(payload: bytes) -> None:
    if len(payload) == READING.size_bytes:
        return
    with pytest.raises(Malformed, match=f"{len(payload)} bytes; the declared layout .* has 28"):
        READING.read(payload)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_refused(wrong: float) -> None:
    payload = struct.pack("<If", 7, 1.0) + struct.pack(">d", 1.0) + struct.pack("<3f", 1.0, wrong, 3.0)
    with pytest.raises(Malformed, match=r"'spectrum' is .*; a reading is a finite number"):
        READING.read(payload)


@given(
    strategies.integers(0, 2**32 - 1),
    strategies.floats(width=32, allow_nan=False, allow_infinity=False),
    strategies.floats(allow_nan=False, allow_infinity=False),
)
def test_what_is_written_is_read(number: int, co: float, humidity: float) -> None:
    values = {"number": number, "co": co, "humidity": humidity, "spectrum": (co, co, co)}
    assert READING.read(READING.write(**values)) == values


def test_values_that_do_not_fit_are_refused() -> None:
    layout = PayloadLayout(a="u1")
    for values in ({"a": 256}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}):
        with pytest.raises(Malformed):
            layout.write(**values)


@pytest.mark.parametrize("text", ["", "f2", "f16", "x4", "f4[0]", "f4[]", "=f4", 4])
def test_a_type_that_there_is_not_is_refused(text: Any) -> None:
    with pytest.raises(DefinitionError, match="is not a type; give f4, f8"):
        PayloadLayout(a=text)


def test_a_layout_has_fields_and_a_bound() -> None:
    with pytest.raises(DefinitionError, match="at least one field"):
        PayloadLayout()
    with pytest.raises(DefinitionError, match="at most; use a blob"):
        PayloadLayout(a="f8[9999]")


def test_a_device_declares_a_layout_that_fits_its_event() -> None:
    with pytest.raises(DefinitionError, match=r"Sampled\.co is not in the layout, which has number"):
        fleet(layout=PayloadLayout(number="u4"))
    with pytest.raises(DefinitionError, match=r"give PayloadLayout\("):
        fleet(layout="f4")
