"""A node that serves HTTP."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import without
from tests.serve.rig import ServedProcess, make_folder, run_served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """A node with the API in its own process, for tests that use agents of their own."""
    running = run_served(make_folder(tmp_path_factory.mktemp("served")))
    yield running
    assert running.end() == 0


UNPACKED = Path(__file__).resolve().parents[2] / "build" / "node" / "bin"
"""Where `.ci/node` puts node and npm if they are not installed."""


@pytest.fixture(scope="session")
def node() -> str:
    """The program that runs JavaScript, with npm beside it."""
    os.environ["PATH"] = f"{os.environ['PATH']}:{UNPACKED}"
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        without("there is no node or no npm here; .ci/node gets both", "NOT TESTED WITH A CLIENT IN ANOTHER LANGUAGE")
    return found
