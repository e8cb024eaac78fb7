"""Which fields tell whose an event is: those that the command of a step shares with the events that it waits for.

Pure. An agent compares them, so that an event of one parcel does not end the step of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from stigmergy.agents.messages import Message, own_fields, plain_name, resolve_hints, union_members
from stigmergy.base.errors import DefinitionError

NAMING = (str, int, bytes, Enum)
"""Types whose values name things, beside UUID. What is measured, such as a float, is seldom just what was asked for."""


def matched_fields(
    where: str, does: type[Message], events: Iterable[type[Message]], named: Sequence[str] | None
) -> tuple[str, ...]:
    """The fields in which these events must equal the command: those `named`, or all shared ones that name things."""
    ours, theirs = _types(does), [_types(event) for event in events]
    if named is None:
        return tuple(name for name, hint in ours.items() if _names_things(hint) and _is_shared(name, hint, theirs))
    for name in named:
        if name not in ours or not _is_shared(name, ours[name], theirs):
            raise DefinitionError(
                f"{where}: match={tuple(named)!r}: {name} is not in {does.__name__} and, with the same type, in what "
                "the step waits for; name fields that are in both, or match=() to compare none"
            )
    return tuple(named)


def _types(message: type[Message]) -> dict[str, Any]:
    hints = resolve_hints(message, message.__qualname__)
    return {name: hints[name] for name in own_fields(message)}


def _is_shared(name: str, hint: Any, events: Sequence[dict[str, Any]]) -> bool:
    found = [plain_name(event[name]) for event in events if name in event]
    return bool(found) and all(one == plain_name(hint) for one in found)


def _names_things(hint: Any) -> bool:
    members = [member for member in union_members(hint) if member is not type(None)]
    return all(
        isinstance(member, type) and (issubclass(member, NAMING) or plain_name(member) == "UUID") for member in members
    )
