"""Makes agents safe: sends out their safe actions without the disk, and has them written down where the disk lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stigmergy.core.inputs import Input, SafeActionOut
from stigmergy.core.messages import Action
from stigmergy.core.shard import Shard
from stigmergy.ports.clock import Clock
from stigmergy.runtime.columns.following import addresses_of
from stigmergy.runtime.effector import Effector
from stigmergy.runtime.staleness import safe_actions_of


class Safety:
    """The safe actions of a host's agents."""

    def __init__(
        self, shards: Iterable[Shard], effector: Effector, clock: Clock, put_inside: Callable[[int, Input], None]
    ) -> None:
        self._shards = shards
        self._effector = effector
        self._clock = clock
        self._put_inside = put_inside

    def make_safe(self, shard: Shard, address: str, because: str, *, journal: bool) -> None:
        """Sends out an agent's safe actions; they are written down afterwards if the journal lives."""
        if address in shard.state.at_rest:
            return
        plan = shard.state.plans[address.partition("/")[0]]
        for action in safe_actions_of(plan):
            self.send(shard, address, action, because, journal=journal)

    def make_all_safe(self) -> None:
        """Sends out everybody's. The journal has failed, or we ourselves."""
        for shard in self._shards:
            for address in addresses_of(shard.state, safe_actions_of):
                self.make_safe(shard, address, "", journal=False)

    def send(self, shard: Shard, address: str, action: Action, because: str, *, journal: bool) -> None:
        """Sends out one safe action of an agent."""
        state = shard.state
        self._effector.release_safe(state.shard, state.position, address, action, self._clock.monotonic_ns())
        if journal:
            self._put_inside(state.shard, SafeActionOut(address, type(action).__name__, because))
