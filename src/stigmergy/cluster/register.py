"""The contents of a fleet's bucket: its workers, the plan, the owner of each shard and who waits for it.

A mirror of the bucket feeds it; it writes nothing. Invalid records of others are skipped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from stigmergy.base.clock import Clock
from stigmergy.base.errors import ConfigError, Malformed, StoreUnavailable
from stigmergy.cluster.records import (
    COORDINATOR,
    NOBODY,
    PLAN,
    Coordinator,
    FleetShape,
    Owner,
    RecordT,
    ShardPlan,
    StandbyRecord,
    WorkerRecord,
    read_record,
    worker_of,
)
from stigmergy.store.port import NS, Anew, Change, Complete, Gone, KeyValue, StoredEntry, Watch

# A mirror of a bucket: a copy that follows the changes, and signals each. A copy is always a little behind: decide by
# compare-and-set, or ask the store once more.


class Mirror:
    """Follows all keys of a bucket. `heard` is told of each key that has changed, with what is there now."""

    def __init__(self, keys: KeyValue, heard: Callable[[str, StoredEntry | None], None]) -> None:
        self._keys = keys
        self._heard = heard
        self._entries: dict[str, StoredEntry] = {}
        self._told: dict[str, None] | None = None
        """What was told since the last Anew; None while nothing is told anew."""
        self._complete = asyncio.Event()
        self._watch: Watch | None = None

    async def start(self, within_s: float) -> None:
        """Waits until all that is there is known. Raises StoreUnavailable if that takes too long."""
        self._watch = self._keys.watch("", self._change)
        try:
            async with asyncio.timeout(within_s):
                await self._complete.wait()
        except TimeoutError:
            self.stop()
            raise StoreUnavailable(
                f"bucket {self._keys.bucket}: what is there was not told within {within_s:g} s; is the server up, and "
                "do most of its cluster answer?"
            ) from None

    def stop(self) -> None:
        """Hears nothing more."""
        if self._watch is not None:
            self._watch.stop()

    def get(self, key: str) -> StoredEntry | None:
        """What is there, as far as is known."""
        return self._entries.get(key)

    def entries(self) -> list[StoredEntry]:
        """All that is there, by key."""
        return [self._entries[key] for key in sorted(self._entries)]

    def forget(self, entry: StoredEntry) -> None:
        """Somebody has looked: this is not there any more. Does nothing if it was written anew meanwhile."""
        if self._entries.get(entry.key) == entry:
            self._put(entry.key, None)

    def _change(self, change: Change) -> None:
        match change:
            case Anew():
                self._told = {}
            case StoredEntry():
                if self._told is not None:
                    self._told[change.key] = None
                known = self._entries.get(change.key)
                if known is None or known.revision < change.revision:
                    self._put(change.key, change)
            case Gone():
                self._put(change.key, None)
            case Complete():
                told, self._told = self._told or {}, None
                for key in [key for key in self._entries if key not in told]:
                    self._put(key, None)
                self._complete.set()

    def _put(self, key: str, entry: StoredEntry | None) -> None:
        if entry is None and self._entries.pop(key, None) is None:
            return
        if entry is not None:
            self._entries[key] = entry
        self._heard(key, entry)


# Whether a worker is compatible with the present ones: the same shards, agents and versions, and clocks that agree.

CLOCK_SKEW_S_MAX = 5.0
"""Wall clocks of two workers may differ so much."""


def check_shape(known: FleetShape, ours: FleetShape) -> None:
    """Refuses to work for a fleet that looks for its agents elsewhere."""
    if known.fleet != ours.fleet:
        raise ConfigError(f"this is the bucket of the fleet {known.fleet!r}, not of {ours.fleet!r}; name the right one")
    if known.shards != ours.shards:
        raise ConfigError(
            f"the fleet {ours.fleet!r} runs with {known.shards} shards, and this module declares {ours.shards}; the "
            f"number is fixed: declare Fleet(…, shards={known.shards})"
        )
    if known.shard_by != ours.shard_by:
        names = [f"shard_by={name}" if name else "no shard_by" for name in (known.shard_by, ours.shard_by)]
        raise ConfigError(
            f"the fleet {ours.fleet!r} runs with {names[0]}, and this module declares {names[1]}; where agents live is "
            "fixed: declare it as it was"
        )


def check_folds(known: WorkerRecord, ours: WorkerRecord) -> None:
    """Refuses agents whose states are of another version than those of a worker that runs, and to be without some of
    them: their commands would be refused wherever their shard is ours."""
    theirs = {fold.kind: fold for fold in known.kinds}
    for fold in ours.kinds:
        other = theirs.get(fold.kind, fold)
        if other != fold:
            versions = f"version {other.version}" if other.version != fold.version else "other fields"
            raise ConfigError(
                f"worker {known.id} on {known.host} runs {fold.kind} with {versions}; run the same code in all "
                "workers, or replace them one by one with --upgrade"
            )
    ours_too = [fold.kind for fold in ours.kinds]
    if missing := [fold.kind for fold in known.kinds if fold.kind not in ours_too]:
        raise ConfigError(
            f"worker {known.id} on {known.host} runs {', '.join(missing)}, which this module does not declare; run the "
            "same code in all workers, or replace them one by one with --upgrade"
        )


def check_agents(known: WorkerRecord, ours: WorkerRecord) -> None:
    """Refuses to run other agents of the fleet than a present worker: the agents of a shard would change with every
    move. Earlier versions do not say which agents they run."""
    if known.agents_digest and known.agents_digest != ours.agents_digest:
        alike = ", but others among those" if known.agents == ours.agents else ""
        raise ConfigError(
            f"worker {known.id} on {known.host} runs {known.agents}, and this one is to run {ours.agents}{alike}; give "
            "all workers of the fleet the same agents under [fleet] in stigmergy.toml, or replace them one by one with "
            "--upgrade"
        )


def is_old(known: WorkerRecord, wall_ns: int, age_s_max: float) -> bool:
    """Whether somebody has written this longer ago than it may, or has a clock that is behind ours."""
    return known.wall_ns - wall_ns < -(CLOCK_SKEW_S_MAX + age_s_max) * NS


def check_clocks(known: WorkerRecord, wall_ns: int, age_s_max: float) -> None:
    """Refuses to work beside somebody whose clock is far from ours. What it wrote may be as old as it says."""
    ahead_s = (known.wall_ns - wall_ns) / NS
    if is_old(known, wall_ns, age_s_max) or ahead_s > CLOCK_SKEW_S_MAX:
        raise ConfigError(
            f"the clock of this machine is {abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} that of "
            f"worker {known.id} on {known.host}; timers would ring at wrong times: set the clocks (NTP), "
            f"{CLOCK_SKEW_S_MAX:g} s are allowed"
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
        self.plan: ShardPlan | None = None
        """The last plan that counts."""
        self.joined_ns = 0
        """When we saw somebody join last, on our own monotonic clock."""
        self.renewed_ns: dict[str, int] = {}
        """When we heard of each member last."""
        self.skews: dict[str, float] = {}
        """Members whose wall clock differs too much from ours, and by how many seconds it is ahead."""
        self._members: dict[str, WorkerRecord] = {}
        self._owners: dict[int, Owner] = {}
        self._readies: dict[int, StandbyRecord] = {}
        self.counters = RegisterCounters()

    def members(self) -> list[WorkerRecord]:
        """Who is there, by id."""
        return [self._members[name] for name in sorted(self._members)]

    def member(self, worker: str) -> WorkerRecord | None:
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
        """The owner of a shard, if it is a member; NOBODY if it is free."""
        owner = self._owners.get(shard)
        return owner.worker if owner is not None and owner.worker in self._members else NOBODY

    def owner_record(self, shard: int) -> Owner | None:
        """What it says there, whether that worker is a member or not."""
        return self._owners.get(shard)

    def awaited_by(self, shard: int) -> str:
        """The member that has replayed a shard and waits for it."""
        ready = self._readies.get(shard)
        return ready.worker if ready is not None and ready.worker in self._members else NOBODY

    def take_plan(self, plan: ShardPlan) -> None:
        """Goes by this plan from now on, unless a later one is known: a coordinator may speak that was replaced."""
        known = self.plan
        if known is not None and (plan.term, plan.number) < (known.term, known.number):
            self.counters.plans_stale += 1
            return
        self.plan = plan
        self._heard()

    def read(self, kind: type[RecordT], entry: StoredEntry) -> RecordT | None:
        """A record; None, and counted, for what is none."""
        try:
            return read_record(kind, entry.key, entry.value)
        except Malformed:
            self.counters.records_malformed += 1
            return None

    def _changed(self, key: str, entry: StoredEntry | None) -> None:
        worker = worker_of(key)
        word, _, number = key.partition(".")
        if worker is not None:
            self._member_changed(worker, entry)
        elif key == PLAN:
            plan = None if entry is None else self.read(ShardPlan, entry)
            if plan is not None:
                self.take_plan(plan)
        elif number.isdecimal() and word == "owner":
            _put(self._owners, int(number), None if entry is None else self.read(Owner, entry))
        elif number.isdecimal() and word == "ready":
            _put(self._readies, int(number), None if entry is None else self.read(StandbyRecord, entry))
        self._heard()

    def _member_changed(self, worker: str, entry: StoredEntry | None) -> None:
        member = None if entry is None else self.read(WorkerRecord, entry)
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

    def _compare_clocks(self, member: WorkerRecord) -> None:
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
