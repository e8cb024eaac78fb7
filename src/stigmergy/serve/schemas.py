"""The JSON Schema of one message or state by itself, for forms."""

from __future__ import annotations

from typing import Any

import msgspec

Json = dict[str, Any]


def schema_of(kind: Any) -> Json:
    """The JSON Schema of a message or a state by itself, without the tag that it has in logs; what has none is any
    object."""
    try:
        (schema,), named = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    except TypeError:
        return {"type": "object", "title": kind.__name__}
    found = dict(named.pop(schema.get("$ref", "").rpartition("/")[2], schema))
    found["properties"] = {key: value for key, value in found.get("properties", {}).items() if key != "type"}
    found["required"] = [key for key in found.get("required", ()) if key != "type"]
    return found | ({"$defs": named} if named else {})
