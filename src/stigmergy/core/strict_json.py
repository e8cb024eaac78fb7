"""Reads JSON from strangers: what two readers could take for different things is refused, and everything is bounded.

Python's reader takes a key twice, NaN, infinities, numbers of any size and nesting up to its stack. This one does not.
"""

from __future__ import annotations

import json
import math
from typing import Any

from stigmergy.core.errors import Malformed, TooLarge

NESTING_MAX = 32
INTEGER_MAX = 2**63


def read_json(data: bytes, bytes_max: int, nesting_max: int = NESTING_MAX) -> Any:
    """The value of a JSON text in UTF-8. Raises TooLarge or Malformed with what is wrong with it."""
    if len(data) > bytes_max:
        raise TooLarge(f"{len(data)} bytes of JSON, {bytes_max} at most")
    try:
        value = _decoder.decode(data.decode("utf-8"))
        _check(value, nesting_max)
    except RecursionError:
        raise Malformed(f"not JSON that is read here: nested deeper than {nesting_max} levels") from None
    except ValueError as error:
        raise Malformed(f"not JSON that is read here: {error}") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:100]!r} is there twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -INTEGER_MAX <= (value := int(digits)) < 2 * INTEGER_MAX:
        raise ValueError("a whole number that 64 bits do not hold")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number that is too large")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _check(value: Any, levels: int) -> None:
    """Raises for what is nested too deep, and for text that has no bytes in UTF-8."""
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
