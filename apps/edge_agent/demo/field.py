"""The field: a broker, an aircraft, a drone's program and a ground station, each in a process of its own.

Between the drone and the broker is a proxy, so that its link can be cut. Everything lies in one folder, and everything
that was started is ended with it. Every wait has an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apps.edge_agent.demo.asking import Socket, Trouble, environment
from stigmergy.testing.brokers import Broker, start_nats
from stigmergy.testing.proxy import LOOPBACK, LinkProxy

DRONE = "Drone/D-17"
PILOT = "Pilot/D-17"
START_S_MAX = 180.0
END_S_MAX = 180.0
LOOK_S = 0.1
CONFIG = """\
[fleet]
module = "apps.edge_agent.{name}:fleet"
journal = "sqlite:{name}.db"
key = "{name}.key"
bus = "mqtt://{host}:{port}?reconnect_s_max=1"
node = "{name}"
{more}
"""


class Program:
    """A process of ours whose output goes to a file."""

    def __init__(self, name: str, folder: Path, *command: str, **variables: str) -> None:
        self.name = name
        self.folder = folder
        self._command = command
        self._variables = variables
        self._process: asyncio.subprocess.Process | None = None
        self.bytes_written = 0
        """To the disk, by all its lives, as the kernel counted it."""

    @property
    def pid(self) -> int:
        """Of its process."""
        if self._process is None:
            raise Trouble(f"{self.name} does not run")
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has printed."""
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")

    async def start(self) -> None:
        """Starts it."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "output.txt").open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                cwd=self.folder,
                env=environment(**self._variables),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    async def kill(self) -> int:
        """Ends it with SIGKILL; returns its exit code."""
        return await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Ends it in order."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        self.bytes_written += bytes_written(process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(END_S_MAX):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        self._process = None
        return code


class Field:
    """All of it."""

    def __init__(self, folder: Path, *, seed: int, pace: float) -> None:
        self.folder = folder
        self._seed = seed
        self._pace = pace
        self._broker: Broker | None = None
        self.proxy: LinkProxy | None = None
        self.drone = Program("drone", folder / "drone", "-m", "stigmergy", "run")
        self.ground = Program("ground", folder / "ground", "-m", "stigmergy", "run")
        self._aircraft: Program | None = None
        self.to_drone = Socket(folder / "drone" / "drone.db.sock")
        self.to_ground = Socket(folder / "ground" / "ground.db.sock")
        self.began_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began_s

    @property
    def link(self) -> LinkProxy:
        """The drone's radio."""
        if self.proxy is None:
            raise Trouble("there is no link yet")
        return self.proxy

    async def __aenter__(self) -> Field:
        self._broker = start_nats(self.folder / "broker")
        try:
            await self._start(self._broker)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.to_drone.close()
        self.to_ground.close()
        for program in (self.drone, self.ground, self._aircraft):
            if program is not None:
                await program.kill()
        if self.proxy is not None:
            await self.proxy.close()
        if self._broker is not None:
            self._broker.stop()

    async def _start(self, broker: Broker) -> None:
        self.proxy = LinkProxy(broker.port)
        drone_port = await self.proxy.start()
        options = ("--port", "0", "--seed", str(self._seed), "--pace", str(self._pace))
        aircraft = Program("aircraft", self.folder / "aircraft", "-m", "apps.edge_agent.aircraft", *options)
        self._aircraft = aircraft
        await aircraft.start()
        await self.wait("the aircraft to listen", lambda: aircraft.output.startswith("listening on "))
        self.drone._variables["EDGE_AIRFRAME"] = aircraft.output.split()[2]
        # The ground first: a broker keeps for a listener what is published after that has come for the first time.
        for program, node, port, more in (
            (self.ground, self.to_ground, broker.port, ""),
            (self.drone, self.to_drone, drone_port, f'agents = ["{DRONE}"]'),
        ):
            program.folder.mkdir()
            text = CONFIG.format(name=program.name, host=LOOPBACK, port=port, more=more)
            (program.folder / "stigmergy.toml").write_text(text, encoding="utf-8")
            await program.start()
            await self.wait_up(program, node)

    async def wait_up(self, program: Program, node: Socket) -> None:
        """Until a node answers and has its link."""
        deadline_s = time.monotonic() + START_S_MAX
        while not await is_up(node):
            if time.monotonic() > deadline_s:
                raise Trouble(f"{program.name} does not come up: {program.output[-800:]}")
            await asyncio.sleep(LOOK_S)

    async def wait(self, what: str, condition: Callable[[], bool], within_s: float = START_S_MAX) -> None:
        """Until something is so; Trouble if it takes too long."""
        deadline_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise Trouble(f"waited {within_s:g} s in vain for {what}")
            await asyncio.sleep(LOOK_S / 2)


async def is_up(node: Socket) -> bool:
    """Whether a node runs and its link is up."""
    try:
        status = await node.ask("status")
    except OSError:
        return False
    return bool(status["link"]["state"] == "up")


def bytes_written(pid: int) -> int:
    """What a process has written, from /proc: to the disk, or, where its files are in memory, into them."""
    try:
        text = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
    except OSError:
        return 0
    counted: dict[str, Any] = dict(line.split(": ") for line in text.splitlines())
    return int(counted["write_bytes"]) or int(counted["wchar"])
