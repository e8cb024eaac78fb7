"""The input of a policy: a question as JSON. Pure. docs/policy.md lists the fields.

{"kind": "command", "message": "StartMission", "fields": {"mission": "M1"}, "fleet": "delivery",
 "agent": {"address": "Drone/D-17", "kind": "Drone", "name": "D-17"}, "state": {"battery": 80.0, …},
 "sender": {"how": "http", "token": "ops", "node": "", "fleet": "", "source": "", "certificate": ""}}
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.display import plain_state
from stigmergy.base.errors import PolicyFailed
from stigmergy.shard.judging import PolicyQuestion, Sender

DOCUMENT_BYTES_MAX = 64 * 1024
"""Of a document; a larger one is denied: to read it would take longer than a step may."""


class AgentNamed(Struct, frozen=True):
    """Which agent it is about; all empty where it is about none."""

    address: str = ""
    kind: str = ""
    name: str = ""


class Document(Struct, frozen=True):
    """What a policy sees as `input`."""

    kind: str
    message: str
    fields: Any
    fleet: str
    agent: AgentNamed
    state: Any
    """The fields of the agent as `decide` would see them; null for one that runs elsewhere."""
    sender: Sender


_encoder = msgspec.json.Encoder()


def document_of(question: PolicyQuestion, fleet: str) -> bytes:
    """The JSON of a question. Raises PolicyFailed for one that cannot be written, or is too large."""
    kind, _, name = question.address.partition("/")
    fields = question.fields
    if isinstance(fields, Struct):
        fields = {one: value for one, value in _plain(fields).items() if one != "type"}
    state = None if question.agent is None else _plain(question.agent)
    agent = AgentNamed(question.address, kind, name)
    data = _encoder.encode(Document(question.kind, question.message, fields, fleet, agent, state, question.sender))
    if len(data) > DOCUMENT_BYTES_MAX:
        raise PolicyFailed(
            f"message and state of {question.address} take {len(data)} bytes as JSON, {DOCUMENT_BYTES_MAX} at most"
        )
    return data


def _plain(value: Any) -> Any:
    try:
        return plain_state(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PolicyFailed(f"{type(value).__name__} cannot be written as JSON: {error}") from None
