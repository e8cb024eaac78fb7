"""Workers that share a fleet on real NATS servers are added, stopped, killed and held up again and again, under load.

Around them is this process: it gives every agent one command after the other, asks again with the same id what was not
answered, and does something to a worker, or to the server that leads a log. It measures for how long each shard gave no
answers meanwhile. At the end it reads what the logs say and compares: each command that was answered is there, once;
tells arrived once and in order; each effect came, under one key; and only the shards concerned have moved.

    python -m proofs.workers --rounds 100 [--seed N] [--servers 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from proofs.report import Proof
from proofs.workers_node import RECEIVER, SHARDS, Rung
from stigmergy.app.fleet import make_private_key
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import StigmergyError
from stigmergy.base.system import SystemClock
from stigmergy.cluster.register import Register
from stigmergy.control.protocol import Request, SendRequest, StatusRequest, read_single, write_request
from stigmergy.nats.address import parse_address
from stigmergy.nats.control import NatsControlClient
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import cluster_bucket, log_stream
from stigmergy.nats.store.store import NatsStore
from stigmergy.shard.homes import shard_of
from stigmergy.testing.nats import NatsCluster

R = TypeVar("R")
ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
FLEET = "relays"
ROUNDS = 100
ROUNDS_QUICK = 8
AGENTS = 12
WORKERS = 3
WORKERS_MAX = 4
ANSWER_S_MAX = 8.0
SETTLE_S_MAX = 90.0
FINISH_S_MAX = 120.0
HELD_S = 0.5
"""A worker is held up until others have its shards, and for so much longer."""
DEEDS = ("add", "stop", "kill", "hold", "server")
FRESH_S = 1.5
ANSWERED_S = 1.5
STEADY_S = 0.5
"""So long all is as it should be before the next deed."""

Owners = dict[int, tuple[str, int]]
"""Who has each shard, and by which claim."""


class Bell:
    """The receiver of effects, which keeps marks: a key that it had is confirmed and not counted again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[str, tuple[str, int]] = {}
        self.repeated = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        """Listens no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, msgspec.DecodeError):
            line = await reader.readline()
            if line:
                rung = msgspec.json.decode(line, type=Rung)
                self.repeated += rung.key in self.keys
                self.keys[rung.key] = (rung.agent, rung.number)
                writer.write(b"+")
                await writer.drain()
        writer.close()


class Hand:
    """One worker process, started by the command line."""

    def __init__(self, name: str, folder: Path, url: str, bell: Path) -> None:
        self.name = name
        command = [sys.executable, "-m", "stigmergy", "worker", "proofs.workers_node:fleet", "--json"]
        command += ["--nats", url, "--name", name, "--key", str(folder / "relays.key")]
        self.log = folder / f"{name}.jsonl"
        environment = {**os.environ, RECEIVER: str(bell), "PYTHONPATH": str(ROOT)}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment)

    def events(self) -> list[dict[str, Any]]:
        """What it has said."""
        lines = (msgspec.json.decode(line) for line in self.log.read_bytes().splitlines() if line.startswith(b"{"))
        return [line for line in lines if "event" in line]  # the others are of its diagnostic log

    async def gone(self) -> int:
        """Waits until it has ended."""
        async with asyncio.timeout(FINISH_S_MAX):
            while self.process.poll() is None:  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(0.02)
        return int(self.process.returncode)


class Siege:
    """Runs, uses and troubles the workers of one fleet."""

    def __init__(self, folder: Path, cluster: NatsCluster, seed: int) -> None:
        self._folder = folder
        self._cluster = cluster
        self._chance = random.Random(seed)
        replicas = 3 if len(cluster.servers) >= 3 else 1
        self.url = f"{cluster.url}?replicas={replicas}"
        self.bell = Bell(folder / "bell.sock")
        self._hands: dict[str, Hand] = {}
        self.ended: list[Hand] = []
        self._count = 0
        self.agents = [f"Relay/{number}" for number in range(AGENTS)]
        self.answered: dict[str, list[int]] = {agent: [] for agent in self.agents}
        self._answers_s: dict[int, list[float]] = {shard: [] for shard in range(SHARDS)}
        """For each shard, the moments of its answers."""
        self._over = False
        self.asked_again = 0
        self.deeds: Counter[str] = Counter()
        self.pauses_s: dict[str, list[float]] = {}
        self.moved = 0
        self.disturbed = 0
        """Rounds in which others lost their leases, too: the machine or its servers had no time for them."""
        self.violations: list[str] = []
        make_private_key(folder / "relays.key")

    async def run(self, rounds: int, deeds: tuple[str, ...] = DEEDS) -> None:
        """So many deeds while all agents are busy; then everything arrives."""
        await self.bell.start()
        link = await NatsLink.open(parse_address(self.url, ("replicas",)), name="proof")
        room = NatsControlClient(link, FLEET)
        store = NatsStore(link, SystemClock())
        register = Register(await store.key_value(cluster_bucket(FLEET)), SystemClock(), lambda: None)
        await register.mirror.start(10.0)
        try:
            for _ in range(WORKERS):
                self._add()
            await self._settled(register)
            busy = [asyncio.ensure_future(self._use(agent, room)) for agent in self.agents]
            await asyncio.sleep(1.0)
            for number in range(rounds):
                await self._round(register, deeds[number % len(deeds)])
            self._over = True
            await asyncio.wait_for(asyncio.gather(*busy), FINISH_S_MAX)
            await asyncio.wait_for(self._arrived(room), FINISH_S_MAX)
        finally:
            register.mirror.stop()
            await room.close()
            await link.close()

    async def stop(self) -> None:
        """Stops the workers in order."""
        for hand in list(self._hands.values()):
            hand.process.send_signal(signal.SIGTERM)
        for hand in list(self._hands.values()):
            code = await hand.gone()
            if code != 0:
                self.violations.append(f"worker {hand.name} ended with {code}: {hand.log.read_text()[-500:]}")
        await self.bell.stop()

    def close(self) -> None:
        """Leaves nothing behind."""
        for hand in (*self._hands.values(), *self.ended):
            hand.process.kill()
            hand.process.wait(30)

    # ------------------------------------------------------------------ deeds

    def _add(self) -> Hand:
        self._count += 1
        hand = self._hands[f"w{self._count}"] = Hand(f"w{self._count}", self._folder, self.url, self.bell.path)
        return hand

    async def _round(self, register: Register, deed: str) -> None:
        """One deed, until all is steady again; what moved, and for how long each shard was silent."""
        if deed == "add" and len(self._hands) >= WORKERS_MAX:
            deed = "stop"
        before, began_s, fenced = _owners(register), time.monotonic(), self._fenced()
        hand = self._chance.choice([self._hands[name] for name in sorted(self._hands)])
        newcomer = ""
        match deed:
            case "add":
                newcomer = self._add().name
            case "stop":
                hand.process.send_signal(signal.SIGTERM)
                self.ended.append(self._hands.pop(hand.name))
                if await hand.gone() != 0:
                    self.violations.append(f"worker {hand.name} did not stop in order: {hand.log.read_text()[-500:]}")
            case "kill":
                hand.process.kill()
                self.ended.append(self._hands.pop(hand.name))
            case "hold":
                hand.process.send_signal(signal.SIGSTOP)
                await self._settled(register, without=hand.name)
                await asyncio.sleep(HELD_S)
                hand.process.send_signal(signal.SIGCONT)
            case _:
                await self._trouble_server()
        after = await self._settled(register)
        disturbed = self._fenced() - fenced > (deed == "hold")
        self._note(deed, hand.name, newcomer, before, after, began_s, disturbed=disturbed)
        while len(self._hands) < WORKERS:
            self._add()
            await self._settled(register)

    async def _trouble_server(self) -> None:
        """Kills the server that leads the log of some shard, and starts it again."""
        shard = self._chance.randrange(SHARDS)
        leader = await self._cluster.leader_of(log_stream(FLEET, shard, shard))
        if leader is not None and len(self._cluster.servers) > 1:
            self._cluster.kill(leader)
            await asyncio.sleep(8.0)
            self._cluster.start_again(leader, wait=False)

    def _fenced(self) -> int:
        """How often workers have lost their leases so far."""
        return sum(
            event["event"] == "fenced" for hand in (*self._hands.values(), *self.ended) for event in hand.events()
        )

    def _note(
        self, deed: str, name: str, newcomer: str, before: Owners, after: Owners, began_s: float, *, disturbed: bool
    ) -> None:
        self.deeds[deed] += 1
        self.disturbed += disturbed and deed != "server"
        moved = [shard for shard in range(SHARDS) if before[shard] != after[shard]]
        self.moved += len(moved)
        for shard in range(SHARDS):
            silent_s = self._silent_s(shard, began_s)
            concerned = shard in moved
            kind = "server" if deed == "server" else "disturbed" if disturbed else deed if concerned else "others"
            self.pauses_s.setdefault(kind, []).append(silent_s)
            if not concerned or disturbed or deed == "server":
                continue
            was, now = before[shard][0], after[shard][0]
            if deed == "add" and not now.startswith(f"{newcomer}-"):
                self.violations.append(f"{newcomer} was added, and shard {shard} went from {was} to {now}")
            # Who was held up joins anew, and gets its share again.
            ends = (was, now) if deed == "hold" else (was,)
            if deed in ("stop", "kill", "hold") and not any(end.startswith(f"{name}-") for end in ends):
                self.violations.append(f"{deed} of {name}, and shard {shard} went from {was} to {now}")

    def _silent_s(self, shard: int, began_s: float) -> float:
        """The longest time without an answer of this shard since then."""
        moments = [moment for moment in self._answers_s[shard] if moment >= began_s]
        earlier = [moment for moment in self._answers_s[shard] if moment < began_s][-1:]
        line = [*earlier, *moments, time.monotonic()]
        self._answers_s[shard] = moments[-1:]
        return max((later - sooner for sooner, later in itertools.pairwise(line)), default=0.0)

    async def _settled(self, register: Register, without: str = "") -> Owners:
        """Waits until every shard is where the plan has it, and the plan has all workers that run."""
        steady_s = time.monotonic()
        deadline_s = steady_s + SETTLE_S_MAX
        while time.monotonic() < deadline_s:
            if not self._is_settled(register, without):
                steady_s = time.monotonic()
            elif time.monotonic() - steady_s > STEADY_S:
                return _owners(register)
            await asyncio.sleep(0.02)
        said = {hand.name: hand.events()[-6:] for hand in self._hands.values()}
        members = [member.id for member in register.members()]
        raise AssertionError(
            f"not steady after {SETTLE_S_MAX:g} s, after {dict(self.deeds)}: members {members}, plan {register.plan}, "
            f"owners {_owners(register)}; they said {said}"
        )

    def _is_settled(self, register: Register, without: str) -> bool:
        members = [member.id.partition("-")[0] for member in register.members()]
        # After trouble with servers what we have seen may be old: whoever is there renews twice a second.
        now_ns = time.monotonic_ns()
        if any(now_ns - heard_ns > FRESH_S * 1_000_000_000 for heard_ns in register.renewed_ns.values()):
            return False
        # A log whose leader was killed may have none yet, although all owners are where they should be.
        last_s = [moments[-1] for moments in self._answers_s.values() if moments]
        if any(time.monotonic() - moment > ANSWERED_S for moment in last_s):
            return False
        wanted = sorted(name for name in self._hands if name != without)
        at_home = all(register.owner(shard) == register.planned(shard) != "" for shard in range(SHARDS))
        planned = register.plan is not None and len(register.plan.members) == len(wanted)
        return at_home and planned and sorted(members) == wanted

    # ------------------------------------------------------------------ load

    async def _use(self, agent: str, room: NatsControlClient) -> None:
        """Gives one agent command after command; each until it is answered."""
        chance = random.Random(agent)
        shard = shard_of(agent, SHARDS)
        branch = room.branch(shard)
        number = 0
        while not self._over:
            number += 1
            fields = {"number": number, "to": chance.choice(self.agents)}
            command_id = new_command_id(time.time_ns(), chance.randbytes(RANDOM_BYTES))
            request = SendRequest(agent=agent, command="Count", fields=fields, command_id=command_id)
            while True:
                try:
                    await _ask(branch, request)
                    break
                except (StigmergyError, TimeoutError):
                    self.asked_again += 1
                    await asyncio.sleep(0.01)
            self.answered[agent].append(number)
            self._answers_s[shard].append(time.monotonic())

    async def _arrived(self, room: NatsControlClient) -> None:
        """Waits until nobody owes anybody anything."""
        while True:
            with contextlib.suppress(StigmergyError, TimeoutError):
                request = StatusRequest()
                standing = [await _ask(room.branch(shard), request) for shard in range(SHARDS)]
                if not any(one.owed or one.waiting for one in standing):
                    return
            await asyncio.sleep(0.1)

    def compare_effects(self) -> list[str]:
        """What the bell does not bear out."""
        rung = Counter(self.bell.keys.values())
        wanted = [(agent, number) for agent, numbers in self.answered.items() for number in numbers]
        found = [f"the effect of {one} never came" for one in wanted if one not in rung]
        return found + [f"the effect of {one} came under {count} keys" for one, count in rung.items() if count > 1]


def _owners(register: Register) -> Owners:
    found: Owners = {}
    for shard in range(SHARDS):
        record = register.owner_record(shard)
        found[shard] = ("", 0) if record is None else (record.worker, record.claim)
    return found


async def _ask(branch: Any, request: Request[R]) -> R:
    lines = branch.ask(write_request(request))
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            return read_single(await anext(lines), request)
    finally:
        await lines.aclose()


def _figures(pauses_s: dict[str, list[float]]) -> dict[str, Any]:
    """For each kind of deed how long shards gave no answer, in milliseconds."""
    return {
        f"pause_ms_{kind}": {
            "shards": len(found),
            "p50": round(statistics.median(found) * 1000, 1),
            "max": round(max(found) * 1000, 1),
        }
        for kind, found in sorted(pauses_s.items())
        if found
    }


def compare(answered: dict[str, list[int]], entries: list[dict[str, Any]]) -> list[str]:
    """What the log does not bear out, in sentences. `entries` are those of all shards, each in its own order."""
    told: dict[tuple[int, int], list[tuple[str, int]]] = {}
    heard: dict[tuple[int, int], list[tuple[str, int]]] = {}
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


def trouble(rounds: int, seed: int, servers: int = 3, deeds: tuple[str, ...] = DEEDS) -> Proof:
    """Troubles workers so often; everything that was promised must hold."""
    begin_s = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stigmergy-workers-", dir=BUILD) as name:
        folder = Path(name)
        with NatsCluster.start(folder / "servers", nodes=servers) as cluster:
            siege = Siege(folder, cluster, seed)
            try:
                asyncio.run(_besiege(siege, rounds, deeds))
            finally:
                siege.close()
            entries, commits, unsound = read_logs(folder, f"{cluster.url}/{FLEET}")
        violations = [*siege.violations, *compare(siege.answered, entries), *siege.compare_effects()[:20], *unsound]
    answered = sum(len(numbers) for numbers in siege.answered.values())
    return Proof(
        name="workers",
        promise="workers added, stopped, killed, held up under load: only their shards move, nothing lost or doubled",
        cases=sum(siege.deeds.values()),
        violations=violations,
        figures={
            "deeds": dict(siege.deeds),
            "answered": answered,
            "asked_again": siege.asked_again,
            "moved": siege.moved,
            "disturbed": siege.disturbed,
            "effects": len(siege.bell.keys),
            "effects_repeated": siege.bell.repeated,
            "commits": commits,
            **_figures(siege.pauses_s),
        },
        seconds=time.monotonic() - begin_s,
    )


def read_logs(folder: Path, url: str) -> tuple[list[dict[str, Any]], int, list[str]]:
    """What the logs of all shards say, how many commits they have, and what their verification found wrong."""
    command, log = [sys.executable, "-m", "stigmergy", "log"], folder / "log.jsonl"
    export = [*command, "export", "--to", str(log), "--journal", url, "--json"]
    subprocess.run(export, check=True, stdout=subprocess.PIPE, cwd=folder)
    entries = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    commits, unsound = 0, []
    for shard in range(SHARDS):
        verify = [*command, "verify", "--journal", f"{url}?part={shard}", "--json"]
        done = subprocess.run(verify, check=False, stdout=subprocess.PIPE, cwd=folder)
        found = msgspec.json.decode(done.stdout)
        commits += found.get("commits", 0)
        if not found.get("sound"):
            unsound.append(f"the log of shard {shard} does not verify: {found}"[:500])
    return sorted(entries, key=lambda one: (one["shard"], one["position"], one["index"])), commits, unsound


async def _besiege(siege: Siege, rounds: int, deeds: tuple[str, ...]) -> None:
    await siege.run(rounds, deeds)
    await siege.stop()


def prove(*, quick: bool = False) -> Proof:
    """Row 25: on three servers."""
    return trouble(ROUNDS_QUICK if quick else ROUNDS, seed=1)


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", type=int, default=3)
    options = parser.parse_args(arguments)
    proof = trouble(options.rounds, options.seed, options.servers)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
