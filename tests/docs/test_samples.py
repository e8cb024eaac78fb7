"""Runs and type-checks every Python sample in README.md and docs, and type-checks the files of the tutorial.

The ```python blocks of one file run top to bottom as one program, in an empty folder. A block directly after the
comment `<!-- no-run: reason -->` is left out. Line numbers in failures are those of the Markdown file: what is not a
sample becomes an empty line.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_tutorial import typed_files

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 240.0

OPENING = re.compile(r"^(?P<indent>[ ]*)(?P<fence>`{3,}|~{3,})[ ]*(?P<language>[\w+-]*)")
LEFT_OUT = re.compile(r"^<!--\s*no-run:\s*\S.*-->$")


def program(markdown: str) -> str:
    """The samples of a file as one program, each line where it is in the file."""
    kept: list[str] = []
    fence, indent, sample = "", 0, False
    before = ""
    for line in markdown.splitlines():
        text = line.strip()
        inside = bool(fence)
        if inside and text.startswith(fence) and not text.strip(fence[0]):
            fence = ""
            kept.append("")
        elif inside:
            kept.append(line[min(indent, len(line) - len(line.lstrip())) :] if sample else "")
        else:
            if opening := OPENING.match(line):
                fence, indent = opening["fence"], len(opening["indent"])
                sample = opening["language"] == "python" and not LEFT_OUT.match(before)
            kept.append("")
        before = text or before
    return "\n".join(kept).rstrip() + "\n"


def documents() -> dict[str, str]:
    """The program of each Markdown file that has samples, by the file's path."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = {str(file.relative_to(ROOT)): program(file.read_text(encoding="utf-8")) for file in files if file.exists()}
    return {name: text for name, text in found.items() if text.strip()}


def module_name(document: str) -> str:
    return "sample_" + re.sub(r"\W", "_", document) + ".py"


def write(folder: Path, programs: dict[str, str]) -> list[str]:
    """Writes each document's program, and what is a file already under its own name; the names."""
    names = [name if name.endswith(".py") else module_name(name) for name in programs]
    for name, text in zip(names, programs.values(), strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    return names


def run_sample(folder: Path, document: str, text: str) -> subprocess.CompletedProcess[str]:
    (name,) = write(folder, {document: text})
    return subprocess.run(
        [sys.executable, "-W", "error", name],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


def type_check(folder: Path, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As strictly as the package itself, and from its cache: with options of its own, mypy would first check all of the
    package again."""
    paths = [str(folder / name) for name in write(folder, programs)]
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("document", documents())
def test_samples_run(document: str, tmp_path: Path) -> None:
    ran = run_sample(tmp_path, document, documents()[document])
    assert ran.returncode == 0, f"{document} does not run\n{ran.stdout}\n{ran.stderr}"


def test_samples_have_types(tmp_path: Path) -> None:
    programs = documents()
    if not programs:
        pytest.skip("README.md and docs have no Python samples yet")
    checked = type_check(tmp_path, programs | typed_files())
    report = checked.stdout + checked.stderr
    for document in programs:
        report = report.replace(module_name(document), document)
    assert checked.returncode == 0, "\n" + report
    assert (ROOT / "src" / "stigmergy" / "py.typed").exists(), "a reader's type checker would see no types"


MARKDOWN = """\
# Title

```python
a = b = 1
```

```console
$ never run
```

<!-- no-run: needs a radio -->

```python
import radio
```

- in a list

  ```python
  if a:

      b = a + 1
  ```

````markdown
```python
not a sample
```
````

<!-- no-run: -->
```python
assert b == 2
```
"""


def test_blocks_keep_their_lines() -> None:
    lines = program(MARKDOWN).splitlines()
    assert {number: line for number, line in enumerate(lines, start=1) if line} == {
        4: "a = b = 1",
        20: "if a:",
        22: "    b = a + 1",
        33: "assert b == 2",
    }


def test_a_file_without_samples_is_empty() -> None:
    assert program("").strip() == ""
    assert program("# Only words\n\n```\nplain\n```\n").strip() == ""


def test_a_wrong_sample_fails_at_its_line(tmp_path: Path) -> None:
    good = run_sample(tmp_path, "guide.md", program(MARKDOWN))
    assert good.returncode == 0, good.stderr
    bad = run_sample(tmp_path, "guide.md", program(MARKDOWN.replace("b == 2", "b == 3")))
    assert bad.returncode != 0
    assert "line 33" in bad.stderr


def test_a_wrong_type_fails(tmp_path: Path) -> None:
    checked = type_check(tmp_path, {"guide.md": program(MARKDOWN), "bad.md": program("```python\na: int = 'b'\n```\n")})
    assert checked.returncode == 1
    assert "sample_bad_md.py:2: error" in checked.stdout
    assert "guide" not in checked.stdout
