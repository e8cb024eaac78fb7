"""The ledger on NATS JetStream, decided by a majority of servers.

    ledger = open_ledger("nats://hub-1:4222,hub-2:4222,hub-3:4222?replicas=3", "fleet", signer=…)

`records` has the messages and their fold (pure), `streams` the streams, subjects and settings, `reader` and `writer`
the log in and out, `checkpoints` stored states in pieces, `ledger` the port.
"""

from stigmergy.nats.ledger.ledger import NatsLedger, open_ledger

__all__ = ["NatsLedger", "open_ledger"]
