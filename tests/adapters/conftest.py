"""Real brokers for the tests of adapters, one fresh process for each test."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from stigmergy.testing.brokers import Broker, NoBroker, start_mosquitto, start_nats
from stigmergy.testing.nats import NatsCluster, start_single


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Broker]:
    """Repeats what was not acknowledged after half a second: by default after thirty."""
    with start_nats(tmp_path / "nats", ack_wait_s=0.5) as broker:
        yield broker


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsCluster]:
    """NATS itself, with room for our largest messages."""
    with start_single(tmp_path / "nats-server", max_payload_bytes=2 * 1024 * 1024, mqtt=True) as cluster:
        yield cluster


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Broker]:
    try:
        broker = start_mosquitto(tmp_path / "mosquitto")
    except NoBroker as missing:
        without_mosquitto(str(missing))
    with broker:
        yield broker


def without_mosquitto(why: str) -> NoReturn:
    """Where changes are judged nothing may go untested; elsewhere it is said, loudly."""
    if os.environ.get("CI") or os.environ.get("STIGMERGY_REQUIRE_BROKERS"):
        pytest.fail(why)
    pytest.skip(f"NOT TESTED ON MOSQUITTO, NOR WITH MQTT 5: {why}")
