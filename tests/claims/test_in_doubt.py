"""What nobody knows must not make a lease longer, and what nobody takes must not be kept from the others."""

import asyncio
import random

from rigs.ledger import LedgerFaults, SimLedger
from stigmergy.agents.ordered import Granted
from stigmergy.claims.entries import Ask
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.claims.state import MARGIN_MS, OFFER_MS
from stigmergy.claims.writer import ClaimWriter
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.sim.loop import VirtualLoop
from tests.claims.stage import CELL, Stage, simulate


def sending(faults: LedgerFaults, for_s: float) -> tuple[list[range], ClaimWriter, MemoryLedgerStore]:
    """One move on a bad line, which is good again after a while: what may count its lease anew, and when."""
    loop = VirtualLoop(seed=1, deadline_s=600)
    store = MemoryLedgerStore("fleet")
    anew: list[range] = []

    async def main() -> ClaimWriter:
        ledger = SimLedger(store, random.Random("in doubt"), faults)
        signer = Ed25519Signer(bytes(range(32)))
        writing = ClaimWriter(ledger, signer, 1, loop.time_ns, lambda numbers, now_ns: anew.append(numbers))
        writing.life = 1
        task = asyncio.ensure_future(writing.run())
        assert writing.put("Drone/1", Ask(CELL, 5_000))
        await asyncio.sleep(for_s)
        ledger.faults = LedgerFaults()
        await asyncio.sleep(30.0)
        task.cancel()
        return writing

    return anew, loop.run(main()), store


def test_a_move_that_may_be_written_already_counts_from_when_it_was_first_sent() -> None:
    anew, writing, store = sending(LedgerFaults(unknown_share=1.0), for_s=5.0)
    assert writing.counters.appends_unknown > 2
    assert anew == [range(1, 2)], "once, before it was first sent"
    assert store.end > 1, "some of the repetitions were written, too"


def test_a_move_that_was_refused_counts_from_when_it_is_sent_again() -> None:
    anew, writing, store = sending(LedgerFaults(refused_share=1.0), for_s=5.0)
    assert writing.counters.appends_refused > 2
    assert anew == [range(1, 2)] * (writing.counters.appends_refused + 1)
    assert store.end == 1


def test_an_offer_that_nobody_takes_goes_to_the_next() -> None:
    async def main(stage: Stage) -> None:
        holder, gone, next_one = [await stage.node(name) for name in ("holder", "gone", "next")]
        holder.ask(for_s=60.0)
        granted = await holder.wait_granted()
        gone.ask(wait_s=50.0)
        await asyncio.sleep(0.5)
        next_one.ask(wait_s=50.0)
        await asyncio.sleep(0.5)
        await gone.claims.kill()
        gone._running = False
        holder.release(granted.token)
        told = await next_one.wait_told(within_s=3 * (OFFER_MS + MARGIN_MS) / 1000 + 5.0)
        assert isinstance(told[-1], Granted)
        assert told[-1].token > granted.token

    simulate(main)
