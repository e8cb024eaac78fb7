"""A workflow as a list of instructions. A token of a run is at one of them; `run` moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

Condition = Callable[[Any], bool]


class Do(Struct, frozen=True):
    """Carries out a step, then goes on with the next instruction."""

    step: str


class Choose(Struct, frozen=True):
    """Goes on with the next instruction, or with this one."""

    name: str
    condition: Condition
    otherwise: int


class Fork(Struct, frozen=True):
    """Goes on at all of these at once, until they meet at the join."""

    parts: tuple[int, ...]
    join: int


class Join(Struct, frozen=True):
    """Where the parts of a fork meet."""

    any: bool


class Jump(Struct, frozen=True):
    """Goes on with this instruction."""

    to: int


class End(Struct, frozen=True):
    """The run is done."""


Instruction = Do | Choose | Fork | Join | Jump | End


def parts_of(fork: Fork) -> Iterator[range]:
    """The instructions of each part of a fork."""
    return (range(*ends) for ends in zip(fork.parts, (*fork.parts[1:], fork.join), strict=True))
