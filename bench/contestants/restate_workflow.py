"""Restate with its server: the same five steps of a delivery, `python -m bench.contestants.restate_workflow FOLDER`.

Three processes, as its manual has it: the server with the log on disk, the service with the workflow, and this one,
which asks the server for runs and waits for their results. A step is a function that returns at once. What is undone is
written by hand in the workflow, as its manual shows. The server has its defaults, and syncs its log.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return, misc"
# `make check` does without the library: what it finds must not depend on who has it.

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypercorn
import restate
from hypercorn.asyncio import serve as serve_http

from bench.subjects import serve
from bench.workflows import STUCK, Flown, Fly, restate_server
from stigmergy.base.system import make_process_ours
from stigmergy.nats.servers.server import LOOPBACK, free_ports

READY_S_MAX = 120.0
RUN_S_MAX = 120.0
END_S_MAX = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

HOOK = "the hook does not open"
delivery = restate.Workflow("Delivery")


async def plan_route(drone: str) -> int:
    """Legs of a route."""
    return len(drone)


async def take_off(drone: str) -> str:
    """It flies."""
    return drone


async def land_here(drone: str) -> str:
    """Undoes it."""
    return drone


async def fly_to(drone: str, legs: int) -> str:
    """It is there."""
    return f"{drone} {legs}"


async def release_parcel(drone: str, parcel: str) -> str:
    """The parcel is there."""
    if parcel == STUCK:
        raise restate.TerminalError(HOOK)
    return f"{drone} {parcel}"


async def return_parcel(drone: str, parcel: str) -> str:
    """Undoes it."""
    return f"{drone} {parcel}"


async def fly_home(drone: str) -> str:
    """It is back."""
    return drone


@delivery.main()
async def run(ctx: restate.WorkflowContext, order: dict[str, str]) -> str:
    """A delivery, with its compensation."""
    drone, parcel = order["drone"], order["parcel"]
    undo: list[Any] = []
    try:
        legs = await ctx.run_typed("plan_route", plan_route, drone=drone)
        undo.append(lambda: ctx.run_typed("land_here", land_here, drone=drone))
        await ctx.run_typed("take_off", take_off, drone=drone)
        await ctx.run_typed("fly_to", fly_to, drone=drone, legs=legs)
        undo.append(lambda: ctx.run_typed("return_parcel", return_parcel, drone=drone, parcel=parcel))
        await ctx.run_typed("release_parcel", release_parcel, drone=drone, parcel=parcel)
        return await ctx.run_typed("fly_home", fly_home, drone=drone)
    except restate.TerminalError:
        for compensate in reversed(undo):
            await compensate()
        raise


async def serve_service(port: int) -> None:
    """The service, as its manual runs it."""
    config = hypercorn.Config()
    config.bind, config.accesslog, config.errorlog = [f"{LOOPBACK}:{port}"], None, None
    await serve_http(restate.app([delivery]), config)


class Flights:
    """Server and service, and how many runs they have carried out."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        fabric, ingress, admin, service = free_ports(4)
        self._url, self._admin, self._service = (f"http://{LOOPBACK}:{port}" for port in (ingress, admin, service))
        self._count = 0
        self._runner = asyncio.Runner()
        command = [sys.executable, "-m", "bench.contestants.restate_workflow", "service", str(service)]
        self._processes = [self._start_server(folder, fabric, ingress, admin), subprocess.Popen(command)]
        try:
            self._runner.run(self._register())
        except BaseException:
            self.close()
            raise

    def _start_server(self, folder: Path, fabric: int, ingress: int, admin: int) -> subprocess.Popen[bytes]:
        """On the loopback alone, with its defaults but for where it listens."""
        server = restate_server()
        assert server is not None
        settings = {
            "RESTATE_INGRESS__BIND_PORT": str(ingress),
            "RESTATE_ADMIN__BIND_PORT": str(admin),
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "error",
        }
        command = [server, "--no-logo", "--listen-mode", "tcp", "--bind-ip", LOOPBACK, "--bind-port", str(fabric)]
        command += ["--advertised-address", f"http://{LOOPBACK}:{fabric}/", "--node-name", "one"]
        with (folder / "server.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--base-dir", str(folder / "data")],
                env=os.environ | settings,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    async def _register(self) -> None:
        """Tells the server of the service, once both answer."""
        deadline_s = time.monotonic() + READY_S_MAX
        async with httpx.AsyncClient(timeout=READY_S_MAX, trust_env=False) as client:
            while True:
                try:
                    answer = await client.post(f"{self._admin}/deployments", json={"uri": self._service})
                    if answer.is_success and (await client.get(f"{self._url}/restate/health")).is_success:
                        return
                except httpx.TransportError:
                    pass
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"the server does not take the service within {READY_S_MAX:g} s")
                await asyncio.sleep(0.1)

    def fly(self, request: Fly) -> Flown:
        """Carries out runs."""
        return self._runner.run(self._fly(request))

    async def _fly(self, request: Fly) -> Flown:
        numbers = iter(range(self._count, self._count + request.runs))
        self._count += request.runs
        began_s, began_cpu_s = time.perf_counter(), self._cpu_s()
        limits = httpx.Limits(max_connections=request.at_a_time)
        async with httpx.AsyncClient(timeout=RUN_S_MAX, limits=limits, trust_env=False) as client:
            flown = await asyncio.gather(
                *(self._runs(client, numbers, fails=request.fails) for _ in range(request.at_a_time))
            )
        took_s = [one_s for each in flown for one_s in each]
        return Flown(time.perf_counter() - began_s, self._cpu_s() - began_cpu_s, took_s)

    async def _runs(self, client: httpx.AsyncClient, numbers: Iterator[int], *, fails: bool) -> list[float]:
        took_s: list[float] = []
        for number in numbers:
            began_s = time.perf_counter()
            order = {"drone": f"D-{number}", "parcel": STUCK if fails else f"P-{number}"}
            answer = await client.post(f"{self._url}/Delivery/J-{number}/run", json=order)
            if not (answer.json()["message"] == HOOK if fails else answer.json() == order["drone"]):
                raise RuntimeError(f"J-{number} does not end as it should: {answer.text}")
            took_s.append(time.perf_counter() - began_s)
        return took_s

    def _cpu_s(self) -> float:
        """Of all three processes."""
        others_s = 0.0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            others_s += (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        return time.process_time() + others_s

    def close(self) -> None:
        """Ends them."""
        self._runner.close()
        server, service = self._processes
        server.terminate()
        service.kill()  # it keeps nothing
        service.wait()
        try:
            server.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def main(arguments: list[str]) -> None:
    """Has it carry out what is asked for."""
    make_process_ours()
    if arguments[:1] == ["service"]:
        asyncio.run(serve_service(int(arguments[1])))
        return
    (folder,) = arguments
    flights = Flights(Path(folder))
    try:
        serve(Fly, flights.fly)
    finally:
        flights.close()


if __name__ == "__main__":
    main(sys.argv[1:])
