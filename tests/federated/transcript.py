"""A whole secure sum without agents, and everything that a server or a broker sees of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stigmergy.federated.secure_sum import (
    MemberKeys,
    Numbers,
    OpenedShares,
    SealedShare,
    SumPlan,
    keys_of,
    mask,
    open_shares,
    seal_shares,
    unmask,
)


class Transcript(Struct):
    """What was said, step by step."""

    plan: SumPlan
    roster: list[MemberKeys]
    boxes: list[SealedShare]
    masked: dict[str, Numbers]
    opened: list[OpenedShares]
    total: Numbers

    @property
    def sharers(self) -> list[str]:
        return list(dict.fromkeys(box.giver for box in self.boxes))


def seed_of(member: str) -> bytes:
    return member.encode().ljust(32, b".")


def plan_of(members: Sequence[str], values_count: int, threshold: int = 0) -> SumPlan:
    return SumPlan("t.0.0", tuple(members), threshold or len(members) * 2 // 3 + 1, values_count)


def play(
    numbers: dict[str, Numbers],
    *,
    threshold: int = 0,
    no_keys: Sequence[str] = (),
    no_shares: Sequence[str] = (),
    no_update: Sequence[str] = (),
    no_opening: Sequence[str] = (),
) -> Transcript:
    """All members take part, but for those that vanish at a step."""
    (count,) = {len(one) for one in numbers.values()}
    plan = plan_of(list(numbers), count, threshold)
    roster = [keys_of(seed_of(name), name) for name in numbers if name not in no_keys]
    here = [keys.member for keys in roster if keys.member not in no_shares]
    boxes = [box for name in here for box in seal_shares(seed_of(name), plan, name, roster)]
    left = [name for name in here if name not in no_update]
    masked = {name: mask(seed_of(name), plan, name, roster, here, numbers[name]) for name in left}
    opened = [
        open_shares(seed_of(name), plan, name, roster, [box for box in boxes if box.taker == name], left)
        for name in left
        if name not in no_opening
    ]
    added = np.zeros(count, np.uint64)
    for one in masked.values():
        added = added + one
    total = unmask(plan, roster, here, left, added, opened)
    return Transcript(plan, roster, boxes, masked, opened, total)
