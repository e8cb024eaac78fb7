"""Builds messages from text that people type: a name and fields, read by the types that the message declares.

A text such as `12` or `true` is converted to the type of the field; structured fields are JSON. A value that does not
fit is refused with the name of the field and the expected type.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs

from stigmergy.agents.messages import Command, Event, Message, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import FrameworkEvent
from stigmergy.base.errors import Malformed, UnknownTag

TEXT_SHOWN_MAX = 60
KINDS_CACHED_MAX = 1_000

MessageT = TypeVar("MessageT", Command, Event)


def phrase(
    plan: AgentPlan, base: type[MessageT], name: str, fields: Mapping[str, Any], texts: Mapping[str, str]
) -> MessageT:
    """The message of this name for an agent kind; `fields` are values, `texts` are read by the fields' types."""
    message = find_message(plan, base, name)
    known = fields_of(message)
    for given in (*fields, *texts):
        if given not in known:
            raise Malformed(f"{name} has no field {given!r}; it is {signature_of(message)}")
        if given in fields and given in texts:
            raise Malformed(f"{name}: {given!r} is given twice")
    values: dict[str, Any] = {}
    for field in known.values():
        if field.name in texts:
            values[field.name] = _read_text(name, field, texts[field.name])
        elif field.name in fields:
            values[field.name] = _read_value(name, field, fields[field.name])
        elif field.required:
            raise Malformed(f"{name}: {field.name!r} is missing; it is {signature_of(message)}")
    try:
        return message(**values)
    except (TypeError, ValueError) as error:
        raise Malformed(f"{name}: {error}") from None


@functools.lru_cache(KINDS_CACHED_MAX)
def fields_of(message: type[Message]) -> Mapping[str, structs.FieldInfo]:
    """The fields of a message by their names. Cached: msgspec reads a class's annotations anew each time."""
    return {field.name: field for field in structs.fields(message)}


def find_message(plan: AgentPlan, base: type[MessageT], name: str) -> type[MessageT]:
    """The message class that a name or a tag stands for."""
    for message in plan.plans:
        spec = spec_of(message)
        if name in (message.__name__, spec.name, spec.tag) and _is_of_users(plan, base, message):
            return cast(type[MessageT], message)
    word = base.__name__.lower()
    shown = ", ".join(signature_of(message) for message in messages_of(plan, base)) or f"no {word}s"
    raise UnknownTag(f"{plan.kind} has no {word} {name!r}; it knows {shown}")


def messages_of(plan: AgentPlan, base: type[MessageT]) -> list[type[MessageT]]:
    """The commands or events of users that an agent kind has handlers for, in the order of its class."""
    return [cast(type[MessageT], message) for message in plan.plans if _is_of_users(plan, base, message)]


def _is_of_users(plan: AgentPlan, base: type[MessageT], message: type[Message]) -> bool:
    return issubclass(message, base) and not issubclass(message, FrameworkEvent) and plan.handles(message)


def signature_of(message: type[Message]) -> str:
    """How a message is written: StartMission(mission: str, priority: int = 0)."""
    parts = []
    for field in fields_of(message).values():
        default = f" = {field.default!r}" if field.default is not msgspec.NODEFAULT else ""
        default = " = …" if not default and not field.required else default
        parts.append(f"{field.name}: {_name_of(field.type)}{default}")
    return f"{message.__name__}({', '.join(parts)})"


def _read_text(name: str, field: structs.FieldInfo, text: str) -> Any:
    try:
        return msgspec.convert(text, field.type, strict=False)
    except msgspec.ValidationError as error:
        try:
            return msgspec.convert(msgspec.json.decode(text), field.type, strict=False)
        except msgspec.ValidationError as inner:
            raise _misfit(name, field, text, inner) from None
        except msgspec.DecodeError:
            raise _misfit(name, field, text, error) from None


def _read_value(name: str, field: structs.FieldInfo, value: Any) -> Any:
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        raise _misfit(name, field, msgspec.json.encode(value).decode(), error) from None


def _misfit(name: str, field: structs.FieldInfo, text: str, error: Exception) -> Malformed:
    shown = text if len(text) <= TEXT_SHOWN_MAX else f"{text[:TEXT_SHOWN_MAX]}…"
    return Malformed(f"{name}: {field.name}={shown} does not fit, it is of type {_name_of(field.type)} ({error})")


def _name_of(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
