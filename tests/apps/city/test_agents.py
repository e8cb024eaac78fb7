"""Sensors, districts and desks, one by one."""

from typing import Any

import msgspec
import pytest

from apps.city.desk import AlarmOn, Decided, Desk, Held, IncidentCalm, Joined, Raised
from apps.city.district import CaseOpened, District, SensorDoubted
from apps.city.layouts import STEPS
from apps.city.messages import (
    Acknowledge,
    Asked,
    Calmed,
    Confirmed,
    Exposed,
    GasAlarm,
    Incident,
    Levelled,
    Notify,
    OpenDesk,
    OpenDistrict,
    Sampled,
    Seen,
    Sound,
    Suspected,
    WentCalm,
)
from apps.city.plan import City
from apps.city.rules import CALM_READINGS, FRESH_S, READINGS, REMIND, incident_id
from apps.city.sensor import GasSensor, Meter
from stigmergy import Done, Entered, Tell, WakeMe, Woken, inferred
from stigmergy.agents.effects import ProposeEntry
from stigmergy.models.model import ModelAsked
from stigmergy.testing import given

CITY = City(400, 5)
SENSOR, NEAR = "g1d1-013", "g1d1-014"


def sampled(number: int, s2: float = 900.0, s5: float = 900.0) -> Sampled:
    return Sampled(number, 1000.0, s2, 800.0, 1400.0, s5, 20.0, 50.0)


def asked_of(effects: Any, kind: type[Any]) -> list[Any]:
    return [one for one in effects if isinstance(one, kind)]


# ------------------------------------------------------------------ sensors


def test_a_full_window_is_asked_about() -> None:
    scene = given(GasSensor, *(sampled(number) for number in range(STEPS - 1)), id=SENSOR).when(sampled(STEPS))
    (ask,) = asked_of(scene.happened, ModelAsked)
    assert len(ask.inputs) == STEPS * 7 * 4


def test_a_repetition_is_dropped_and_a_restarted_sensor_is_not() -> None:
    scene = given(GasSensor, sampled(7), id=SENSOR)
    assert scene.when(sampled(7)).agent.window.values == (sampled(7),)
    assert scene.when(sampled(0)).agent.number == 0


def test_a_sure_model_makes_it_suspicious_once_and_exposes_people() -> None:
    scene = given(GasSensor, sampled(0), id=SENSOR).when(inferred(GasAlarm(co=0.86, no2=0.1)))
    told, exposed = sorted(asked_of(scene.happened, Tell), key=lambda one: one.to, reverse=True)
    assert told.to == "District/g1d1"
    assert told.message.what == "co"
    assert exposed == Tell(to="Desk/g1", message=Exposed(place="g1d1/co"))
    again = scene.when(inferred(GasAlarm(co=0.9, no2=0.1)))
    assert not [one for one in asked_of(again.happened, Tell) if isinstance(one.message, Suspected)]


def test_it_is_not_suspicious_at_the_limit() -> None:
    scene = given(GasSensor, sampled(0), id=SENSOR).when(inferred(GasAlarm(co=0.85, no2=0.85)))
    assert not asked_of(scene.happened, Tell)


def test_it_reminds_its_district() -> None:
    scene = given(GasSensor, sampled(0), id=SENSOR)
    for _ in range(REMIND + 1):
        scene = scene.when(inferred(GasAlarm(co=0.95, no2=0.1)))
    told = [one for one in asked_of(scene.happened, Tell) if isinstance(one.message, Suspected)]
    assert len(told) == 1
    assert scene.agent.told == 0


def test_it_calms_after_some_readings() -> None:
    scene = given(GasSensor, sampled(0), id=SENSOR).when(inferred(GasAlarm(co=0.95, no2=0.1)))
    for _ in range(CALM_READINGS):
        assert scene.agent.over == "co"
        scene = scene.when(inferred(GasAlarm(co=0.1, no2=0.1)))
    assert scene.agent.over == ""


def test_it_says_what_it_sees() -> None:
    scene = (
        given(GasSensor, sampled(0), id=SENSOR)
        .when(inferred(GasAlarm(co=0.2, no2=0.6)))
        .when(Asked(case="c", what="co"))
    )
    (told,) = asked_of(scene.happened, Tell)
    assert (told.message.case, told.message.probability) == ("c", 0.6)


@pytest.mark.parametrize(("sensor", "value"), [("g1d1-007", 100.0), ("g1d1-008", 0.1), ("g1d1-009", 5.0)])
def test_levels_over_the_limit_in_a_row_are_suspicious(sensor: str, value: float) -> None:
    scene = given(Meter, id=sensor)
    for number in range(READINGS):
        assert not scene.agent.over
        scene = scene.when(Levelled(number, value))
    assert scene.agent.over


def test_the_rule_answers_by_the_last_reading() -> None:
    row = [1000.0, 1400.0, 800.0, 1400.0, 900.0, 20.0, 50.0]
    quiet = [1000.0, 900.0, 800.0, 1400.0, 900.0, 20.0, 50.0]
    assert GasAlarm.fallback(quiet * (STEPS - 1) + row) == GasAlarm(co=0.9, no2=0.0)
    assert GasAlarm.fallback(row * (STEPS - 1) + quiet) == GasAlarm(co=0.0, no2=0.0)


# ------------------------------------------------------------------ districts


def suspected(sensor: str = SENSOR, what: str = "co", since_s: float = 100.0) -> Suspected:
    return Suspected(sensor=sensor, what=what, confidence=0.9, since_s=since_s)


def district(*more: Any) -> Any:
    scene = given(District, id="g1d1").when(OpenDistrict(CITY)).when(suspected())
    return scene.when(*more) if more else scene


CASE = incident_id(SENSOR, "co", 100.0)


def test_neighbours_are_asked() -> None:
    scene = district()
    asked = [one.to for one in asked_of(scene.happened, Tell)]
    assert asked == [f"GasSensor/{one}" for one in CITY.near(SENSOR)]
    assert asked_of(scene.happened, WakeMe)


def answers(probability: float, age_s: float = 1.0) -> list[Seen]:
    return [Seen(case=CASE, sensor=one, probability=probability, age_s=age_s) for one in CITY.near(SENSOR)]


def test_neighbours_confirm() -> None:
    scene = district(*answers(0.6))
    (told,) = asked_of(scene.happened, Tell)
    assert told.to == "Desk/g1"
    assert told.message.severity == 3


def test_neighbours_contradict() -> None:
    assert isinstance(district(*answers(0.1)).happened[-1], SensorDoubted)


def test_what_neighbours_saw_long_ago_does_not_count() -> None:
    scene = district(*answers(0.1, age_s=61.0))
    assert not asked_of(scene.happened, Tell)
    scene = scene.when(Woken(name=CASE))
    assert asked_of(scene.happened, Tell)[0].message.severity == 1


def test_neighbours_that_knew_nothing_answer_with_their_next_reading() -> None:
    scene = given(GasSensor, sampled(0), id=SENSOR).when(Asked(case="c", what="co"))
    assert asked_of(scene.happened, Tell)[0].message.age_s > FRESH_S
    scene = scene.when(inferred(GasAlarm(co=0.1, no2=0.2)))
    (told,) = asked_of(scene.happened, Tell)
    assert (told.message.case, told.message.probability, told.message.age_s) == ("c", 0.2, 0.0)
    scene = district(*answers(0.1, age_s=1e9), *answers(0.2))
    assert [type(one) for one in scene.happened].count(SensorDoubted) == 1


def test_a_second_sensor_overrules_the_contradiction() -> None:
    scene = district(*answers(0.1)).when(suspected()).when(suspected(NEAR))
    (told,) = asked_of(scene.happened, Tell)
    assert told.message.incident == incident_id(NEAR, "co", 100.0)
    assert told.message.severity == 2
    scene = scene.when(Calmed(sensor=NEAR, what="co"))
    assert not asked_of(scene.happened, Tell)
    scene = scene.when(Calmed(sensor=SENSOR, what="co"))
    assert isinstance(asked_of(scene.happened, Tell)[0].message, WentCalm)


def test_a_doubted_sensor_that_reminds_is_doubted_still() -> None:
    scene = district(*answers(0.1)).when(suspected())
    assert not asked_of(scene.happened, Tell)
    assert [one.state for one in scene.agent.cases] == ["doubted"]


@pytest.mark.parametrize("order", [("g1d1-001", "g1d1-000"), ("g1d1-000", "g1d1-001")])
def test_a_leak_at_the_edge_of_a_doubted_sensor_is_one_case(order: tuple[str, str]) -> None:
    broken, city = "g1d1-004", City(30, 3, districts_each=1)
    name = incident_id(broken, "co", 90.0)
    contradicting = [Seen(case=name, sensor=one, probability=0.1, age_s=1.0) for one in city.near(broken)]
    scene = given(District, id="g1d1").when(OpenDistrict(city), suspected(broken, since_s=90.0), *contradicting)
    assert isinstance(scene.happened[-1], SensorDoubted)
    # 450 and 600 m away: a case around the broken sensor would have the one and not the other.
    scene = scene.when(*(suspected(one, "no2") for one in order), suspected(broken, since_s=90.0))
    opened = [one for one in scene.happened if isinstance(one, CaseOpened)]
    assert [one.case.sensor for one in opened] == [order[0]]
    assert [one.sensor for one in scene.agent.cases if one.state in ("asking", "confirmed")] == [order[0]]


def test_many_sensors_are_one_case_whatever_gas_they_name() -> None:
    scene = district(suspected(NEAR), suspected("g1d1-012", what="no2"), suspected("g1d1-004"))
    assert len(scene.agent.cases) == 1


def test_sensors_far_away_are_another_case() -> None:
    big = City(2000, 1)
    scene = given(District, id="g1d1").when(OpenDistrict(big), suspected("g1d1-000")).when(suspected("g1d1-091"))
    assert isinstance(scene.happened[0], CaseOpened)
    assert len(scene.agent.cases) == 2


def test_a_crowd_is_one_case_in_a_whole_district() -> None:
    scene = given(District, id="g1d1").when(OpenDistrict(CITY), suspected("g1d1-009", "crowd"))
    assert len(scene.when(suspected("g1d1-019", "crowd")).agent.cases) == 1


def test_the_desk_hears_when_the_last_sensor_has_calmed() -> None:
    scene = district(*answers(0.6)).when(suspected(NEAR)).when(Calmed(sensor=SENSOR, what="co"))
    assert not asked_of(scene.happened, Tell)
    scene = scene.when(Calmed(sensor=NEAR, what="no2"))
    assert asked_of(scene.happened, Tell) == [Tell("Desk/g1", WentCalm(incident=CASE, what="co", sensor=SENSOR))]


# ------------------------------------------------------------------ desks


def confirmed(sensor: str = SENSOR, since_s: float = 100.0) -> Confirmed:
    name = incident_id(sensor, "co", since_s)
    return Confirmed(incident=name, what="co", sensor=sensor, confidence=0.9, reading=0.95, severity=2, since_s=since_s)


def opened() -> Any:
    """A desk that knows that there is nothing before it."""
    scene = given(Desk, id="g1").when(OpenDesk(5))
    (proposed,) = asked_of(scene.happened, ProposeEntry)
    return scene.when(Entered[Incident](entry=entry_of(proposed), position=1))


def entry_of(proposed: ProposeEntry) -> Incident:
    return msgspec.msgpack.decode(proposed.entry, type=Incident)


def test_a_case_is_an_alarm_and_an_incident() -> None:
    scene = opened().when(confirmed())
    assert asked_of(scene.happened, Sound) == [Sound(district="g1d1", what="co", incident=CASE)]
    (proposed,) = asked_of(scene.happened, ProposeEntry)
    entry = entry_of(proposed)
    assert (entry.incident_id, entry.kind, entry.source_node) == (CASE, "CO_leak", SENSOR)


def test_a_desk_without_a_past_warns_at_once_and_proposes_later() -> None:
    begun = given(Desk, id="g1").when(OpenDesk(5))
    (joined,) = asked_of(begun.happened, ProposeEntry)
    scene = begun.when(confirmed())
    assert asked_of(scene.happened, Sound)
    assert not asked_of(scene.happened, ProposeEntry)
    assert any(isinstance(one, Held) for one in scene.happened)
    scene = scene.when(Entered[Incident](entry=entry_of(joined), position=4))
    assert entry_of(asked_of(scene.happened, ProposeEntry)[0]).incident_id == CASE


def test_a_desk_with_a_new_disk_joins_the_incident_that_it_had_proposed() -> None:
    first = opened().when(confirmed())
    before = entry_of(asked_of(first.happened, ProposeEntry)[0])
    begun = given(Desk, id="g1").when(OpenDesk(5))
    (joined,) = asked_of(begun.happened, ProposeEntry)
    scene = begun.when(
        confirmed(NEAR, since_s=130.0),
        Entered[Incident](entry=before, position=3),
        Entered[Incident](entry=entry_of(joined), position=4),
    )
    assert not [one for one in scene.happened if isinstance(one, Raised)]
    assert [one.entry.incident_id for one in scene.agent.known] == [CASE]


def test_a_near_case_joins_and_raises_nothing() -> None:
    scene = opened().when(confirmed()).when(confirmed(NEAR, since_s=101.0))
    assert scene.happened == [Joined(incident=CASE)]
    assert not asked_of(scene.happened, ProposeEntry)


def raised() -> tuple[Any, Incident]:
    scene = opened().when(confirmed())
    entry = entry_of(asked_of(scene.happened, ProposeEntry)[0])
    return scene, entry


def test_its_own_incident_is_told_when_it_is_in_the_ledger() -> None:
    scene, entry = raised()
    assert not asked_of(scene.happened, Notify)
    scene = scene.when(Entered[Incident](entry=entry, position=2))
    (notice,) = asked_of(scene.happened, Notify)
    assert notice.mark == f"{CASE}:2"
    assert notice.mail
    scene = scene.when(Done(notice))
    assert entry_of(asked_of(scene.happened, ProposeEntry)[0]).stage == "notified"


def test_another_gateway_tells_it_later() -> None:
    _, entry = raised()
    begun = given(Desk, id="g2").when(OpenDesk(5))
    (joined,) = asked_of(begun.happened, ProposeEntry)
    scene = begun.when(
        Entered[Incident](entry=entry_of(joined), position=2), Entered[Incident](entry=entry, position=3)
    )
    assert not asked_of(scene.happened, Notify)
    assert {one.name.partition(":")[0] for one in asked_of(scene.happened, WakeMe)} == {"notify", "escalate"}
    assert asked_of(scene.later(seconds=21).happened, Notify)


def test_what_nobody_acknowledges_is_escalated() -> None:
    scene, entry = raised()
    scene = scene.when(Entered[Incident](entry=entry, position=2)).later(seconds=41)
    escalated = entry_of(asked_of(scene.happened, ProposeEntry)[0])
    assert (escalated.incident_id, escalated.severity) == (f"{CASE}:escalated-3", 3)


def test_what_is_acknowledged_is_not_escalated() -> None:
    scene, entry = raised()
    scene = scene.when(Entered[Incident](entry=entry, position=2), Acknowledge(incident=CASE, by="Ada"))
    acknowledged = entry_of(asked_of(scene.happened, ProposeEntry)[0])
    assert (acknowledged.stage, acknowledged.by) == ("acknowledged", "Ada")
    scene = scene.when(Entered[Incident](entry=acknowledged, position=3)).later(seconds=100)
    assert not [one for one in scene.happened if isinstance(one, Decided)]


def test_an_unknown_incident_cannot_be_acknowledged() -> None:
    opened().when(Acknowledge(incident="?", by="Ada")).refused("knows no incident")


def test_all_is_clear_when_it_was_calm_for_a_while() -> None:
    scene, entry = raised()
    scene = scene.when(Entered[Incident](entry=entry, position=2), WentCalm(incident=CASE, what="co", sensor=SENSOR))
    assert any(isinstance(one, IncidentCalm) for one in scene.happened)
    scene = scene.later(seconds=7)
    cleared = [one.entry for one in scene.happened if isinstance(one, Decided)]
    assert [one.stage for one in cleared] == ["cleared"]
    another = scene.when(confirmed(since_s=200.0))
    assert any(isinstance(one, AlarmOn) for one in another.happened)


def test_a_case_that_comes_again_stops_the_all_clear() -> None:
    scene, entry = raised()
    scene = scene.when(
        Entered[Incident](entry=entry, position=2),
        WentCalm(incident=CASE, what="co", sensor=SENSOR),
        confirmed(NEAR, 102.0),
    ).later(seconds=7)
    assert not [one for one in scene.happened if isinstance(one, Decided)]


def test_exposure_is_counted_by_place() -> None:
    scene = given(Desk, id="g1").when(Exposed(place="g1d1/co"), Exposed(place="g1d1/co"), Exposed(place="g1d2/no2"))
    assert {place: one.value for place, one in scene.agent.exposure.items()} == {"g1d1/co": 2, "g1d2/no2": 1}
