"""The demonstration: twelve drones on one node, a kill, a recovery, the proofs. `python examples/demo.py` runs it."""
