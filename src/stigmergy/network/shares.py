"""Which owner has which shards of a fleet: contiguous ranges, fixed by their number. A worker's shard is one owner."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.base.errors import ConfigError

PROCESSES_MAX = 256


class Share(Struct, frozen=True):
    """What one of several owners has of a fleet. They are numbered from 1, and called processes on the wire."""

    process: int
    processes: int
    shards: int

    def __post_init__(self) -> None:
        if not 1 <= self.process <= self.processes <= min(self.shards, PROCESSES_MAX):
            raise ConfigError(
                f"process {self.process} of {self.processes} for {self.shards} shards; they count from 1, each has a "
                f"shard at least, and there are {PROCESSES_MAX} at most"
            )

    @property
    def owned(self) -> range:
        """Its shards."""
        return owned_by(self.process, self.processes, self.shards)

    @property
    def part(self) -> tuple[int, int]:
        """The first and the last of them, as its journal says it."""
        return (self.owned[0], self.owned[-1])

    @property
    def others(self) -> list[int]:
        """The other processes."""
        return [process for process in range(1, self.processes + 1) if process != self.process]

    def process_of(self, shard: int) -> int:
        """The owner of this shard."""
        return process_of(shard, self.processes, self.shards)


def owned_by(process: int, processes: int, shards: int) -> range:
    """The shards of a process: side by side, and as many as others have, give or take one."""
    return range((process - 1) * shards // processes, process * shards // processes)


def process_of(shard: int, processes: int, shards: int) -> int:
    """The process that has a shard."""
    return ((shard + 1) * processes - 1) // shards + 1
