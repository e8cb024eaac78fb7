"""A declaration made fit for the simulator: nothing in it reaches a real device, unless that is asked for."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Generator
from typing import Any

from stigmergy.core.effects import Order
from stigmergy.core.messages import Action, spec_of
from stigmergy.runtime.declaration import Declaration
from stigmergy.runtime.staleness import safe_actions_of
from stigmergy.sim.peers import Receiver


def equip(fleet: Declaration, receiver: Receiver, *, devices: bool) -> Declaration:
    """The same fleet with simulated hands: every action is carried out by `receiver`, which keeps marks.

    Workers stay as they are: what they return is part of the design under test. Sensors, control loops and attachments
    are left out, and whoever writes the test says what is observed. With `devices` all of them run as declared.
    """
    made = copy.copy(fleet)
    if devices:
        return made

    def hand(order: Order[Any]) -> Awaitable[None] | None:
        if receiver.temper.delay_s:
            return Slowly(receiver, order)
        receiver.act(order)
        return None

    hands = dict(fleet._hands)
    for tag, (effect, _) in fleet._hands.items():
        if issubclass(effect, Action):
            hands[tag] = (effect, hand)
    for plan in fleet.plans.values():
        for action in safe_actions_of(plan):
            hands.setdefault(spec_of(type(action)).tag, (type(action), hand))
    made._hands = hands
    made._batched = {tag: (action, _take_all) for tag, (action, _) in fleet._batched.items()}
    made.sensors, made.loops, made.attachments = {}, {}, []
    return made


class Slowly:
    """An order that takes time. Not a coroutine: one that a crash comes before would never be awaited."""

    def __init__(self, receiver: Receiver, order: Order[Any]) -> None:
        self._receiver = receiver
        self._order = order
        receiver.note_try(order)

    def __await__(self) -> Generator[Any, None, None]:
        return self._receiver.act_slowly(self._order).__await__()


def _take_all(orders: Any) -> None:
    """Confirms a block of orders."""
