"""Change data capture: the log of a fleet as tables of a database, each event exactly once."""
