"""Ids of commands that carry the time at which they were made: UUIDs of version 7 (RFC 9562).

Pure: time and randomness are arguments. An id with its time can be judged after it was forgotten: it is older than what
is remembered, so it is refused and not done again. `shard/memory.py` has the rules.
"""

from __future__ import annotations

import re

MILLISECOND_NS = 1_000_000
PLAUSIBLE_MS_MIN = 1_577_836_800_000
"""2020-01-01. A device without a battery for its clock boots in 1970: ids of such a time say nothing of their age."""
RANDOM_BYTES = 10
"""How many random bytes a new id takes."""
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


def new_command_id(wall_ns: int, random: bytes) -> str:
    """A UUIDv7 of this time (nanoseconds since 1970) from `RANDOM_BYTES` random bytes.

    Of a clock that cannot be right it carries the time all the same, and counts as opaque.
    """
    time_ms = max(0, wall_ns // MILLISECOND_NS) & 0xFFFF_FFFF_FFFF
    value = time_ms << 80 | int.from_bytes(random[:RANDOM_BYTES], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def time_ms_of(command_id: str) -> int | None:
    """The time that an id carries, in milliseconds since 1970; None for an opaque one."""
    found = _UUID7.fullmatch(command_id)
    time_ms = 0 if found is None else int(found[1] + found[2], 16)
    return time_ms if time_ms >= PLAUSIBLE_MS_MIN else None
