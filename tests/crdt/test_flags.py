"""EnableWinsFlag and DisableWinsFlag."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy.crdt.flags import DisableWinsFlag, EnableWinsFlag
from tests.crdt.replicas import exchange, pair


@pytest.mark.parametrize("hint", [EnableWinsFlag, DisableWinsFlag])
def test_a_flag_is_off_until_it_is_switched_on(hint: Any) -> None:
    one, _ = pair(hint)
    assert not one.value
    one.write(lambda flag: flag.enable())
    assert one.value
    assert repr(one.value) == f"{hint.__name__}(True)"
    one.write(lambda flag: flag.disable())
    assert not one.value
    one.write(lambda flag: flag.disable())
    one.write(lambda flag: flag.enable())
    assert one.value


@pytest.mark.parametrize(("hint", "winner"), [(EnableWinsFlag, True), (DisableWinsFlag, False)])
def test_who_wins_when_both_are_done_at_once(hint: Any, winner: bool) -> None:
    one, other = pair(hint)
    one.write(lambda flag: flag.enable())
    exchange(one, other)
    one.write(lambda flag: flag.enable())
    other.write(lambda flag: flag.disable())
    exchange(one, other)
    assert bool(one.value) == bool(other.value) == winner
    one.write(lambda flag: flag.disable() if winner else flag.enable())
    exchange(one, other)
    assert bool(other.value) != winner


def test_a_disabling_wins_also_where_the_flag_was_off() -> None:
    one, other = pair(DisableWinsFlag)
    one.write(lambda flag: flag.disable())
    other.write(lambda flag: flag.enable())
    exchange(one, other)
    assert not other.value
