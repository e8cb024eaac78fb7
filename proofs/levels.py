"""Commands and tells between a device, a site, a region and a cloud, while links are cut and nodes are killed.

The nodes, the harm and the check are those of `proofs.tells_routed`. Here each level has a broker of its own, a real
Mosquitto, and the only way from one to the next is through the node between them:

    device  --site-->  gateway  --up-->  region  --top-->  cloud

Agents of the cloud and of the device tell each other numbers, and commands that are numbers are given at each of them
for the agent of the other, one after the other: sent again under the same id until they are answered.

    python -m proofs.levels [--cuts N] [--seed N]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from proofs.report import Proof
from proofs.tells_routed import CUTS, MQTT, PACE_S, Node, Trial, main, prove_trial
from stigmergy.testing.brokers import start_mosquitto

CUTS_QUICK = 8
LEVELS = (
    # name, site, agent, and the brokers of its own level, of the one above and of the one below
    ("device", "north", "Cart/d", "site", "", ""),
    ("gateway", "north", "Cart/g", "site", "up", ""),
    ("region", "west", "Cart/r", "", "top", "up"),
    ("cloud", "cloud", "Cart/c", "", "", "top"),
)


class LevelNode(Node):
    """A node of one level. Its link upward, on the device that to its site, can be cut."""

    def __init__(self, level: tuple[str, ...], folder: Path, ports: dict[str, int]) -> None:
        name, site, agent, bus, above, below = level
        super().__init__(name, "yard", (agent,), folder, ports[above or bus or below])
        self._site, self._above = site, above
        self._bus = MQTT.format(port=ports[bus]) if bus else f"memory:{name}"
        self._below = MQTT.format(port=ports[below]) if below else ""
        if above:
            # What goes up of its log is not of interest here; the link is.
            config = folder / name / "stigmergy.toml"
            config.write_text(f'{config.read_text()}uplink = {{ only = ["Failed"] }}\n', encoding="utf-8")

    def place(self) -> tuple[str, ...]:
        mine = MQTT.format(port=self.proxy.port)
        given = ["--site", self._site, "--bus", self._bus if self._above or self._below else mine]
        if self._above:
            given += ["--uplink-to", mine]
        return (*given, *(("--collect-from", self._below) if self._below else ()))


class LevelsTrial(Trial):
    """Who sends whom what."""

    def telling(self) -> list[asyncio.Future[None]]:
        device, _, _, cloud = self.nodes
        pairs = ((cloud, device), (device, cloud))
        tells = [self._tell(one, one.agents[0], other, other.agents[0]) for one, other in pairs]
        commands = [self._command(one, other) for one, other in pairs]
        return [asyncio.ensure_future(work) for work in (*tells, *commands)]

    async def _command(self, node: Node, other: Node) -> None:
        """Gives a node commands for an agent of another level, until it is over."""
        number, by, (to,) = 0, f"commands at {node.name}", other.agents
        while not self._is_over:
            number += 1
            if not await self._send(node, to, "Count", {"by": by, "number": number}):
                return
            self._told[by, to] = number
            self.tally.told += 1
            await asyncio.sleep(PACE_S)


def run(cuts: int, seed: int) -> LevelsTrial:
    """Cuts links and kills nodes at fresh brokers. Raises NoBroker."""

    async def trial(folder: Path, ports: dict[str, int]) -> LevelsTrial:
        made = LevelsTrial([LevelNode(level, folder, ports) for level in LEVELS], seed)
        await made.run(cuts)
        return made

    with tempfile.TemporaryDirectory(prefix="stigmergy-levels-") as name, ExitStack() as brokers:
        folder, ports = Path(name), {}
        for which in ("site", "up", "top"):
            (folder / which).mkdir()
            ports[which] = brokers.enter_context(start_mosquitto(folder / which)).port
        return asyncio.run(trial(folder, ports))


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    promise = "commands and tells between cloud and device: none lost, doubled or out of order, whatever breaks"
    return prove_trial("levels", promise, lambda: run(CUTS_QUICK if quick else CUTS, seed=1))


if __name__ == "__main__":
    sys.exit(main(run, __doc__))
