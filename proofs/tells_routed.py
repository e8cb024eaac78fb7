"""Agents of three nodes and of two fleets tell each other numbers through a real Mosquitto, while links are cut and
nodes are killed with SIGKILL.

Each node is a process of its own, `stigmergy run` on SQLite, behind a proxy of its own. This process gives every agent
one command after the other for each agent elsewhere, and asks again with the same id what was not answered. At random
moments the link of a node is cut, hangs, or loses what the broker says, or the node is killed and started again. Every
agent checks the numbers of each teller: they must come as 1, 2, 3 … At the end all that was accepted must have come.

    python -m proofs.tells_routed [--cuts N] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from proofs.report import Proof
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import StigmergyError
from stigmergy.control.protocol import Request, SendRequest, StateRequest, StatusRequest, read_single
from stigmergy.control.socket import ControlCall
from stigmergy.testing.brokers import NoBroker, start_mosquitto
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.proxy import LinkProxy

R = TypeVar("R")
ROOT = Path(__file__).resolve().parent.parent
CUTS = 500
CUTS_QUICK = 12
KILL_SHARE = 0.2
"""Of the cuts, so many kill the node instead."""
OWED_MAX = 250
"""With more on its way anywhere, tellers pause: on a busy machine links are slower than they are."""
BETWEEN_S_MAX = 0.5
BETWEEN_COUNT_MIN = 10
"""Commands that must have been answered between two cuts: on a busy machine cuts wait for traffic."""
DOWN_S_MAX = 0.2
PACE_S = 0.05
START_S_MAX = 240.0
FINISH_S_MAX = 600.0
PAUSE_S = 0.05
MQTT = "mqtt://127.0.0.1:{port}?reconnect_s_max=0.05&keepalive_s=5"
NODES = (("a", "yard", ("Cart/a1", "Cart/a2")), ("b", "yard", ("Cart/b1", "Cart/b2")), ("g", "ground", ("Pilot/p",)))


class Tally(Struct):
    """What was done."""

    cuts: int = 0
    kills: int = 0
    told: int = 0
    asked_again: int = 0
    sent: int = 0
    """Tells in frames, repetitions included, of the last run of each node."""
    links: int = 0


class Node:
    """A process that runs some agents, behind a proxy."""

    def __init__(self, name: str, fleet: str, agents: tuple[str, ...], folder: Path, broker_port: int) -> None:
        self.name = name
        self.fleet = fleet
        self.agents = agents
        self._folder = folder / name
        self._folder.mkdir()
        named = ", ".join(f'"{agent}"' for agent in agents)
        (self._folder / "stigmergy.toml").write_text(f"[fleet]\nagents = [{named}]\n", encoding="utf-8")
        self.proxy = LinkProxy(broker_port)
        self._process: asyncio.subprocess.Process | None = None
        self.call = ControlCall(self._folder / "control.sock", timeout_s=10.0)

    async def start(self) -> None:
        """Starts the process; returns when it answers."""
        log = os.open(self._folder / "run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "stigmergy", "run", f"proofs.tells_routed_node:{self.fleet}"),
                *("--node", self.name, *self.place()),
                *("--journal", "sqlite:node.db", "--socket", "control.sock"),
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
                stdout=log,
                stderr=log,
            )
        finally:
            os.close(log)
        async with asyncio.timeout(START_S_MAX):
            while await self.ask(StatusRequest()) is None:
                if self._process.returncode is not None:
                    said = (self._folder / "run.log").read_text(encoding="utf-8")[-2000:]
                    raise RuntimeError(f"node {self.name} has ended: {said}")
                await asyncio.sleep(PAUSE_S)

    def place(self) -> tuple[str, ...]:
        """Where it connects."""
        return "--bus", MQTT.format(port=self.proxy.port)

    async def ask(self, request: Request[R]) -> R | None:
        """The reply; None if the node does not answer."""
        try:
            async for line in self.call.ask(request):
                return read_single(line, request)
        except (StigmergyError, TimeoutError, OSError):
            return None
        return None

    async def end(self, number: int) -> None:
        """Ends the process with this signal, and waits for it."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()


class Trial:
    """The nodes, who tells whom, and who cuts."""

    def __init__(self, nodes: list[Node], seed: int) -> None:
        self.tally = Tally()
        self.violations: list[str] = []
        self._chance = random.Random(seed)
        self.nodes = nodes
        self._told: dict[tuple[str, str], int] = {}
        self._is_over = False

    async def run(self, cuts: int) -> None:
        """Cuts and kills, lets everything arrive, and compares."""
        for node in self.nodes:
            await node.proxy.start()
        try:
            for node in self.nodes:
                await node.start()
            telling = self.telling()
            for _ in range(cuts):
                await self._wait_told(self.tally.told + BETWEEN_COUNT_MIN)
                await self._harm()
                await asyncio.sleep(self._chance.random() * BETWEEN_S_MAX)
            self._is_over = True
            await asyncio.gather(*telling)
            await self._finish()
        finally:
            for node in self.nodes:
                await node.end(signal.SIGKILL)
                self.tally.links += node.proxy.connections
                await node.proxy.close()

    def telling(self) -> list[asyncio.Future[None]]:
        """Who tells whom: all all others."""
        return [
            asyncio.ensure_future(self._tell(node, by, other, to))
            for node in self.nodes
            for by in node.agents
            for other in self.nodes
            for to in other.agents
            if other is not node
        ]

    async def _tell(self, node: Node, by: str, other: Node, to: str) -> None:
        """Has one agent tell another one numbers, until it is over."""
        named = to if node.fleet == other.fleet else f"{other.fleet}/{to}"
        number = 0
        while not self._is_over:
            number += 1
            if not await self._send(node, by, "Pass", {"to": named, "number": number}):
                return
            self._told[by, to] = number
            self.tally.told += 1
            await asyncio.sleep(PACE_S)
            if number % OWED_MAX == 0:
                await self._wait_carried()

    async def _wait_carried(self) -> None:
        """A node keeps 1,000 tells for an agent and gives up further ones, with a dead letter: harm is tried here, and
        no flood."""
        for node in self.nodes:
            status = await node.ask(StatusRequest())
            while not self._is_over and (status is None or status.owed > OWED_MAX):
                await asyncio.sleep(PAUSE_S)
                status = await node.ask(StatusRequest())

    async def _send(self, node: Node, agent: str, command: str, fields: dict[str, Any]) -> bool:
        """Sends a command until it is answered; whether it was accepted."""
        # It carries its time: of others a node remembers 2,500 a day.
        command_id = new_command_id(time.time_ns(), secrets.token_bytes(RANDOM_BYTES))
        request = SendRequest(agent=agent, command=command, fields=fields, command_id=command_id)
        while (answer := await node.ask(request)) is None:
            self.tally.asked_again += 1
            await asyncio.sleep(PAUSE_S)
        if not answer.accepted:
            self.violations.append(f"{agent} refused {command} {fields}: {answer.reason}")
        return answer.accepted

    async def _wait_told(self, count: int) -> None:
        await wait_until(lambda: self.tally.told >= count, within_s=START_S_MAX)

    async def _harm(self) -> None:
        node = self._chance.choice(self.nodes)
        self.tally.cuts += 1
        if self._chance.random() < KILL_SHARE:
            self.tally.kills += 1
            await node.end(signal.SIGKILL)
            await node.start()
            return
        how = self._chance.randrange(3)
        if how == 0:
            node.proxy.mute_server()
        elif how == 1:
            node.proxy.stall()
        await asyncio.sleep(self._chance.random() * 0.05)
        node.proxy.cut()
        await asyncio.sleep(self._chance.random() * DOWN_S_MAX)
        node.proxy.restore()

    async def _finish(self) -> None:
        """No more harm: everything that was accepted must arrive, and be settled."""
        deadline_s = time.monotonic() + FINISH_S_MAX
        left = await self._left()
        while left and time.monotonic() < deadline_s:
            await asyncio.sleep(PAUSE_S)
            left = await self._left()
        self.violations += [f"not within {FINISH_S_MAX:g} s: {what}" for what in left]
        for node in self.nodes:
            for agent in node.agents:
                state = await node.ask(StateRequest(agent=agent))
                self.violations += [f"{agent}: {wrong}" for wrong in (state.state["wrong"] if state else ["no answer"])]
            status = await node.ask(StatusRequest())
            if status is not None:
                self.tally.sent += status.counters["tells_sent"]
                self.violations += [f"{node.name}: dead letters"] * (status.dead_letters > 0)

    async def _left(self) -> list[str]:
        """What has not come yet."""
        left: list[str] = []
        for node in self.nodes:
            status = await node.ask(StatusRequest())
            if status is None or status.owed:
                left.append(f"{node.name} owes {status.owed if status else 'an answer'}")
            for agent in node.agents:
                state = await node.ask(StateRequest(agent=agent))
                last = state.state["last"] if state else {}
                for (by, to), number in self._told.items():
                    if to == agent and last.get(by, 0) != number:
                        left.append(f"{by} told {to} {number} numbers, {last.get(by, 0)} came")
        return left


def run(cuts: int, seed: int) -> Trial:
    """Cuts links and kills nodes at a fresh broker. Raises NoBroker."""

    async def trial(folder: Path, port: int) -> Trial:
        made = Trial([Node(name, fleet, agents, folder, port) for name, fleet, agents in NODES], seed)
        await made.run(cuts)
        return made

    with tempfile.TemporaryDirectory(prefix="stigmergy-tells-") as name:
        folder = Path(name)
        (folder / "broker").mkdir()
        with start_mosquitto(folder / "broker") as broker:
            return asyncio.run(trial(folder, broker.port))


def prove_trial(name: str, promise: str, trial_of: Callable[[], Trial]) -> Proof:
    """What a trial has found, as `make prove` prints it; without Mosquitto, that it was not tried."""
    try:
        trial = trial_of()
    except NoBroker as missing:
        return Proof(name=name, promise=promise, cases=0, violations=[], figures={"mosquitto": f"NOT TRIED: {missing}"})
    figures = {field: getattr(trial.tally, field) for field in Tally.__struct_fields__}
    return Proof(name=name, promise=promise, cases=trial.tally.cuts, violations=trial.violations, figures=figures)


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    promise = "tells between nodes and fleets: none lost, none doubled, in order per pair, whatever is cut or killed"
    return prove_trial("tells_routed", promise, lambda: run(CUTS_QUICK if quick else CUTS, seed=1))


def main(run: Callable[[int, int], Trial], about: str | None) -> int:
    """The command line of a trial."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--cuts", type=int, default=CUTS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trial = run(options.cuts, options.seed)
    print(trial.tally)
    for violation in trial.violations:
        print("violation:", violation)
    return 1 if trial.violations else 0


if __name__ == "__main__":
    sys.exit(main(run, __doc__))
