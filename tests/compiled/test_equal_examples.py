"""The examples of tests/compiled/agents.py in both engines: what they do can be read here, and it is done twice.

`both` gives inputs to the interpreted and to the compiled engine, compares all that comes of them bit for bit, and
returns what both have done.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from random import Random
from typing import Annotated, Any, get_args, get_origin

import pytest

from proofs.engines_both import NAMES, Outcome, machine_code, outcomes_of, plain_python, times
from proofs.engines_expressions import FLOATS, INTS
from stigmergy import Agent, Command, Effect, Event, Publish, Tell, WakeMe, Woken
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import ACTUATORS, PUBLISH, TIMERS, WORK, CancelWake, shard_sink
from stigmergy.agents.messages import SECOND_NS, Message, resolve_hints
from stigmergy.base.errors import Malformed
from stigmergy.compiled.table import engine_of
from stigmergy.shard.timers import timer_body
from tests.compiled.agents import (
    Counter,
    Descend,
    Drained,
    Enter,
    Entered,
    Fed,
    Glimpsed,
    Heat,
    Land,
    Level,
    Located,
    Lock,
    Measure,
    Measured,
    Mode,
    Narrow,
    Overflowing,
    Plan,
    Relay,
    Ring,
    SetTarget,
    Show,
    Sighted,
    Start,
    Started,
    Stop,
    TargetSet,
    Telemetry,
    Thermostat,
    TurnedOff,
    TurnedOn,
    Warned,
)

NOW_NS = 1_000 * SECOND_NS
EXAMPLES: tuple[tuple[type[Agent], tuple[type[Message], ...]], ...] = (
    (Telemetry, (Located, Drained)),
    (Thermostat, (SetTarget, Measure, Measured, TurnedOn, TurnedOff, TargetSet)),
    (Counter, (Start, Stop, Started, Woken)),
    (Relay, (Sighted, Glimpsed, Warned)),
    (Lock, (Enter, Entered)),
    (Narrow, (Fed,)),
)


def both(cls: type[Agent], *inputs: Command | Event) -> list[Outcome]:
    """What both engines make of these inputs, for agent `one`, two seconds after each other."""
    return outcomes_of(
        cls, [("one", one, NOW_NS + 2 * number * SECOND_NS) for number, one in enumerate(inputs)], plain_python
    )


def sent(effect: Effect, now_ns: int = NOW_NS) -> tuple[str, bytes]:
    """Sink and bytes of an effect."""
    match effect:
        case Tell():
            return shard_sink(0), encode((effect.to, encode(effect.message)))
        case Publish():
            return PUBLISH, encode((effect.topic, encode(effect.event)))
        case WakeMe() | CancelWake():
            return TIMERS, timer_body(effect, now_ns)
        case _:
            return (WORK if isinstance(effect, Plan) else ACTUATORS), encode(effect)


def effects(outcome: Outcome) -> list[tuple[str, bytes]]:
    return [(sink, body) for _, sink, body in outcome.effects]


def kept(outcome: Outcome) -> list[bytes]:
    return outcome.events


def test_a_drone_lands_when_its_battery_is_low() -> None:
    full, low, again = both(Telemetry, Drained(80.0), Drained(14.96), Drained(50.0))
    assert effects(full) == []
    assert effects(low) == [sent(Land(reason="one has 15.0 % left", percent=14.96))]
    assert effects(again) == [sent(Land(reason="one has 50.0 % left", percent=50.0))]


def test_a_drone_descends_and_counts_its_way() -> None:
    first, second = both(Telemetry, Located(3.0, 4.0, 200.0), Located(3.0, 4.0, -1.0))
    assert effects(first) == [sent(Descend(120.0, from_m=200.0))]
    state = encode("flown_m") + encode(5.0)
    assert state in first.state
    assert state in second.state
    assert encode("altitude_m") + encode(0.0) in second.state


def test_a_thermostat_refuses_with_a_reason() -> None:
    cold, hot, nonsense = both(Thermostat, SetTarget(-30.0), SetTarget(31.4), SetTarget(math.nan))
    assert cold.failed == "ValueError: TargetSet.celsius: outside of its bounds"
    assert hot.refused == "31 degrees would be too warm; 30 at most"
    assert nonsense.refused == "no temperature at all"


def test_a_thermostat_decides_several_events_at_once() -> None:
    on, between, off = both(Thermostat, Measure(18.0), Measure(20.1), Measure(21.0))
    assert kept(on) == [encode(Measured(18.0, -2.0)), encode(TurnedOn())]
    assert effects(on) == [sent(Heat(on=True))]
    assert on.effects[0][0] == 1, "the second event is behind it"
    assert kept(between) == [encode(Measured(20.1, 20.1 - 20.0))]
    assert kept(off)[1] == encode(TurnedOff(4.0))
    assert effects(off) == [sent(Heat(on=False))]


def test_a_counter_sets_timers_and_hears_of_them() -> None:
    start, woken, last, late = both(Counter, Start(2), Woken("round"), Woken("round"), Woken("late"))
    assert effects(start) == [sent(WakeMe("round", 2.0)), sent(WakeMe("late", 8.0))]
    assert effects(woken) == [sent(WakeMe("round", 2.0), NOW_NS + 2 * SECOND_NS)]
    assert effects(last) == [sent(CancelWake("late")), sent(Ring("done"))]
    assert effects(late) == [sent(Ring("Counter/one is late by 0 of 2"))]


def test_a_counter_refuses_and_fails() -> None:
    _, running, stopped, none, many = both(Counter, Start(3), Start(1), Stop(), Start(0), Start(256))
    assert running.refused == "3 rounds are left; stop first"
    assert effects(stopped) == [sent(CancelWake("round")), sent(CancelWake("late"))]
    assert none.refused == "give a number of rounds"
    assert many.failed == "OverflowError: Started.rounds: outside of 0 to 255"


def test_a_relay_filters_passes_on_and_warns() -> None:
    far, ahead, near, glimpse = both(
        Relay, Sighted(5000.0, 3), Sighted(500.0, -9), Sighted(4.0, 90), Glimpsed(distance_m=3.0)
    )
    assert (kept(far), effects(far)) == ([], [])
    assert effects(ahead) == [
        sent(Publish("sightings", Sighted(500.0, -9))),
        sent(Tell("Relay/next", Sighted(500.0, -9))),
    ]
    assert kept(near) == [encode(Sighted(4.0, 90)), encode(Warned(4.0, 2))]
    assert effects(near) == [
        sent(Publish("sightings", Sighted(4.0, 90))),
        sent(Tell("Relay/one", Sighted(8.0, 0))),
        sent(Plan(around_m=4.0, hint="2: one")),
    ]
    assert kept(glimpse) == [], "it is transient"
    assert glimpse.effects == [(-1, *sent(Tell("Relay/one", Warned(3.0, 2))))]


def test_a_lock_knows_modes_and_keys() -> None:
    wrong, right, same, last, over = both(
        Lock,
        Enter(Mode.FLYING, b"wrong bytes!"),
        Enter(Mode.FLYING, Lock.MASTER),
        Enter(Mode.FLYING, Lock.MASTER),
        Enter(Mode.LANDED, b"other twelve"),
        Enter(Mode.IDLE, b"other twelve"),
    )
    assert wrong.refused == "a wrong key"
    assert kept(right) == [encode(Entered(Mode.FLYING, Mode.IDLE, Lock.MASTER, Level.HIGH))]
    assert effects(right) == [sent(Show(Mode.FLYING, Level.HIGH, Lock.MASTER))]
    assert kept(same) == []
    assert encode(Mode.LANDED) in last.state
    assert over.refused == "landed for good"


def test_narrow_ints_fail_where_they_end() -> None:
    first, zero, far, word, again = both(
        Narrow, Fed(100, 1, 1), Fed(0, 1, 1), Fed(1, 1, 2**63 - 1), Fed(255, 100, 1), Fed(1, -1, 1)
    )
    assert effects(first) == [sent(Overflowing(sum=75, mean=-0.01))]
    assert zero.failed == "ZeroDivisionError: float division by zero"
    assert far.failed == "OverflowError: an int outside of -2^63 to 2^63 - 1"
    assert word.failed == "OverflowError: Narrow.word: outside of -32768 to 32767"
    assert first.state == zero.state == far.state == word.state, "a fault changes nothing"
    assert again.failed is None


def test_what_has_no_place_in_a_record_is_refused_at_the_door() -> None:
    engine = engine_of(Narrow)
    for message in (Fed(256, 0, 0), Fed(0, 101, 0), Fed(0, 0, 2**63)):
        with pytest.raises(Malformed, match=r"Fed@1"):
            engine._carrying.record_of(0, message)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("cls", "messages"),
    [
        pytest.param(cls, messages, id=cls.__name__, marks=() if cls is Thermostat else pytest.mark.prove)
        for cls, messages in EXAMPLES
    ],
)
def test_examples_agree_as_machine_code(cls: type[Agent], messages: Sequence[type[Message]]) -> None:
    chance = Random(f"{cls.__name__}")
    inputs = [(chance.choice(NAMES), drawn(chance, chance.choice(messages)), now_ns) for now_ns in times(800)]
    lived = outcomes_of(cls, inputs, machine_code)
    assert any(outcome.events for outcome in lived)
    assert any(outcome.effects for outcome in lived)


def drawn(chance: Random, cls: type[Message]) -> Any:
    """A message with values that its fields allow, often the last ones."""
    if cls is Woken:
        return Woken(chance.choice(("round", "late")))
    hints = resolve_hints(cls, cls.__qualname__)
    calm = chance.random() < 0.7
    return cls(**{name: _drawn_value(chance, hints[name], calm) for name in cls.__struct_fields__})


def _drawn_value(chance: Random, hint: Any, calm: bool) -> Any:
    bounds: Any = None
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    if hint is bytes:
        return chance.choice((Lock.MASTER, b"other twelve", bytes(12), b"twelve wrong"))
    if issubclass(hint, enum.Enum):
        return chance.choice(list(hint))
    if hint is bool:
        return chance.random() < 0.5
    value = chance.randrange(-5, 30) if hint is int else chance.randrange(-20, 400) / 8
    if not calm:
        value = chance.choice(INTS) if hint is int else chance.choice(FLOATS)
    least, most = (None, None) if bounds is None else (bounds.ge, bounds.le)
    if bounds is not None and bounds.gt is not None:
        least, most = bounds.gt + 0.5, bounds.lt - 0.5
    if least is not None and not value >= least:
        value = least
    return value if most is None else min(value, most)
