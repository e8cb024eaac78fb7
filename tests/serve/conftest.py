"""A node that serves HTTP."""

from collections.abc import Iterator

import pytest

from tests.serve.rig import ServedProcess, make_folder, run_served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """A node with the API in its own process, for tests that use agents of their own."""
    running = run_served(make_folder(tmp_path_factory.mktemp("served")))
    yield running
    assert running.end() == 0
