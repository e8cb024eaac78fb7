"""Planted bugs: each applies to the code as it is and says what it is for; a quick one is really caught.

`make prove ARGS=planted` tries them all. A patch that no longer applies: make the same mistake in the new code, and
write the patch anew (CONTRIBUTING.md says how).
"""

import re
import shlex
from pathlib import Path

import pytest
from msgspec import structs

from proofs.planted import BadPlant, Copy, Plant, Verdict, all_plants, applies, read_plant

ROOT = Path(__file__).resolve().parents[2]
PLANTS = all_plants()
COUNT_MIN = 30
"""Row 7 of the scorecard."""
QUICK = "marks-do-not-dedupe"
PATCH = """# Broken: nothing.
# Hurts: nobody,
#   at all.
# Caught by: python -m pytest tests/shard/test_marks.py
--- a/src/stigmergy/shard/marks.py
+++ b/src/stigmergy/shard/marks.py
@@ -1 +1 @@
-a
+b
"""


def named(name: str) -> Plant:
    (found,) = [plant for plant in PLANTS if plant.name.endswith(f"-{name}")]
    return found


def test_there_are_as_many_as_the_scorecard_wants() -> None:
    assert len(PLANTS) >= COUNT_MIN
    numbers = [plant.name.partition("-")[0] for plant in PLANTS]
    assert len(set(numbers)) == len(numbers), "each has a number of its own"


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_it_applies_to_the_code_as_it_is(plant: Plant) -> None:
    wrong = applies(plant.path, ROOT)
    assert not wrong, f"{plant.name}: plant it anew in the code as it is now ({wrong})"


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_what_must_catch_it_exists(plant: Plant) -> None:
    for word in plant.command[3:]:
        path, _, test = word.partition("::")
        if not path.startswith("tests/"):
            continue
        assert (ROOT / path).exists(), f"{plant.name}: {path} is not there"
        name = re.sub(r"\[.*", "", test.rpartition("::")[2])
        assert f"def {name}" in (ROOT / path).read_text() if name else True, f"{plant.name}: {word} is not there"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("planted") / "copy")


def test_it_is_caught(copy: Copy) -> None:
    tried = copy.try_out(named(QUICK))
    assert tried.verdict is Verdict.CAUGHT, str(tried)
    (touched,) = named(QUICK).touched
    assert (copy.folder / touched).read_bytes() == (ROOT / touched).read_bytes(), "it is taken out again"


@pytest.mark.prove
def test_what_nobody_notices_is_missed(copy: Copy) -> None:
    command = tuple(shlex.split("python -m pytest tests/devices/test_pid.py"))
    tried = copy.try_out(structs.replace(named(QUICK), command=command))
    assert tried.verdict is Verdict.MISSED
    assert "nobody noticed" in str(tried)


@pytest.mark.prove
def test_a_command_that_cannot_run_has_caught_nothing(copy: Copy) -> None:
    command = tuple(shlex.split("python -m pytest tests/shard/test_nothing.py"))
    assert copy.try_out(structs.replace(named(QUICK), command=command)).verdict is Verdict.UNSOUND


@pytest.mark.prove
def test_a_command_that_fails_without_any_bug_is_named(copy: Copy) -> None:
    assert "ends with 2 without any bug" in copy.fails_as_it_is(("python", "-m", "proofs.planted_trial"))
    assert copy.fails_as_it_is(("python", "-m", "proofs.planted_trial", "1..1")) == ""


@pytest.mark.parametrize(
    ("name", "before", "after", "wrong"),
    [
        ("1-x.patch", "", "", "name it NN-"),
        ("01-x.patch", "Hurts", "Harms", "begin it with lines"),
        ("01-x.patch", "# Broken: nothing.", "# Broken:", "begin it with lines"),
        ("01-x.patch", "# Broken", "Broken", "lines begin with '#'"),
        ("01-x.patch", "\n--- a/", "\n--- c/", "no patch in it"),
        ("01-x.patch", "b/src/stigmergy", "b/tests", "nothing else"),
        ("01-x.patch", "python -m pytest", "rm -r", "a command is python -m"),
    ],
)
def test_a_file_that_is_not_as_it_should_be(tmp_path: Path, name: str, before: str, after: str, wrong: str) -> None:
    (tmp_path / name).write_text(PATCH.replace(before, after) if before else PATCH)
    with pytest.raises(BadPlant, match=wrong):
        read_plant(tmp_path / name)


def test_a_header_may_take_several_lines(tmp_path: Path) -> None:
    (tmp_path / "07-x.patch").write_text(PATCH.replace("--- a/", "diff --git a/x b/x\nindex 1..2\n--- a/"))
    plant = read_plant(tmp_path / "07-x.patch")
    assert (plant.name, plant.broken, plant.hurts) == ("07-x", "nothing.", "nobody, at all.")
    assert plant.command == ("python", "-m", "pytest", "tests/shard/test_marks.py")
    assert plant.touched == ("src/stigmergy/shard/marks.py",)


def test_an_unknown_name_is_refused() -> None:
    assert [plant.name[:3] for plant in all_plants(["01", "fsync-dropped-in"])] == ["01-", "02-"]
    with pytest.raises(BadPlant, match="no such planted bug"):
        all_plants(["nothing"])
