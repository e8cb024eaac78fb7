"""Nodes without the extra [nats]."""

import sys

import pytest


@pytest.fixture
def without_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the client of NATS were not installed. Afterwards every module is what it was, in its package too."""
    for name in [name for name in sys.modules if name.split(".")[0] == "nats" or name.startswith("stigmergy.nats")]:
        package, _, child = name.rpartition(".")
        if package and hasattr(sys.modules.get(package), child):
            monkeypatch.setattr(sys.modules[package], child, getattr(sys.modules[package], child))
    for name in [name for name in sys.modules if name.split(".")[0] == "nats" or name.startswith("stigmergy.nats")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nats", None)
