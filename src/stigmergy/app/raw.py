"""Refuses settings that would let raw kinds of events leave their device, before anything is opened."""

from __future__ import annotations

from collections.abc import Callable

from stigmergy.agents.raw import CLUSTER, COPIES, UPLINK, RawGuard, refusal
from stigmergy.app.node_config import NodeConfig
from stigmergy.app.views import check_raw_views
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings


def check_raw(
    fleet: Declaration, settings: Settings, node: NodeConfig, journal: str, views: str, say: Callable[[str], None]
) -> None:
    """Raises ConfigError. An uplink without a choice of kinds leaves the raw ones out, which `say` is told."""
    rules = settings.raw_may_leave
    guard = RawGuard(fleet.plans, rules)
    if node.copies or "://" in (settings.retention.archive or ""):
        guard.check(COPIES)
    if views:
        check_raw_views(fleet.views, fleet, rules, views)
    if journal.startswith(("nats:", "tls:")):
        guard.check(CLUSTER)
    if node.uplink is not None and node.uplink.only is None and (left_out := guard.kept_back(UPLINK)):
        say(f"the uplink leaves out what is raw: {', '.join(left_out)}; {refusal(left_out[0], UPLINK)}")
