"""Asks the models of a node during a rollout: compares the new version with the old one, and counts. Decides nothing.

In the shadow a question goes to two services, each with its own queue and its own thread: the one that answers is never
behind the other one. Whoever is late, fails or hangs in the shadow delays and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import structs

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import SECOND_NS
from stigmergy.models.model import Model, ModelAsked, inferred_class
from stigmergy.models.rollout import VersionCounts, VersionRecord
from stigmergy.models.service import MODEL, ModelAnswer, ModelService
from stigmergy.models.versions import RolloutVersions

Settle = Callable[[ModelAnswer], None]


class Asking(Protocol):
    """Who answers what agents ask models: a service, or a trial in front of it."""

    def ask(self, agent: str, body: bytes, settle: Settle, place: tuple[int, ...] = ()) -> None:
        """Takes a question as the bytes of a `ModelAsked`, with its place in the agent's log; `settle` is called
        once."""
        ...


class Trial:
    """The questions of a node that follows rollouts."""

    def __init__(self, versions: RolloutVersions, service: ModelService, shadow: ModelService) -> None:
        self._versions = versions
        self._service = service
        self._shadow = shadow
        self._decoders: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
            name: msgspec.msgpack.Decoder(inferred_class(cls)) for name, cls in service.models.items()
        }

    def ask(self, agent: str, body: bytes, settle: Settle, place: tuple[int, ...] = ()) -> None:
        """Asks the version that answers the agent, and the new one beside it while that is in the shadow."""
        model = msgspec.msgpack.decode(body, type=ModelAsked).model
        record = self._versions.records.get(model)
        if record is None or not record.candidate or model not in self._service.models:
            self._service.ask(agent, body, settle, place)
            return
        pair = _Pair(self._versions, record, self._service.models[model], self._decoders[model], settle)
        self._service.ask(agent, body, pair.answered, place)
        if record.stage == "shadow" and record.candidate in self._shadow.loaded(model):
            self._shadow.ask(agent, body, pair.shadowed)


class _Pair:
    """One question, and what was answered to it."""

    def __init__(
        self,
        versions: RolloutVersions,
        record: VersionRecord,
        cls: type[Model],
        decoder: msgspec.msgpack.Decoder[Any],
        settle: Settle,
    ) -> None:
        self._count = partial(versions.count, record.model, record.revision)
        self._record = record
        self._cls = cls
        self._decode = decoder.decode
        self._settle = settle
        self._event: Any = None
        """The answer that counts, if the version itself has given it."""
        self._other: Any = None
        self._is_over = False

    def answered(self, answer: ModelAnswer) -> None:
        """The answer that counts. What the shadow has said by then is recorded with it; later, it is only counted."""
        self._is_over = True
        counts = _counts_of(answer)
        is_new = bool(answer.version) and answer.version == self._record.candidate
        self._count(*((VersionCounts(), counts) if is_new else (counts, VersionCounts())))
        self._event = self._decode(answer.body) if answer.outcome == MODEL else None
        if self._event is not None and self._other is not None:
            agrees = self._compare()
            source = structs.replace(self._event.source, shadow_version=self._record.candidate, shadow_agrees=agrees)
            answer = structs.replace(answer, body=encode(structs.replace(self._event, source=source)))
        self._settle(answer)

    def shadowed(self, answer: ModelAnswer) -> None:
        """The answer of the new version, on which nobody acts."""
        self._count(VersionCounts(), _counts_of(answer))
        self._other = self._decode(answer.body) if answer.outcome == MODEL else None
        if self._is_over and self._event is not None and self._other is not None:
            self._compare()

    def _compare(self) -> bool:
        try:
            agrees = bool(self._cls.agrees(self._event.answer, self._other.answer))
        except Exception:  # of a user's class: two answers that cannot be compared are not alike
            agrees = False
        self._count(VersionCounts(), VersionCounts(compared=1, differed=int(not agrees)))
        return agrees


def _counts_of(answer: ModelAnswer) -> VersionCounts:
    if answer.outcome != MODEL:
        return VersionCounts(asks=1, failed=1)
    return VersionCounts(asks=1, latency_s=answer.latency_ns / SECOND_NS)
