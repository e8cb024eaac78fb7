"""The node of the demonstration: runs the fleet on a SQLite file, and does what it is told on its standard input.

`python -m examples.demonstration.node FILE CONFIRMED`: so many actions the receiver has confirmed, without a gap.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from examples.demonstration.frames import (
    Answered,
    Ask,
    Broken,
    Confirm,
    Deliver,
    Delivered,
    FromNode,
    Ordered,
    Ready,
    Seen,
    Status,
    Stop,
    Stopped,
    ToNode,
    decode_to_node,
    encode,
)
from examples.demonstration.patrol import SETTINGS, Drone, StartMission, describe, make_fleet
from stigmergy import Accepted, Live, Order, StigmergyError
from stigmergy.core.snapshot import digest_of_state

STATUS_S = 0.2


class Node:
    """Translates between the lines of the world and the running fleet."""

    def __init__(self, confirmed: int) -> None:
        self._confirmations: dict[str, asyncio.Future[None]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._task_count = 0
        self._stop = asyncio.Event()
        self.fleet = make_fleet(self._carry_out)
        self.fleet.receivers["actuators"] = lambda _: confirmed

    async def run(self, path: Path) -> None:
        """Recovers, and goes on until it is told to stop."""
        begin_s = time.perf_counter()
        async with self.fleet.running(
            journal=f"sqlite:{path}", key=path.with_suffix(".key"), settings=SETTINGS
        ) as live:
            recovered = live.recovered
            milliseconds = (time.perf_counter() - begin_s) * 1e3
            from_snapshot = bool(recovered.snapshots)
            agents = len(recovered.states[0].agents)
            say(Ready(recovered.events, recovered.commits, milliseconds, from_snapshot, agents))
            self._start(self._listen(live))
            self._start(self._tell_status(live))
            await self._stop.wait()
        say(Stopped(digest_of_state(recovered.states[0])))

    async def _listen(self, live: Live) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._take(live, decode_to_node.decode(line))
        self._stop.set()

    def _take(self, live: Live, frame: ToNode) -> None:
        match frame:
            case Deliver():
                self._start(self._deliver(live, frame))
            case Ask():
                self._start(self._ask(live, frame))
            case Confirm():
                future = self._confirmations.pop(frame.key, None)
                if future is not None and not future.done():
                    future.set_result(None)
            case Stop():
                self._stop.set()

    async def _deliver(self, live: Live, frame: Deliver) -> None:
        await live.deliver(frame.envelope)
        say(Delivered(frame.last))

    async def _ask(self, live: Live, frame: Ask) -> None:
        verdict = await live.send(
            f"Drone/{frame.drone}", StartMission(mission=frame.mission), command_id=frame.command_id
        )
        if isinstance(verdict, Accepted):
            say(Answered(frame.command_id, True, f"accepted at position {verdict.position}"))
        else:
            say(Answered(frame.command_id, False, verdict.reason))

    async def _carry_out(self, order: Order[Any]) -> None:
        effect = order.effect
        detail = describe(effect)
        name = order.agent.removeprefix("Drone/")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confirmations[order.key] = future
        say(Ordered(order.sequence, order.key, name, type(effect).__name__, detail))
        await future

    async def _tell_status(self, live: Live) -> None:
        while not self._stop.is_set():
            standing = live.standing()
            drones = [_seen(live.query(address, Drone)) for address in live.agents(Drone)]
            say(Status(drones, standing.heads[0].position, standing.owed))
            await asyncio.sleep(STATUS_S)

    def _start(self, work: Any) -> None:
        self._task_count += 1
        number = self._task_count
        self._tasks[number] = asyncio.ensure_future(work)
        self._tasks[number].add_done_callback(lambda task: self._ended(number, task))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._stop.is_set():
            say(Broken(f"{type(error).__name__}: {error}"))
            self._stop.set()


def say(frame: FromNode) -> None:
    """One line to the world, at once."""
    sys.stdout.buffer.write(encode(frame) + b"\n")
    sys.stdout.buffer.flush()


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
    path, confirmed = arguments
    try:
        asyncio.run(Node(int(confirmed)).run(Path(path)))
    except StigmergyError as error:
        say(Broken(f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
