"""What holds for all tests: how patient hypothesis is, where compiled code is kept, and who goes first.

A busy machine must not fail a test. What a test compiles, no other test compiles again, and no other process. The few
tests that take long are begun first: one that is begun last is waited for by all the others.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("STIGMERGY_EXAMPLES", "50"))
"""Of each property, where it does not say how many itself; `make prove` draws many more (proofs/long_tests.py)."""
settings.register_profile("ours", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")
os.environ.setdefault("STIGMERGY_CACHE", str(Path(__file__).resolve().parents[1] / "build" / "compiled"))
LONG = (
    "tests/docs/test_tutorial.py",
    "tests/bench/test_",
    "tests/apps/edge_agent/test_demo.py",
    "tests/edge/test_uplink.py",
    "tests/edge/test_nodes.py",
    "tests/cli/test_rings.py",
    "tests/cli/test_company.py::test_a_disk",
    "tests/proofs/test_column_kill.py",
)
"""Tests that take ten seconds and more, by the beginnings of their names."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first; otherwise the order stays what it was drawn to be."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
