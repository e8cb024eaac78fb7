"""Shared by all NATS adapters: addresses, connections, names, JetStream's refusals, and the server itself.

The modules at the top know nothing of journals, buses or ledgers. The client library belongs to the extra [nats] and is
imported only in this package.
"""
