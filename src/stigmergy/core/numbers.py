"""Keeps each plain value of a state in the type of its field: 0.0 where Python let 0 pass for a float, 1 for True.

Otherwise `self.speed = 0` would be an int until a restart and a float after it, and the two calculate differently. What
is no number at all, like a text in a field for numbers, fails the input: no snapshot could be read back with it in. The
code of a handler is looked at once, when the agent is planned, so that a handler that cannot go wrong pays nothing.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from typing import Any

from stigmergy.core.agent import Agent, loads
from stigmergy.core.annotations import parameters_of, resolve_hints, union_members
from stigmergy.core.messages import Message

Classes = tuple[type, ...]
Evolve = Callable[[Any, Any], None]
_PLAIN: Classes = (int, float, str, bytes, bool, type(None))
"""Types whose values can be told from their class alone."""
_ALIKE: tuple[tuple[Classes, type, Callable[[Any], Any]], ...] = (
    ((int,), int, int),
    ((int, float), float, float),
    ((str,), str, str.__str__),
    ((bytes, bytearray, memoryview), bytes, bytes),
)
"""Values of which classes are read back as which plain type, and how it is made of them; the first that fits counts."""


def plain_fields(cls: type[Any]) -> dict[str, Classes]:
    """The fields of a class that hold plain values only: numbers, texts, bytes, booleans or nothing."""
    found: dict[str, Classes] = {}
    for name, hint in resolve_hints(cls, cls.__qualname__).items():
        members = union_members(hint)
        if name in cls.__struct_fields__ and all(member in _PLAIN for member in members):
            found[name] = members
    return found


def keep_types(evolve: Evolve, cls: type[Agent], message: type[Message]) -> Evolve:
    """The handler, followed by whatever it takes that each plain value it may have assigned has a type of its field."""
    doubtful = _doubtful_fields(evolve, cls, message)
    if not doubtful:
        return evolve
    fields = tuple(doubtful.items())

    def evolve_typed(agent: Any, event: Any) -> None:
        evolve(agent, event)
        for name, classes in fields:
            value = getattr(agent, name)
            if value.__class__ not in classes:
                setattr(agent, name, _fitting(cls, name, classes, value))

    return evolve_typed


def _fitting(cls: type[Agent], name: str, classes: Classes, value: Any) -> Any:
    """The value as one of its field's types, as a restart would read it; raises TypeError where it is none."""
    if isinstance(value, float) and [wanted for wanted in classes if wanted is not type(None)] == [int]:
        return int(value)
    for alike, wanted, made in _ALIKE:
        if wanted in classes and isinstance(value, alike):
            return made(value)
    declared = " | ".join("None" if wanted is type(None) else wanted.__name__ for wanted in classes)
    raise TypeError(
        f"{cls.__qualname__}.{name} is declared as {declared} and was given a {type(value).__name__}; "
        "mend the @evolve handler that assigns it, or declare the field so"
    )


def _doubtful_fields(evolve: Evolve, cls: type[Agent], message: type[Message]) -> Mapping[str, Classes]:
    """The plain fields that this handler may assign with something of another type; all, if it cannot be told."""
    plain, given = plain_fields(cls), plain_fields(message)
    known = (*cls.__struct_fields__, "now", "address")
    own, event = parameters_of(evolve)
    code = list(dis.get_instructions(evolve))
    if any(instruction.opname.startswith("STORE_") and instruction.argval == event for instruction in code):
        given = {}  # what the name stands for from there on is not known
    doubtful: dict[str, Classes] = {}
    for index, instruction in enumerate(code):
        if not loads(instruction, own):
            if _mentions(instruction, own):
                return plain
            continue
        augmented = code[index + 1].opname == "COPY"
        after = code[index + 2] if augmented else code[index + 1]
        if after.opname not in ("LOAD_ATTR", "STORE_ATTR") or after.argval not in known:
            return plain
        name = after.argval
        if name not in plain or (after.opname == "LOAD_ATTR" and not augmented):
            continue
        if augmented or not _fits(code[: index + 1], event, given, plain[name]):
            doubtful[name] = plain[name]
    return doubtful


def _mentions(instruction: dis.Instruction, name: str) -> bool:
    """Whether the instruction has to do with a local variable in some other way, as when an inner function uses it."""
    named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return instruction.opname not in ("MAKE_CELL", "LOAD_ATTR", "LOAD_CONST", "LOAD_GLOBAL") and name in named


def _fits(code: list[dis.Instruction], event: str, given: Mapping[str, Classes], classes: Classes) -> bool:
    """Whether the value that was loaded last surely has one of these types: a constant, or a field of the event."""
    if len(code) < 3 or code[-1].is_jump_target:
        return False
    if code[-2].opname == "LOAD_CONST":
        return type(code[-2].argval) in classes
    taken = given.get(code[-2].argval, (object,)) if code[-2].opname == "LOAD_ATTR" else (object,)
    return loads(code[-3], event) and all(one in classes for one in taken)
