"""Shows states and messages as plain JSON values, and shared fields as their values."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from stigmergy.agents.messages import spec_of
from stigmergy.agents.shared import Merged, SharedChanged
from stigmergy.agents.steps import StepHeard
from stigmergy.crdt.delta import Delta, read_delta
from stigmergy.crdt.errors import CrdtError
from stigmergy.crdt.flags import DisableWinsFlag, EnableWinsFlag
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.payloads import STAMPED, TOTAL, plain_value, stamped_value, total_of
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.crdt.store import ReplicaStore
from stigmergy.crdt.tree import places_of

CHANGED = spec_of(SharedChanged).tag
MERGED = spec_of(Merged).tag
HEARD = spec_of(StepHeard).tag
_changed = msgspec.msgpack.Decoder(SharedChanged)
_merged = msgspec.msgpack.Decoder(Merged)
_heard = msgspec.msgpack.Decoder(StepHeard)


def plain_state(agent: Any) -> Any:
    """The fields of an agent. A set is shown as a list, a map as an object, a register as its value."""
    return msgspec.to_builtins(agent, str_keys=True, enc_hook=_meaning)


def _meaning(value: Any) -> Any:
    match value:
        case ORSet():
            return list(value)
        case ORMap():
            return {_shown_key(key): below for key, below in value.items()}
        case MVRegister():
            return list(value.values)
        case EnableWinsFlag() | DisableWinsFlag():
            return bool(value)
        case GCounter() | PNCounter() | LWWRegister():
            return value.value
        case _:
            raise TypeError(f"{type(value).__name__} has no plain value")


def _shown_key(key: Any) -> Any:
    """A key as JSON can say it: tuples and structs are keys of shared maps, and become the text of their JSON."""
    if isinstance(key, str | int | float | bytes | enum.Enum):
        return key
    return msgspec.json.encode(msgspec.to_builtins(key, str_keys=True)).decode()


def fields_in_words(tag: str, body: bytes) -> dict[str, Any] | None:
    """What a change of a shared field says, or what a run has heard; None for any other message, and for one that
    cannot be read."""
    try:
        if tag == CHANGED:
            changed = _changed.decode(body)
            return {"field": changed.field, **_delta(read_delta(changed.delta))}
        if tag == MERGED:
            merged = _merged.decode(body)
            shown: dict[str, Any] = {
                "field": merged.field,
                "changes": [_delta(read_delta(delta)) for delta in merged.deltas],
            }
            if merged.state:
                shown["state_bytes"] = len(merged.state)
            return shown
        if tag == HEARD:
            heard = _heard.decode(body)
            event = _value(heard.body) if heard.body else {}
            return {"step": heard.step, "attempt": heard.attempt, "event": event.pop("type", ""), **event}
    except (msgspec.DecodeError, CrdtError):
        return None
    return None


def changed_by(body: bytes) -> bytes:
    """The replica of a kept SharedChanged; empty if it cannot be read."""
    try:
        return read_delta(_changed.decode(body).delta).replica
    except (msgspec.DecodeError, CrdtError):
        return b""


def _delta(delta: Delta) -> dict[str, Any]:
    return {
        "replica": delta.replica.hex(),
        "change": delta.last if delta.first == delta.last else f"{delta.first}..{delta.last}",
        "added": [{"at": _path(path), **_payload(payload)} for path, _, payload in delta.added],
        "removed": [_path(path) for path, _ in delta.removed],
    }


def shown_entries(store: ReplicaStore) -> Iterator[dict[str, Any]]:
    """What is alive in a shared field, in the order of its places: where it is, its value, and the replica of each."""
    for path, dots in places_of(store.root):
        for replica, (_, payload) in sorted(dots.items()):
            yield {"at": _path(path), "replica": replica.hex(), **_shown_payload(payload)}


def _shown_payload(payload: bytes) -> dict[str, Any]:
    shown = _payload(payload)
    return {"value": shown.popitem()[1]} if shown else {}


def _path(path: tuple[bytes, ...]) -> list[Any]:
    return [_value(key) for key in path]


def _payload(payload: bytes) -> dict[str, Any]:
    if not payload:
        return {}
    if payload[0] == TOTAL:
        return {"total": total_of(payload)}
    return {"value": _value(stamped_value(payload) if payload[0] == STAMPED else plain_value(payload))}


def _value(body: bytes) -> Any:
    return msgspec.to_builtins(msgspec.msgpack.decode(body), str_keys=True)
