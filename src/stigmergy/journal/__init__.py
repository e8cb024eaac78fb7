"""Where commits become durable: the port, its adapters (SQLite, segments, memory), recovery and signers."""
