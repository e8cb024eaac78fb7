"""A decoder for MessagePack, written from its specification and docs/formats.md; it shares no code with stigmergy.

What it reads, somebody else's program can read too. It reads what docs/formats.md says we write, and nothing more.
"""

from __future__ import annotations

import struct
from typing import Any


def decode(data: bytes) -> Any:
    """The one value that these bytes are."""
    value, end = _value(data, 0)
    assert end == len(data), f"{len(data) - end} bytes behind the value"
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    first, at = data[at], at + 1
    match first:
        case _ if first <= 0x7F:
            return first, at
        case _ if first >= 0xE0:
            return first - 0x100, at
        case _ if 0x80 <= first <= 0x8F:
            return _map(data, at, first & 0x0F)
        case _ if 0x90 <= first <= 0x9F:
            return _array(data, at, first & 0x0F)
        case _ if 0xA0 <= first <= 0xBF:
            return data[at : at + (first & 0x1F)].decode(), at + (first & 0x1F)
        case 0xC0:
            return None, at
        case 0xC2 | 0xC3:
            return first == 0xC3, at
        case 0xC4 | 0xC5 | 0xC6:
            size, at = _number(data, at, 1 << (first - 0xC4))
            return data[at : at + size], at + size
        case 0xCB:
            return struct.unpack_from(">d", data, at)[0], at + 8
        case 0xCC | 0xCD | 0xCE | 0xCF:
            return _number(data, at, 1 << (first - 0xCC))
        case 0xD0 | 0xD1 | 0xD2 | 0xD3:
            return _number(data, at, 1 << (first - 0xD0), signed=True)
        case 0xD9 | 0xDA | 0xDB:
            size, at = _number(data, at, 1 << (first - 0xD9))
            return data[at : at + size].decode(), at + size
        case 0xDC | 0xDD:
            count, at = _number(data, at, 2 << (first - 0xDC))
            return _array(data, at, count)
        case 0xDE | 0xDF:
            count, at = _number(data, at, 2 << (first - 0xDE))
            return _map(data, at, count)
        case _:
            raise ValueError(f"{first:#x}: docs/formats.md does not say that we write this")


def _number(data: bytes, at: int, size: int, *, signed: bool = False) -> tuple[int, int]:
    return int.from_bytes(data[at : at + size], "big", signed=signed), at + size


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    for _ in range(count):
        item, at = _value(data, at)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    items: dict[Any, Any] = {}
    for _ in range(count):
        key, at = _value(data, at)
        items[key], at = _value(data, at)
    return items, at
