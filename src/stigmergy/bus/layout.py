"""The declared layout of a device's binary payload: which numbers it has, in which order, of which type. Pure.

    READING = PayloadLayout(number="u4", co="f4", humidity="f4", spectrum="f4[16]")
    fleet.device("sensor/{id}/raw", to="GasSensor/{id}", event=Sampled, layout=READING)

A type is a letter and a size in bytes, as numpy writes it: `f4 f8` floats, `i1 i2 i4 i8` and `u1 u2 u4 u8` integers.
They are little-endian; `>f4` is big-endian. `f4[16]` is an array, and becomes a tuple. There is no padding. A payload
of any other length is Malformed, and so is one with NaN or infinity: what a broken sensor says must not become a fact.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any, Final

from stigmergy.base.errors import DefinitionError, Malformed

LAYOUT_BYTES_MAX: Final = 32_768
"""A message has to hold the values in MessagePack, which takes up to 9 bytes for 4 of the payload."""
_CODES: Final = {
    "f4": "f",
    "f8": "d",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
}
_TYPE = re.compile(r"([<>]?)([fiu][1248])(?:\[([1-9][0-9]{0,4})\])?")


class _Field:
    """One field of a layout: where its numbers are."""

    def __init__(self, name: str, text: str) -> None:
        found = _TYPE.fullmatch(str(text))
        if found is None or found[2] not in _CODES:
            known = ", ".join(_CODES)
            raise DefinitionError(
                f"PayloadLayout: {name}={text!r} is not a type; give {known}, > before it or [count] after it"
            )
        self.name = name
        self.is_array = found[3] is not None
        self.packing = struct.Struct(f"{found[1] or '<'}{found[3] or 1}{_CODES[found[2]]}")

    def read(self, payload: bytes, start: int) -> Any:
        numbers = self.packing.unpack_from(payload, start)
        for number in numbers:
            if not math.isfinite(number):
                raise Malformed(f"{self.name!r} is {number}; a reading is a finite number")
        return numbers if self.is_array else numbers[0]

    def write(self, value: Any) -> bytes:
        return self.packing.pack(*value) if self.is_array else self.packing.pack(value)


class PayloadLayout:
    """The fields of a payload, in order. It is a constant: declare it once and share it."""

    def __init__(self, **fields: str) -> None:
        if not fields:
            raise DefinitionError('PayloadLayout: give at least one field, such as PayloadLayout(co="f4")')
        self._fields = tuple(_Field(name, text) for name, text in fields.items())
        self.size_bytes = sum(one.packing.size for one in self._fields)
        """Of every payload."""
        if self.size_bytes > LAYOUT_BYTES_MAX:
            raise DefinitionError(f"PayloadLayout: {self.size_bytes} bytes, {LAYOUT_BYTES_MAX} at most; use a blob")

    @property
    def names(self) -> tuple[str, ...]:
        """Its fields."""
        return tuple(one.name for one in self._fields)

    def read(self, payload: bytes) -> dict[str, Any]:
        """The values by name. Raises Malformed with the reason."""
        if len(payload) != self.size_bytes:
            raise Malformed(
                f"{len(payload)} bytes; the declared layout ({', '.join(self.names)}) has {self.size_bytes}"
            )
        values: dict[str, Any] = {}
        start = 0
        for one in self._fields:
            values[one.name] = one.read(payload, start)
            start += one.packing.size
        return values

    def write(self, **values: Any) -> bytes:
        """The payload of these values: for devices written in Python, and tests."""
        if sorted(values) != sorted(self.names):
            raise Malformed(f"the values are {', '.join(values)}; the declared layout has {', '.join(self.names)}")
        try:
            return b"".join(one.write(values[one.name]) for one in self._fields)
        except (struct.error, OverflowError, TypeError) as error:
            raise Malformed(f"the values do not fit the declared layout: {error}") from None
