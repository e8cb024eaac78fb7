"""Row 7, second half: how many small changes of core and crdt their tests notice. cosmic-ray changes a copy of it all.

All possible changes are listed, a sample that fits the time is drawn by seed, and for each the tests of its package
run. A change that no test notices is a survivor; some are equivalent to the original and cannot be noticed, so the
score is a lower bound. Left out are kinds of changes that are nearly always equivalent: of `|`, which is mostly in
annotations, of `is` to `==`, and of `frozen=True`, which forbids what nobody does.

    python -m proofs.mutation --minutes 15 [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from proofs.mutation_tests import DIGESTS, SOURCE, TESTS, digests, pytest_command
from proofs.report import Proof

ROOT = Path(__file__).resolve().parent.parent
MINUTES = 15.0
MINUTES_QUICK = 0.75
SCORE_MIN = 0.80
"""Below it the proof fails: the tests have lost their grip."""
MUTANTS_TO_JUDGE = 50
"""With fewer results there is a score, and no verdict on it."""
WORKERS = 2
TEST_S_MAX = 60.0
COPIED = ("src", "tests", "proofs", "rigs", "bench", "docs", "pyproject.toml")
LEFT_OUT = ("%BitOr%", "%_Is_Eq", "%_IsNot_NotEq")
CONFIG = """
[cosmic-ray]
module-path = {modules}
timeout = {timeout}
excluded-modules = []
test-command = "{command}"

[cosmic-ray.distributor]
name = "local"
"""


class Survivor(Struct, frozen=True):
    """A change that no test noticed."""

    module: str
    line: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator} #{self.occurrence}"


class Tally(Struct):
    """What became of the changes."""

    possible: int = 0
    killed: int = 0
    survived: int = 0
    incompetent: int = 0
    """Changes that do not even import; they count as noticed by nobody and are left out of the score."""
    survivors: list[Survivor] = []
    packages: dict[str, tuple[int, int]] = {}
    """Per package, how many were noticed, of how many."""

    @property
    def score(self) -> float:
        """The share of changes that were noticed."""
        tried = self.killed + self.survived
        return self.killed / tried if tried else 0.0


class Copy:
    """A copy of the checkout with a list of changes to try in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session = folder / "session.sqlite"
        folder.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)
        (folder / DIGESTS).write_text(json.dumps(digests(folder)))
        command = f"{sys.executable} -m proofs.mutation_tests"
        modules = json.dumps([f"src/stigmergy/{package}" for package in TESTS])
        config = CONFIG.format(modules=modules, timeout=TEST_S_MAX, command=command)
        (folder / "mutation.toml").write_text(config)

    def passes(self) -> bool:
        """Whether the tests pass as they are."""
        environment = _environment(self.folder)
        every = pytest_command(*dict.fromkeys(path for paths in TESTS.values() for path in paths))
        done = subprocess.run(every, cwd=self.folder, env=environment, check=False, capture_output=True)
        return done.returncode == 0

    def list_changes(self) -> None:
        """Writes down every change that there could be."""
        self._cosmic_ray("init", "mutation.toml", self.session.name)

    def start(self) -> subprocess.Popen[bytes]:
        """Begins to try the changes."""
        command = [sys.executable, "-m", "cosmic_ray.cli", "exec", "mutation.toml", self.session.name]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=_environment(self.folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _cosmic_ray(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "cosmic_ray.cli", *arguments]
        subprocess.run(command, cwd=self.folder, env=_environment(self.folder), check=True, capture_output=True)


def run(minutes: float, seed: int, folder: Path) -> Tally:
    """Tries as many changes as fit into the time, in two copies side by side."""
    first = Copy(folder / "copy-0")
    if not first.passes():
        raise RuntimeError("the tests fail without any change; mend that first")
    first.list_changes()
    tally = Tally(possible=_draw(first.session, seed))
    # From here on: how long all tests take without a change must not decide how many changes are tried.
    deadline_s = time.monotonic() + minutes * 60
    copies = [first]
    for number in range(1, WORKERS):
        copy = Copy(folder / f"copy-{number}")
        shutil.copy2(first.session, copy.session)
        copies.append(copy)
    for number, copy in enumerate(copies):
        _keep_share(copy.session, number, len(copies))
    running = [copy.start() for copy in copies]
    while time.monotonic() < deadline_s and any(process.poll() is None for process in running):
        time.sleep(0.5)
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for copy in copies:
        _count(copy.session, tally)
    return tally


def prove(*, quick: bool = False, minutes: float | None = None, seed: int = 1) -> Proof:
    """The score of the tests of core and crdt."""
    minutes = minutes or (MINUTES_QUICK if quick else MINUTES)
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stigmergy-mutation-") as name:
        tally = run(minutes, seed, Path(name))
    tried = tally.killed + tally.survived
    violations = []
    if tried >= MUTANTS_TO_JUDGE and tally.score < SCORE_MIN:
        violations.append(f"only {tally.score:.0%} of {tried} changes were noticed, at least {SCORE_MIN:.0%} must be")
    return Proof(
        name="mutation",
        promise="the tests of core and crdt notice small changes of them",
        cases=tried,
        violations=violations,
        figures={
            "score": round(tally.score, 3),
            "noticed": tally.killed,
            "survived": tally.survived,
            "incompetent": tally.incompetent,
            "possible": tally.possible,
            **{f"score of {name}": f"{seen} of {tried}" for name, (seen, tried) in sorted(tally.packages.items())},
            "survivors": [str(survivor) for survivor in tally.survivors],
        },
        seconds=time.monotonic() - begin_s,
    )


def _environment(folder: Path) -> dict[str, str]:
    """The copy's own sources come first; without bytecode, which might be that of the change before."""
    return {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def _draw(session: Path, seed: int) -> int:
    """Leaves out what can tell nothing, and puts the rest into an order that the seed decides; how many there are."""
    with sqlite3.connect(session) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(mutation_specs)")]
        others = ", ".join(name for name in columns if name != "job_id")
        telling = " AND ".join("operator_name NOT LIKE ?" for _ in LEFT_OUT)
        query = f"SELECT module_path, start_pos_row, start_pos_col, {others} FROM mutation_specs WHERE {telling}"
        rows = sorted(connection.execute(query, LEFT_OUT), key=str)
        specs = [spec for module, row, column, *spec in rows if not _is_frozen(session.parent / module, row, column)]
        random.Random(seed).shuffle(specs)
        connection.execute("DELETE FROM mutation_specs")
        connection.execute("DELETE FROM work_items")
        # They are worked through in the order of their names.
        jobs = [f"{place:06}" for place in range(len(specs))]
        marks = ", ".join("?" * len(columns))
        connection.executemany("INSERT INTO work_items (job_id) VALUES (?)", [(job,) for job in jobs])
        named = [(*spec, job) for spec, job in zip(specs, jobs, strict=True)]
        connection.executemany(f"INSERT INTO mutation_specs ({others}, job_id) VALUES ({marks})", named)
    return len(specs)


def _is_frozen(module: Path, row: int, column: int) -> bool:
    """Whether what stands there is the value of `frozen=`."""
    return module.read_text().splitlines()[row - 1][:column].endswith("frozen=")


def _keep_share(session: Path, number: int, shares: int) -> None:
    """Leaves every n-th change to this copy."""
    with sqlite3.connect(session) as connection:
        for table in ("mutation_specs", "work_items"):
            connection.execute(f"DELETE FROM {table} WHERE CAST(job_id AS INTEGER) % ? != ?", (shares, number))


def _count(session: Path, tally: Tally) -> None:
    query = (
        "SELECT module_path, start_pos_row, operator_name, occurrence, test_outcome FROM work_results "
        "JOIN mutation_specs USING (job_id)"
    )
    with sqlite3.connect(session) as connection:
        for module, line, operator, occurrence, outcome in connection.execute(query):
            package = Path(module).relative_to(SOURCE).parts[0]
            noticed, tried = tally.packages.get(package, (0, 0))
            match str(outcome).rpartition(".")[2].lower():
                case "killed":
                    tally.packages[package] = (noticed + 1, tried + 1)
                    tally.killed += 1
                case "survived":
                    tally.packages[package] = (noticed, tried + 1)
                    tally.survived += 1
                    tally.survivors.append(Survivor(str(module), line, operator.removeprefix("core/"), occurrence))
                case _:
                    tally.incompetent += 1


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.mutation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    proof = prove(minutes=options.minutes, seed=options.seed)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
