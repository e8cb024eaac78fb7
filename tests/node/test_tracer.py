"""Sampling: by rule, the same for a repetition, and as the sender says."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from stigmergy.agents.codec import encode
from stigmergy.base.errors import ConfigError
from stigmergy.node.settings import Settings, TraceSettings
from stigmergy.node.tracer import UNTRACED, Tracer
from stigmergy.shard.state import plan_agents
from stigmergy.shard.tracing import UNSAMPLED, TraceContext
from tests.shard.test_tracing import Cart, Heard, Placed, Start

GIVEN = TraceContext(b"t" * 16, b"s" * 8)
PLANS = plan_agents([Cart])
COMMAND = encode(Start(number=1))


def tracer(**settings: object) -> Tracer:
    return Tracer(msgspec.convert(settings, TraceSettings), PLANS, lambda: 7)


def share(made: Tracer, count: int = 4_000) -> float:
    return sum(made.of_command(None, "Cart/a", COMMAND, f"id-{number}") is not None for number in range(count)) / count


def picked(made: Tracer, bodies: list[bytes], count: int = 400) -> list[int]:
    items = [("Cart/a", body) for body in bodies]
    return [
        number * len(items) + place
        for number in range(count)
        for place, _ in made.of_items(None, "s", 1 + number * len(items), items)
    ]


def test_off_nothing_begins_a_trace() -> None:
    for made in (tracer(), UNTRACED):
        assert share(made) == 0
        assert picked(made, [encode(Heard())] * 10) == []
        assert not made.traces_failures


def test_a_share_of_commands_begins_one_and_a_repetition_decides_alike() -> None:
    one, other = tracer(sample=0.1), tracer(sample=0.1)
    assert 0.08 < share(one) < 0.12
    for number in range(200):
        asked = (None, "Cart/a", COMMAND, f"id-{number}")
        assert one.of_command(*asked) == other.of_command(*asked), "on another node, or asked again"
    assert one.traces_failures
    assert not tracer(sample=0.1, failed=False).traces_failures


def test_rules_name_messages_before_kinds() -> None:
    assert share(tracer(rules={"Start": 1.0})) == 1.0
    assert share(tracer(sample=1.0, rules={"Start": 0.0})) == 0.0
    assert 0.4 < share(tracer(rules={"Cart": 0.5})) < 0.6
    assert share(tracer(rules={"Cart": 0.5, "Start": 1})) == 1.0


def test_of_events_every_nth_is_taken_whatever_comes_together() -> None:
    alone, together = (picked(tracer(sample=0.01), [encode(Heard())] * size, 8_000 // size) for size in (1, 80))
    assert alone == together
    assert len(alone) == 80
    assert {after - before for before, after in pairwise(alone)} == {100}
    assert picked(tracer(rules={"Start": 1.0}), [encode(Heard())]) == [], (
        "a rule for a command makes no event looked at"
    )
    mixed = picked(tracer(sample=0.1, rules={"Heard": 1.0}), [encode(Heard()), encode(Placed(x=1))], 2_000)
    heard, placed = sum(1 for one in mixed if one % 2 == 0), sum(1 for one in mixed if one % 2)
    assert heard == 2_000
    assert 150 < placed < 250


def test_a_sender_is_believed_unless_the_settings_say_otherwise() -> None:
    made, items = tracer(), [("Cart/a", COMMAND)]
    came = msgspec.structs.replace(GIVEN, came_ns=7)
    assert made.of_command(GIVEN, "Cart/a", COMMAND, "x") == came
    assert made.of_items(GIVEN, "s", 1, items) == ((0, came),)
    all_of_them = tracer(sample=1.0)
    assert all_of_them.of_command(UNSAMPLED, "Cart/a", COMMAND, "x") is None
    assert all_of_them.of_items(UNSAMPLED, "s", 1, items) == ()
    closed = tracer(parent=False)
    assert closed.of_command(GIVEN, "Cart/a", COMMAND, "x") is None
    assert closed.of_items(GIVEN, "s", 1, items) == ()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sample": 2}, "traces.sample = 2"),
        ({"rules": {"Start": -1.0}}, "traces.rules.Start"),
        ({"rules": {"Strat": 1.0}}, "no agent kind, command or event"),
        ({"export": "collector:4317"}, "such as http://127.0.0.1:4318"),
        ({"queue_count_max": 0}, "from 1 upward"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Tracer(TraceSettings(**settings), PLANS, lambda: 0)  # type: ignore[arg-type]
    assert Settings().traces == TraceSettings()
