"""Says messages for people, as the timeline has them: a name and its fields, and of shared fields what was changed."""

from __future__ import annotations

from typing import Any

import msgspec

from stigmergy.core.codec import tag_of
from stigmergy.runtime.showing import shared_fields

SHOWN_CHARS_MAX = 160
TAG_FIELDS = ("type",)
FRAMEWORK = "stigmergy."


def shown(body: bytes) -> str:
    """A message: its name and its fields, cut to a length."""
    tag = tag_of(body)
    name = tag.partition("@")[0].removeprefix(FRAMEWORK)
    shared = shared_fields(tag, body)
    if shared is not None:
        return f"{name}({_change(shared)})"[:SHOWN_CHARS_MAX]
    fields = msgspec.msgpack.decode(body)
    if not isinstance(fields, dict):
        return name
    told = ", ".join(f"{key}={value!r}" for key, value in fields.items() if key not in TAG_FIELDS)
    return f"{name}({told})"[:SHOWN_CHARS_MAX]


def _change(shared: dict[str, Any]) -> str:
    """`vehicles +V-7 -V-9`: the field, what was added with its value, what was removed."""
    words = [shared["field"]]
    for change in shared.get("changes", [shared]):
        for added in change["added"]:
            place = _place(added["at"])
            values = [f"={added[key]}" for key in ("total", "value") if key in added]
            words.append("".join([*(["+", place] if place else []), *values]))
        words += [f"-{_place(path)}" for path in change["removed"]]
    if "state_bytes" in shared:
        words.append(f"and a state of {shared['state_bytes']} bytes")
    return " ".join(words)


def _place(path: list[Any]) -> str:
    return "/".join(map(str, path))
