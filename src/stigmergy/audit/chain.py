"""The chain behind an event of an agent that asks models: from what was sensed to what was done. Reads listings only.

    sensed      the event whose reaction asked the model
    asked       the question
    inferred    the answer: model, version, digest, arm, fallback, confidence, and which inputs mattered
    decided     the events that the agent decided on it
    done        what they asked of actuators, workers and other agents

A question and its answer name the same digest of inputs. Where inputs repeat, they are paired in their order.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.effects import MODELS
from stigmergy.agents.messages import spec_of
from stigmergy.audit.listing import LogEntry, Owing
from stigmergy.models.model import Inferred, ModelSource, digest_of_inputs

ENTRIES_COUNT_MAX = 2_000
"""So many entries of an agent's log are looked through on each side of the event."""
_INFERRED = f"{spec_of(Inferred).name}."


class Question(Struct, frozen=True):
    """What a model was asked."""

    model: str
    numbers: int
    inputs: str
    """The digest that question and answer have in common."""


class Chain(Struct, frozen=True):
    """What led to an event, and what followed. `target` is the event that was named."""

    target: LogEntry
    sensed: LogEntry | None = None
    asked: Question | None = None
    inferred: LogEntry | None = None
    source: ModelSource | None = None
    confidence: float = 0.0
    answer: dict[str, Any] = {}
    decided: list[LogEntry] = []

    @property
    def done(self) -> Iterator[Owing]:
        """What was asked of others because of the answer."""
        for entry in filter(None, (self.inferred, *self.decided)):
            yield from (one for one in entry.effects if one.sink != MODELS)


def chain_of(entries: Sequence[LogEntry], target: LogEntry) -> Chain:
    """The chain that an event is part of; with nothing but the event, if no model had to do with it."""
    asked: dict[tuple[str, str], deque[LogEntry]] = {}
    pairs: list[tuple[LogEntry | None, LogEntry | None]] = []
    """Questions and answers, in the order of the answers; then those without an answer."""
    for entry in entries:
        source = source_of(entry)
        if source is not None and entry.type.startswith(_INFERRED):
            waiting = asked.get((source.model, source.inputs.hex()))
            pairs.append((waiting.popleft() if waiting else None, entry))
        for question in _questions(entry):
            asked.setdefault((question.model, question.inputs), deque()).append(entry)
    pairs += [(entry, None) for waiting in asked.values() for entry in waiting]
    for sensed, inferred in pairs:
        decided = [] if inferred is None else _decided(entries, inferred)
        if _place(target) in [_place(one) for one in (sensed, inferred, *decided) if one is not None]:
            return _chain(target, sensed, inferred, decided)
    return Chain(target)


def source_of(entry: LogEntry) -> ModelSource | None:
    """The source that an event names: that of the answer itself, or the one that a decision gives as its reason."""
    for value in entry.fields.values() if isinstance(entry.fields, dict) else ():
        if isinstance(value, dict) and {"model", "inputs"} <= value.keys():
            try:
                return msgspec.convert(value, ModelSource)
            except msgspec.ValidationError:
                continue
    return None


def _chain(target: LogEntry, sensed: LogEntry | None, inferred: LogEntry | None, decided: list[LogEntry]) -> Chain:
    source = None if inferred is None else source_of(inferred)
    questions = [] if sensed is None else list(_questions(sensed))
    wanted = None if source is None else source.inputs.hex()
    asked = next((one for one in questions if wanted in (None, one.inputs)), None)
    fields = {} if inferred is None else inferred.fields
    return Chain(
        target, sensed, asked, inferred, source, fields.get("confidence", 0.0), fields.get("answer", {}), decided
    )


def _decided(entries: Sequence[LogEntry], inferred: LogEntry) -> list[LogEntry]:
    """What was decided on an answer: it follows in the same commit, or names the answer as its reason."""
    source = source_of(inferred)
    found: list[LogEntry] = []
    follows = False
    for entry in entries:
        if entry.type.startswith(_INFERRED):
            follows = _place(entry) == _place(inferred)
            continue
        same = (entry.shard, entry.position, entry.cause) == (inferred.shard, inferred.position, inferred.cause)
        named = source_of(entry)
        because = named is not None and source is not None and named == source
        if because or (follows and same and named is None):
            found.append(entry)
    return found


def _questions(entry: LogEntry) -> Iterator[Question]:
    for effect in entry.effects:
        if effect.sink == MODELS and isinstance(effect.fields, dict):
            try:
                row = base64.b64decode(effect.fields["inputs"], validate=True)
                yield Question(effect.fields["model"], len(row) // 4, digest_of_inputs(row).hex())
            except (KeyError, TypeError, ValueError, binascii.Error):
                continue


def _place(entry: LogEntry) -> tuple[int, int, int, str]:
    return entry.shard, entry.position, entry.index, entry.kind
