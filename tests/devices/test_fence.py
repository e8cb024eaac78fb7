"""The fence: newer orders and repetitions pass, older ones do not."""

import pytest

from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action
from stigmergy.base.errors import Overloaded, StaleOrder
from stigmergy.devices import fence as fence_module
from stigmergy.devices.fence import Fence


class Land(Action):
    pass


def order(token: int, agent: str = "Plane/a") -> Order[Land]:
    return Order(agent, Land(), key=f"1.0.{token}", token=token, sequence=1)


def test_newer_orders_and_repetitions_pass_and_no_older_ones() -> None:
    fence = Fence()
    for token in (3, 3, 4, 9):
        fence.admit(order(token))
    for token in (8, 3, 0):
        with pytest.raises(StaleOrder, match="a newer decision overtook it"):
            fence.admit(order(token))
    fence.admit(order(1, "Plane/b"))
    fence.admit(order(9))
    assert (fence.highest("Plane/a"), fence.highest("Plane/c")) == (9, None)


def test_each_new_token_is_told_once() -> None:
    kept: list[tuple[str, int]] = []
    fence = Fence(keep=lambda agent, token: kept.append((agent, token)))
    for token in (3, 3, 5):
        fence.admit(order(token))
    with pytest.raises(StaleOrder):
        fence.admit(order(4))
    assert kept == [("Plane/a", 3), ("Plane/a", 5)]


def test_what_was_remembered_counts_if_it_is_higher() -> None:
    fence = Fence({"Plane/a": 5})
    with pytest.raises(StaleOrder):
        fence.admit(order(4))
    fence.remember({"Plane/a": 4, "Plane/b": 7})
    assert (fence.highest("Plane/a"), fence.highest("Plane/b")) == (5, 7)
    fence.remember({"Plane/a": 6})
    with pytest.raises(StaleOrder):
        fence.admit(order(5))


def test_it_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "FENCED_COUNT_MAX", 1)
    fence = Fence()
    fence.admit(order(1))
    fence.admit(order(2))
    with pytest.raises(Overloaded):
        fence.admit(order(1, "Plane/b"))
    fence.remember({"Plane/c": 1})
    with pytest.raises(Overloaded, match="1 agents are fenced already; Plane/b cannot be"):
        fence.admit(order(1, "Plane/b"))
    fence.admit(order(2, "Plane/c"))
