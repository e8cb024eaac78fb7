"""Faults: what compiled code reports when it halts. The texts are those of the interpreted engine.

Where Python itself raises, its own exception is made by repeating the failing operation: the wording differs between
versions.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import struct
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from stigmergy.base.errors import Bug, DefinitionError

NameOf = Callable[[int], str]
Make = Callable[[bytes, int, NameOf], Exception]
INT_MIN = -(2**63)
INT_MAX = 2**63 - 1

_INT_OUTSIDE = "an int outside of -2^63 to 2^63 - 1"
_FLOAT_OUTSIDE = "a float outside of -2^63 to 2^63 - 1, made an int"


def int_outside() -> Exception:
    """A sum, difference, product or quotient of ints has no place in 8 bytes."""
    return OverflowError(_INT_OUTSIDE)


def float_outside() -> Exception:
    """A float that was to become an int is too large for one."""
    return OverflowError(_FLOAT_OUTSIDE)


def stored_int_outside(owner: str, field: str, low: int, high: int) -> Exception:
    """An int was stored in a field that is narrower, or has bounds."""
    return OverflowError(f"{owner}.{field}: outside of {low} to {high}")


def stored_float_outside(owner: str, field: str) -> Exception:
    """A float was stored in a field with bounds that do not allow it."""
    return ValueError(f"{owner}.{field}: outside of its bounds")


def float_divided_by_zero() -> Exception:
    """A float divided by zero."""
    return _raised(lambda zero: 1.0 / zero)


def divided_by_zero() -> Exception:
    """An int divided by zero, rounded down."""
    return _raised(lambda zero: 1 // int(zero))


def remainder_by_zero() -> Exception:
    """The remainder of an int divided by zero."""
    return _raised(lambda zero: 1 % int(zero))


def int_of_nan() -> Exception:
    """NaN made an int."""
    return _raised(lambda _: int(math.nan))


def int_of_infinity() -> Exception:
    """An infinity made an int."""
    return _raised(lambda _: int(math.inf))


def root_of_negative() -> Exception:
    """The square root of a negative number."""
    return _raised(lambda zero: math.sqrt(zero - 1.0))


def index_outside() -> Exception:
    """An index outside of a tuple."""
    empty: tuple[int, ...] = ()
    return _raised(lambda zero: empty[int(zero)])


def always(make: Callable[[], Exception]) -> Make:
    """A fault that says the same whatever the numbers were."""
    return lambda *_: make()


def number_at(slots: bytes, slot: int, kind: str) -> Any:
    """What lies in a slot: a float, a boolean or a whole number."""
    if kind == "float":
        return struct.unpack_from("<d", slots, slot * 8)[0]
    (value,) = struct.unpack_from("<q", slots, slot * 8)
    return bool(value) if kind == "bool" else value


def _raised(operation: Callable[[float], object]) -> Exception:
    """The exception that an operation raises when it is given zero."""
    try:
        operation(0.0)
    except Exception as error:
        return error.with_traceback(None)
    raise Bug("what always fails has not failed; report it")


# Why an agent class cannot be compiled: findings with place, reason and remedy, collected and raised together.

SHOWN_CHARS_MAX = 80


class Findings:
    """Collects findings about one class; each is told once, in the order of the file."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], str] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, file: str, line: int, where: str, says: str) -> None:
        """One finding. `line` 0 is for what has no line."""
        name = PurePath(file).name
        place = f"{name} line {line}: " if line else f"{name}: " if name else ""
        self._found.setdefault((file, line, f"{where}: {says}"), f"{place}{where}: {says}")

    def add_of(self, cls: type[Any], where: str, says: str, field: str = "") -> None:
        """One finding about a class, or about a field of it. To find its line takes long, so only this looks for it."""
        file, line = file_and_line_of_field(cls, field) if field else file_and_line(cls)
        self.add(file, line, where, says)

    def raise_any(self) -> None:
        """Raises DefinitionError with all findings, if there are any."""
        if self._found:
            raise DefinitionError("\n".join(text for _, text in sorted(self._found.items())))


def file_and_line(cls: type[Any]) -> tuple[str, int]:
    """Where a class is defined, as far as its source can be found."""
    try:
        return inspect.getsourcefile(cls) or "", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "", 0


def file_and_line_of_field(cls: type[Any], name: str) -> tuple[str, int]:
    """Where a field is declared, by the class or the base that it comes from."""
    owner = next((base for base in cls.__mro__ if name in vars(base).get("__annotations__", {})), cls)
    file, line = file_and_line(owner)
    if not line:
        return file, line
    lines = inspect.getsourcelines(owner)[0]
    for number, text in enumerate(lines):
        if re.match(rf"\s+{re.escape(name)}\s*:", text):
            return file, line + number
    return file, line


def shown(node: ast.AST) -> str:
    """A piece of source in one line, for messages and comments."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"
