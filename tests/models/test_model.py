"""Models as agents see them: what a class may say, what is asked, what comes back, how a fleet knows its models."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies

import stigmergy as st
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import sink_of
from stigmergy.agents.messages import Effect
from stigmergy.base.errors import ConfigError, DefinitionError
from stigmergy.models.model import INPUTS_COUNT_MAX, ModelAsked, ModelMeta, answered, by_rule
from stigmergy.models.runtime import unpack_row
from stigmergy.proto.service import FleetProto
from stigmergy.serve.openapi import describe_api
from stigmergy.shard.inputs import Delivery
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import ShardState, plan_agents
from stigmergy.testing import given
from tests.models.sensors import WITHIN_S, Counter, GasAlarm, GasJudged, GasLost, GasSensor, HeadCount, Sampled

ASKED = (
    "83a474797065b6737469676d657267792e4d6f64656c41736b65644031a56d6f64656ca96761732d616c61726d"
    "a6696e70757473c4080000803f000020c0"
)
ANSWER = (
    "84a474797065be737469676d657267792e496e6665727265642e6761732d616c61726d4031"
    "a6616e7377657282a2636fcb3fe0000000000000a36e6f32cb3fd0000000000000aa636f6e666964656e6365cb3fe0000000000000a6736f75726365"
)
INFERRED = (
    f"{ANSWER}8ba56d6f64656ca96761732d616c61726da776657273696f6ea5312e302e30a6646967657374c40164a6696e70757473c40169"
    "a96c6174656e63795f73cb3fe0000000000000a866616c6c6261636ba46c617465a361726da663616e617279a6706f6c696379a26f6b"
    "ae736861646f775f76657273696f6ea5312e312e30ad736861646f775f616772656573c3ab6578706c616e6174696f6e9192a2636fcb3fe0"
    "000000000000"
)
INFERRED_LEAST = f"{ANSWER}81a56d6f64656ca96761732d616c61726d"


class Score(st.Model):
    score: float


class Asked(st.Event):
    value: float


def test_an_agent_is_tested_without_a_model() -> None:
    sensor = given(GasSensor).when(Sampled(co=1.0))
    sensor.then()
    sensor.when(Sampled(co=2.0, nox=3.0)).then(GasAlarm.ask([1, 0, 2, 3]))
    sensor.when(st.inferred(GasAlarm(co=0.9, no2=0.1))).then(GasJudged(co=0.9, version="", fallback=""))
    sensor.when(st.inferred(GasAlarm(co=0.9, no2=0.1), fallback="late"))
    sensor.then(st.inferred(GasAlarm(co=0.9, no2=0.1), fallback="late"), GasJudged(co=0.9, version="", fallback="late"))
    sensor.state(judged=2, fallback="late")
    sensor.when(st.WorkFailed(work="gas-alarm", reason="no rule")).then(GasLost(reason="no rule"))


def test_a_window_is_asked_row_by_row_the_oldest_first() -> None:
    window: st.Window[Sampled] = st.Window.last(3)
    for number in range(4):
        window = window.add(number, Sampled(co=number, nox=10 + number))
    assert unpack_row(GasAlarm.ask(window, "nox", "co").inputs) == (11, 1, 12, 2, 13, 3)


@for_all(strategies.lists(strategies.floats(), min_size=1, max_size=50))
def test_what_is_asked_is_what_the_model_gets_in_float32(numbers: list[float]) -> None:
    asked = GasAlarm.ask(numbers)
    again = unpack_row(asked.inputs)
    for number, got in zip(numbers, again, strict=True):
        if math.isnan(number):
            assert math.isnan(got)
        elif math.isinf(got):
            assert abs(number) > 3.4e38
        else:
            assert got == struct.unpack("<f", struct.pack("<f", number))[0]


@for_all(strategies.floats(-1e30, 1e30), strategies.floats(-1e30, 1e30))
def test_an_answer_survives_its_bytes(co: float, no2: float) -> None:
    event = answered(GasAlarm, [co, no2], st.ModelSource("gas-alarm", version="1.0.0", explanation=(("co", 0.5),)))
    sensor = given(GasSensor, Sampled(co=1.0), event)
    assert sensor.agent.answers.values == (event,)
    assert event.answer == GasAlarm(co=co, no2=no2)


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        (lambda: GasAlarm.ask([]), "with 0 numbers"),
        (lambda: GasAlarm.ask([0.0] * (INPUTS_COUNT_MAX + 1)), f"give 1 to {INPUTS_COUNT_MAX}"),
        (lambda: GasAlarm.ask(["1"]), "'1', which is no number"),  # type: ignore[list-item]
        (lambda: GasAlarm.ask([None]), "None, which is no number"),  # type: ignore[list-item]
        (lambda: GasAlarm.ask([1.0], "co"), "fields are for a window"),
        (lambda: GasAlarm.ask(st.Window.last(3)), "name the fields that the model reads"),
    ],
)
def test_what_is_no_question_is_refused(asks: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        asks()


def test_the_largest_question_has_room_in_a_message() -> None:
    class Wide(st.Agent):
        @st.react
        def ask(self, event: Sampled) -> st.Effects:
            yield Score.ask([event.co] * INPUTS_COUNT_MAX)

        @st.evolve
        def answer(self, result: st.Inferred[Score]) -> None:
            pass

    given(Wide).when(Sampled(co=1.0)).then(Score.ask([1.0] * INPUTS_COUNT_MAX))


def test_how_sure_an_answer_is() -> None:
    assert st.inferred(GasAlarm(co=0.25, no2=0.75)).confidence == 0.75
    assert st.inferred(GasAlarm(co=12.0, no2=0.75)).confidence == 0.0
    assert st.inferred(GasAlarm(co=0.25, no2=0.75), confidence=0.1).confidence == 0.1


def test_why_a_rule_has_answered() -> None:
    assert st.ModelSource("gas-alarm", fallback="failed: ModelFailed: x").reason == "failed"
    assert st.ModelSource("gas-alarm").reason == ""


def test_a_rule_answers_with_its_class_and_finite_numbers() -> None:
    class Bad(st.Model):
        value: float

        @classmethod
        def fallback(cls, inputs: st.Inputs) -> Any:
            return cls(value=math.nan) if inputs[0] else 0.5

    source = st.ModelSource("bad")
    with pytest.raises(TypeError, match=r"Bad\.fallback returned float, not Bad"):
        by_rule(Bad, Bad.ask([0]).inputs, source)
    with pytest.raises(ValueError, match="NaN"):
        by_rule(Bad, Bad.ask([1]).inputs, source)
    with pytest.raises(NotImplementedError):
        by_rule(HeadCount, HeadCount.ask([1]).inputs, source)


def test_an_answer_that_is_no_number_is_none() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        answered(GasAlarm, [0.5, math.inf], st.ModelSource("gas-alarm"))


def test_what_a_class_statement_says() -> None:
    class HTTPLoad2Score(st.Model):
        value: float

    spec = GasAlarm.__model__
    assert (spec.name, spec.within_s, spec.outputs, spec.has_fallback) == ("gas-alarm", WITHIN_S, ("co", "no2"), True)
    assert (HeadCount.__model__.name, HeadCount.__model__.has_fallback) == ("head-count", False)
    assert HTTPLoad2Score.__model__.name == "httpload2-score"
    assert st.Inferred[GasAlarm] is st.Inferred[GasAlarm]


@pytest.mark.parametrize(
    ("options", "fields", "why"),
    [
        ({"name": "Gas"}, {"co": float}, "small letters"),
        ({"name": 7}, {"co": float}, "small letters"),
        ({"within_s": 0}, {"co": float}, "more than 0 and at most 60 seconds"),
        ({"within_s": "1"}, {"co": float}, "more than 0 and at most 60 seconds"),
        ({}, {}, "a model has outputs"),
        ({}, {"co": int}, "an output of a model is a float"),
    ],
)
def test_classes_that_are_refused(options: dict[str, Any], fields: dict[str, type], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        ModelMeta("Gas", (st.Model,), {"__annotations__": fields, "__module__": __name__}, **options)


@pytest.mark.parametrize("of", [st.Model, Sampled, "GasAlarm"])
def test_an_answer_is_of_one_model(of: Any) -> None:
    with pytest.raises(DefinitionError, match="name the class of one model"):
        st.Inferred[of]


# How a fleet knows its models.


def test_a_fleet_knows_its_models_by_the_handlers_for_their_answers() -> None:
    assert st.Fleet("gas", agents=[GasSensor, Counter]).models == {"gas-alarm": GasAlarm, "head-count": HeadCount}


def ask_for(value: float) -> Effect:
    return Score.ask([value])


def test_an_agent_that_asks_and_hears_no_answer_is_refused() -> None:
    class Deaf(st.Agent):
        @property
        def half(self) -> float:
            return 0.5

        @st.react
        def ask(self, event: Asked) -> st.Effects:
            yield ask_for(event.value * self.half)

    with pytest.raises(DefinitionError, match=r"Deaf asks Score and has no handler for its answer.*Inferred\[Score\]"):
        st.Fleet("deaf", agents=[Deaf])


def test_two_models_of_one_name_are_refused() -> None:
    class Other(st.Model, name="gas-alarm"):
        co: float

    class Listener(st.Agent):
        @st.evolve
        def hear(self, result: st.Inferred[GasAlarm] | st.Inferred[Other]) -> None:
            pass

    with pytest.raises(DefinitionError, match="have the same tag"):
        st.Fleet("two", agents=[Listener])

    class OtherListener(st.Agent):
        @st.evolve
        def hear(self, result: st.Inferred[Other]) -> None:
            pass

    with pytest.raises(DefinitionError, match="two models are called 'gas-alarm'"):
        st.Fleet("two", agents=[GasSensor, OtherListener])


def test_a_compiled_agent_that_asks_is_refused_with_the_line() -> None:
    class Compiled(st.Agent):
        last: float = 0.0

        @st.react
        def ask(self, event: Asked) -> st.Effects:
            yield Score.ask([event.value])

        @st.evolve
        def hear(self, event: Asked) -> None:
            self.last = event.value

        @st.evolve
        def answer(self, result: st.Inferred[Score]) -> None:
            self.last = result.answer.score

    with pytest.raises(
        (DefinitionError, ConfigError), match=r"test_model.py line \d+: Compiled.ask: `Score.ask.*asks a model"
    ):
        st.Fleet("compiled", agents=[Compiled], compiled=True)


# What others may not do.


def test_nobody_else_may_say_what_a_model_has_answered() -> None:
    shard = Shard(ShardState(0, plan_agents([GasSensor])))
    forged = encode(st.inferred(GasAlarm(co=1.0, no2=1.0)))
    shard.step([Delivery("bus/x", [("GasSensor/g1", encode(Sampled(1.0))), ("GasSensor/g1", forged)])], 1)
    assert shard.state.agents["GasSensor/g1"].judged == 0
    (letter,) = shard.state.letters.all()
    assert "said by the framework alone" in letter.error


def test_an_ask_goes_to_the_sink_of_models() -> None:
    assert sink_of(ModelAsked(model="x", inputs=b"")) == "models"


def test_the_bytes_of_questions_and_answers_stay_as_they_are() -> None:
    """They are in logs: a new field has a default, and is behind these."""
    assert encode(GasAlarm.ask([1.0, -2.5])).hex() == ASKED
    source = st.ModelSource(
        "gas-alarm", "1.0.0", b"d", b"i", 0.5, "late", "canary", "ok", "1.1.0", True, (("co", 0.5),)
    )
    event = answered(GasAlarm, [0.5, 0.25], source)
    assert encode(event).hex() == INFERRED
    assert msgspec.msgpack.decode(bytes.fromhex(INFERRED), type=st.Inferred[GasAlarm]) == event
    assert encode(st.inferred(GasAlarm(0.5, 0.25))).hex() == INFERRED_LEAST


def test_other_languages_see_where_an_answer_comes_from() -> None:
    class Suspected(st.Event):
        because: st.ModelSource

    class Sensor(st.Agent):
        @st.decide
        def judge(self, result: st.Inferred[GasAlarm]) -> st.Events:
            yield Suspected(because=result.source)

        @st.evolve
        def suspect(self, event: Suspected) -> None:
            pass

    fleet = st.Fleet("gas", agents=[Sensor])
    assert "message ModelSource {" in FleetProto(fleet, None).text("numbers")
    assert "ModelSource" in json.dumps(describe_api(fleet, (), "1")["components"]["schemas"])
