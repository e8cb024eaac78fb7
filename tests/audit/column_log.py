"""A log with records of compiled agents, written by hand: no table and no compiler has had a part in it. Not a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import ColumnRun, write_record
from stigmergy.agents.supervision import AgentsEnrolled, ColumnsDeclared, SignerEnrolled
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.shard.commit import (
    COLUMNS_FORMAT,
    Commit,
    EventRun,
    Group,
    HashAlgorithm,
    Owed,
    Sealed,
    Signature,
    genesis_of,
    head_of,
    seal,
    statement,
)
from tests.formats.golden_columns import ACTIONS, LAYOUT, MEASURED, TEMPLATES

FLEET = "columns"
SECOND_NS = 1_000_000_000
SIGNER = Ed25519Signer(bytes(range(32)))
DECLARED = ColumnsDeclared(kind="Meter", layout=encode(LAYOUT), templates=encode(TEMPLATES))


def measured(agent: int, level: float) -> bytes:
    """A record."""
    return write_record(LAYOUT, 0, agent, {**MEASURED, "level": level})


def alarm(agent: int, cause: int) -> bytes:
    """An action of the first template."""
    return agent.to_bytes(4, "little") + ACTIONS[4:8] + cause.to_bytes(4, "little") + ACTIONS[12:48]


def a_run(records: Sequence[bytes], time_ns: int, **changes: Any) -> ColumnRun:
    """A run of these records."""
    run = ColumnRun("Meter", LAYOUT.digest(), time_ns, "radio/7", len(records), b"".join(records))
    return structs.replace(run, **changes)


class ColumnLog:
    """A journal of one shard; each `add` is a commit and a group."""

    def __init__(self, journal: Any = None) -> None:
        identity = JournalIdentity(FLEET, 1, 7)
        self.journal = MemoryJournal(MemoryJournalStore(identity)) if journal is None else journal
        self._previous = genesis_of(FLEET, 0)
        self.position = 0

    async def add(
        self,
        *events: tuple[str, bytes],
        columns: Sequence[ColumnRun] = (),
        owed: Sequence[Owed] = (),
        source: str = "gps",
        sealed: Sealed | None = None,
        **changes: Any,
    ) -> Commit:
        """One more commit; a second later than the one before."""
        self.position += 1
        time_ns = self.position * SECOND_NS
        commit = Commit(
            format=COLUMNS_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            shard=0,
            position=self.position,
            epoch=1,
            previous=self._previous,
            runs=[EventRun(len(events), time_ns, source)],
            events=list(events),
            owed=list(owed),
            incarnation=7,
            columns=[structs.replace(run, time_ns=run.time_ns or time_ns) for run in columns],
        )
        commit = structs.replace(commit, **changes)
        sealed = seal(commit) if sealed is None else sealed
        heads = [head_of(sealed)]
        signature = Signature(SIGNER.algorithm, SIGNER.public_key, heads, SIGNER.sign(statement(heads)))
        await self.journal.append(Group((sealed,), signature))
        self._previous = sealed.digest
        return commit

    async def begin(self, names: Sequence[str] = ("M-1", "M-2", "M-7")) -> None:
        """The first two commits: who signs, how records lie in bytes, who is there."""
        await self.add(("", encode(SignerEnrolled(algorithm=1, public_key=SIGNER.public_key, cites=self._previous))))
        enrolled = AgentsEnrolled(kind="Meter", first=0, names=tuple(names))
        await self.add(("", encode(DECLARED)), ("", encode(enrolled)))


async def a_log(journal: Any = None) -> ColumnLog:
    """Five commits: two that begin, then three with records, messages and effects of both kinds."""
    log = ColumnLog(journal)
    await log.begin()
    await log.add(("Drone/D-1", encode({"type": "Seen@1", "n": 1})), columns=[a_run([measured(2, 1.5)], 0)])
    await log.add(
        ("", encode(AgentsEnrolled(kind="Meter", first=3, names=("M-8",)))),
        columns=[
            a_run(
                [measured(0, 2.5), measured(3, 3.5)],
                0,
                templates=TEMPLATES.digest(),
                first=1,
                actions_count=1,
                actions=alarm(3, 1),
            ),
            a_run([measured(0, 4.5)], 0, source="local"),
        ],
        owed=[Owed("Meter/M-1", "actuators", 5, -4, encode({"type": "Blink@1"}))],
    )
    await log.add(columns=[a_run([measured(1, 5.5)], 0)], confirmed=[("Meter", 1)])
    return log
