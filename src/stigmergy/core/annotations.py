"""Reads the annotations of classes and methods, and says in words what is wrong with them."""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stigmergy.core.errors import DefinitionError
from stigmergy.crdt.value import SharedValue

# The first that fits names the type, so what is special comes before what it is a kind of.
_MUTABLE: dict[type, str] = {
    bytearray: "bytearray",
    collections.deque: "deque",
    collections.defaultdict: "defaultdict",
    dict: "dict",
    list: "list",
    set: "set",
    collections.abc.MutableMapping: "dict",
    collections.abc.MutableSequence: "list",
    collections.abc.MutableSet: "set",
}


def first_mutable(hint: Any, _seen: tuple[Any, ...] = ()) -> str | None:
    """The name of the first type inside this annotation that can be changed in place, or None.

    `Any` counts as mutable, because a list decodes into it; so does a struct or dataclass that is not frozen.
    """
    if hint in _seen:
        return None
    _seen = (*_seen, hint)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return first_mutable(typing.get_args(hint)[0], _seen)
    if origin is typing.ClassVar:
        return None
    if hint is typing.Any or hint is object:
        return "Any"
    cls = origin if isinstance(origin, type) else hint
    if isinstance(cls, type):
        if issubclass(cls, SharedValue):
            return None  # whatever is in it: it is read anew each time
        for mutable, name in _MUTABLE.items():
            if issubclass(cls, mutable):
                return name
        if issubclass(cls, Struct) or dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
            return _first_mutable_field(cls, _seen)
    for argument in typing.get_args(hint):
        found = first_mutable(argument, _seen)
        if found is not None:
            return found
    return None


def _first_mutable_field(cls: Any, seen: tuple[Any, ...]) -> str | None:
    """What can be changed in a struct, a dataclass or a named tuple."""
    options = getattr(cls, "__struct_config__", None) or getattr(cls, "__dataclass_params__", None)
    if options is not None and not options.frozen:
        return str(cls.__name__)
    for field_hint in resolve_hints(cls, cls.__qualname__).values():
        found = first_mutable(field_hint, seen)
        if found is not None:
            return found
    return None


def resolve_hints(thing: Any, name: str) -> dict[str, Any]:
    """The annotations of a class or function as types, also for classes that are defined inside a function."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except NameError:
        pass
    own = {thing.__name__: thing} if isinstance(thing, type) else {}
    try:
        return typing.get_type_hints(thing, localns={**_names_of_enclosing_functions(), **own}, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"{name}: the annotation names {error.name!r}, which is not defined; define or import it above"
        ) from None


def _names_of_enclosing_functions(depth_max: int = 16) -> dict[str, Any]:
    """Local names that a class body inside a function (a test, a factory) can see; the nearest function wins."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(depth_max):
        if frame is None:
            break
        ours = str(frame.f_globals.get("__name__", "")).startswith("stigmergy.core")
        if not ours and frame.f_locals is not frame.f_globals:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def plain_name(hint: Any) -> str:
    """An annotation as text without modules: the same whether a class was imported or run as a script."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(plain_name(member) for member in arguments))
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(value) for value in arguments)}]"
    name = getattr(origin or hint, "__name__", None) or str(hint)
    if not arguments:
        return str(name)
    return f"{name}[{', '.join('...' if one is Ellipsis else plain_name(one) for one in arguments)}]"


def union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters, in order."""
    code = function.__code__
    return list(code.co_varnames[: code.co_argcount])
