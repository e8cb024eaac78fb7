"""Makes a program on which the engines disagree as small as it gets: lines and inputs are left out one after the other.

What remains is what a person needs to see: the class, the input, and the difference.
"""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from proofs.engines_both import Difference, Input, Tried, compare
from proofs.engines_inputs import load
from stigmergy.compiled.builder import Built
from stigmergy.compiled.program import Program

SECONDS_MAX = 60.0

Make = Callable[[Program], Built]


def try_source(source: str, inputs_of: Callable[[Any], Sequence[Input]], folder: Path, make: Make) -> Tried:
    """Compares the engines on the agent of a source. Raises Difference, with the smallest source that was found."""
    module = load(source, folder)
    try:
        inputs = inputs_of(module)
        return compare(module.Made, inputs, make)
    except Difference as difference:
        small, said = shrink(source, inputs_of(module), folder, make, str(difference))
        raise Difference(f"{said}\n\n{small}") from None
    finally:
        del sys.modules[module.__name__]


def shrink(source: str, inputs: Sequence[Input], folder: Path, make: Make, said: str) -> tuple[str, str]:
    """The smallest source and the difference on it that are found in a minute."""
    deadline_s = time.monotonic() + SECONDS_MAX
    kept = list(inputs)
    lines = source.splitlines()
    again = True
    while again and time.monotonic() < deadline_s:
        again = False
        for number in reversed(range(len(kept))):
            fewer = kept[:number] + kept[number + 1 :]
            found = _difference("\n".join(lines), fewer, folder, make) if time.monotonic() < deadline_s else None
            if _is_alike(found, said):
                kept, said, again = fewer, found, True
        number = len(lines) - 1
        while number >= 0 and time.monotonic() < deadline_s:
            shorter = lines[:number] + lines[_end_of_block(lines, number) :]
            found = _difference("\n".join(shorter), kept, folder, make)
            if _is_alike(found, said):
                lines, said, again = shorter, found, True
            number -= 1
    return "\n".join(lines), said


def _is_alike(found: str | None, said: str) -> TypeGuard[str]:
    """Whether it is the difference that was seen first. An input that has lost its handler is another one."""
    return found is not None and ("Malformed" in found) == ("Malformed" in said)


def _end_of_block(lines: list[str], number: int) -> int:
    """Where what belongs to this line ends: it, and what is further to the right below it."""
    own = len(lines[number]) - len(lines[number].lstrip())
    end = number + 1
    while end < len(lines) and lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > own:
        end += 1
    return end


def _difference(source: str, inputs: Sequence[Input], folder: Path, make: Make) -> str | None:
    """What the engines disagree on, if they do; None also for a source that is none."""
    known = dict(sys.modules)
    try:
        module = load(source, folder)
        compare(module.Made, [(name, _moved(message, module), now_ns) for name, message, now_ns in inputs], make)
    except Difference as difference:
        return str(difference)
    except Exception:
        return None
    finally:
        for name in [name for name in sys.modules if name not in known]:
            del sys.modules[name]
    return None


def _moved(message: Any, module: Any) -> Any:
    """The same message, of the class that this module has."""
    cls = getattr(module, type(message).__name__)
    given = {name: getattr(message, name) for name in cls.__struct_fields__}
    for name, value in given.items():
        if isinstance(value, enum.Enum):
            given[name] = getattr(module, type(value).__name__)[value.name]
    return cls(**given)
