"""Which shards of its fleet a host owns, who owns the others, and whether it may still act for its own.

A host owns all shards by default, or some of them where several owners share a fleet. Ask here by the number of a
shard; if it is not ours, the answer names the owner. Ownership may change from one turn to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stigmergy.base.errors import NotOwned
from stigmergy.journal.port import JournalIdentity
from stigmergy.shard.shard import Shard

Guard = Callable[[], bool]
"""Whether a host may act for its shards at this moment. A host whose shards can move to another owner is given one.

It reads the owner's own clock and never waits: an owner that was paused or cut off learns late that it has lost them.
A host that is told no ends at once, without effects and without safe actions. Those are the next owner's.
"""


class Shards:
    """The shards of one host, by number. Iterating gives those that it owns, in order."""

    def __init__(self, identity: JournalIdentity, owner_of: Callable[[int], str]) -> None:
        """`owner_of` names the owner of a shard that is not ours."""
        self.total = identity.shards
        """How many the fleet has."""
        self._signers_shard = identity.signers_shard
        self._owner_of = owner_of
        self._owned: dict[int, Shard] = {}

    def take(self, shard: Shard) -> None:
        """From now on it is ours. Raises JournalForeign if its agents have come to live elsewhere."""
        shard.homes.check_agents(shard.state.shard, shard.state.addresses())
        self._owned[shard.state.shard] = shard
        self._owned = {number: self._owned[number] for number in sorted(self._owned)}

    def __getitem__(self, number: int) -> Shard:
        shard = self._owned.get(number)
        if shard is None:
            raise NotOwned(f"{self._owner_of(number)} has shard {number} of this fleet; ask there")
        return shard

    def __contains__(self, number: int) -> bool:
        return number in self._owned

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._owned.values())

    def __len__(self) -> int:
        return len(self._owned)

    @property
    def first(self) -> Shard:
        """Any one of them, always the same: for what is alike in all."""
        return next(iter(self._owned.values()))

    @property
    def signers(self) -> Shard:
        """The one in whose log signers are enrolled and revoked."""
        return self[self._signers_shard]

    def check_home(self, address: str, number: int) -> None:
        """Raises NotOwned, with who has it, if the agent's shard is not ours."""
        if number not in self._owned:
            raise NotOwned(
                f"{address} lives in shard {number}, which {self._owner_of(number)} has; nothing was taken, ask there"
            )
