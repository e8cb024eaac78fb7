"""The times and counts of membership, and what follows from them."""

from __future__ import annotations

import math

from msgspec import Struct

from stigmergy.base.errors import ConfigError

SECOND_NS = 1_000_000_000
SUSPICION_PROBES_MIN = 4
HELPERS_COUNT_MAX = 16


class SwimSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How quickly nodes find out about each other. All nodes of a fleet should have the same."""

    probe_s: float = 1.0
    """How often a node asks another one whether it is there."""
    ack_s: float = 0.3
    """An answer that took longer is asked for again, and through others."""
    helpers_count: int = 3
    """So many others are asked to try."""
    suspicion_s_min: float = 0.0
    """A member that is suspected has at least so long to say that it is alive; see `suspicion_s`."""
    sync_s: float = 10.0
    """How often a node compares whom it knows with another one's list, and looks for one that was lost."""
    forget_s: float = 86_400.0
    """Who is gone is looked for, and known to be gone, for so long."""

    def __post_init__(self) -> None:
        for name in ("probe_s", "ack_s", "sync_s", "forget_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"settings: membership.{name} = {value!r}; give more than 0 seconds")
        if not 0 <= self.suspicion_s_min < math.inf:
            raise ConfigError(
                f"settings: membership.suspicion_s_min = {self.suspicion_s_min!r}; give 0 seconds or more"
            )
        if not self.ack_s < self.probe_s:
            raise ConfigError(f"settings: membership.ack_s = {self.ack_s}; it must be less than probe_s")
        if self.helpers_count not in range(HELPERS_COUNT_MAX + 1):
            raise ConfigError(
                f"settings: membership.helpers_count = {self.helpers_count!r}; give 0 to {HELPERS_COUNT_MAX}"
            )

    def suspicion_s(self, members_count: int) -> float:
        """How long a member is suspected before it is declared dead: one probe more whenever the fleet doubles."""
        probes = max(SUSPICION_PROBES_MIN, members_count.bit_length() + 1)
        return max(self.suspicion_s_min, probes * self.probe_s)
