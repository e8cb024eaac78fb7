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

    This one forgets when the process ends. Then an order that a safe action had overtaken may be repeated by the next
    start: where that matters use `adapters.fence_file.FenceFile`, or give `keep`, which is told each new token, must
    neither wait nor raise, and so comes after the order has passed: what makes safe waits for no disk.
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
        self._highest[order.agent] = order.token
        if self._keep is not None:
            self._keep(order.agent, order.token)

    def remember(self, tokens: Mapping[str, int]) -> None:
        """Takes in what was remembered before; the higher token counts."""
        for agent, token in tokens.items():
            self._highest[agent] = max(token, self._highest.get(agent, token))

    def highest(self, agent: str) -> int | None:
        """The highest token that has passed for the agent at this address."""
        return self._highest.get(agent)
