"""Asks the models of a node during a rollout: compares the new version with the old one, and counts. Decides nothing.

In the shadow a question goes to two services, each with its own queue and its own thread: the one that answers is never
behind the other one. Whoever is late, fails or hangs in the shadow delays and changes nothing. A question counts once
both have settled it, whichever was first: a comparison of quick answers alone would say nothing of the slow ones. So
the comparison is no part of the answer, which does not wait for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.agents.messages import SECOND_NS, spec_of
from stigmergy.models.model import Model, ModelAsked, inferred_class
from stigmergy.models.rollout import VersionCounts, VersionRecord
from stigmergy.models.rollout_agent import KIND, AnswerJudged
from stigmergy.models.service import MODEL, ModelAnswer, ModelService
from stigmergy.models.versions import RolloutVersions
from stigmergy.shard.outbox import read_told

Settle = Callable[[ModelAnswer], None]
PAIRS_COUNT_MAX = 32_768
"""Questions to a model that a node remembers until agents have judged the answers; of older ones no judgement counts
for the shadow."""
_JUDGED = spec_of(AnswerJudged).name.encode()
_judged_decoder = msgspec.msgpack.Decoder(AnswerJudged)


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
        self._pairs: dict[str, OrderedDict[tuple[str, tuple[int, ...]], _Pair]] = {}
        """By model, while it has a shadow: by agent and place, the oldest first."""

    def ask(self, agent: str, body: bytes, settle: Settle, place: tuple[int, ...] = ()) -> None:
        """Asks the version that answers the agent, and the new one beside it while that is in the shadow."""
        model = msgspec.msgpack.decode(body, type=ModelAsked).model
        record = self._versions.records.get(model)
        if record is None or record.stage != "shadow":
            self._pairs.pop(model, None)
        if record is None or not record.candidate or model not in self._service.models:
            self._service.ask(agent, body, settle, place)
        elif record.stage != "shadow":
            self._service.ask(agent, body, partial(self._counted, record, settle), place)
        elif record.candidate not in self._shadow.loaded(model):
            self._service.ask(agent, body, settle, place)  # nothing to compare with
        else:
            count = partial(self._versions.count, model, record.revision)
            pair = _Pair(count, self._service.models[model], self._decoders[model], settle)
            pairs = self._pairs.setdefault(model, OrderedDict())
            pairs[agent, place] = pair
            if len(pairs) > PAIRS_COUNT_MAX:
                pairs.popitem(last=False)
            self._service.ask(agent, body, pair.answered, place)
            self._shadow.ask(agent, body, pair.shadowed)

    def heard(self, tell: bytes) -> None:
        """Hears a tell of an agent here. One that judges an answer says whether the shadow was right, too."""
        if not self._pairs or _JUDGED not in tell:
            return
        try:
            told = read_told(tell)
            judged = _judged_decoder.decode(told.message)
        except UNDECODABLE:
            return  # another message that has this name in a text
        pairs = self._pairs.get(told.to.removeprefix(f"{KIND}/"))
        pair = None if pairs is None else pairs.pop((judged.agent, judged.place), None)
        if pair is not None and judged.version:
            pair.judge(right=judged.right)

    def _counted(self, record: VersionRecord, settle: Settle, answer: ModelAnswer) -> None:
        counts = (_counts_of(answer), VersionCounts())
        is_new = bool(answer.version) and answer.version == record.candidate
        self._versions.count(record.model, record.revision, *(reversed(counts) if is_new else counts))
        settle(answer)


class _Pair:
    """One question to both versions, and what was answered to it."""

    __slots__ = ("_agrees", "_answers", "_cls", "_count", "_decode", "_right", "_settle")

    def __init__(
        self,
        count: Callable[[VersionCounts, VersionCounts], None],
        cls: type[Model],
        decoder: msgspec.msgpack.Decoder[Any],
        settle: Settle,
    ) -> None:
        self._count = count
        self._cls = cls
        self._decode = decoder.decode
        self._settle = settle
        self._answers: list[ModelAnswer | None] = [None, None]
        self._agrees: bool | None = None
        """Whether both have said the same; None: one has not answered yet, or in time."""
        self._right: bool | None = None
        """What an agent has found out about the answer that counts."""

    def answered(self, answer: ModelAnswer) -> None:
        """The answer that counts; it waits for nothing."""
        self._settle(answer)
        self._take(0, answer)

    def shadowed(self, answer: ModelAnswer) -> None:
        """The answer of the new version, on which nobody acts."""
        self._take(1, answer)

    def judge(self, *, right: bool) -> None:
        """The old version's answer was right or not. The new one's was too, if it was like it, else the contrary."""
        self._right = right
        if self._agrees is not None:
            self._count(VersionCounts(), VersionCounts(judged=1, wrong=int(right != self._agrees)))

    def _take(self, place: int, answer: ModelAnswer) -> None:
        self._answers[place] = answer
        old, new = self._answers
        if old is None or new is None:
            return
        self._answers = [None, None]  # they may be remembered for long
        self._count(_counts_of(old), _counts_of(new))
        if old.outcome == new.outcome == MODEL:
            self._agrees = self._are_alike(old, new)
            self._count(VersionCounts(), VersionCounts(compared=1, differed=int(not self._agrees)))
            if self._right is not None:
                self.judge(right=self._right)

    def _are_alike(self, old: ModelAnswer, new: ModelAnswer) -> bool:
        try:
            return bool(self._cls.agrees(self._decode(old.body).answer, self._decode(new.body).answer))
        except Exception:  # of a user's class: two answers that cannot be compared are not alike
            return False


def _counts_of(answer: ModelAnswer) -> VersionCounts:
    if answer.outcome != MODEL:
        return VersionCounts(asks=1, failed=1)
    return VersionCounts(asks=1, latency_s=answer.latency_ns / SECOND_NS)
