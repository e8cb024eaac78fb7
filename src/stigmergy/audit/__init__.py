"""What you can do with a log: list, verify, export, replay against today's code, archive, copy, restore."""
