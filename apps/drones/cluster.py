"""The same run on a cluster: `stigmergy up` with three servers and two workers, on this machine.

Drones have sensors of their own there, and workers share the shards of the fleet by zone. The checker reads the logs
from the servers, which still run then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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
LOOK_S = 0.5
PORTS = 4
"""Of a server; their client ports follow each other."""


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

    async def start_nodes(self, server: WorldServer, stack: contextlib.AsyncExitStack) -> None:
        """Starts servers, workers and the API."""
        serve = self.options.serve
        host, _, port = serve.rpartition(":")
        serve = f"{host}:{free_port()}" if port == "0" else serve
        log = stack.enter_context((self.folder / "cluster.log").open("w", encoding="utf-8"))
        base = free_port()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stigmergy", "up", "apps.drones.fleet:fleet", "--data", str(self.data)),
            *("--nodes", str(SERVERS), "--workers", str(WORKERS), "--port", str(base), "--serve", serve),
            cwd=self.folder,
            env=environment(**{WORLD: server.url, FOLDER: str(self.folder)}),
            stdout=log,
            stderr=log,
        )
        stack.push_async_callback(self.stop_nodes)
        self.url = f"http://{serve}"
        self.nats = "nats://" + ",".join(f"127.0.0.1:{base + number}" for number in range(SERVERS))
        await self._wait_ready()

    async def _wait_ready(self) -> None:
        assert self._process is not None
        try:
            async with asyncio.timeout(START_S_MAX):
                while not await asyncio.to_thread(self._is_ready):
                    if self._process.returncode is not None:
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

    def kill_process(self, name: str) -> None:
        """Kill -9 of a process of the cluster: worker-1, n2. `stigmergy up` starts it again."""
        os.kill(int((self.data / f"{name}.pid").read_text()), signal.SIGKILL)

    def cpu_s(self) -> dict[str, float]:
        """Processor time of each process that runs now."""
        names = [f"worker-{number + 1}" for number in range(WORKERS)] + [f"n{number + 1}" for number in range(SERVERS)]
        found = super().cpu_s()
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                found[name] = cpu_s_of(int((self.data / f"{name}.pid").read_text()))
        return found

    async def judge(self) -> dict[str, Any]:
        """Has the checker read the logs from the servers, and stops everything."""
        self.say("the checker reads the logs of the cluster")
        found = await asyncio.to_thread(check, self.folder, (f"{self.nats}/{FLEET}",))
        await self.stop_nodes()
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
