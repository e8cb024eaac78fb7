"""The ledger on NATS JetStream, where a majority of servers has the last word.

ledger = open_ledger("nats://hub-1:4222,hub-2:4222,hub-3:4222?replicas=3", "fleet", signer=…)

records, fold    the messages, and what they come to: pure
places           streams, subjects, settings
reading, writing the log in, deeds out
checkpoints      states that somebody has stored, in pieces
ledger           the port
"""

from stigmergy.nats.ledger.ledger import NatsLedger, open_ledger

__all__ = ["NatsLedger", "open_ledger"]
