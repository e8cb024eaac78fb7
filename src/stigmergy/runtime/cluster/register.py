"""What the bucket of a fleet says: its workers, the plan, who owns which shard and who waits for it.

Fed by a mirror of the bucket; it writes nothing. What somebody else has written wrongly is passed over and counted.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from stigmergy.core.errors import Malformed
from stigmergy.core.placement import NOBODY
from stigmergy.ports.clock import Clock
from stigmergy.ports.store import NS, Entry, KeyValue
from stigmergy.runtime.cluster.fitting import CLOCK_SKEW_S_MAX
from stigmergy.runtime.cluster.mirror import Mirror
from stigmergy.runtime.cluster.records import (
    COORDINATOR,
    PLAN,
    Coordinator,
    Member,
    Owner,
    Plan,
    Ready,
    RecordT,
    read_record,
    worker_of,
)


class RegisterCounters(Struct):
    """What was read."""

    plans_stale: int = 0
    records_malformed: int = 0


class Register:
    """The bucket as we know it. `heard` is told of every change."""

    def __init__(self, keys: KeyValue, clock: Clock, heard: Callable[[], None]) -> None:
        self._clock = clock
        self._heard = heard
        self.mirror = Mirror(keys, self._changed)
        self.plan: Plan | None = None
        """The last plan that counts."""
        self.joined_ns = 0
        """When we saw somebody join last, on our own monotonic clock."""
        self.renewed_ns: dict[str, int] = {}
        """When we heard of each member last."""
        self.skews: dict[str, float] = {}
        """Members whose wall clock differs too much from ours, and by how many seconds it is ahead."""
        self._members: dict[str, Member] = {}
        self._owners: dict[int, Owner] = {}
        self._readies: dict[int, Ready] = {}
        self.counters = RegisterCounters()

    def members(self) -> list[Member]:
        """Who is there, by id."""
        return [self._members[name] for name in sorted(self._members)]

    def member(self, worker: str) -> Member | None:
        """One of them."""
        return self._members.get(worker)

    def coordinator(self) -> str:
        """Whose turn it is to plan; nobody's for a moment."""
        entry = self.mirror.get(COORDINATOR)
        record = None if entry is None else self.read(Coordinator, entry)
        return NOBODY if record is None else record.worker

    def planned(self, shard: int) -> str:
        """Whose a shard is to be."""
        return NOBODY if self.plan is None else self.plan.owner_of(shard)

    def owner(self, shard: int) -> str:
        """Who has a shard, if it is a member; NOBODY where it is free."""
        owner = self._owners.get(shard)
        return owner.worker if owner is not None and owner.worker in self._members else NOBODY

    def owner_record(self, shard: int) -> Owner | None:
        """What it says there, whether that worker is a member or not."""
        return self._owners.get(shard)

    def awaited_by(self, shard: int) -> str:
        """The member that has replayed a shard and waits for it."""
        ready = self._readies.get(shard)
        return ready.worker if ready is not None and ready.worker in self._members else NOBODY

    def take_plan(self, plan: Plan) -> None:
        """Goes by this plan from now on, unless a later one is known: a coordinator may speak that was replaced."""
        known = self.plan
        if known is not None and (plan.term, plan.number) < (known.term, known.number):
            self.counters.plans_stale += 1
            return
        self.plan = plan
        self._heard()

    def read(self, kind: type[RecordT], entry: Entry) -> RecordT | None:
        """A record; None, and counted, for what is none."""
        try:
            return read_record(kind, entry.key, entry.value)
        except Malformed:
            self.counters.records_malformed += 1
            return None

    def _changed(self, key: str, entry: Entry | None) -> None:
        worker = worker_of(key)
        word, _, number = key.partition(".")
        if worker is not None:
            self._member_changed(worker, entry)
        elif key == PLAN:
            plan = None if entry is None else self.read(Plan, entry)
            if plan is not None:
                self.take_plan(plan)
        elif number.isdecimal() and word == "owner":
            _put(self._owners, int(number), None if entry is None else self.read(Owner, entry))
        elif number.isdecimal() and word == "ready":
            _put(self._readies, int(number), None if entry is None else self.read(Ready, entry))
        self._heard()

    def _member_changed(self, worker: str, entry: Entry | None) -> None:
        member = None if entry is None else self.read(Member, entry)
        if member is None or member.id != worker:
            self._members.pop(worker, None)
            self.renewed_ns.pop(worker, None)
            self.skews.pop(worker, None)
            return
        if worker not in self._members:
            self.joined_ns = self._clock.monotonic_ns()
        else:
            self._compare_clocks(member)
        self._members[worker] = member
        self.renewed_ns[worker] = self._clock.monotonic_ns()

    def _compare_clocks(self, member: Member) -> None:
        """What was written just now says how far another's clock is from ours."""
        ahead_s = (member.wall_ns - self._clock.wall_ns()) / NS
        if abs(ahead_s) > CLOCK_SKEW_S_MAX:
            self.skews[member.id] = ahead_s
        else:
            self.skews.pop(member.id, None)


def _put(known: dict[int, RecordT], shard: int, record: RecordT | None) -> None:
    if record is None:
        known.pop(shard, None)
    else:
        known[shard] = record
