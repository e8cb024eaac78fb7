"""A fence in front of a device that cannot refuse stale orders itself: it remembers the highest token that has passed.

Fence()                  per agent, by the token of each order: no older decision of an agent after a newer one
Fence(of="dock-2")       per resource, by the fencing token of the claim that each order is bound to: nothing of a
                         former holder once the fence has seen an order of a later one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stigmergy.agents.effects import Order
from stigmergy.base.errors import DeviceRefused, Overloaded, StaleOrder

FENCED_COUNT_MAX = 1_000_000
"""Agents or resources whose tokens are remembered; an order for one more is refused, because it could not be fenced."""
_CLAIM = "claim "
"""In front of a resource's name where tokens are kept: no agent's address has a blank in its kind."""


class Fence:
    """Lets an order through if no newer one came before it; the same one again may pass.

    This one forgets when the process ends. Then an order that a safe action had overtaken may be repeated by the next
    start: where that matters use `adapters.fence_file.FenceFile`, or give `keep`, which is told each new token, must
    neither wait nor raise, and so comes after the order has passed: what makes safe waits for no disk.

    With `of` it fences resources and not agents: one, or several, each with a token of its own. Then every order must
    be bound to a claim on one of them (`valid_while`). A safe action is bound to none: do not send it through this one.
    """

    def __init__(
        self,
        remembered: Mapping[str, int] | None = None,
        keep: Callable[[str, int], None] | None = None,
        *,
        of: str | tuple[str, ...] = (),
    ) -> None:
        self._highest = dict(remembered or {})
        self._keep = keep
        self._of = (of,) if isinstance(of, str) else tuple(of)

    def admit(self, order: Order[Any]) -> None:
        """Raises StaleOrder if a newer order has passed; the action is then given up, and its agent told."""
        what, token = self._fenced(order) if self._of else (order.agent, order.token)
        highest = self._highest.get(what)
        if highest is not None and token < highest:
            whose = "a later holder has been here" if self._of else "a newer decision overtook it"
            raise StaleOrder(f"{what}: the order {order.key} has token {token}, and {highest} was carried out; {whose}")
        if highest == token:
            return
        if highest is None and len(self._highest) >= FENCED_COUNT_MAX:
            raise Overloaded(f"{FENCED_COUNT_MAX} agents are fenced already; {what} cannot be")
        self._highest[what] = token
        if self._keep is not None:
            self._keep(what, token)

    def _fenced(self, order: Order[Any]) -> tuple[str, int]:
        """The resource that an order is bound to, and the fencing token of its claim."""
        claim = order.claim
        if claim is None or claim.resource not in self._of:
            bound = "no claim" if claim is None else f"a claim on {claim.resource}"
            raise DeviceRefused(
                f"{order.agent}: the order {order.key} is bound to {bound}, and this fence is for "
                f"{', '.join(self._of)}; yield the action with valid_while="
            )
        return _CLAIM + claim.resource, claim.fencing_token

    def remember(self, tokens: Mapping[str, int]) -> None:
        """Takes in what was remembered before; the higher token counts."""
        for what, token in tokens.items():
            self._highest[what] = max(token, self._highest.get(what, token))

    def highest(self, what: str) -> int | None:
        """The highest token that has passed for the agent at this address; with `of`, for this resource."""
        return self._highest.get(_CLAIM + what if self._of else what)
