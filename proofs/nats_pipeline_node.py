"""The node of the pipeline proof: takes inputs from a stream, keeps its log in another, puts effects into a third.

It acknowledges an input when its commit is durable, and leaves some unacknowledged on purpose: those come again, after
the server has forgotten that it has seen them. It is killed at any moment, and started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path

import msgspec
import nats
import nats.errors
from nats.aio.msg import Msg

from stigmergy import Action, Agent, Effects, Event, Fleet, Order, Settings, Snapshots, evolve, react
from stigmergy.base.errors import LinkDown, StigmergyError
from stigmergy.control.live import Live
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink

FLEET = "pipeline"
SOURCES = 4
INPUTS = "PIPELINE_IN"
EFFECTS = "PIPELINE_OUT"
CONSUMER = "node"
FETCH_COUNT = 32
FETCH_WITHIN_S = 1.0
UNACKNOWLEDGED_SHARE = 0.05
"""Of the inputs, so many are not acknowledged although they are durable: the server gives them out once more."""
PAUSE_S = 0.05
SETTINGS = Settings(
    gap_wait_s=600.0,
    effect_within_s=600.0,
    snapshots=Snapshots(every_events=500, every_s=60.0, tail_ratio=1.0),
)


class Measured(Event):
    """An input: the so-manieth of its source."""

    number: int


class Pump(Action):
    """What is to be done for it, once."""

    source: str
    number: int


class Meter(Agent):
    """One for each source."""

    count: int = 0
    total: int = 0

    @evolve
    def measured(self, event: Measured) -> None:
        self.count += 1
        self.total += event.number

    @react
    def pump(self, event: Measured) -> Effects:
        yield Pump(source=self.id, number=event.number)


class Released(msgspec.Struct, frozen=True):
    """An effect as it lies in the stream of effects."""

    key: str
    sequence: int
    source: str
    number: int


class Node:
    """Consumes, processes, publishes."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._link: NatsLink | None = None
        self.fleet = make_fleet()
        self.fleet.actuator(Pump)(self._release)

    async def run(self) -> None:
        """Until it is killed, or its journal fails."""
        self._link = await NatsLink.open(parse_address(self._url), name="pipeline", within_s=30.0)
        running = self.fleet.running(
            journal=f"{self._url}?replicas=3", key=self._folder / "pipeline.key", settings=SETTINGS
        )
        async with running as live:
            print("running", flush=True)
            consuming = asyncio.ensure_future(self._consume(live))
            failure = await live.wait_failure()
            consuming.cancel()
            raise failure

    async def _consume(self, live: Live) -> None:
        under_way: dict[asyncio.Task[None], None] = {}
        client = await nats.connect(list(parse_address(self._url).servers), max_reconnect_attempts=-1)
        inputs = await client.jetstream().pull_subscribe_bind(durable=CONSUMER, stream=INPUTS)
        while True:
            try:
                messages = await inputs.fetch(FETCH_COUNT, timeout=FETCH_WITHIN_S)
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(PAUSE_S)
                continue
            for message in messages:
                task = asyncio.ensure_future(self._take(live, message))
                under_way[task] = None
                task.add_done_callback(lambda done: under_way.pop(done, None))

    async def _take(self, live: Live, message: Msg) -> None:
        # Refused while the node is too busy, or cut off before it could say so: then it comes again.
        with contextlib.suppress(StigmergyError, nats.errors.Error):
            await live.deliver(message.data)
            if random.random() >= UNACKNOWLEDGED_SHARE:
                await message.ack()

    async def _release(self, order: Order[Pump]) -> None:
        """Publishes an effect until JetStream has it. It may be there twice then: whoever receives it keeps marks."""
        assert self._link is not None
        pump = order.effect
        body = msgspec.json.encode(Released(order.key, order.sequence, pump.source, pump.number))
        while True:
            try:
                await self._link.publish("pipeline.out", body, {"Nats-Msg-Id": order.key}, within_s=1.0)
                return
            except (LinkDown, JetStreamRefused):
                await asyncio.sleep(PAUSE_S)


def make_fleet() -> Fleet:
    """The fleet, without hands."""
    return Fleet(FLEET, agents=[Meter])


def main() -> int:
    """Runs the node as a program: URL, and the folder of its key."""
    try:
        asyncio.run(Node(sys.argv[1], Path(sys.argv[2])).run())
    except StigmergyError as error:
        print(f"ended: {type(error).__name__}: {error}", flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
