"""A whole host on a real journal, with a key, real clocks and registered actuators: what the benchmarks run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.workload import Descend, Drone, Land
from stigmergy.agents.effects import Order
from stigmergy.base.system import SystemClock
from stigmergy.journal import segments, sqlite
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host, open_host
from stigmergy.node.settings import Settings, Snapshots

T = TypeVar("T")
TIMEOUT_S = 900.0
FLEET = "bench"
IDENTITY = JournalIdentity(fleet=FLEET, shards=1, incarnation=1)
SEED = bytes(range(32))
"""The key of every run; what is measured does not depend on it."""
SHARED_LOOP = Settings(write_within_s=60.0)
"""The defaults, but for the patience with the disk: a window of the bare limit holds up the event loop."""
NO_SNAPSHOTS = Settings(snapshots=Snapshots(every_events=2**62, every_s=1e9))


def open_file(path: Path) -> Journal:
    """The journal in this file, made if it is missing, with its writer thread."""
    return sqlite.open_journal(f"sqlite:{path}", IDENTITY)


def open_folder(path: Path) -> Journal:
    """The same in segments, with all its defaults."""
    return segments.open_journal(f"segments:{path}", IDENTITY)


def make_host(journal: Journal, act: Callable[[Order[Any]], None], settings: Settings | None = None) -> Host:
    """A host for the drones; `act` is called for each action that is released."""
    fleet = Declaration(FLEET, agents=[Drone])
    fleet.actuator(Descend)(act)
    fleet.actuator(Land)(act)
    return open_host(fleet, journal, Ed25519Signer(SEED), Ed25519Verifier(), SystemClock(), settings)


def in_process(result: type[T], module: str, *arguments: object) -> T:
    """Runs a module with these arguments in a process of its own, and reads what it prints."""
    command = [sys.executable, "-m", module, *(str(argument) for argument in arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True)
    return msgspec.json.decode(done.stdout, type=result)
