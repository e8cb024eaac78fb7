"""A process that appends to a ledger on NATS, reads it and claims through it, and writes down what it was told.

    python -m rigs.ledger_client URL PLACE NAME LIFE FOLDER CLIENTS

One line is written before an operation and one after it, so that what was under way when the process was killed is
known to have been. `read_history` reads the lines of all of them, as `testing/linearizability.py` wants it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.ordered import (
    LEDGER,
    ClaimAsked,
    ClaimReleased,
    Granted,
    Lost,
    Released,
    Verdict,
    read_verdict,
)
from stigmergy.base.errors import LedgerUnavailable, LedgerUnknown
from stigmergy.claims.port import LedgerPort
from stigmergy.claims.service import ClaimService, life_of
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.nats.ledger import open_ledger
from stigmergy.shard.inputs import EffectSettled, VerdictCame
from stigmergy.shard.outbox import Pending
from stigmergy.testing.linearizability import NEVER_NS, Append, ObservedHold, Operation, OperationOutcome, Read

LOG, CLAIMS = "log", "claims"
"""The two ledgers of a run."""
CELLS = ("cell/1", "cell/2")
LEASE_S = 3.0
HOLD_S = 0.2
PAUSE_S = 0.01
REFUSED_PAUSE_S = 0.1
READ_COUNT = 1_000


class Begun(Struct, frozen=True, tag="begun"):
    """An append that is about to be made."""

    start_ns: int
    entries: tuple[bytes, ...]


class Said(Struct, frozen=True, tag="said"):
    """Something that a claimant believes: that it holds (`holds`, and `still` again and again), or no more (`over`)."""

    word: str
    resource: str
    token: int
    at_ns: int
    asked_ns: int = 0


Line = Begun | Append | Read | Said
_lines = msgspec.msgpack.Decoder(Line)
LENGTH_BYTES = 4


class Logbook:
    """The lines of one process."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("ab", buffering=0)

    def write(self, line: Line) -> None:
        """Hands a line to the system: it survives the process."""
        data = msgspec.msgpack.encode(line)
        self._file.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)


def read_lines(path: Path) -> list[Line]:
    """The lines of one process; what is torn at the end was not written."""
    data, lines, at = path.read_bytes(), list[Line](), 0
    while at + LENGTH_BYTES <= len(data):
        size = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        if at + LENGTH_BYTES + size > len(data):
            break
        lines.append(_lines.decode(data[at + LENGTH_BYTES : at + LENGTH_BYTES + size]))
        at += LENGTH_BYTES + size
    return lines


def read_history(folder: Path) -> tuple[list[Operation], list[ObservedHold]]:
    """What all processes have written down."""
    history: list[Operation] = []
    holds: list[ObservedHold] = []
    for path in sorted(folder.glob("*.lines")):
        lines = read_lines(path)
        begun: Begun | None = None
        for line in lines:
            if isinstance(line, Begun):
                begun = line
            elif isinstance(line, Append | Read):
                begun = None if isinstance(line, Append) else begun
                history.append(line)
        if begun is not None:
            history.append(Append(path.stem, begun.start_ns, NEVER_NS, OperationOutcome.UNKNOWN, begun.entries))
        holds += _holds(path.stem, [line for line in lines if isinstance(line, Said)])
    return history, holds


def _holds(client: str, said: Iterable[Said]) -> list[ObservedHold]:
    open_holds: dict[tuple[str, int], ObservedHold] = {}
    for line in said:
        key = (line.resource, line.token)
        if line.word == "holds":
            open_holds[key] = ObservedHold(client.partition("-")[0], *key, line.asked_ns, line.at_ns, line.at_ns)
        elif key in open_holds:
            open_holds[key] = msgspec.structs.replace(open_holds[key], over_ns=line.at_ns)
    return list(open_holds.values())


def signer_of(name: str) -> Ed25519Signer:
    """The key of a client, by its name."""
    return Ed25519Signer(name.encode().ljust(32, b"."))


# ---------------------------------------------------------------------- what a process does


async def append_and_read(ledger: LedgerPort, client: str, book: Logbook, draw: random.Random) -> None:
    """Appends small batches of entries that nobody else has, and reads, until it is cancelled."""
    seen = 0
    for number in itertools.count():
        if draw.random() < 0.6:
            await _append(ledger, client, number, book, draw)
        else:
            seen = await _read(ledger, client, draw.choice([0, seen, seen]), book, draw)
        await asyncio.sleep(PAUSE_S * draw.random())


async def _append(ledger: LedgerPort, client: str, number: int, book: Logbook, draw: random.Random) -> None:
    entries = tuple(f"{client}.{number}.{index}".encode() for index in range(draw.choice([1, 1, 3])))
    start_ns = time.monotonic_ns()
    book.write(Begun(start_ns, entries))
    tries, outcome, position = 0, OperationOutcome.UNKNOWN, 0
    was_unknown = False
    while tries < 3:
        tries += 1
        try:
            position, outcome = await ledger.append(entries), OperationOutcome.COMMITTED
            break
        except LedgerUnavailable:
            # Refused, unless an earlier try of the same entries may have been written.
            outcome = OperationOutcome.UNKNOWN if was_unknown else OperationOutcome.REFUSED
            if not was_unknown:
                break
        except LedgerUnknown:
            was_unknown = True
        await asyncio.sleep(REFUSED_PAUSE_S)
    book.write(Append(client, start_ns, time.monotonic_ns(), outcome, entries, position))
    if outcome is not OperationOutcome.COMMITTED:
        await asyncio.sleep(REFUSED_PAUSE_S)


async def _read(ledger: LedgerPort, client: str, after: int, book: Logbook, draw: random.Random) -> int:
    is_fresh, count_max = draw.random() < 0.8, draw.choice([3, READ_COUNT, READ_COUNT])
    start_ns = time.monotonic_ns()
    try:
        found = await ledger.read(after, count_max, fresh=is_fresh)
    except (LedgerUnavailable, LedgerUnknown):
        await asyncio.sleep(REFUSED_PAUSE_S)
        return after
    entries = tuple((entry.position, entry.body) for entry in found)
    book.write(Read(client, start_ns, time.monotonic_ns(), after, count_max, entries, is_fresh))
    return found[-1].position if found else after


class Claimant:
    """Claims cells for short whiles, and says at every moment what it believes."""

    def __init__(self, ledger: LedgerPort, name: str, book: Logbook, draw: random.Random) -> None:
        self._book = book
        self._draw = draw
        self._bell = asyncio.Event()
        self._owed: dict[int, int] = {}
        self._sequence = 0
        self._held: dict[str, tuple[int, int]] = {}
        """By cell: the token, and since when."""
        self._agent = f"Drone/{name}"
        self.claims = ClaimService(
            ledger,
            signer_of(name),
            Ed25519Verifier(),
            time.monotonic_ns,
            incarnation=1,
            owes=lambda _shard, sequence: sequence in self._owed,
            wake=self._bell.set,
        )

    async def run(self, life: int) -> None:
        """Until it is cancelled."""
        await self.claims.start(life_of(life, self._draw.randbytes(4)))
        for cell in CELLS:
            self._ask(cell)
        while True:
            # What is told is true at this moment; a busy machine may let it be written down much later.
            now_ns = time.monotonic_ns()
            for _, told in self.claims.due(now_ns):
                self._told(told, now_ns)
            for cell, (token, since_ns) in list(self._held.items()):
                if now_ns - since_ns > HOLD_S * 1e9:
                    del self._held[cell]
                    self._propose(ClaimReleased(claim="cell", resource=cell, token=token))
                believed = self.claims.believes(cell)
                if believed:
                    self._book.write(Said("still", cell, believed[0][1], now_ns))
            try:
                async with asyncio.timeout(PAUSE_S):
                    await self._bell.wait()
            except TimeoutError:
                pass
            self._bell.clear()

    def _told(self, told: object, now_ns: int) -> None:
        verdict: Verdict | None = None
        asked_ns = 0
        if isinstance(told, VerdictCame):
            verdict = read_verdict(told.verdict)
        elif isinstance(told, EffectSettled):
            asked_ns = self._owed.pop(told.sequence, 0)
            verdict = read_verdict(told.result) if told.result else None
        if isinstance(verdict, Granted):
            self._held[verdict.resource] = (verdict.token, now_ns)
            self._book.write(Said("holds", verdict.resource, verdict.token, now_ns, asked_ns))
            return
        if isinstance(verdict, Lost | Released):
            self._held.pop(verdict.resource, None)
            self._book.write(Said("over", verdict.resource, verdict.token, now_ns))
        if verdict is not None:
            self._ask(verdict.resource)

    def _ask(self, cell: str) -> None:
        wait_s = self._draw.choice([0.0, 10.0, 10.0])
        self._propose(ClaimAsked(claim="cell", resource=cell, for_s=LEASE_S, wait_s=wait_s))

    def _propose(self, effect: ClaimAsked | ClaimReleased) -> None:
        self._sequence += 1
        self._owed[self._sequence] = time.monotonic_ns()
        self.claims.propose(0, Pending(1, self._sequence, 0, self._agent, LEDGER, self._sequence, encode(effect)))


async def live(url: str, place: str, name: str, life: int, folder: Path, clients: list[str]) -> None:
    """Opens both ledgers and uses them until the process is killed."""
    book = Logbook(folder / f"{name}-{life}.lines")
    draw = random.Random(f"{name}/{life}")
    keys = [signer_of(one).public_key for one in clients]

    def opened(kind: str) -> LedgerPort:
        base, _, query = url.partition("?")
        where = f"{base}/{place}-{kind}" + (f"?{query}" if query else "")
        return open_ledger(where, f"{place}-{kind}", signer=signer_of(name), trusted=keys)

    claimant = Claimant(opened(CLAIMS), name, book, draw)
    await asyncio.gather(append_and_read(opened(LOG), f"{name}-{life}", book, draw), claimant.run(life))


def main() -> None:
    """Runs one client, as the command line says."""
    url, place, name, life, folder, clients = sys.argv[1:7]
    asyncio.run(live(url, place, name, int(life), Path(folder), clients.split(",")))


if __name__ == "__main__":
    main()
