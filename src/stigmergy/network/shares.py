"""Which process owns which shards where several share a fleet: contiguous ranges, fixed by their number."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.base.errors import ConfigError

PROCESSES_MAX = 256


class Share(Struct, frozen=True):
    """What one of several processes has of a fleet. Processes are numbered from 1."""

    process: int
    processes: int
    shards: int

    def __post_init__(self) -> None:
        check_processes(self.processes, self.shards)
        if not 1 <= self.process <= self.processes:
            raise ConfigError(f"process {self.process} of {self.processes}; they count from 1")

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


def check_processes(processes: object, shards: int) -> None:
    """Refuses a number of processes that a fleet of so many shards cannot have."""
    if not isinstance(processes, int) or isinstance(processes, bool) or not 1 <= processes <= PROCESSES_MAX:
        raise ConfigError(f"processes = {processes!r}; give a whole number from 1 to {PROCESSES_MAX}")
    if processes > shards:
        have = "1 shard" if shards == 1 else f"{shards} shards"
        raise ConfigError(
            f"{processes} processes for a fleet of {have}: each needs one at least; declare more, as in "
            f"Fleet(…, shards={max(16, processes)}), before its first start, or run fewer processes"
        )
