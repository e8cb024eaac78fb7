"""Where replicas are in a host: which field of which agent is a replica of which object, and what of it is on disk."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stigmergy.core.sharing import SharedField
from stigmergy.crdt.store import Store
from stigmergy.crdt.value import SharedValue
from stigmergy.runtime.host import Host


class Place(Struct, frozen=True):
    """A shared field of an agent here."""

    object: str
    replica: bytes
    """Under which id it writes."""
    shard: int
    agent: str
    field: str


class Places:
    """All shared fields of all agents of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_field: dict[tuple[str, str], Place] = {}
        self._by_replica: dict[tuple[str, bytes], Place] = {}
        self._apart: dict[tuple[str, str], str] = {}
        """Fields that belong to no object, by kind and name: why, for the first agent."""

    def __len__(self) -> int:
        return len(self._by_field)

    def agents(self) -> Iterator[str]:
        """The addresses of all agents with shared fields, in the order of the shards."""
        for shard in self._host.shards:
            for address in list(shard.state.agents):
                if self._fields(address) and address not in shard.state.at_rest:
                    yield address

    def take(self, address: str) -> list[tuple[Place, Store, SharedValue]]:
        """The shared fields of an agent that were not known yet, with what is on disk of them and an empty value.

        Without those that `shared(by=…)` has no group for: it may be another function since the agent was made. The
        agent goes on with what it has, alone.
        """
        agent = self._host.durable_image(address)
        if agent is None:
            return []
        kind, _, agent_id = address.partition("/")
        shard = self._host.intake.shard_of(address)
        replica = self._host.shards[shard].state.replica_of(address)
        taken: list[tuple[Place, Store, SharedValue]] = []
        for name, field in self._fields(address).items():
            if (address, name) not in self._by_field:
                store: Store = getattr(agent, name).store
                try:
                    place = Place(field.object_of(kind, agent_id), replica, shard, address, name)
                except Exception as error:  # a function of the user's may raise anything
                    self._apart.setdefault((kind, name), f"{address}, {type(error).__name__}: {error}")
                    continue
                self._by_field[address, name] = place
                self._by_replica[place.object, place.replica] = place
                taken.append((place, store, field.initial))
        return taken

    def of_field(self, address: str, field: str) -> Place | None:
        """The place of a field of an agent; None for a field that is not shared any more."""
        return self._by_field.get((address, field))

    def of_replica(self, name: str, replica: bytes) -> Place:
        """The place of a replica of ours."""
        return self._by_replica[name, replica]

    def durable(self, place: Place) -> Store:
        """What is on disk of it."""
        value: SharedValue = getattr(self._host.durable_image(place.agent), place.field)
        return value.store

    def troubles(self) -> list[str]:
        """Which fields are not shared, for one agent or more."""
        return [
            f"{kind}.{name} is not shared by agents that belong to no group: {why}; give shared(by=…) a function that "
            "answers for every agent there is, and start again"
            for (kind, name), why in self._apart.items()
        ]

    def _fields(self, address: str) -> dict[str, SharedField]:
        plan = self._host.declaration.plans.get(address.partition("/")[0])
        return {} if plan is None else plan.shared
