"""Tells between the shards of different processes: who sends them, who takes them, what they say to each other."""

from stigmergy.runtime.neighbours.neighbours import Neighbours

__all__ = ["Neighbours"]
