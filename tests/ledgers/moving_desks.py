"""The fleet whose shards move between workers in `test_handover`."""

from stigmergy import Ledger
from tests.ledgers.incident_desk import Incident, city

SHARDS = 4
DESKS = tuple(f"Desk/{number}" for number in range(6))
fleet = city("movers", shards=SHARDS, ledger=Ledger("incidents", Incident, to=DESKS))
