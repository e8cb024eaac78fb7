"""What a ledger's service leaves behind when its host or its ledger fails: no failure that nobody has looked at.

The simulator's loop ends such a run with FailureIgnored.
"""

import gc
from typing import Any

import pytest

from stigmergy import Ledger
from stigmergy.agents.codec import encode
from stigmergy.base.errors import JournalUnknown, LedgerUnavailable
from stigmergy.claims.memory_ledger import MemoryLedger, MemoryLedgerStore
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.ledgers.records import EntryBody, EntryWriters, write_records
from stigmergy.ledgers.service import EntryService
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.ledgers.incident_desk import Incident, city

incidents: Ledger[Any] = Ledger("incidents", Incident, to=["Desk/1", "Desk/2"])
BODIES = [EntryBody(f"p{number}", "Sensor/1", f"I-{number}", encode(Incident(f"I-{number}"))) for number in range(3)]
OTHER = Ed25519Signer(b"o" * 32)


def service_on(node: SimNode, store: MemoryLedgerStore) -> EntryService:
    service = EntryService(incidents, MemoryLedger(store), node.host, node.signer, ())
    service.start()
    return service


def test_a_host_that_fails_with_entries_for_several_subscribers() -> None:
    world = Run(1)
    node = SimNode(world, lambda _: city(ledger=incidents))

    async def main() -> None:
        live = await node.start()
        node.latency.jitter = False
        node.latency.before_s = node.settings.write_within_s + 1.0
        service = service_on(node, MemoryLedgerStore("city.incidents"))
        await service.enter(BODIES[:1])
        assert isinstance(await live.host.wait_failure(), JournalUnknown)
        assert service.counters.entries_given == 2, "each subscriber's entry was in the host"
        await service.stop()
        await node.stop()

    world.run(main())
    assert node.logbook.findings == []


def test_several_proposals_of_one_question_that_may_not_be_written() -> None:
    world = Run(1)
    node = SimNode(world, lambda _: city(ledger=incidents))
    store = MemoryLedgerStore("city.incidents")
    listed = [EntryWriters((OTHER.public_key,))]
    store.append(write_records(store.name, OTHER.algorithm, OTHER.public_key, listed, OTHER.sign))

    async def main() -> None:
        await node.start()
        service = service_on(node, store)
        with pytest.raises(LedgerUnavailable, match="not among the 1 that may write"):
            await service.enter(BODIES)
        await service.stop()
        gc.collect()  # the errors and what they failed hold each other: the loop hears of it only now
        await node.stop()

    world.run(main())
