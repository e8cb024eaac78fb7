"""What one write puts into one place: nothing, a total, a value, or a value with its stamp. The first byte says which.

(nothing)                        presence: an element of a set, a flag
01 total                         a counter: the total of its replica; a MessagePack int
02 stamp value                   a last-writer-wins register: 8 bytes, big-endian, then the value
03 value                         a register or flag that keeps concurrent writes
"""

from __future__ import annotations

from typing import Final

import msgspec

from stigmergy.crdt.bounds import COUNTER_MAX, PAYLOAD_BYTES_MAX

PRESENCE: Final = b""
TOTAL: Final = 1
STAMPED: Final = 2
VALUE: Final = 3
STAMP_BYTES: Final = 8

_encode = msgspec.msgpack.Encoder().encode
_decode_int = msgspec.msgpack.Decoder(int).decode
_TOTAL_BYTE, _STAMPED_BYTE, _VALUE_BYTE = bytes([TOTAL]), bytes([STAMPED]), bytes([VALUE])


def total_payload(total: int) -> bytes:
    """A counter's total; within 63 bits and a sign."""
    return _TOTAL_BYTE + _encode(total)


def total_of(payload: bytes) -> int:
    """The total in such a payload."""
    return _decode_int(payload[1:])


def value_payload(value: bytes) -> bytes:
    """A value that stands beside concurrent ones."""
    return _VALUE_BYTE + value


def unstamped_payload(value: bytes) -> bytes:
    """A value that is given its stamp when it is minted."""
    return _STAMPED_BYTE + value


def stamped(payload: bytes, stamp_ns: int) -> bytes:
    """The same with its stamp."""
    return _STAMPED_BYTE + stamp_ns.to_bytes(STAMP_BYTES) + payload[1:]


def stamp_of(payload: bytes) -> int:
    """The stamp in a stamped payload, in ns."""
    return int.from_bytes(payload[1 : 1 + STAMP_BYTES])


def stamped_value(payload: bytes) -> bytes:
    """The value in a stamped payload."""
    return payload[1 + STAMP_BYTES :]


def plain_value(payload: bytes) -> bytes:
    """The value in a payload that has no stamp."""
    return payload[1:]


def fault_of(payload: bytes) -> str | None:
    """What is wrong with the payload as such, whatever the type; none if nothing is."""
    if not payload:
        return None
    if len(payload) > PAYLOAD_BYTES_MAX:
        return f"a payload of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX}"
    match payload[0]:
        case 1:
            return _fault_of_total(payload)
        case 2:
            if len(payload) < STAMP_BYTES + 2:
                return "a stamped payload without a value"
            return None if stamp_of(payload) <= COUNTER_MAX else "a stamp of more than 63 bits"
        case 3:
            return None if len(payload) > 1 else "a payload without a value"
        case other:
            return f"a payload of kind {other}, which there is not"


def _fault_of_total(payload: bytes) -> str | None:
    try:
        total = total_of(payload)
    except msgspec.DecodeError as error:
        return f"a total that is no int: {error}"
    if not -COUNTER_MAX <= total <= COUNTER_MAX:
        return f"a total of {total}, more than 63 bits"
    return None if total_payload(total) == payload else "a total that is not in its shortest form"
