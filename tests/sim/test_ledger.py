"""The simulated ledger's faults: refused, unanswered, late, cut off. The contract itself is in tests/claims."""

from __future__ import annotations

import asyncio
import random

import pytest

from rigs.ledger import LedgerFaults, SimLedger
from stigmergy.base.errors import LedgerUnavailable, LedgerUnknown
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.sim.loop import run


def test_what_is_refused_was_not_written_and_what_is_unknown_may_have_been() -> None:
    async def main() -> None:
        store = MemoryLedgerStore("fleet")
        faults = LedgerFaults(refused_share=0.2, unknown_share=0.5, late_share=0.5, late_s_max=2.0)
        ledger = SimLedger(store, random.Random(1), faults)
        sure: list[bytes] = []
        never: list[bytes] = []
        unknown: list[bytes] = []
        for number in range(200):
            body = b"%d" % number
            try:
                await ledger.append([body])
                sure.append(body)
            except LedgerUnavailable:
                never.append(body)
            except LedgerUnknown:
                unknown.append(body)
        await asyncio.sleep(3.0)
        ledger.faults = LedgerFaults()
        found = [entry.body for entry in await ledger.read(0)]
        assert [body for body in found if body in sure] == sure
        assert not set(found) & set(never)
        assert len(found) == len(set(found))
        late = found != sorted(found, key=int)
        assert late and ledger.late_writes > 5  # noqa: PT018 - both are the same observation
        assert 0 < len(set(found) & set(unknown)) < len(unknown)
        assert len(never) > 10

    run(main(), seed=1)


def test_nothing_passes_a_cut() -> None:
    async def main() -> None:
        store = MemoryLedgerStore("fleet")
        ledger, other = SimLedger(store, random.Random(1)), SimLedger(store, random.Random(2))
        told: list[int] = []
        ledger.watch(told.append)
        ledger.cut_off = True
        for call in (ledger.append([b"x"]), ledger.read(0), ledger.checkpoint(), ledger.cut(1)):
            with pytest.raises(LedgerUnavailable):
                await call
        await other.append([b"y"])
        assert told == []
        written = asyncio.Event()
        store.watchers.append(lambda _end: written.set())
        append = asyncio.ensure_future(other.append([b"z"]))
        await written.wait()
        other.cut_off = True
        with pytest.raises(LedgerUnknown):
            await append
        ledger.cut_off = False
        assert [entry.body for entry in await ledger.read(0)] == [b"y", b"z"]

    run(main(), seed=1)
