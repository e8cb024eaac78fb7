"""Places shards on members: balanced, with as few moves as possible, and the same answer for the same question. Pure.

Whoever coordinates asks with the members that are there and with who has what at present, and writes the answer down.
Nobody moves a shard because of this alone: an owner lets go only when its successor is ready.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

NOBODY = ""
"""Who has a shard that nobody has."""


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


def moves(before: Sequence[str], after: Sequence[str]) -> list[int]:
    """The shards that another member is to have."""
    return [shard for shard, (was, now) in enumerate(zip(before, after, strict=True)) if was != now]


def _quotas(shards: int, held: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How many each may keep: what is left over when all have the same goes to those that have the most anyhow."""
    least, more = divmod(shards, len(held))
    richest = sorted(held, key=lambda name: (-len(held[name]), name))
    return {name: least + (rank < more) for rank, name in enumerate(richest)}
