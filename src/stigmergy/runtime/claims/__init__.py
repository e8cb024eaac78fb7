"""The node's side of a ledger: what its agents claim, carried there and back.

    shell       a node's claims as a whole: start, stop, standing
    desk        the wishes of its agents, their leases and their verdicts
    writing     entries on their way to the ledger: numbered, signed, in order, again until they are known to be there
    following   the log read and folded, and its checkpoints
    verifying   signatures that entries share, verified once
    observing   leases and offers of everybody that have run out

What is decided lies in `core/claims`, which is pure; here are the tasks, the pauses and the clock.
"""

from stigmergy.runtime.claims.shell import Claims, ClaimsStanding

__all__ = ["Claims", "ClaimsStanding"]
