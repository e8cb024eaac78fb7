"""Keeps each number of a state in the type of its field: 0.0 where Python let 0 pass for a float, 1 for True.

Otherwise `self.speed = 0` would be an int until a restart and a float after it, and the two calculate differently. The
code of a handler is looked at once, when the agent is planned, so that a handler that cannot go wrong pays nothing.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from typing import Any

from stigmergy.core.agent import Agent, loads
from stigmergy.core.annotations import parameters_of, resolve_hints, union_members
from stigmergy.core.messages import Message

Number = type[int] | type[float]
Evolve = Callable[[Any, Any], None]


def number_fields(cls: type[Any]) -> dict[str, Number]:
    """The fields of a class that hold one number, or one number or nothing."""
    found: dict[str, Number] = {}
    for name, hint in resolve_hints(cls, cls.__qualname__).items():
        members = [member for member in union_members(hint) if member is not type(None)]
        if name in cls.__struct_fields__ and members in ([int], [float]):
            found[name] = members[0]
    return found


def keep_types(evolve: Evolve, cls: type[Agent], message: type[Message]) -> Evolve:
    """The handler, followed by whatever it takes that each number it may have assigned has the type of its field."""
    doubtful = _doubtful_fields(evolve, cls, message)
    if not doubtful:
        return evolve
    fields = tuple(doubtful.items())

    def evolve_typed(agent: Any, event: Any) -> None:
        evolve(agent, event)
        for name, wanted in fields:
            value = getattr(agent, name)
            if value.__class__ is not wanted and isinstance(value, int | float):
                setattr(agent, name, wanted(value))

    return evolve_typed


def _doubtful_fields(evolve: Evolve, cls: type[Agent], message: type[Message]) -> Mapping[str, Number]:
    """The number fields that this handler may assign with something of another type; all, if it cannot be told."""
    numbers, given = number_fields(cls), number_fields(message)
    known = (*cls.__struct_fields__, "now", "address")
    own, event = parameters_of(evolve)
    code = list(dis.get_instructions(evolve))
    doubtful: dict[str, Number] = {}
    for index, instruction in enumerate(code):
        if not loads(instruction, own):
            if _mentions(instruction, own):
                return numbers
            continue
        augmented = code[index + 1].opname == "COPY"
        after = code[index + 2] if augmented else code[index + 1]
        if after.opname not in ("LOAD_ATTR", "STORE_ATTR") or after.argval not in known:
            return numbers
        name = after.argval
        assigned = augmented or after.opname == "STORE_ATTR"
        if name in numbers and assigned and not _takes_from(code[: index + 1], event, given, numbers[name]):
            doubtful[name] = numbers[name]
    return doubtful


def _mentions(instruction: dis.Instruction, name: str) -> bool:
    """Whether the instruction has to do with a local variable in some other way, as when an inner function uses it."""
    named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return instruction.opname not in ("MAKE_CELL", "LOAD_ATTR", "LOAD_CONST", "LOAD_GLOBAL") and name in named


def _takes_from(code: list[dis.Instruction], event: str, given: Mapping[str, Number], wanted: Number) -> bool:
    """Whether the value that was loaded last is a field of the event of just the type that is wanted."""
    if len(code) < 3 or code[-2].opname != "LOAD_ATTR" or code[-1].is_jump_target:
        return False
    return loads(code[-3], event) and given.get(code[-2].argval) is wanted
