"""A capture into PostgreSQL is killed again and again, and so are the server and the node: no event missing or twice.

A node observes numbers all the time. `stigmergy capture` follows it into a real PostgreSQL server. Captures are killed
with SIGKILL while they write, the server as a crash would end it, the node too. At the end a capture catches up, and
every event of the log must be in its table once, with the values that the log has. It must be the same table that a
capture of the whole log at once makes. Beside it a second capture has the rows of a view, and is killed as well: each
event must count in them once.

    python -m proofs.capture --kills 100 [--seed N]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from msgspec import Struct

from proofs.report import Proof
from rigs.postgres import PostgresServer, start_postgres
from stigmergy.control.socket import answers_at

KILLS = 100
KILLS_QUICK = 10
WAIT_S_MAX = 600.0
LIFE_S_MAX = 0.25
"""After it has begun to write, a capture is killed within this time."""
WRITING_SHARE = 0.8
"""So many of the kills wait until a capture has a transaction open; the others come at any moment."""
WRITING_S_MAX = 2.0
SERVER_SHARE = 0.2
NODE_SHARE = 0.1
"""So many of the kills are of the server, and of the node."""
VIEW_SHARE = 0.5
"""So many of the others are of the capture that has the view."""
MODULE = """
from stigmergy import Agent, Event, Fleet, Key, View, evolve, project


class Counted(Event):
    number: int
    label: str = ""


class Doubled(Event):
    number: int
    twice: tuple[int, ...] = ()


class Counter(Agent):
    count: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1

    @evolve
    def doubled(self, event: Doubled) -> None:
        self.count += 1


class Totals(View):
    agent: Key[str]
    count: int = 0
    total: int = 0

    @project
    def counted(self, event: Counted) -> None:
        self.count += 1
        self.total += event.number

    @project
    def doubled(self, event: Doubled) -> None:
        self.count += 1
        self.total += event.number


fleet = Fleet("counters", agents=[Counter], views=[Totals], shards=3)


@fleet.sensor(Counter, every_s=0.002)
async def count(agent: str) -> Counted | Doubled:
    global number
    number += 1
    return Doubled(number=number, twice=(number, number)) if number % 3 else Counted(number=number, label=agent)


number = 0
"""


class Figures(Struct):
    """How much was tried."""

    killed_captures: int = 0
    killed_view_captures: int = 0
    killed_servers: int = 0
    killed_nodes: int = 0
    killed_in_a_transaction: int = 0
    """Of the kills, those that came while a capture had a transaction open."""
    commits: int = 0
    events: int = 0


class Siege:
    """One node, one server, and one capture after the other."""

    def __init__(self, folder: Path, server: PostgresServer, seed: int) -> None:
        self.figures = Figures()
        self.violations: list[str] = []
        self._folder = folder
        self._server = server
        self._url = server.new_database()
        self._chance = random.Random(seed)
        self._node: subprocess.Popen[bytes] | None = None
        self._writing = False
        self._capture: subprocess.Popen[bytes] | None = None
        self._rows: subprocess.Popen[bytes] | None = None
        """The capture of the view."""
        (folder / "counters.py").write_text(MODULE, encoding="utf-8")
        # A sensor belongs to an agent that the node is told to run.
        (folder / "stigmergy.toml").write_text('[fleet]\nagents = ["Counter/a", "Counter/b", "Counter/c"]\n')

    def run(self, kills: int) -> Proof:
        """Kills so many times, lets the last capture catch up, and compares."""
        try:
            for _ in range(kills):
                self._begin_missing()
                self._writing = False
                self._wait_for_progress()
                time.sleep(self._chance.random() * LIFE_S_MAX)
                if self._chance.random() < WRITING_SHARE:
                    self._wait_for_a_transaction()
                self._kill_somebody()
            self._end("_node")
            self._end("_capture")
            self._end("_rows")
            self._stigmergy(*self._capture_of_rows, "--once")
            for schema in ("counters", "anew"):
                self._stigmergy("capture", "counters:fleet", "--to", self._url, "--schema", schema, "--once")
            self._compare()
        finally:
            for name in ("_node", "_capture", "_rows"):
                self._end(name)
        return Proof(
            name="capture",
            promise="whatever is killed: every event of the log is in PostgreSQL once, and counts once in a view",
            cases=kills,
            violations=self.violations,
            figures=msgspec.structs.asdict(self.figures),
        )

    # ------------------------------------------------------------------ killing

    @property
    def _capture_of_rows(self) -> tuple[str, ...]:
        return ("capture", "counters:fleet", "--to", self._url, "--schema", "counters", "--view", "Totals")

    def _begin_missing(self) -> None:
        if self._node is None:
            self._node = self._start("run", "counters:fleet")
            _wait(lambda: answers_at(self._folder / "counters.db.sock"), "the node does not listen")
        if self._capture is None:
            self._capture = self._start("capture", "counters:fleet", "--to", self._url, "--schema", "counters")
        if self._rows is None:
            self._rows = self._start(*self._capture_of_rows)

    def _wait_for_progress(self) -> None:
        """Until something is captured that was not before: a capture that has only started proves nothing."""
        before, counted = self._positions(), self._counted()

        def moved() -> bool:
            for process in (self._node, self._capture, self._rows):
                if process is not None and process.poll() is not None:
                    raise AssertionError((self._folder / "said").read_text(encoding="utf-8")[-4000:])
            return self._positions() > before and self._counted() > counted

        _wait(moved, "nothing is captured")

    def _wait_for_a_transaction(self) -> None:
        """Until a capture writes. On one connection, so that the kill comes at once."""
        query = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE application_name LIKE 'stigmergy capture%' AND xact_start IS NOT NULL"
        )
        deadline_s = time.monotonic() + WRITING_S_MAX
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._writing and time.monotonic() < deadline_s:
                self._writing = connection.execute(query.encode()).fetchone() != (0,)

    def _kill_somebody(self) -> None:
        self.figures.killed_in_a_transaction += self._writing
        drawn = self._chance.random()
        if drawn < SERVER_SHARE:
            self._server.kill()
            self._server.start()
            self.figures.killed_servers += 1
        elif drawn < SERVER_SHARE + NODE_SHARE:
            self._end("_node")
            self.figures.killed_nodes += 1
        elif self._chance.random() < VIEW_SHARE:
            self._end("_rows")
            self.figures.killed_view_captures += 1
        else:
            self._end("_capture")
            self.figures.killed_captures += 1

    def _end(self, name: str) -> None:
        process: subprocess.Popen[bytes] | None = getattr(self, name)
        if process is not None:
            process.kill()
            process.wait()
            setattr(self, name, None)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "said").open("ab") as said:
            command = [sys.executable, "-m", "stigmergy", *arguments]
            return subprocess.Popen(command, cwd=self._folder, stdout=said, stderr=said)

    def _stigmergy(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "stigmergy", *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    # ------------------------------------------------------------------ what the server says

    def _ask(self, query: str) -> list[Any]:
        with psycopg.connect(self._url, connect_timeout=10) as connection:
            return connection.execute(query.encode()).fetchall()

    def _positions(self) -> int:
        try:
            return int(self._ask("SELECT coalesce(sum(position), 0) FROM counters.capture_positions")[0][0])
        except psycopg.Error:
            return 0

    def _counted(self) -> int:
        try:
            return int(self._ask('SELECT coalesce(sum(count), 0) FROM counters."Totals"')[0][0])
        except psycopg.Error:
            return 0

    # ------------------------------------------------------------------ comparing

    def _compare(self) -> None:
        log = {place: fields for place, fields in map(_line, self._stigmergy("log", "export").splitlines()) if place}
        found: dict[tuple[int, int, int], dict[str, Any]] = {}
        for table, columns in (("counted", "number, label"), ("doubled", "number, twice")):
            names = [name.strip() for name in columns.split(",")]
            query = f"SELECT log_shard, log_position, log_index, log_agent, {columns} FROM counters.{table}"
            rows = self._ask(query)
            for row in rows:
                if row[:3] in found:
                    self.violations.append(f"{row[:3]} is there twice")
                found[row[:3]] = {"agent": row[3], **dict(zip(names, row[4:], strict=True))}
            if self._ask(f"SELECT * FROM counters.{table} ORDER BY 1, 2, 3") != self._ask(
                f"SELECT * FROM anew.{table} ORDER BY 1, 2, 3"
            ):
                self.violations.append(f"{table} is not what a capture of the whole log makes")
        for place in sorted(log.keys() | found.keys()):
            if log.get(place) != found.get(place):
                self.violations.append(f"{place}: the log has {log.get(place)}, the table {found.get(place)}")
        totals: dict[str, tuple[int, int]] = {}
        for fields in log.values():
            count, total = totals.get(fields["agent"], (0, 0))
            totals[fields["agent"]] = (count + 1, total + fields["number"])
        kept = {agent: (count, total) for agent, count, total in self._ask('SELECT * FROM counters."Totals"')}
        if kept != totals:
            self.violations.append(f"the view has {kept}, the log makes {totals}")
        self.figures.events = len(log)
        self.figures.commits = self._positions()
        del self.violations[20:]


def _line(line: str) -> tuple[tuple[int, int, int] | None, dict[str, Any]]:
    """An event of the log: where it is, and what it says; None for what is no event of an agent."""
    entry = json.loads(line)
    if entry["kind"] != "event" or entry["type"] not in ("Counted@1", "Doubled@1"):
        return None, {}
    return (entry["shard"], entry["position"], entry["index"]), {"agent": entry["agent"], **entry["fields"]}


def _wait(over: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not over():
        if time.monotonic() > deadline_s:
            raise AssertionError(otherwise)
        time.sleep(0.01)


def prove(*, quick: bool = False, kills: int | None = None, seed: int = 1) -> Proof:
    """The proof as `make prove` runs it."""
    with start_postgres() as server, tempfile.TemporaryDirectory() as folder:
        return Siege(Path(folder), server, seed).run(kills or (KILLS_QUICK if quick else KILLS))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m proofs.capture", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    proof = prove(kills=options.kills, seed=options.seed)
    print(msgspec.json.encode(proof).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
