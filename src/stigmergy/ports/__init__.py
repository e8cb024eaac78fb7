"""What the runtime asks of the world, as Protocols whose docstrings state the guarantees."""
