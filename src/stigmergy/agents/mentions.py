"""What the code of an agent class mentions: the names in its handlers and in the functions that they call. Pure.

Code that finds a class in another way, such as by a table of classes, is not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from stigmergy.agents.agent import Agent

FUNCTIONS_MAX = 10_000
"""So many functions of an agent class are read."""
_CORE = ("stigmergy.agents.", "stigmergy.shard.", "stigmergy.devices.", "stigmergy.models.")


def reactions_mention(cls: type[Agent]) -> Iterator[tuple[FunctionType, str, Any]]:
    """All names in the reactions of a class and in what they call, each with its function and what it stands for; None
    for an attribute of something that is not known."""
    reactions = [handlers.react for handlers in cls.__agent_handlers__.values() if handlers.react is not None]
    ahead = [react for react in reactions if isinstance(react, FunctionType)]
    seen: set[CodeType] = set()
    while ahead and len(seen) < FUNCTIONS_MAX:
        function = ahead.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for name, value in _mentioned(function, cls):
            yield function, name, value
            if isinstance(value, FunctionType) and not value.__module__.startswith(_CORE):
                ahead.append(value)


def _mentioned(function: FunctionType, cls: type[Agent]) -> Iterator[tuple[str, Any]]:
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            yield name, function.__globals__.get(name)
            yield "", _function(getattr(cls, name, None))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield name, cell.cell_contents


def _function(attribute: Any) -> Any:
    """The function behind a method, a class method or a property."""
    if isinstance(attribute, property):
        return attribute.fget
    return getattr(attribute, "__func__", attribute)
