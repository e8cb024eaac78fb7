"""Intent, act, confirm: an actuator whose effect can be observed is checked, not trusted.

The intent is in the journal before any order goes out. `confirm=` says how to check whether the world is as intended.
It runs first, so that a repetition after a crash does nothing twice, and after acting, until it says yes or the time is
over. Then the try has failed, and the next one starts.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from stigmergy.agents.effects import Order
from stigmergy.base.errors import DefinitionError

CONFIRM_EVERY_S = 0.1
"""How often the world is asked whether it is so yet."""
TRIES_MAX = 1_000
PAUSE_S_MAX = 5.0
"""The pause between two tries doubles up to this: one who is to try a hundred times must not wait for years."""

Act = Callable[[Order[Any]], Awaitable[Any] | Any]
Confirm = Callable[[Order[Any]], Awaitable[bool] | bool]
"""Whether the world is as this order wanted it. Reads only; asked often."""


class RetryPolicy(Struct, frozen=True):
    """How often one actuator or worker is tried and for how long; None: as the settings say for all."""

    tries: int | None = None
    within_s: float | None = None

    def check(self, what: str) -> None:
        """Raises DefinitionError if this cannot be meant."""
        if self.tries is not None and not 1 <= self.tries <= TRIES_MAX:
            raise DefinitionError(f"{what}: tries={self.tries}; give 1 to {TRIES_MAX}")
        if self.within_s is not None and not 0 < self.within_s <= 86_400:
            raise DefinitionError(f"{what}: within_s={self.within_s}; give more than 0 and at most a day of seconds")


def confirmed(act: Act, confirm: Confirm) -> Callable[[Order[Any]], Awaitable[None]]:
    """An actuator and how its effect is seen, as one hand. It runs until it is so: the caller has the deadline.

    A safe action is not asked about before it is carried out: what makes safe does not wait for an answer.
    """

    async def is_so(order: Order[Any]) -> bool:
        answer = confirm(order)
        return bool(await answer if inspect.isawaitable(answer) else answer)

    async def carry_out(order: Order[Any]) -> None:
        if order.sequence and await is_so(order):
            return
        if order.claim is not None:
            order.claim.check()  # to ask the world took its time
        acted = act(order)
        if inspect.isawaitable(acted):
            await acted
        while not await is_so(order):  # noqa: ASYNC110 - the world sets no events
            await asyncio.sleep(CONFIRM_EVERY_S)

    return carry_out
