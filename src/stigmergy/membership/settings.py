"""The times and counts of membership, and values derived from them."""

from __future__ import annotations

import math

from msgspec import Struct

from stigmergy.base.errors import ConfigError

SECOND_NS = 1_000_000_000
SUSPICION_PROBES_MIN = 4
HELPERS_COUNT_MAX = 16


class SwimSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How quickly nodes notice each other's joins and failures. All nodes of a fleet should have the same settings."""

    probe_s: float = 1.0
    """How often a node probes another one."""
    ack_s: float = 0.3
    """Without an answer after this time the probe is repeated, and sent through helpers."""
    helpers_count: int = 3
    """How many helpers are asked to probe."""
    suspicion_s_min: float = 0.0
    """The least time that a suspected member has to refute it; see `suspicion_s`."""
    sync_s: float = 10.0
    """How often a node compares its members with those of another, and looks for a lost one."""
    forget_s: float = 86_400.0
    """How long a member that is gone is remembered and looked for."""

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
        """How long a member is suspected before it is declared dead: one more probe each time the fleet doubles."""
        probes = max(SUSPICION_PROBES_MIN, members_count.bit_length() + 1)
        return max(self.suspicion_s_min, probes * self.probe_s)
