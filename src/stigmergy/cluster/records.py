"""Records that the workers of a fleet write into their bucket: JSON, one record a key. docs/formats.md lists them.

fleet           FleetShape: what all workers must agree on, written by the first of them and never changed
worker.<id>     Member: a lease; who it is, what it owns, what it knows
coordinator     Coordinator: a lease; whose turn it is to plan
plan            Plan: the worker that each shard is for
owner.<k>       Owner: the owner of shard k
ready.<k>       Ready: who has replayed shard k and waits for its owner to release it
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec
from msgspec import Struct

from stigmergy.base.errors import Malformed

# Places shards on members: balanced, with as few moves as possible, and deterministic. Pure.
#
# The coordinator passes the present members and owners, and writes the answer down. That alone moves no shard: an owner
# releases it only when its successor is ready.

NOBODY = ""
"""The owner of a free shard."""


def place(
    shards: int,
    members: Sequence[str],
    current: Mapping[int, str],
    unfit: Collection[tuple[str, int]] = (),
) -> tuple[str, ...]:
    """For each shard the member that is to have it, or NOBODY.

    Members have as many shards as each other, give or take one, and of all such plans it is one that moves the fewest.
    `unfit` names members that cannot have a shard, such as one that does not know an agent kind in it: a shard goes
    to NOBODY only if no member is fit, and the balance is then as good as taking them one by one makes it.
    """
    barred = frozenset(unfit)
    names = sorted(dict.fromkeys(members))
    plan = [NOBODY] * shards
    if not names:
        return tuple(plan)
    held: dict[str, list[int]] = {name: [] for name in names}
    for shard in range(shards):
        owner = current.get(shard, NOBODY)
        if owner in held and (owner, shard) not in barred:
            held[owner].append(shard)
    loads = dict.fromkeys(names, 0)
    for name, quota in _quotas(shards, held).items():
        for shard in held[name][:quota]:
            plan[shard] = name
            loads[name] += 1
    for shard in range(shards):
        if plan[shard] == NOBODY:
            fit = [name for name in names if (name, shard) not in barred]
            if fit:
                # The least loaded; of several the one that has it, so that it does not move for nothing.
                chosen = min(fit, key=lambda name: (loads[name], current.get(shard) != name, name))
                plan[shard] = chosen
                loads[chosen] += 1
    return tuple(plan)


def _quotas(shards: int, held: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How many each may keep: what is left over when all have the same goes to those that have the most anyhow."""
    least, more = divmod(shards, len(held))
    richest = sorted(held, key=lambda name: (-len(held[name]), name))
    return {name: least + (rank < more) for rank, name in enumerate(richest)}


FORMAT = 1
FLEET = "fleet"
COORDINATOR = "coordinator"
PLAN = "plan"
_WORKERS = "worker."
_OWNERS = "owner."
_READIES = "ready."


class FleetShape(Struct, frozen=True):
    """What says where agents live. It cannot change, or agents would be looked for in the wrong shard."""

    fleet: str
    shards: int
    shard_by: str = ""
    """The name of the function that says which agents live together; empty: each by its own address."""
    format: int = FORMAT


class KindFold(Struct, frozen=True):
    """An agent kind, and the version of its state."""

    kind: str
    version: int
    layout: str


class WorkerRecord(Struct, frozen=True):
    """A worker, as it describes itself with every renewal of its lease."""

    id: str
    host: str = ""
    pid: int = 0
    algorithm: int = 0
    public_key: str = ""
    """In hexadecimal: the key that it signs with."""
    kinds: tuple[KindFold, ...] = ()
    version: str = ""
    since_ns: int = 0
    wall_ns: int = 0
    """What its wall clock said when it wrote this: others compare."""
    owns: tuple[int, ...] = ()
    unfit: dict[int, str] = {}
    """Shards that it cannot have, and why."""
    formerly: tuple[str, ...] = ()
    """The ids under which it was a member before: who joins anew gets its own shards again, if they are still free."""
    leaving: bool = False
    """It is about to end: its shards are to go to others."""
    unmet: tuple[str, ...] = ()
    """What its agents need and it has not."""
    bus: bool | None = None
    """Whether its agents are heard on a bus; None: written by an earlier version, which did not say."""
    agents: str = ""
    """The agents it runs, for people: the first few that its configuration names."""
    agents_digest: str = ""
    """Of all that it names, in any order; empty: written by an earlier version, which did not say."""
    format: int = FORMAT


class Coordinator(Struct, frozen=True):
    """Who plans."""

    worker: str
    format: int = FORMAT


class ShardPlan(Struct, frozen=True):
    """Which shard is to be whose. Who owns one lets go when the other is ready, and not before."""

    number: int
    term: int
    """The revision of the lease under which its writer became coordinator: a lower one than was seen does not count."""
    worker: str
    """Who made it."""
    members: tuple[str, ...]
    unfit: tuple[tuple[str, int], ...]
    """What it was made from: it is made anew when these change."""
    owners: tuple[str, ...]
    """For each shard, the worker; empty for nobody."""
    format: int = FORMAT

    def owner_of(self, shard: int) -> str:
        """Whose a shard is to be."""
        return self.owners[shard] if 0 <= shard < len(self.owners) else NOBODY


class Owner(Struct, frozen=True):
    """The owner of a shard. The log itself decides: its last claimant owns it."""

    worker: str
    claim: int
    """The number of its claim; that of every later owner is higher."""
    format: int = FORMAT


class StandbyRecord(Struct, frozen=True):
    """Who waits for a shard, and how far it has replayed."""

    worker: str
    position: int
    format: int = FORMAT


RecordT = TypeVar("RecordT", FleetShape, WorkerRecord, Coordinator, ShardPlan, Owner, StandbyRecord)


def write_record(record: Struct) -> bytes:
    """A record as it is stored."""
    return msgspec.json.encode(record)


def read_record(kind: type[RecordT], key: str, value: bytes) -> RecordT:
    """A record as somebody else wrote it. Raises Malformed for anything else, and for a later format."""
    try:
        record = msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"{key}: not a record of ours: {error}") from None
    if record.format > FORMAT:
        raise Malformed(f"{key}: written by a later version (format {record.format}); update this worker")
    return record


def digest_of(agents: Sequence[str]) -> str:
    """The same for the same agents, in whatever order they are named: there may be too many to write them down."""
    return sha256("\n".join(sorted(set(agents))).encode()).hexdigest()


def worker_key(worker: str) -> str:
    """Where a worker's lease is."""
    return f"{_WORKERS}{worker}"


def owner_key(shard: int) -> str:
    """Where it says who has a shard."""
    return f"{_OWNERS}{shard}"


def ready_key(shard: int) -> str:
    """Where it says who waits for a shard."""
    return f"{_READIES}{shard}"


def worker_of(key: str) -> str | None:
    """The worker whose lease this key is."""
    return key.removeprefix(_WORKERS) if key.startswith(_WORKERS) else None
