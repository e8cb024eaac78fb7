"""Synthetic readings: the same seed gives the same bytes, and the committed detector finds leaks in them."""

import re
from pathlib import Path

import numpy as np
import pytest

import apps.city
from apps.city.layouts import CHANNELS, LEVEL, READING, STEPS
from apps.city.plan import City, district_of, kind_of
from apps.city.readings import LEAK, Leak, Readings, plan_leaks
from apps.city.rules import LIMITS, SUSPICIOUS

CITY = City(sensors=400, gateways=1)
MODELS = Path(apps.city.__file__).parent / "models"


def probabilities(readings: Readings, steps: int) -> dict[str, list[tuple[float, float]]]:
    """What the committed bundle answers, from the first full window on."""
    onnxruntime = pytest.importorskip("onnxruntime")
    (bundle,) = MODELS.glob("gas-alarm-*.model")
    data = bundle.read_bytes()
    said: dict[str, list[list[float]]] = {}
    for step in range(steps):
        for sensor, payload in readings.at(step):
            if kind_of(sensor) == "gas":
                values = READING.read(payload)
                said.setdefault(sensor, []).append([values[channel] for channel in CHANNELS])
    # The payload of a bundle is found by what ONNX begins with; reading bundles is the platform's, and tested there.
    begin = re.search(rb"\x08\x0a\x12\x0fapps\.city\.train", data)
    assert begin is not None
    session = onnxruntime.InferenceSession(data[begin.start() : -97])
    found: dict[str, list[tuple[float, float]]] = {sensor: [] for sensor in said}
    for end in range(STEPS, steps + 1):
        rows = np.array([np.ravel(said[sensor][end - STEPS : end]) for sensor in said], dtype=np.float32)
        for sensor, (co, no2) in zip(said, session.run(None, {"readings": rows})[0].tolist(), strict=True):
            found[sensor].append((co, no2))
    return found


def test_the_same_seed_gives_the_same_bytes() -> None:
    leaks = plan_leaks(CITY, 7, 4, 30)
    first, second = (list(Readings(CITY, ["g1d1"], 7, leaks).at(11)) for _ in range(2))
    assert first == second
    assert list(Readings(CITY, ["g1d1"], 8, leaks).at(11)) != first


@pytest.mark.parametrize("what", ["co", "no2"])
def test_the_committed_detector_finds_a_leak_and_nothing_else(what: str) -> None:
    leak = Leak("leak", what, "g1d2", 3 * 150.0 + 75, 3_000.0 + 225, begin=10, end=20)
    found = probabilities(Readings(CITY, ["g1d1", "g1d2"], 7, [leak]), 20)
    loud = {sensor for sensor, rows in found.items() if max(max(row) for row in rows) > SUSPICIOUS}
    assert len(loud) >= 2
    assert {district_of(sensor) for sensor in loud} == {"g1d2"}
    quiet = [max(row) for rows in found.values() for row in rows[: 10 - STEPS]]
    assert max(quiet) < SUSPICIOUS


def test_levels_go_over_their_limit_where_something_is() -> None:
    leaks = [Leak(what, what, "g1d1", 600.0, 600.0, 5, 15) for what in ("noise", "flow", "crowd")]
    calm, loud = (dict(Readings(CITY, ["g1d1"], 7, leaks).at(step)) for step in (4, 8))
    over = [
        {kind_of(sensor) for sensor, payload in one.items() if kind_of(sensor) != "gas" and is_over(sensor, payload)}
        for one in (calm, loud)
    ]
    assert over == [set(), {"noise", "flow", "crowd"}]


def is_over(sensor: str, payload: bytes) -> bool:
    what, value = kind_of(sensor), LEVEL.read(payload)["value"]
    return bool(value < LIMITS[what] if what == "flow" else value > LIMITS[what])


def test_leaks_are_where_sensors_are_and_never_two_at_once_in_a_place() -> None:
    leaks = plan_leaks(City(2000, 5), 7, 20, 60)
    assert len(leaks) > 10
    assert {one.what for one in leaks} >= set(LEAK)
    for one in leaks:
        assert 0 < one.begin < one.end <= 60
        others = [two for two in leaks if two is not one and two.district == one.district and two.what == one.what]
        assert all(two.begin > one.end or two.end < one.begin for two in others)
