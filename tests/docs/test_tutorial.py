"""The tutorial, followed word by word: its files are written, its commands run, and they print what it says.

`python -m tests.docs.test_tutorial` writes the complete files that a reader can compare with, docs/tutorial/step-N and
docs/tutorial/swarm.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from stigmergy.testing.brokers import free_port, start_nats
from tests.docs.walkthrough import Walk, blocks, conversations, edited, first_missing

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("tutorial.md", "tutorial-fleet.md")
SWARM = "tutorial-swarm.md"
"""Part three, in a folder of its own."""
COMPLETE = DOCS / "tutorial"


def complete_files() -> dict[str, str]:
    """What `drone.py` is at the end of each step that changes it, by its path under docs/tutorial."""
    text, found, before = "", dict[str, str](), ""
    for page in PAGES:
        for block in blocks(page, (DOCS / page).read_text(encoding="utf-8")):
            kind, what = block.mark or ("", "")
            name, _, how = what.partition(", ")
            if kind == "no-run" and name == "drone.py":
                text = edited(text, how, block.text) if how else block.text
            if text != before:
                found[f"step-{block.step}/drone.py"] = text
                before = text
    return found


def typed_files() -> dict[str, str]:
    """The files that a reader writes, by name; `drone.py` once for each step, and as the others import it."""
    complete = complete_files()
    found = {f"drone_{path.partition('/')[0].removeprefix('step-')}.py": text for path, text in complete.items()}
    for page in PAGES:
        for block in blocks(page, (DOCS / page).read_text(encoding="utf-8")):
            kind, what = block.mark or ("", "")
            if kind == "no-run" and what.endswith(".py"):
                found[what] = block.text
    return {**found, "drone.py": complete[max(complete)], **swarm_files()}


def swarm_files() -> dict[str, str]:
    """The Python files of part three as they are at its end, by name."""
    found: dict[str, str] = {}
    for block in blocks(SWARM, (DOCS / SWARM).read_text(encoding="utf-8")):
        kind, what = block.mark or ("", "")
        name, _, how = what.partition(", ")
        if kind == "no-run" and name.endswith(".py"):
            found[name] = edited(found[name], how, block.text) if how else block.text
    return found


def shown_files() -> dict[str, str]:
    """What docs/tutorial has, by its path there."""
    return {**complete_files(), "swarm/swarm.py": swarm_files()["swarm.py"]}


@pytest.mark.timeout(1200)
def test_everything_happens_as_it_is_written(tmp_path: Path) -> None:
    walk = Walk(tmp_path, free_port())
    followed = 0
    try:
        for page in PAGES:
            for block in blocks(page, (DOCS / page).read_text(encoding="utf-8")):
                walk.follow(block)
                followed += 1
    finally:
        walk.close()
    assert followed > 50


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_a_swarm_is_built_as_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    folder.mkdir()
    ports = {"8080": str(free_port()), "4222": str(free_port())}  # the broker's is given to the walk
    followed = 0
    with start_nats(tmp_path / "broker", ack_pending_max=1024) as broker:  # the default, as in part two
        walk = Walk(folder, broker.port)
        try:
            for block in blocks(SWARM, (DOCS / SWARM).read_text(encoding="utf-8")):
                walk.follow(replace(block, text=re.sub(r"\b(8080|4222)\b", lambda found: ports[found[0]], block.text)))
                followed += 1
        finally:
            walk.close()
    assert followed > 20


def test_the_complete_files_are_those_of_the_steps() -> None:
    shown = {str(path.relative_to(COMPLETE)): path.read_text(encoding="utf-8") for path in COMPLETE.rglob("*.py")}
    assert shown == shown_files(), "run python -m tests.docs.test_tutorial"
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in (*PAGES, SWARM))
    for path in shown:
        assert f"(tutorial/{path})" in text, "a reader must find it"


def test_a_line_that_does_not_come_is_found() -> None:
    assert first_missing(["accepted  … at 2"], ["x", "accepted   Drone/D-17 at 2"]) is None
    assert first_missing(["b", "a"], ["a", "b"]) == "a"
    assert first_missing(["sound"], ["not sound"]) == "sound"


def test_commands_are_told_from_what_they_print() -> None:
    assert list(conversations("$ a  # why\none\n$ b\n")) == [("a", ["one"]), ("b", [])]
    assert list(conversations("later\n")) == [("", ["later"])]
    assert list(conversations("^C\nstopped\n")) == [("^C", ["stopped"])]


def test_a_wrong_command_fails_the_walk(tmp_path: Path) -> None:
    (block,) = blocks("page.md", "## 3. Try\n\n```console\n$ echo one\ntwo\n```\n")
    assert (block.step, block.place) == (3, "page.md:3")
    with pytest.raises(AssertionError, match="should print\n  two\nbut printed\none"):
        Walk(tmp_path, 1).follow(block)


def test_an_edit_that_fits_nowhere_fails() -> None:
    with pytest.raises(AssertionError, match="no handler fly to replace"):
        edited("class Drone(Agent):\n    x: int = 0\n", "instead of fly", "    pass\n")
    with pytest.raises(AssertionError, match="not understood"):
        edited("", "somewhere", "")


def write_complete_files() -> None:
    for path, text in shown_files().items():
        (COMPLETE / path).parent.mkdir(parents=True, exist_ok=True)
        (COMPLETE / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_complete_files()
