"""Checkers: each looks at plain evidence and says, in sentences, which promise was broken. One promise a file.

A checker asks nobody who might hide a mistake: it is given what was seen from outside, and returns what is wrong; an
empty list is good. Users give them evidence of their own as well as the simulator does.
"""

from stigmergy.sim.checkers.acknowledged import Acknowledged, nothing_acknowledged_is_lost
from stigmergy.sim.checkers.chain import Signed, chain_is_valid
from stigmergy.sim.checkers.converging import replicas_converge, replicas_equal_specification
from stigmergy.sim.checkers.doubled import Taken, nothing_is_doubled
from stigmergy.sim.checkers.holding import Hold, one_holder_at_a_time
from stigmergy.sim.checkers.progress import Settling, everything_makes_progress
from stigmergy.sim.checkers.safety import Watched, safe_action_in_time

__all__ = [
    "Acknowledged",
    "Hold",
    "Settling",
    "Signed",
    "Taken",
    "Watched",
    "chain_is_valid",
    "everything_makes_progress",
    "nothing_acknowledged_is_lost",
    "nothing_is_doubled",
    "one_holder_at_a_time",
    "replicas_converge",
    "replicas_equal_specification",
    "safe_action_in_time",
]
