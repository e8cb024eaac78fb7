"""The same run on a cluster: `stigmergy up` with three servers and two workers, on this machine; or one that somebody
starts by hand, who is told what to type.

Drones have sensors of their own there, and workers share the shards of the fleet by zone. The checker reads the logs
from the servers, which still run then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from apps.drones.fleet import FLEET, FOLDER, WORLD
from apps.drones.link import WorldServer
from apps.drones.node import send_all
from apps.drones.run import START_S_MAX, STOP_S_MAX, Swarm, Trouble, check, cpu_s_of, environment
from stigmergy.testing.brokers import free_port

SERVERS, WORKERS = 3, 2
LEASES = f"KV_stig-cluster-{FLEET}"
LOOK_S = 0.5


class ClusterSwarm(Swarm):
    """A swarm whose agents are on workers."""

    is_cluster = True
    _process: asyncio.subprocess.Process | None = None
    nats = ""
    """Where the servers are."""

    @property
    def data(self) -> Path:
        """The folder of the cluster."""
        return self.folder / "cluster"

    def command(self) -> list[str]:
        """The words after `stigmergy` that bring the cluster up."""
        words = ["up", "apps.drones.fleet:fleet", "--data", str(self.data)]
        words += ["--nodes", str(SERVERS), "--workers", str(WORKERS)]
        return [*words, "--serve", self.url.removeprefix("http://")]

    async def start_nodes(self, server: WorldServer, stack: contextlib.AsyncExitStack) -> None:
        """Starts servers, workers and the API; or says how, and waits until somebody has done it."""
        host, _, port = self.options.serve.rpartition(":")
        self.url = f"http://{host}:{free_port() if port == '0' else port}"
        where = {WORLD: server.url, FOLDER: str(self.folder)}
        if self.options.by_hand:
            line = shlex.join([*(f"{name}={value}" for name, value in where.items()), "stigmergy", *self.command()])
            self.say(f"type this in another terminal, in the folder that apps is in:\n{line}")
        else:
            log = stack.enter_context((self.folder / "cluster.log").open("w", encoding="utf-8"))
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "stigmergy", *self.command()),
                cwd=self.folder,
                env=environment(**where),
                stdout=log,
                stderr=log,
            )
            stack.push_async_callback(self.stop_nodes)
        await self._wait_ready()
        of_fleet, *_ = (self.data / "urls.txt").read_text(encoding="utf-8").splitlines()
        self.nats = "nats://" + of_fleet.rpartition("@")[2].partition("?")[0]  # on loopback no password is needed

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(None if self.options.by_hand else START_S_MAX):
                while not await asyncio.to_thread(self._is_ready):
                    if self._process is not None and self._process.returncode is not None:
                        break
                    await asyncio.sleep(LOOK_S)
                else:
                    return
        except TimeoutError:
            pass
        said = (self.folder / "cluster.log").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise Trouble(f"the cluster does not start: {said}")

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    async def commission(self) -> None:
        """Puts dispatchers and drones into service, over HTTP."""
        assert self.client is not None
        refused = await send_all(self.client.send, self.plan.desks())
        refused += await send_all(self.client.send, self.plan.commissions())
        if refused:
            raise Trouble(f"{refused} agents cannot be put into service")

    def signal_process(self, name: str, number: signal.Signals) -> None:
        """worker-1, n2. What has ended `stigmergy up` starts again."""
        os.kill(self._pid(name), number)

    def busiest_worker(self) -> str:
        """The one whose process has computed most."""
        used = self.cpu_s()
        return max((name for name in used if name.startswith("worker-")), key=used.__getitem__)

    async def leading_server(self) -> str:
        """As `stigmergy status` says."""
        asked = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stigmergy", "status", "--nats", self.nats, "--json"),
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        said, _ = await asked.communicate()
        try:
            streams = json.loads(said)["streams"]
            return next(str(one["leader"]) for one in streams if one["name"] == LEASES and one["leader"])
        except (ValueError, KeyError, StopIteration):
            raise Trouble(f"nobody says which server leads {LEASES}: {said.decode(errors='replace')[:200]}") from None

    def _pid(self, name: str) -> int:
        return int((self.data / f"{name}.pid").read_text())

    def cpu_s(self) -> dict[str, float]:
        """Processor time of each process that runs now."""
        names = [f"worker-{number + 1}" for number in range(WORKERS)] + [f"n{number + 1}" for number in range(SERVERS)]
        found = super().cpu_s()
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                found[name] = cpu_s_of(self._pid(name))
        return found

    async def judge(self) -> dict[str, Any]:
        """Has the checker read the logs from the servers, and stops everything."""
        self.say("the checker reads the logs of the cluster")
        found = await asyncio.to_thread(check, self.folder, (f"{self.nats}/{FLEET}",))
        await self.stop_nodes()
        if self.options.by_hand:
            self.say("the cluster is still up: Ctrl-C in its terminal ends it")
        return found

    async def stop_nodes(self) -> None:
        """Ends the cluster in order."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self.outcome.exit_codes["cluster"] = await process.wait()
