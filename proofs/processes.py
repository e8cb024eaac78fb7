"""Processes that share a fleet are killed with SIGKILL again and again, one or all, while their agents tell each other.

Around them is this process: it gives every agent one command after the other, asks again with the same id what was not
answered, kills a process at a random moment, starts it again. At the end it reads what the journals say and compares:
each command that was answered is in the log, once; and what the log of one shard says that it told another is, in that
order and once, what the log of the other says that it heard.

    python -m proofs.processes --kills 500 [--seed N] [--journal sqlite|segments] [--processes N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from proofs.processes_node import SHARDS, url_of
from proofs.report import Proof
from stigmergy.app.fleet import ControlCall, control_path, make_private_key
from stigmergy.app.parts import part_url
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import StigmergyError
from stigmergy.control.protocol import Reply, SendRequest, StatusRequest, StopRequest, read_reply, write_request
from stigmergy.network.shares import Share
from stigmergy.shard.state import shard_of

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
"""On the disk of the checkout: the folder for temporary files may be memory."""
JOURNALS = ("sqlite", "segments")
KILLS = 500
KILLS_QUICK = 12
AGENTS = 12
LIFE_S_MAX = 0.25
ALL_AT_ONCE_SHARE = 0.1
"""Of the kills, so many take all processes at the same moment."""
ANSWERED_EACH = 7
"""So many commands are answered for each kill before the next: on a busy machine they take longer than a life."""
ANSWER_S_MAX = 5.0
FINISH_S_MAX = 120.0
Place = tuple[int, int]


class Tally(Struct):
    """What happened around the processes."""

    kills: int = 0
    answered: int = 0
    asked_again: int = 0
    killed_all: int = 0


class Siege:
    """Runs, uses and kills the processes of one folder."""

    def __init__(self, folder: Path, scheme: str, processes: int, seed: int) -> None:
        self._folder = folder
        self._scheme = scheme
        self._chance = random.Random(seed)
        self.url = url_of(folder, scheme)
        self._shares = [Share(number, processes, SHARDS) for number in range(1, processes + 1)]
        self._sockets = {share.process: control_path(part_url(self.url, share), "") for share in self._shares}
        self._pids: dict[int, int] = {}
        self.agents = [f"Relay/{number}" for number in range(AGENTS)]
        self.answered: dict[str, list[int]] = {agent: [] for agent in self.agents}
        self._over = False
        self.tally = Tally()
        make_private_key(folder / "relays.key")
        (folder / ("relays.db" if scheme == "sqlite" else "relays")).mkdir()
        command = [sys.executable, "-m", "proofs.processes_node", str(folder), scheme, str(processes)]
        self._forker = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    async def run(self, kills: int) -> None:
        """Kills so often while all agents are busy, then lets everything arrive."""
        for share in self._shares:
            self._start(share.process)
        busy = [asyncio.ensure_future(self._use(agent)) for agent in self.agents]
        for _ in range(kills):
            await asyncio.sleep(self._chance.uniform(0.0, LIFE_S_MAX))
            await self._answered_enough()
            everybody = self._chance.random() < ALL_AT_ONCE_SHARE
            victims = (
                [share.process for share in self._shares] if everybody else [self._chance.choice(list(self._pids))]
            )
            for process in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pids[process], signal.SIGKILL)
            self.tally.kills += 1
            self.tally.killed_all += everybody
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.05)))
            await self._gone([self._pids[process] for process in victims])
            for process in victims:
                self._start(process)
        await self._answered_enough()
        self._over = True
        await asyncio.wait_for(asyncio.gather(*busy), FINISH_S_MAX)
        await asyncio.wait_for(self._settle(), FINISH_S_MAX)

    async def _answered_enough(self) -> None:
        while self.tally.answered < ANSWERED_EACH * self.tally.kills:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stops them in order."""
        for process in self._pids:
            with contextlib.suppress(StigmergyError, TimeoutError):
                await self._ask(process, write_request(StopRequest()))
        await self._gone(list(self._pids.values()))

    async def _gone(self, pids: list[int]) -> None:
        """Waits until they have ended, as a supervisor does: before that they have their journals."""
        for _ in range(3_000):
            if not any(_runs(pid) for pid in pids):
                return
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Leaves nothing behind."""
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._forker.stdin is not None and self._forker.stdout is not None:
            self._forker.stdin.close()
            self._forker.stdout.close()
        self._forker.wait(30)

    def _start(self, process: int) -> None:
        if self._forker.stdin is None or self._forker.stdout is None:
            raise RuntimeError("nobody forks")
        self._forker.stdin.write(f"{process}\n")
        self._pids[process] = int(self._forker.stdout.readline())

    async def _use(self, agent: str) -> None:
        """Gives one agent command after command; each until it is answered."""
        chance = random.Random(agent)
        process = self._shares[0].process_of(shard_of(agent, SHARDS))
        number = 0
        while not self._over:
            number += 1
            fields = {"number": number, "to": chance.choice(self.agents)}
            command_id = new_command_id(time.time_ns(), chance.randbytes(RANDOM_BYTES))
            request = write_request(SendRequest(agent=agent, command="Count", fields=fields, command_id=command_id))
            while True:
                try:
                    await self._ask(process, request)
                    break
                except (StigmergyError, TimeoutError):
                    self.tally.asked_again += 1
                    await asyncio.sleep(0.02)
            self.answered[agent].append(number)
            self.tally.answered += 1

    async def _settle(self) -> None:
        """Waits until nobody owes anybody anything."""
        while True:
            with contextlib.suppress(StigmergyError, TimeoutError):
                standing = [(await self._ask(process, write_request(StatusRequest()))).ok for process in self._pids]
                if not any(one["owed"] or one["waiting"] for one in standing):
                    return
            await asyncio.sleep(0.1)

    async def _ask(self, process: int, request: bytes) -> Reply:
        lines: Any = ControlCall(self._sockets[process]).ask(request)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return read_reply(await anext(lines))
        finally:
            await lines.aclose()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def compare(answered: dict[str, list[int]], entries: list[dict[str, Any]]) -> list[str]:
    """What the log does not bear out, in sentences. `entries` are those of all shards, each in its own order."""
    told: dict[Place, list[tuple[str, int]]] = {}
    heard: dict[Place, list[tuple[str, int]]] = {}
    counted: dict[str, list[int]] = {}
    for entry in entries:
        fields = entry["fields"]
        if entry["type"] == "Counted@1":
            counted.setdefault(entry["agent"], []).append(fields["number"])
            pair = (entry["shard"], shard_of(fields["to"], SHARDS))
            told.setdefault(pair, []).append((f"{entry['agent']} to {fields['to']}", fields["number"]))
        elif entry["type"] == "Heard@1":
            pair = (shard_of(fields["by"], SHARDS), entry["shard"])
            heard.setdefault(pair, []).append((f"{fields['by']} to {entry['agent']}", fields["number"]))
    violations = []
    for agent, numbers in answered.items():
        kept = counted.get(agent, [])
        if missing := sorted(set(numbers) - set(kept)):
            violations.append(f"{agent}: {len(missing)} answered commands are lost, the first is {missing[0]}")
        if len(kept) != len(set(kept)):
            violations.append(f"{agent}: commands are in the log twice: {_doubled(kept)[:5]}")
        if kept != sorted(kept):
            violations.append(f"{agent}: commands are in the log out of order")
    for pair in sorted(told.keys() | heard.keys()):
        said, taken = told.get(pair, []), heard.get(pair, [])
        where = f"shard {pair[0]} to shard {pair[1]}"
        if doubled := _doubled(taken):
            violations.append(f"{where}: {len(doubled)} tells arrived twice, the first is {doubled[0]}")
        elif lost := [one for one in said if one not in set(taken)]:
            violations.append(f"{where}: {len(lost)} tells are lost, the first is {lost[0]}")
        elif said != taken:
            violations.append(f"{where}: tells arrived out of order, or from nowhere")
    return violations


def _doubled(items: list[Any]) -> list[Any]:
    return [item for item, count in Counter(items).items() if count > 1]


def read_log(folder: Path, url: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the log says, and what its verification found, by the public command line."""
    command = [sys.executable, "-m", "stigmergy"]
    place = ["--journal", url]
    log = folder / "log.jsonl"
    subprocess.run([*command, "log", "export", "--to", str(log), *place, "--json"], check=True, stdout=subprocess.PIPE)
    verified = subprocess.run(
        [*command, "log", "verify", *place, "--json"], check=False, stdout=subprocess.PIPE, cwd=folder
    )
    entries = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    return sorted(entries, key=_place), msgspec.json.decode(verified.stdout)


def _place(entry: dict[str, Any]) -> tuple[int, int, int]:
    return (entry["shard"], entry["position"], entry["index"])


def kill_on(journal: str, kills: int, seed: int, processes: int = 2) -> Proof:
    """Kills processes so often; everything that was promised must hold."""
    begin_s = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stigmergy-processes-", dir=BUILD) as name:
        folder = Path(name)
        siege = Siege(folder, journal, processes, seed)
        try:
            asyncio.run(_besiege(siege, kills))
        finally:
            siege.close()
        entries, verified = read_log(folder, siege.url)
        violations = compare(siege.answered, entries)
        if not verified["sound"]:
            violations.append(f"the log does not verify: {verified['problems'][:3]}")
    tells = [entry for entry in entries if entry["type"] == "Heard@1"]
    away = [
        entry
        for entry in tells
        if siege._shares[0].process_of(entry["shard"])
        != siege._shares[0].process_of(shard_of(entry["fields"]["by"], SHARDS))
    ]
    return Proof(
        name="processes",
        promise="kill -9 of processes that share a fleet: nothing answered lost, tells between them once and in order",
        cases=siege.tally.kills,
        violations=violations,
        figures={
            **msgspec.structs.asdict(siege.tally),
            "tells": len(tells),
            "tells_between_processes": len(away),
            "commits": verified["commits"],
        },
        seconds=time.monotonic() - begin_s,
    )


async def _besiege(siege: Siege, kills: int) -> None:
    await siege.run(kills)
    await siege.stop()


def prove(*, quick: bool = False) -> Proof:
    """On both journals, with two processes and with three."""
    kills = KILLS_QUICK if quick else KILLS
    found = [
        kill_on(journal, kills, seed=1, processes=processes)
        for journal, processes in zip(JOURNALS, (2, 3), strict=True)
    ]
    first = found[0]
    for journal, proof in zip(JOURNALS[1:], found[1:], strict=True):
        first.violations += [f"{journal}: {violation}" for violation in proof.violations]
        first.figures |= {f"{journal}_{name}": value for name, value in proof.figures.items()}
    return msgspec.structs.replace(first, cases=sum(proof.cases for proof in found))


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.processes", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--journal", choices=JOURNALS, default=JOURNALS[0])
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    proof = kill_on(options.journal, options.kills, options.seed, options.processes)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
