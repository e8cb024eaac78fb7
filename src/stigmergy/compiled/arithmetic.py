"""Functions that compiled code calls: small, over numbers, compiled by numba and callable from plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending

from stigmergy.compiled import program

_F = TypeVar("_F", bound=Callable[..., Any])
_TAKEN, _KEPT, _ACTIONS, _OTHERS = program.TAKEN, program.KEPT, program.ACTIONS, program.OTHERS
_HALT, _SITE = program.HALT, program.SITE


def _compiled(function: _F) -> _F:
    made: Any = numba.njit(nogil=True, error_model="numpy", boundscheck=False, fastmath=False)(function)
    return cast("_F", made)


def _with_overflow(operation: str) -> Any:
    """The processor's own operation that says whether its result has no place in i8.

    numba's + - * promise the optimizer that they never overflow, so that no check after them can be relied on.
    """

    def typed(_: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pair = getattr(builder, operation)(*arguments)
            parts = [builder.extract_value(pair, index) for index in range(2)]
            return context.make_tuple(builder, signature.return_type, parts)

        del a, b
        types: Any = numba.types
        return types.Tuple((types.int64, types.boolean))(types.int64, types.int64), generate

    return numba.extending.intrinsic(typed)


_added = _with_overflow("sadd_with_overflow")
_subtracted = _with_overflow("ssub_with_overflow")
_multiplied = _with_overflow("smul_with_overflow")


@_compiled
def add(a: int, b: int) -> tuple[int, bool]:
    """A + b, and whether that has no place in i8."""
    made: tuple[int, bool] = _added(a, b)
    return made


@_compiled
def subtract(a: int, b: int) -> tuple[int, bool]:
    """A - b, and whether that has no place in i8."""
    made: tuple[int, bool] = _subtracted(a, b)
    return made


@_compiled
def multiply(a: int, b: int) -> tuple[int, bool]:
    """A * b, and whether that has no place in i8."""
    made: tuple[int, bool] = _multiplied(a, b)
    return made


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
