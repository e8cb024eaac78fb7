"""The host's side of compiled agents: batches of records in, blocks of actions out, rosters for producers."""
