"""The way from one process to a cluster, followed word by word on real servers: one of the long tests of `make prove`.

What every run has of it: tests/cli/test_up.py starts the same cluster and kills the same parts.
"""

import contextlib
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs import walkthrough
from tests.docs.walkthrough import Walk, blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
PORTS = ("4222", "4223", "4224")
"""Of the reader; in a test they are free ones."""


def three_in_a_row() -> int:
    base = 20_000 + time.monotonic_ns() // 1000 % 20_000
    while True:
        base += 1
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(base, base + len(PORTS)):
                stack.enter_context(contextlib.closing(socket.socket())).bind(("127.0.0.1", port))
            return base


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_everything_happens_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walkthrough, "PRINTED_S_MAX", 120.0)
    first = three_in_a_row()
    walk = Walk(tmp_path, 1883)
    followed = 0
    try:
        for block in blocks(PAGE.name, PAGE.read_text(encoding="utf-8")):
            text = re.sub(r"\b422[234]\b", lambda found: str(first + int(found[0]) - int(PORTS[0])), block.text)
            walk.follow(replace(block, text=text))
            followed += 1
    finally:
        walk.close()
    assert followed > 15
