"""What holds for all tests: how patient hypothesis is, where compiled code is kept, who goes first, and brokers.

A busy machine must not fail a test. What a test compiles, no other test compiles again, and no other process. The few
tests that take long are begun first: one that is begun last is waited for by all the others.
"""

import gc
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from rigs.postgres import NoPostgres, PostgresServer, start_postgres
from stigmergy.testing.brokers import Broker, NoBroker, start_mosquitto, start_nats
from stigmergy.testing.nats import NatsCluster, start_single

if TYPE_CHECKING:
    from tests.store.s3_server import S3Server

gc.disable()  # until all is collected: see pytest_collection_finish
EXAMPLES = int(os.environ.get("STIGMERGY_EXAMPLES", "50"))
"""Of each property, where it does not say how many itself; `make prove` draws many more (proofs/long_tests.py)."""
settings.register_profile("ours", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")
BUILD = Path(__file__).resolve().parents[1] / "build"
os.environ.setdefault("STIGMERGY_CACHE", str(BUILD / "compiled"))
os.environ.setdefault("STIGMERGY_COMPLETING_S", "30")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # tests load the library themselves: see proto/grpc_library.py
LONG = (
    "tests/nats/bus/test_cluster.py",
    "tests/nats/gateway/test_crossing.py",
    "tests/nats/journal/test_trouble.py",
    "tests/nats/store/test_cluster.py",
    "tests/nats/ledger/test_cluster.py",
    "tests/apps/city/test_run.py",
    "tests/apps/drones/test_quality.py",
    "tests/apps/drones/test_scenario.py",
    "tests/apps/traffic/test_show.py",
    "tests/bench/test_",
    "tests/cli/test_capture.py",
    "tests/cli/test_capture_views.py",
    "tests/cli/test_cluster.py",
    "tests/cli/test_company.py",
    "tests/cli/test_gateway_commands.py",
    "tests/cli/test_gateway.py",
    "tests/cli/test_nats.py",
    "tests/cli/test_new.py",
    "tests/cli/test_rings.py",
    "tests/cli/test_up.py",
    "tests/cli/test_worker.py",
    "tests/deploy/test_deploy.py",
    "tests/devices/mavlink/test_fleet.py",
    "tests/docs/test_gateways.py",
    "tests/docs/test_samples.py",
    "tests/docs/test_tutorial.py",
    "tests/app/test_history.py",
    "tests/app/test_nodes.py",
    "tests/app/test_owners.py",
    "tests/app/test_projection.py",
    "tests/app/test_rollouts.py",
    "tests/app/test_workers.py",
    "tests/ledgers/test_handover.py",
    "tests/network/test_forwarder.py",
    "tests/network/test_history_listener.py",
    "tests/network/test_tells_between_levels.py",
    "tests/proofs/test_column_histories.py",
    "tests/proofs/test_tells_routed.py",
    "tests/serve/test_fleets.py",
    "tests/serve/test_map.py",
    "tests/serve/test_openapi.py",
    "tests/serve/test_other_language.py",
    "tests/serve/test_several_nodes.py",
    "tests/serve/test_whole_fleets.py",
    "tests/web/test_cluster.py",
    "tests/web/test_nodes.py",
    "tests/web/test_page.py",
)
"""Files whose tests take ten seconds and more, by the beginnings of their names."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first; otherwise the order stays what it was drawn to be.

    Each of several workers is given a piece of the list (`--dist=worksteal`), so each piece begins with some of them.
    A file stays together, for it may start a server for all its tests.
    """
    files: dict[str, list[pytest.Item]] = {}
    others: list[pytest.Item] = []
    for item in items:
        is_long = item.nodeid.startswith(LONG)
        (files.setdefault(item.nodeid.partition("::")[0], []) if is_long else others).append(item)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    rest, left, ordered = iter(others), len(items), list[pytest.Item]()
    for number in range(workers):
        first = [item for file in islice(files.values(), number, None, workers) for item in file]
        size = left // (workers - number)
        left -= size
        ordered += [*first, *islice(rest, max(0, size - len(first)))]
    items[:] = [*ordered, *rest]


def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules live to the end: the collector need not look at them again and again."""
    gc.enable()
    gc.freeze()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, for what depends on one: `tmp_path` is in memory where there is room (see the Makefile)."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="test-", dir=BUILD) as name:
        yield Path(name)


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


@pytest.fixture(params=["memory", "mqtt", "nats"])
def bus_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty bus: in memory, of Mosquitto, and of NATS."""
    if request.param == "memory":
        return f"memory:{tmp_path.name}"
    server: Broker | NatsCluster = request.getfixturevalue("mosquitto" if request.param == "mqtt" else "nats_server")
    return server.url


@pytest.fixture(scope="session")
def s3() -> "Iterator[S3Server]":
    """One for all tests of a process: it takes seconds to start. Each test uses a place of its own."""
    from tests.store.s3_server import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for all tests of a process: a new one takes seconds. A test that kills it starts one of its own."""
    try:
        server = start_postgres()
    except NoPostgres as missing:
        without(str(missing), "NOT TESTED ON POSTGRESQL")
    with server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """The URL of an empty database of a real PostgreSQL server."""
    return postgres_server.new_database()


def without_mosquitto(why: str) -> NoReturn:
    without(why, "NOT TESTED ON MOSQUITTO, NOR WITH MQTT 5")


def without(why: str, consequence: str) -> NoReturn:
    """Where changes are judged nothing may go untested; elsewhere it is said, loudly."""
    if os.environ.get("CI") or os.environ.get("STIGMERGY_REQUIRE_BROKERS"):
        pytest.fail(why)
    pytest.skip(f"{consequence}: {why}")
