"""An update as whole numbers modulo 2**64, and what the sum of several may be at most. Pure.

What bounds what: a member's own code clips its update to `clip_norm`, which holds for bad data. A member that lies is
not bound by that, and nobody sees its vector. Whatever it sends, the sum is taken only if honest members could have
made it: so the mean of a cohort is never longer than `clip_norm`.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stigmergy.federated.secure_sum import MEMBERS_COUNT_MAX, Numbers, SumRefused

FRACTION_BITS = 24
"""Bits behind the point: a rounded number is off by 3e-8 at most."""
UNIT = 1 << FRACTION_BITS
Values = NDArray[np.float64]


class UpdateLimits(Struct, frozen=True):
    """What a member's update is cut to before it is masked."""

    clip_norm: float = 1.0
    """The length (L2) of an update."""
    weight_max: int = 10_000
    """The weight, which is the number of its rows: one that claims more is counted with this."""

    def check(self) -> None:
        """Raises SumRefused unless sums under these limits are exact: they must fit into 63 bits and a sign."""
        if not (math.isfinite(self.clip_norm) and self.clip_norm > 0 and self.weight_max >= 1):
            raise SumRefused(f"{self}: both limits must be over 0")
        if MEMBERS_COUNT_MAX * self.weight_max * max(1.0, self.clip_norm) * UNIT >= 2**62:
            raise SumRefused(f"{self}: the sum of {MEMBERS_COUNT_MAX} members could wrap around; choose smaller limits")


def clipped(update: Values, clip_norm: float) -> Values:
    """The update, shortened to this length if it is longer. Raises SumRefused for what is no number."""
    length = float(np.linalg.norm(update))
    if not math.isfinite(length):
        raise SumRefused("the update has a number that is none; train with a smaller rate, or look at the rows")
    return update * (clip_norm / length) if length > clip_norm else update


def encoded(update: Values, weight: int, limits: UpdateLimits) -> Numbers:
    """The weight, then each value times the weight, in units of 2**-24; negative numbers as their complement."""
    limits.check()
    weight = max(1, min(weight, limits.weight_max))
    values = np.rint(clipped(update, limits.clip_norm) * (weight * UNIT)).astype(np.int64)
    return np.concatenate([np.array([weight], np.int64), values]).view(np.uint64)


def decoded(total: Numbers, members_count: int, limits: UpdateLimits) -> tuple[int, Values]:
    """The weight of all members, and the weighted mean of their updates. Raises SumRefused for a sum that members who
    keep to the limits cannot have made."""
    signed = total.view(np.int64)
    weight, sums = int(signed[0]), signed[1:].astype(np.float64) / UNIT
    if not members_count <= weight <= members_count * limits.weight_max:
        raise SumRefused(f"a weight of {weight} for {members_count} members, each 1 to {limits.weight_max}: one lies")
    length = math.hypot(*sums.tolist())
    rounding = members_count * math.sqrt(len(sums)) / UNIT
    if length > weight * limits.clip_norm * (1 + 1e-9) + rounding:
        raise SumRefused(
            f"a mean update of length {length / weight:.3g}, at most {limits.clip_norm:.3g} if all clip: one lies"
        )
    return weight, sums / weight
