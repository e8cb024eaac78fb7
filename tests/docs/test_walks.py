"""docs/walks.md is followed in the running code: these functions are called, in this order, in few files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.walked import WALKS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "walks.md"
_ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)


def steps(heading: str) -> list[tuple[str, str]]:
    """The files and functions of one walk, as the page lists them."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [(file, function) for file, function, _ in _ROW.findall(section)]


def missing(listed: list[tuple[str, str]], calls: list[str]) -> list[str]:
    """Steps that were not called after the one before them."""
    made = iter(calls)
    return [f"{file} {function}" for file, function in listed if f"{file} {function}" not in made]


def test_the_page_lists_these_walks() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(WALKS)


def test_a_step_that_is_missing_or_comes_too_early_is_found() -> None:
    listed = [("a.py", "one"), ("b.py", "two")]
    assert missing(listed, ["a.py one", "c.py three", "b.py two"]) == []
    assert missing(listed, ["b.py two", "a.py one"]) == ["b.py two"]
    assert missing(listed, ["b.py two"]) == ["a.py one", "b.py two"]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("heading", WALKS)
async def test_the_code_takes_this_walk(heading: str, tmp_path: Path) -> None:
    walk, files_max = WALKS[heading]
    listed = steps(heading)
    assert len(listed) > 10
    assert len({file for file, _ in listed}) <= files_max
    assert missing(listed, await walk(tmp_path)) == []
