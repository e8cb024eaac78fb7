"""Asking a node that hangs: who only looks hears of it soon."""

import socket
from pathlib import Path

import pytest

from stigmergy.base.errors import NotRunning
from stigmergy.cli.display import places as asking
from stigmergy.control.protocol import SharedRequest, StatusRequest


def test_a_node_that_hangs_is_named_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LOOK_S_MAX", 0.1)
    path = tmp_path / "n.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(NotRunning, match="does not answer; is it stopped or overloaded"):
            asking.ask(path, StatusRequest())
        with pytest.raises(NotRunning, match="does not answer; is it stopped or overloaded"):
            list(asking.ask_stream(path, SharedRequest()))
