"""The node of the demonstration: runs the fleet on a SQLite file, and does what it is told over a socket.

`python -m examples.demonstration.node FILE CONFIRMED DESCRIPTOR`: so many actions the receiver has confirmed, without a
gap; the socket has this number.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Any

from examples.demonstration.frames import Answered, Ask, Ordered, Ready, Seen, Status, Stopped, ToNode, to_node
from examples.demonstration.patrol import SETTINGS, Drone, StartMission, describe, make_fleet
from stigmergy import Accepted, Live, Order, StigmergyError
from stigmergy.core.snapshot import digest_of_state
from stigmergy.testing.frames import Broken, Channel, ToldNode

STATUS_S = 0.2


class Node:
    """Translates between what the world says and the running fleet."""

    def __init__(self, channel: Channel[ToNode], confirmed: int) -> None:
        self._channel = channel
        self._told = ToldNode(channel, self._ask)
        self._live: Live | None = None
        self.fleet = make_fleet(self._carry_out)
        self.fleet.receivers["actuators"] = lambda _: confirmed

    async def run(self, path: Path) -> None:
        """Recovers, and goes on until it is told to stop."""
        begin_s = time.perf_counter()
        async with self.fleet.running(
            journal=f"sqlite:{path}", key=path.with_suffix(".key"), settings=SETTINGS
        ) as live:
            self._live = live
            recovered = live.recovered
            milliseconds = (time.perf_counter() - begin_s) * 1e3
            from_snapshot = bool(recovered.snapshots)
            agents = len(recovered.states[0].agents)
            self._channel.send(Ready(recovered.events, recovered.commits, milliseconds, from_snapshot, agents))
            status = asyncio.ensure_future(self._tell_status(live))
            await self._told.attend(live)
            status.cancel()
        self._channel.send(Stopped(digest_of_state(recovered.states[0])))

    async def _ask(self, frame: ToNode) -> None:
        assert self._live is not None
        assert isinstance(frame, Ask)
        verdict = await self._live.send(
            f"Drone/{frame.drone}", StartMission(mission=frame.mission), command_id=frame.command_id
        )
        if isinstance(verdict, Accepted):
            self._channel.send(Answered(frame.command_id, True, f"accepted at position {verdict.position}"))
        else:
            self._channel.send(Answered(frame.command_id, False, verdict.reason))

    async def _carry_out(self, order: Order[Any]) -> None:
        effect = order.effect
        name = order.agent.removeprefix("Drone/")
        ordered = Ordered(order.sequence, order.key, name, type(effect).__name__, describe(effect))
        await self._told.wait_confirmed(order.key, ordered)

    async def _tell_status(self, live: Live) -> None:
        while True:
            standing = live.standing()
            drones = [_seen(live.query(address, Drone)) for address in live.agents(Drone)]
            self._channel.send(Status(drones, standing.heads[0].position, standing.owed))
            await asyncio.sleep(STATUS_S)


def _seen(drone: Drone) -> Seen:
    return Seen(
        name=drone.id,
        battery=drone.battery,
        mission=drone.mission,
        progress=drone.progress,
        delivered=drone.delivered,
        neighbour_cell=drone.neighbour_cell,
        landed_because=drone.landed_because,
    )


def main(arguments: list[str]) -> int:
    """Runs the node until its world tells it to stop."""
    path, confirmed, descriptor = arguments
    channel = Channel(socket.socket(fileno=int(descriptor)), to_node)
    try:
        asyncio.run(Node(channel, int(confirmed)).run(Path(path)))
    except StigmergyError as error:
        channel.send(Broken(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
