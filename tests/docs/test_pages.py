"""Pages about the project keep their shape: sizes, one page for each decision, drawings made from their texts."""

import re
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
DRAWINGS = sorted((DOCS / "images").glob("*.txt"))

ARCHITECTURE_BYTES_MAX = 20_000
DECISION_BYTES_MAX = 2_560
README_LINES_MAX = 120
GLOSSARY_TERMS_MAX = 41
CHANGE_CHARS_MAX = 200


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def headings(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


def test_the_architecture_stays_short() -> None:
    size = len(read(ROOT / "ARCHITECTURE.md").encode())
    assert size <= ARCHITECTURE_BYTES_MAX, f"{size} bytes: move the reasons to docs/decisions"


def test_the_architecture_lists_the_folders_from_bottom_to_top() -> None:
    section = read(ROOT / "ARCHITECTURE.md").partition("## The layers")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    package = ROOT / "src" / "stigmergy"
    assert sorted(listed) == sorted(path.parent.name for path in package.glob("*/__init__.py"))
    settings = tomllib.loads(read(ROOT / "pyproject.toml"))
    layers = next(one["layers"] for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    heights = {name: height for height, layer in enumerate(reversed(layers)) for name in re.findall(r"\w+", layer)}
    assert [heights[name] for name in listed] == sorted(heights[name] for name in listed)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_one_page_of_four_parts(page: Path) -> None:
    text = read(page)
    assert re.fullmatch(r"\d{3}(-[a-z0-9]+)+", page.stem)
    assert text.startswith(f"# {page.stem[:3]} ")
    assert headings(text) == ["Context", "Decision", "Alternatives", "Consequences"]
    assert len(text.encode()) <= DECISION_BYTES_MAX, "say it in one page, or make two decisions of it"


def test_decisions_are_numbered_without_gaps_and_indexed() -> None:
    assert [int(page.stem[:3]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    rows = re.findall(r"^\| (\d{3}) \| \[(.+)\]\((.+)\) \|$", read(DOCS / "decisions" / "README.md"), re.MULTILINE)
    titles = {page.name: read(page).splitlines()[0].removeprefix("# ") for page in DECISIONS}
    assert {target: f"{number} {title}" for number, title, target in rows} == titles


def test_the_glossary_has_few_terms_in_two_sentences_each() -> None:
    entries = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", read(DOCS / "glossary.md"), re.MULTILINE)
    terms = [term for term, _ in entries]
    assert 20 <= len(terms) <= GLOSSARY_TERMS_MAX
    assert terms == sorted(terms)
    assert len(set(terms)) == len(terms)
    for term, meaning in entries:
        assert len(re.findall(r"\.(?= |$)", meaning)) == 2, f"{term}: write two sentences"


@pytest.mark.parametrize("text", DRAWINGS, ids=lambda text: text.stem)
def test_a_drawing_is_made_from_its_text(text: Path) -> None:
    draw: Callable[[str], str] = runpy.run_path(str(DOCS / "images" / "draw.py"))["draw"]
    assert read(text.with_suffix(".svg")) == draw(read(text)), "run `make drawings`"


def test_a_drawing_refuses_what_it_does_not_know() -> None:
    draw: Callable[[str], str] = runpy.run_path(str(DOCS / "images" / "draw.py"))["draw"]
    assert "a &lt; b" in draw('box pure one 0,0 "a < b"\nbox disk two 1,1 "Two"\narrow one two "then"')
    with pytest.raises(ValueError, match="not a line of a drawing: circle one"):
        draw("circle one")
    with pytest.raises(KeyError):
        draw('box pure one 0,0 "One"\narrow one nowhere')


def test_the_readme_fits_three_screens() -> None:
    lines = len(read(ROOT / "README.md").splitlines())
    assert lines <= README_LINES_MAX, f"{lines} lines: move something to the manual"


def test_changes_are_one_line_each() -> None:
    for line in read(ROOT / "CHANGELOG.md").partition("\n## ")[2].splitlines():
        assert not line.startswith(" "), f"{line.strip()}: one line for each change"
        assert not line.startswith("- ") or (line.endswith(".") and len(line) <= CHANGE_CHARS_MAX), line
