"""Spans as OTLP in JSON (`http/json`), which no library is needed for. Pure.

The fields are those of opentelemetry-proto; ids are hexadecimal and 64-bit numbers are texts, as OTLP/JSON asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from stigmergy.traces.spans import Attribute, Span

SCOPE = "stigmergy"
_ERROR = 2
_SAMPLED = 1
ATTRIBUTES_KEPT_MAX = 4_096
_encoder = msgspec.json.Encoder()


def resource_of(fleet: str, node: str) -> dict[str, str]:
    """Who has made spans: a node of a fleet is an instance of a service."""
    return {"service.name": fleet, "service.instance.id": node} if node else {"service.name": fleet}


def write_otlp(spans: Iterable[Span], fleet: str = "", node: str = "") -> bytes:
    """An ExportTraceServiceRequest; spans that say nothing else are of this fleet and node."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for span in spans:
        found.setdefault((span.fleet or fleet, span.node or node), []).append(_span(span))
    return _encoder.encode(
        {
            "resourceSpans": [
                {
                    "resource": _attributed(resource_of(*whose)),
                    "scopeSpans": [{"scope": {"name": SCOPE}, "spans": listed}],
                }
                for whose, listed in found.items()
            ]
        }
    )


def rejected_of(answer: bytes) -> int:
    """How many spans of a request the collector has not taken, as its answer says."""
    try:
        partial = msgspec.json.decode(answer).get("partialSuccess", {})
        return int(partial.get("rejectedSpans", 0))
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError):
        return 0


def _span(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "flags": _SAMPLED,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        **_attributed(span.attributes),
    }
    if span.parent:
        found["parentSpanId"] = span.parent
    if span.state:
        found["traceState"] = span.state
    if span.decided_ns:
        found["events"] = [{"timeUnixNano": str(span.decided_ns), "name": "decided"}]
    if span.error:
        found["status"] = {"code": _ERROR, "message": span.error}
    return found


def _attributed(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    return {"attributes": [_attribute(name, value) for name, value in attributes.items()]}


def _attribute(name: str, value: Attribute) -> msgspec.Raw:
    if isinstance(value, int):
        return msgspec.Raw(b'{"key":"%b","value":{"intValue":"%d"}}' % (name.encode(), value))
    return _text_attribute(name, value)


@lru_cache(ATTRIBUTES_KEPT_MAX)
def _text_attribute(name: str, value: str | tuple[str, ...]) -> msgspec.Raw:
    """Agents, sources and types of events come again and again."""
    texts = [{"stringValue": one} for one in value]
    told = {"stringValue": value} if isinstance(value, str) else {"arrayValue": {"values": texts}}
    return msgspec.Raw(_encoder.encode({"key": name, "value": told}))
