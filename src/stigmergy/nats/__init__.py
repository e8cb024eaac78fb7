"""What all adapters on NATS share: addresses, connections, names, JetStream's refusals, and the server itself.

Nothing here knows what a journal, a bus or a ledger is. The client library belongs to the extra [nats] and is imported
in here and in the adapters named `nats_…` only.
"""
