"""What breaks in a run, one after the other, at times that are shares of it.

leader      kill -9 of the server that leads the ledger; it comes back
partition   everything of the last gateway is cut from all others; its sensors go on
two         kill -9 of two of five gateways and of the servers beside them; they come back
disk        kill -9 of a gateway, which begins again from an empty disk
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from apps.city.run import CityRun
from apps.processes import Trouble
from stigmergy import StigmergyError

AWAY_S = 8.0
TRIES_MAX = 60
LEDGER_STREAM = "STIG_LEDGER_city_2Eincidents"


async def leading(run: CityRun) -> int:
    """The server that leads the ledger; on a busy machine it may take some tries until anybody says so."""
    assert run.servers is not None
    for _ in range(TRIES_MAX):
        with contextlib.suppress(StigmergyError):
            found = await run.servers.leader_of(LEDGER_STREAM)
            if found is not None:
                return found
        await asyncio.sleep(1.0)
    raise Trouble(f"nobody says which server leads {LEDGER_STREAM}")


async def kill_leader(run: CityRun) -> None:
    """The servers elect another one."""
    await run.wait_step(0.15)
    assert run.servers is not None
    number = await leading(run)
    run.servers.kill(number)
    run.say_fault(f"server n{number + 1}, which leads the ledger, is killed")
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(run.servers.start_again, number)
    run.say_fault(f"server n{number + 1} is back")


async def part(run: CityRun) -> None:
    """A gateway is on its own."""
    await run.wait_step(0.3)
    name = list(run.gateways)[-1]
    run.wires[name].cut()
    run.truth.note("cut", gateway=name)
    run.say_fault(f"{name} is cut off from everybody")
    await run.wait_step(0.5)
    run.wires[name].restore()
    run.truth.note("joined", gateway=name)
    run.say_fault(f"{name} is linked again")


async def kill_two(run: CityRun) -> None:
    """Three of five servers are a majority."""
    await run.wait_step(0.55)
    assert run.servers is not None
    names = list(run.gateways)[1:3]
    for number, name in enumerate(names, start=1):
        await run.gateways[name].kill()
        run.servers.kill(number)
        run.truth.note("died", gateway=name)
    run.say_fault(f"{' and '.join(names)} are killed, with their servers")
    await asyncio.sleep(AWAY_S)
    for number, name in enumerate(names, start=1):
        await asyncio.to_thread(run.servers.start_again, number)
        await run.gateways[name].start()
        run.truth.note("started", gateway=name)
    run.say_fault(f"{' and '.join(names)} are back")


async def empty_disk(run: CityRun) -> None:
    """Its sensors' broker has kept what it has not taken; all it knew of incidents it has from the ledger."""
    await run.wait_step(0.75)
    gateway = run.gateways[list(run.gateways)[3 % len(run.gateways)]]
    await gateway.kill()
    gateway.lose_disk()
    run.truth.note("emptied", gateway=gateway.name)
    await gateway.start()
    run.truth.note("started", gateway=gateway.name)
    run.say_fault(f"{gateway.name} was killed and has begun again from an empty disk")


FAULTS: dict[str, Callable[[CityRun], Awaitable[None]]] = {
    "leader": kill_leader,
    "partition": part,
    "two": kill_two,
    "disk": empty_disk,
}


async def all_of(run: CityRun) -> None:
    """Everything that is to break."""
    await asyncio.gather(*(fault(run) for name, fault in FAULTS.items() if name in run.options.faults))
