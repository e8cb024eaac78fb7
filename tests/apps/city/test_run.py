"""A whole run, with servers and processes: small, and judged by the checker."""

from pathlib import Path

import pytest

from apps.city.faults import all_of
from apps.city.run import CityRun, Options

SMALL = Options(sensors=80, gateways=2, steps=19, period_s=0.2, leaks=1, broken=1, seed=8, faults=("disk",))
"""The leak is in a district of the first gateway; the second one loses its disk."""


async def test_a_small_city_finds_its_leak_though_a_gateway_loses_its_disk(tmp_path: Path) -> None:
    for library in ("aiocoap", "aiosmtpd", "onnxruntime", "paho.mqtt.client"):
        pytest.importorskip(library)
    found = await CityRun(tmp_path, SMALL, print).run(all_of)
    assert found["drained"]
    assert not found["violations"], found["details"]
    assert set(found["exit_codes"].values()) == {0}
    assert (found["leaks"], found["incidents"], found["cleared"]) == (1, 1, 1)
    assert found["ledger_writers"] == 2, "each gateway signs with a key of its own"
    assert found["rejoined"] == 1, "it has kept its key, which the others trust"
    assert found["inferred_by_model"] > 0
    assert found["dead_letters"] == 0
    assert found["coap_taken"] > 0
    assert found["bytes_searched"] > 0
