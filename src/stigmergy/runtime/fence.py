"""A fence in front of a device that cannot refuse stale orders itself: it remembers the highest token of each agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stigmergy.core.effects import Order
from stigmergy.core.errors import Overloaded, StaleOrder

FENCED_COUNT_MAX = 1_000_000
"""Agents whose tokens are remembered; an order of one more is refused, because it could not be fenced."""


class Fence:
    """Lets an order through if no newer one of the same agent came before it; the same one again may pass.

    In memory, unless told otherwise: after a restart the node repeats only what was not settled, in order, so that is
    enough for a device that this node alone commands. Where an old owner may still be speaking, give `keep`, which
    is called before an order passes and returns once the token is stored, and `remembered`, what it had stored.
    """

    def __init__(
        self, remembered: Mapping[str, int] | None = None, keep: Callable[[str, int], None] | None = None
    ) -> None:
        self._highest = dict(remembered or {})
        self._keep = keep

    def admit(self, order: Order[Any]) -> None:
        """Raises StaleOrder if a newer order has passed; the action is then given up, and its agent told."""
        highest = self._highest.get(order.agent)
        if highest is not None and order.token < highest:
            raise StaleOrder(
                f"{order.agent}: the order {order.key} has token {order.token}, and {highest} was carried out; "
                "a newer decision overtook it"
            )
        if highest == order.token:
            return
        if highest is None and len(self._highest) >= FENCED_COUNT_MAX:
            raise Overloaded(f"{FENCED_COUNT_MAX} agents are fenced already; {order.agent} cannot be")
        if self._keep is not None:
            self._keep(order.agent, order.token)
        self._highest[order.agent] = order.token

    def highest(self, agent: str) -> int | None:
        """The highest token that has passed for the agent at this address."""
        return self._highest.get(agent)
