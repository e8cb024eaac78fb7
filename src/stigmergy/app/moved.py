"""Old import paths of documented modules: they work for this version, with a warning that names the new one."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "stigmergy.adapters.ed25519": "stigmergy.keys.ed25519",
    "stigmergy.adapters.keyfile": "stigmergy.keys.keyfile",
    "stigmergy.adapters.mavlink": "stigmergy.devices.mavlink",
    "stigmergy.adapters.memory_bus": "stigmergy.bus.memory",
    "stigmergy.adapters.nats.address": "stigmergy.nats.address",
    "stigmergy.adapters.nats.link": "stigmergy.nats.link",
    "stigmergy.adapters.nats.members": "stigmergy.nats.servers.members",
    "stigmergy.adapters.nats_bus": "stigmergy.nats.bus",
    "stigmergy.adapters.nats_ledger": "stigmergy.nats.ledger",
    "stigmergy.adapters.nats_store": "stigmergy.nats.store",
    "stigmergy.adapters.ring": "stigmergy.ring",
    "stigmergy.adapters.segments": "stigmergy.journal.segments",
    "stigmergy.adapters.sqlite": "stigmergy.journal.sqlite",
    "stigmergy.adapters.sqlite_ledger": "stigmergy.claims.sqlite_ledger",
    "stigmergy.adapters.system": "stigmergy.base.system",
    "stigmergy.client": "stigmergy.app.client",
    "stigmergy.copies": "stigmergy.app.copies",
    "stigmergy.core.claims.entries": "stigmergy.claims.entries",
    "stigmergy.core.claims.rules": "stigmergy.claims.rules",
    "stigmergy.core.claims.state": "stigmergy.claims.state",
    "stigmergy.core.errors": "stigmergy.base.errors",
    "stigmergy.ports.bus": "stigmergy.bus.port",
    "stigmergy.ports.journal": "stigmergy.journal.port",
    "stigmergy.ports.ledger": "stigmergy.claims.port",
    "stigmergy.ports.mesh": "stigmergy.membership.mesh",
    "stigmergy.ports.receiving": "stigmergy.bus.inbox",
    "stigmergy.ports.store": "stigmergy.store.port",
    "stigmergy.runtime.copies.restoring": "stigmergy.audit.restore",
    "stigmergy.runtime.settings": "stigmergy.node.settings",
    "stigmergy.sim.scenario": "stigmergy.sim.simulation",
    "stigmergy.testing.nats_rig": "stigmergy.testing.nats",
    "stigmergy.wiring": "stigmergy.app.fleet",
}
_PACKAGES = frozenset(old.rsplit(".", depth)[0] for old in MOVED for depth in (1, 2)) - {"stigmergy"}


class _Alias(Loader):
    """Fills a module under its old name: each attribute is looked up in the module that it has become."""

    def __init__(self, target: str | None) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._target is None:
            return
        target = importlib.import_module(self._target)

        def look_up(name: str) -> Any:
            return getattr(target, name)

        module.__dict__["__getattr__"] = look_up


class _Finder(MetaPathFinder):
    """Finds old names. It is asked last, so that it never hides a module that exists."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        new = MOVED.get(name)
        if new is not None:
            warnings.warn(f"{name} is now {new}; import it from there", DeprecationWarning, stacklevel=2)
            return ModuleSpec(name, _Alias(new), is_package=True)
        if name in _PACKAGES:
            return ModuleSpec(name, _Alias(None), is_package=True)
        return None


def install() -> None:
    """Makes the old paths importable. Once is enough; a second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
