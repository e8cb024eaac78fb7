"""A ledger of users' own through a gateway: devices propose and read, and hold no key of it.

    ledger = "node:north,south"     # in the device's configuration: the gateways, of which one has to answer

A device's proposal stays owed in its own log until it reads the outcome in the ledger. It is asked for again until
then, by the same name, so it counts once whatever is lost on the way, whichever gateway enters it. The device verifies
what it reads like everybody else. Whoever may publish on the topics of the mesh may propose: the broker decides who
does, and the entry names the gateway that has signed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.base.errors import (
    LedgerCorrupt,
    LedgerCut,
    LedgerError,
    LedgerUnavailable,
    LedgerUnknown,
    NotRunning,
    StigmergyError,
    TooLarge,
)
from stigmergy.claims.port import Heard, LedgerCheckpoint, LedgerEntry, check_name
from stigmergy.ledgers.records import EntryBody, read_body
from stigmergy.ledgers.service import EntryService
from stigmergy.network.questions import Questions

SCHEME = "node:"
MESH = "ledger"
"""The name of the mesh that questions about ledgers have for themselves."""
ASK_S = 8.0
"""So long a gateway has to answer."""
ENTER_S = 5.0
"""So long it waits for the ledger meanwhile; the proposal stays with it."""
APPEND_COUNT_MAX = 6
"""Proposals in one question, which is in every datagram that asks for it."""
READ_COUNT = 256


class LedgerQuestion(Struct, frozen=True, omit_defaults=True):
    """What a node asks a gateway. Without anything it asks for the newest checkpoint."""

    ledger: str
    bodies: tuple[bytes, ...] = ()
    """Proposals to enter."""
    after: int = -1
    """Records behind this position are asked for; -1: none."""
    count: int = READ_COUNT
    fresh: bool = False


class LedgerAnswer(Struct, frozen=True, omit_defaults=True):
    """What it is answered."""

    error: str = ""
    """The class of an error, and `why`."""
    why: str = ""
    position: int = 0
    records: tuple[LedgerEntry, ...] = ()
    checkpoint: LedgerCheckpoint | None = None


_question_decoder = msgspec.json.Decoder(LedgerQuestion)
_answer_decoder = msgspec.json.Decoder(LedgerAnswer)
_RAISED: Mapping[str, type[LedgerError]] = {one.__name__: one for one in (LedgerCut, LedgerCorrupt, LedgerUnavailable)}


def gateways_of(url: str) -> tuple[str, ...]:
    """The nodes that a URL names; none for one of another scheme."""
    return tuple(filter(None, url.removeprefix(SCHEME).split(","))) if url.startswith(SCHEME) else ()


class LedgerAnswers:
    """The gateway's side: answers the questions of nodes without a key."""

    def __init__(self, services: Mapping[str, EntryService]) -> None:
        self._services = services

    async def answer(self, line: bytes) -> bytes:
        """Raises nothing."""
        try:
            found = await self._answered(_question_decoder.decode(line))
        except (StigmergyError, TimeoutError, *UNDECODABLE) as error:
            found = LedgerAnswer(type(error).__name__, str(error) or "it took too long; ask again")
        return msgspec.json.encode(found)

    async def _answered(self, question: LedgerQuestion) -> LedgerAnswer:
        service = self._services.get(question.ledger)
        if service is None:
            raise LedgerUnavailable(f"no ledger {question.ledger!r} here; ask a gateway that has it")
        if question.bodies:
            bodies = [read_body(data) for data in question.bodies[:APPEND_COUNT_MAX]]
            async with asyncio.timeout(ENTER_S):
                entered = await service.enter([body for body in bodies if isinstance(body, EntryBody)])
            return LedgerAnswer(position=entered)
        if question.after < 0:
            return LedgerAnswer(checkpoint=await service.stored())
        count = max(1, min(question.count, READ_COUNT))
        records = await service.records(question.after, count, fresh=question.fresh)
        return LedgerAnswer(records=tuple(records))


class RemoteLedger:
    """The ledger port through gateways. What is appended is not signed here, and no checkpoint is stored."""

    def __init__(self, name: str, ledger: str, questions: Questions, gateways: Sequence[str]) -> None:
        self.name = check_name(name)
        self._ledger = ledger
        self._questions = questions
        self._gateways = tuple(gateways)
        self._near = 0
        """The gateway that has answered last: asked first."""

    async def append(self, entries: Sequence[bytes]) -> int:
        """Has proposals entered. What it returns is no position of theirs, but says how far to read to see them all."""
        last = 0
        for start in range(0, len(entries), APPEND_COUNT_MAX):
            some = tuple(entries[start : start + APPEND_COUNT_MAX])
            try:
                last = max(last, (await self._ask(LedgerQuestion(self._ledger, some))).position)
            except LedgerUnavailable as error:
                raise LedgerUnknown(str(error)) from None
        return last - len(entries) + 1

    async def read(self, after: int, count_max: int = READ_COUNT, *, fresh: bool = True) -> list[LedgerEntry]:
        question = LedgerQuestion(self._ledger, (), after, min(count_max, READ_COUNT), fresh)
        return list((await self._ask(question)).records)

    def watch(self, heard: Heard) -> None:
        """Nobody tells us; who follows looks now and then."""

    async def checkpoint(self) -> LedgerCheckpoint | None:
        return (await self._ask(LedgerQuestion(self._ledger))).checkpoint

    async def put_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        self._not_ours()

    async def cut(self, upto: int) -> None:
        self._not_ours()

    async def close(self) -> None:
        """The questions are closed by whoever made them."""

    def _not_ours(self) -> NoReturn:
        raise LedgerUnavailable(f"ledger {self.name!r}: this node reads through a gateway, which stores and cuts")

    async def _ask(self, question: LedgerQuestion) -> LedgerAnswer:
        """The answer of the first gateway that gives one. Raises LedgerError."""
        silent: StigmergyError | None = None
        for turn in range(len(self._gateways)):
            place = (self._near + turn) % len(self._gateways)
            try:
                line = await self._questions.ask(self._gateways[place], msgspec.json.encode(question), ASK_S)
                found = _answer_decoder.decode(line)
            except (NotRunning, TooLarge, *UNDECODABLE) as error:
                silent = error if isinstance(error, StigmergyError) else None
                continue
            self._near = place
            if found.error:
                raise _RAISED.get(found.error, LedgerUnavailable)(found.why)
            return found
        raise LedgerUnavailable(f"ledger {self.name!r}: no gateway answers ({silent or 'nonsense'}); it is asked again")
