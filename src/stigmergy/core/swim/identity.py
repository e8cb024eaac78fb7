"""Who we are to the others: our incarnation, which only we raise, and whether somebody else goes by our name. Pure.

Others may believe that we are gone, or still know an earlier run of ours. Either is answered with a higher incarnation
than theirs. An earlier run is outdone once; a twin, which is another running node with our name, outdoes us again. That
is how it is found. Which of the two the others then see changes from second to second: one must be renamed.
"""

from __future__ import annotations

from stigmergy.core.swim.packets import INCARNATION_MAX, Status, SwimUpdate

TWINS_COUNT_MAX = 16
OUTDONE_TIMES = 2
"""A run that outdoes our answer so often is a twin: an earlier run's last words can be late once."""


class _Other:
    """A run that is not ours and has our name."""

    def __init__(self) -> None:
        self.answered = 0
        """The incarnation that we answered it with last."""
        self.outdone = 0
        self.heard_ns = 0


class Identity:
    """Our own record, and the runs that contest it."""

    def __init__(self, node: str, run: bytes, incarnation: int, contact: str, about: bytes) -> None:
        self.node = node
        self.run = run
        self.incarnation = incarnation
        self.contact = contact
        self.about = about
        self.status = Status.ALIVE
        self._others: dict[bytes, _Other] = {}
        self._answered_ns: int | None = None

    @property
    def record(self) -> SwimUpdate:
        """What others should know of us."""
        return SwimUpdate(self.node, self.incarnation, self.status, self.run, self.contact, self.about)

    def hear(self, update: SwimUpdate, now_ns: int, pause_ns: int) -> bool:
        """Takes what somebody says of us; True if we have to say that we are alive, under a new incarnation.

        Twins are answered at most once in each pause: they would raise each other at the speed of the network.
        """
        if update.run == self.run:
            if update.rank <= self.record.rank:
                return False
        elif not self._contests(update, now_ns, pause_ns):
            return False
        self.incarnation = min(update.incarnation + 1, INCARNATION_MAX)
        other = self._others.get(update.run)
        if other is not None:
            other.answered = self.incarnation
        return True

    def twin(self, now_ns: int, gone_ns: int) -> bytes | None:
        """The run of another node that goes by our name, if one was heard lately."""
        for run, other in self._others.items():
            if other.outdone >= OUTDONE_TIMES and now_ns - other.heard_ns <= gone_ns:
                return run
        return None

    def _contests(self, update: SwimUpdate, now_ns: int, pause_ns: int) -> bool:
        if update.rank <= self.record.rank:
            return False
        if update.status == Status.ALIVE:
            other = self._others.pop(update.run, None) or _Other()
            self._others[update.run] = other
            if len(self._others) > TWINS_COUNT_MAX:
                del self._others[next(iter(self._others))]
            other.heard_ns = now_ns
            if other.answered and update.incarnation > other.answered:
                other.outdone += 1
                other.answered = update.incarnation  # so that one word of it counts once
        if self._answered_ns is not None and now_ns - self._answered_ns < pause_ns:
            return False
        self._answered_ns = now_ns
        return True
