"""Row 7, first half: bugs planted on purpose, one at a time; for each some checker must say that something is wrong.

Each file in planted/ is a small patch of src/, with a header that says what it breaks, why that would hurt, and which
command must catch it. The checkout is copied, the patch applied to the copy, the command run. Caught means that tests
failed or a simulation found a violation: a command that cannot even begin, or that fails without the patch as well, has
caught nothing. A patch that no longer applies is a failure too: make the same mistake in the code as it is now.

    python -m proofs.planted [NAME …] [--quick]
"""

from __future__ import annotations

import argparse
import enum
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from proofs.report import Proof

ROOT = Path(__file__).resolve().parent.parent
PLANTED = ROOT / "planted"
SHARE_MIN = 0.95
"""So many of the planted bugs must be caught."""
COMMAND_S_MAX = 400.0
"""A command that has not ended by then has caught nothing. Tests wait 240 s for what must come."""
WORKERS = 2
QUICK_EVERY = 8
"""`--quick` tries every so manieth."""
COPIED = (
    "src",
    "tests",
    "proofs",
    "bench",
    "rigs",
    "docs",
    "apps",
    "examples",
    "planted",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)
HEADER = ("Broken", "Hurts", "Caught by")
RUNNERS = ("pytest", "proofs.planted_trial", "proofs.exhaustive")
_FOUND = 1
"""How pytest ends when tests have failed, and our own commands when they have found something."""
_NO_VERDICT = 2
_NAME = re.compile(r"\d{2,3}-[a-z0-9-]+\.patch")
_BEGIN = re.compile(r"^(?:diff --git a/|--- a/)", re.MULTILINE)
_LINE = re.compile(r"# ([A-Z][a-z ]+): (.*)")
_TOUCHED = re.compile(r"^\+\+\+ b/(\S+)$", re.MULTILINE)


class BadPlant(Exception):
    """A file in planted/ that is not as it should be."""


class Plant(Struct, frozen=True):
    """A planted bug."""

    name: str
    broken: str
    hurts: str
    command: tuple[str, ...]
    """What must catch it, as arguments."""
    touched: tuple[str, ...]
    """The files that it changes."""

    @property
    def path(self) -> Path:
        """The patch."""
        return PLANTED / f"{self.name}.patch"


class Verdict(enum.Enum):
    """What became of one of them."""

    CAUGHT = "caught"
    MISSED = "MISSED"
    UNSOUND = "UNSOUND"
    """It says nothing: it does not apply, or does not import, or its command fails without it, too."""


class Tried(Struct, frozen=True):
    """One planted bug, and what its command made of it."""

    name: str
    verdict: Verdict
    said: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name:44} {self.verdict.value:8} {self.seconds:6.1f} s  {self.said}"


def read_plant(path: Path) -> Plant:
    """Reads a patch with its header. Raises BadPlant with what is wrong with it."""
    if not _NAME.fullmatch(path.name):
        raise BadPlant(f"{path.name}: name it NN-what-is-broken.patch")
    text = path.read_text()
    begin = _BEGIN.search(text)
    if begin is None:
        raise BadPlant(f"{path.name}: no patch in it")
    said = _header(path.name, text[: begin.start()])
    if list(said) != list(HEADER) or not all(said.values()):
        raise BadPlant(f"{path.name}: begin it with lines '# {HEADER[0]}: …', '# {HEADER[1]}: …', '# {HEADER[2]}: …'")
    touched = tuple(_TOUCHED.findall(text))
    if not touched or not all(file.startswith(("src/stigmergy/", "apps/")) for file in touched):
        raise BadPlant(
            f"{path.name}: it must change files in src/stigmergy or apps and nothing else, it changes {touched}"
        )
    words = shlex.split(said["Caught by"])
    if words[:2] != ["python", "-m"] or words[2] not in RUNNERS:
        raise BadPlant(f"{path.name}: a command is python -m, one of {', '.join(RUNNERS)}, and arguments")
    return Plant(path.stem, said["Broken"], said["Hurts"], tuple(words), touched)


def _header(name: str, head: str) -> dict[str, str]:
    """What a header says, by its key words; a line that has none goes on where the one before has ended."""
    said: dict[str, str] = {}
    for line in head.splitlines():
        if not line.startswith("#"):
            raise BadPlant(f"{name}: a header's lines begin with '#', not {line[:20]!r}")
        key = _LINE.fullmatch(line)
        if key is not None:
            said[key[1]] = key[2].strip()
        elif said:
            last = next(reversed(said))
            said[last] = f"{said[last]} {line.lstrip('# ').strip()}"
    return said


def all_plants(names: Sequence[str] = ()) -> list[Plant]:
    """Those whose names, or numbers, begin so, or all, in order."""
    plants = [read_plant(path) for path in sorted(PLANTED.glob("*.patch"))]
    unknown = [name for name in names if not any(_begins(plant, name) for plant in plants)]
    if unknown:
        raise BadPlant(f"{unknown[0]}: there is no such planted bug")
    return [plant for plant in plants if not names or any(_begins(plant, name) for name in names)]


def _begins(plant: Plant, name: str) -> bool:
    """Whether its name begins so, with its number or without."""
    return plant.name.startswith(name) or plant.name.partition("-")[2].startswith(name)


def applies(patch: Path, root: Path) -> str:
    """Empty if the patch applies to this tree, else why not."""
    done = _git_apply(patch, root, "--check")
    return "" if done.returncode == 0 else " ".join(done.stderr.split())


class Copy:
    """A copy of the checkout in which bugs are planted one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)
        if (servers := ROOT / "build").is_dir():
            (folder / "build").symlink_to(servers)  # unpacked there: a test that skips for want of one catches nothing

    def fails_as_it_is(self, command: Sequence[str]) -> str:
        """Why a command can catch nothing: it does not hold without any bug. Empty if it does."""
        code, said = self._run(command)
        return "" if code == 0 else f"ends with {code} without any bug: {said}"

    def try_out(self, plant: Plant) -> Tried:
        """Plants the bug, runs its command, and takes the bug out again."""
        begin_s = time.monotonic()

        def tried(verdict: Verdict, said: str) -> Tried:
            return Tried(plant.name, verdict, said, time.monotonic() - begin_s)

        wrong = applies(plant.path, self.folder)
        if wrong:
            return tried(Verdict.UNSOUND, f"no longer applies; plant it anew in the code as it is now ({wrong})")
        before = {name: (self.folder / name).read_bytes() for name in plant.touched}
        _git_apply(plant.path, self.folder).check_returncode()
        try:
            modules = [name.removeprefix("src/").removesuffix(".py").replace("/", ".") for name in plant.touched]
            program = "; ".join(f"import {module.removesuffix('.__init__')}" for module in modules)
            code, said = self._run(("python", "-c", program))
            if code != 0:
                return tried(Verdict.UNSOUND, f"is no bug but a wreck, it does not import: {said}")
            code, said = self._run(plant.command)
        finally:
            for name, text in before.items():
                (self.folder / name).write_bytes(text)
        if code == _FOUND:
            return tried(Verdict.CAUGHT, said)
        if code == 0:
            return tried(Verdict.MISSED, f"nobody noticed: {shlex.join(plant.command)}")
        if code is None:
            return tried(Verdict.MISSED, f"no verdict within {COMMAND_S_MAX:g} s: {shlex.join(plant.command)}")
        return tried(Verdict.UNSOUND, f"the command ended with {code}: {said}")

    def _run(self, command: Sequence[str]) -> tuple[int | None, str]:
        """How a command ends, None if it does not, and what it said that matters."""
        words = [sys.executable, *command[1:]]
        if command[2] == "pytest":
            words[3:3] = ["-q", "-x", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=no"]
        # The copy's own sources come first; without bytecode, which might be that of the bug before.
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=COMMAND_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        lines = output.strip().splitlines() or [""]
        telling = [line for line in lines if line.startswith(("FAILED", "violation"))]
        code = process.returncode
        # A test that could not be read, or a traceback of a command, is no verdict, although it may end like one.
        if code == _FOUND and not telling:
            code = _NO_VERDICT
        return code, (telling or lines[-1:])[0][:300]


def run(plants: Sequence[Plant], folder: Path) -> list[Tried]:
    """Tries these out, in copies side by side; first of all that their commands hold without any bug."""
    copies: queue.Queue[Copy] = queue.Queue()
    for number in range(WORKERS):
        copies.put(Copy(folder / f"copy-{number}"))

    def lent(work: str, plant: Plant | None = None) -> Tried:
        copy = copies.get()
        try:
            if plant is not None:
                tried = copy.try_out(plant)
                print(tried, file=sys.stderr, flush=True)
                return tried
            begin_s = time.monotonic()
            wrong = copy.fails_as_it_is(shlex.split(work))
            return Tried(work, Verdict.UNSOUND if wrong else Verdict.CAUGHT, wrong, time.monotonic() - begin_s)
        finally:
            copies.put(copy)

    commands = list(dict.fromkeys(shlex.join(plant.command) for plant in plants))
    with ThreadPoolExecutor(WORKERS) as pool:
        unfit = {one.name: one for one in pool.map(lent, commands) if one.verdict is Verdict.UNSOUND}
        fit = [plant for plant in plants if shlex.join(plant.command) not in unfit]
        tried = {one.name: one for one in pool.map(lambda plant: lent("", plant), fit)}
    for plant in plants:
        found = unfit.get(shlex.join(plant.command))
        if found is not None:
            tried[plant.name] = Tried(plant.name, Verdict.UNSOUND, f"{found.name} {found.said}", 0.0)
    return [tried[plant.name] for plant in plants]


def prove(*, quick: bool = False, names: Sequence[str] = ()) -> Proof:
    """The share of planted bugs that are caught."""
    begin_s = time.monotonic()
    plants = all_plants(names)
    if quick and not names:
        plants = plants[::QUICK_EVERY]
    with tempfile.TemporaryDirectory(prefix="stigmergy-planted-") as name:
        tried = run(plants, Path(name))
    caught = [one for one in tried if one.verdict is Verdict.CAUGHT]
    share = len(caught) / len(tried) if tried else 0.0
    violations = [str(one) for one in tried if one.verdict is Verdict.UNSOUND]
    if share < SHARE_MIN:
        violations += [str(one) for one in tried if one.verdict is Verdict.MISSED]
        violations.append(f"{share:.0%} of the planted bugs are caught, at least {SHARE_MIN:.0%} must be")
    return Proof(
        name="planted",
        promise="a bug of the kinds that hurt is caught by a test or a simulation",
        cases=len(tried),
        violations=violations,
        figures={
            "planted": len(tried),
            "caught": len(caught),
            "share caught": round(share, 3),
            "missed": [one.name for one in tried if one.verdict is Verdict.MISSED],
            "each": [str(one) for one in tried],
        },
        seconds=time.monotonic() - begin_s,
    )


def _git_apply(patch: Path, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # One line of context on each side is enough: what lies further off may change without making the bug another one.
    command = ["git", "apply", "-C1", *options, str(patch)]
    # A copy may lie inside some other checkout, whose rules are none of ours.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.planted", description=__doc__)
    parser.add_argument("name", nargs="*", help="how the names of those to try begin; all if none is given")
    parser.add_argument("--quick", action="store_true", help=f"every {QUICK_EVERY}th only")
    options = parser.parse_args(arguments)
    proof = prove(quick=options.quick, names=options.name)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
