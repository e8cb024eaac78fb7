"""Where everything is."""

from itertools import combinations

from apps.city.plan import APART_M, City, degrees_of, distance_m, district_of, gateway_of, kind_of, place_of
from apps.city.readings import REACH_M

CITY = City(sensors=2000, gateways=5)


def test_every_sensor_has_a_district_and_a_place_of_its_own() -> None:
    sensors = [sensor for district in CITY.districts() for sensor in CITY.sensors_of(district)]
    assert len(sensors) == len(dict.fromkeys(map(place_of, sensors))) == 2000
    assert len(CITY.districts()) == 20
    assert gateway_of(district_of("g2d3-017")) == gateway_of("g2d3") == "g2"


def test_districts_are_so_far_apart_that_no_gas_reaches_two() -> None:
    places = [[place_of(sensor) for sensor in CITY.sensors_of(district)] for district in CITY.districts()]
    for one, two in combinations(places, 2):
        assert min(distance_m(a, b) for a in one for b in two) > 2 * REACH_M["co"]
    assert 2 * REACH_M["co"] < APART_M


def test_those_near_are_of_the_same_kind_and_do_not_contain_itself() -> None:
    for sensor in CITY.sensors_of("g3d2"):
        near = CITY.near(sensor)
        assert near
        assert sensor not in near
        assert {kind_of(one) for one in near} == {kind_of(sensor)}


def test_seven_of_ten_measure_gas() -> None:
    kinds = [kind_of(sensor) for sensor in CITY.sensors_of("g1d1")]
    assert [kinds.count(kind) for kind in ("gas", "noise", "flow", "crowd")] == [70, 10, 10, 10]


def test_a_kilometre_is_about_a_hundredth_of_a_degree() -> None:
    lat, lon = degrees_of((1_000.0, 1_000.0))
    assert 0.008 < lat - degrees_of((0.0, 0.0))[0] < 0.010
    assert 0.011 < lon - degrees_of((0.0, 0.0))[1] < 0.014
