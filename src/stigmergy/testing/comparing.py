"""Compares a field of an agent with a plain value: a shared set with a set, a claim with whether it is held."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stigmergy.core.claiming import Claim
from stigmergy.crdt.flags import DisableWinsFlag, EnableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.crdt.value import SharedValue


def has_value(field: Any, expected: object, now_ns: int) -> bool:
    """Whether the field is what is expected. Of a claim `True` and `False` say whether it is held at this time."""
    if isinstance(expected, SharedValue | Claim):
        return bool(field == expected)
    match field:
        case Claim():
            return isinstance(expected, bool) and (now_ns < field.until_ns) == expected
        case ORSet():
            return _has_all(field, len(field), expected)
        case MVRegister():
            return _has_all(field.values, len(field.values), expected)
        case ORMap():
            return (
                isinstance(expected, Mapping)
                and len(field) == len(expected)
                and all(key in field and has_value(field[key], value, now_ns) for key, value in expected.items())
            )
        case EnableWinsFlag() | DisableWinsFlag():
            return isinstance(expected, bool) and bool(field) == expected
        case GCounter() | PNCounter() | LWWRegister():
            return bool(field.value == expected)
        case _:
            return bool(field == expected)


def _has_all(field: Any, count: int, expected: object) -> bool:
    """In which order they are named does not matter: a shared set has none."""
    if isinstance(expected, str) or not isinstance(expected, Collection):
        return False
    return count == len(expected) and all(one in field for one in expected)
