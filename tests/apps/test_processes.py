"""Processes of a run: started, killed, started again, and what is said of one that ends by itself."""

import asyncio
import json
from pathlib import Path

import pytest

from apps.processes import NodeProcess, Trouble, printed, read_lives

LITTLE = """
import json, signal, sys
if "--fails" in sys.argv:
    sys.exit("no journal")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(json.dumps({"url": "http://here", "told": sys.argv[1:]}), flush=True)
if "--ends" not in sys.argv:
    signal.pause()
"""


def node(folder: Path, *arguments: str) -> NodeProcess:
    (folder / "little_node.py").write_text(LITTLE, encoding="utf-8")
    return NodeProcess("g1", folder, "little_node", list(arguments))


async def test_a_node_that_is_started_again_has_not_failed_meanwhile(tmp_path: Path) -> None:
    one = node(tmp_path)
    await one.start()
    assert (one.url, one.is_running, one.has_failed) == ("http://here", True, False)
    await one.kill()
    assert not one.is_running
    assert not one.has_failed, "it was meant"
    starting = asyncio.ensure_future(one.start())
    while not starting.done():
        assert not one.has_failed, "whoever looks now would start it a second time"
        await asyncio.sleep(0)
    await starting
    assert await one.stop() == 3, "it ran, and was asked to end"


async def test_a_node_that_ends_by_itself_or_does_not_start_is_noticed(tmp_path: Path) -> None:
    one = node(tmp_path, "--ends")
    await one.start()
    async with asyncio.timeout(240):
        while not one.has_failed:  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.01)
    assert await one.stop() == 0
    other = node(tmp_path)
    with pytest.raises(Trouble, match=r"g1 does not start: .*no journal"):
        await other.start("--fails")
    await other.stop()


def test_what_a_program_prints_is_json_or_trouble(tmp_path: Path) -> None:
    path = tmp_path / "said.json"
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(Trouble, match=r"rigs\.city_checker .* failed: "):
        printed("rigs.city_checker", str(path))


def test_reports_are_the_last_of_each_life(tmp_path: Path) -> None:
    path = tmp_path / "g1.reports"
    assert read_lives(path) == []
    lines = [{"started_s": 1.0, "cpu_s": 1}, {"started_s": 1.0, "cpu_s": 2}, {"started_s": 9.0, "cpu_s": 1}]
    path.write_text("\n".join([*map(json.dumps, lines), '{"started_s"']), encoding="utf-8")
    assert read_lives(path) == lines[1:]
