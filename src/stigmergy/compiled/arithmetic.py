"""What compiled code calls: small functions over numbers, compiled by numba and callable from plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from stigmergy.compiled import program

_F = TypeVar("_F", bound=Callable[..., Any])
_SMALL = 2**31
_INT_MIN = -(2**63)
_TAKEN, _KEPT, _ACTIONS, _OTHERS = program.TAKEN, program.KEPT, program.ACTIONS, program.OTHERS
_HALT, _SITE = program.HALT, program.SITE


def _compiled(function: _F) -> _F:
    made: Any = numba.njit(nogil=True, error_model="numpy", boundscheck=False, fastmath=False)(function)
    return cast("_F", made)


@_compiled
def add_overflows(a: int, b: int) -> bool:
    """Whether a + b has no place in i8."""
    wrapped = a + b
    return ((a ^ wrapped) & (b ^ wrapped)) < 0


@_compiled
def subtract_overflows(a: int, b: int) -> bool:
    """Whether a - b has no place in i8."""
    wrapped = a - b
    return ((a ^ b) & (a ^ wrapped)) < 0


@_compiled
def multiply_overflows(a: int, b: int) -> bool:
    """Whether a * b has no place in i8. Divides only where a factor is large, which is rare."""
    if -_SMALL <= a < _SMALL and -_SMALL <= b < _SMALL:
        return False
    if a == 0 or b == 0:
        return False
    if a == -1:
        return b == _INT_MIN
    if b == -1:
        return a == _INT_MIN
    wrapped = a * b
    return wrapped % b != 0 or wrapped // b != a


@_compiled
def remainder(a: int, b: int) -> int:
    """Python's a % b for b that is not 0; the processor's own fails at -2^63 % -1."""
    if b == -1:
        return 0
    return a % b


@_compiled
def finish(result: Any, taken: int, kept: int, actions: int, others: int, halt: int, site: int) -> None:
    """Says how far a call came and why it ended there."""
    result[_TAKEN] = taken
    result[_KEPT] = kept
    result[_ACTIONS] = actions
    result[_OTHERS] = others
    result[_HALT] = halt
    result[_SITE] = site
