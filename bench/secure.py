"""What signatures cost on a bus: the same events from one node to another, signed and unsigned. Windows of both take
turns, in one process.

A node observes 1,000 events at a time and publishes each; another one, on the same bus, listens to them, and both keep
them on disk. So a window is the whole way of an event between two nodes, with journals and marks. The bus is in memory:
a broker would only add time in which nothing is signed. `signed_ratio` is of the lower quartiles of the times, because
what else the machine does only ever makes a window slower; `cpu_ratio` is the same of processor time.

Beside that, microseconds for one message: to sign it and to verify it, in batches of 1,000 and alone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.rig import SEED
from bench.targets import Target
from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.effects import Effects, Publish
from stigmergy.agents.messages import Event
from stigmergy.app.fleet import Fleet
from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, write_structured
from stigmergy.bus.memory import forget_broker
from stigmergy.bus.port import BusMessage
from stigmergy.bus.signatures import LEAVES_MAX, CheckedRoots, Identity, read_signed, sign_batch, without_proof
from stigmergy.control.live import Live
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.settings import OFF, SIGN, BusSettings, Settings

PAIRS = 41
BATCH = 1_000
AGENTS = 100
ROOTS_MAX = 4_096
WAIT_S_MAX = 120.0
LOOK_S = 0.0005
TARGETS = (
    Target("signed_ratio", "events per second between two nodes, signed / unsigned", 0.85, at_least=True),
    Target("signed_cpu_ratio", "processor time of an event, unsigned / signed", 0.85, at_least=True),
)


class Reading(Event):
    """What a sensor measures."""

    number: int
    co: float
    place: str


class Sensor(Agent):
    """Publishes what it observes."""

    count: int = 0

    @evolve
    def measured(self, event: Reading) -> None:
        self.count += 1

    @react
    def tell(self, event: Reading) -> Effects:
        yield Publish("reading", event)


class Watch(Agent):
    """Hears it on another node."""

    count: int = 0

    @evolve
    def heard(self, event: Reading) -> None:
        self.count += 1


class Window(Struct, frozen=True):
    """What a window took."""

    seconds: float
    cpu_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench secure`."""
    add_common(parser)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="windows signed and unsigned")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures."""
    pairs = 3 if arguments.quick else arguments.pairs
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="bench-") as folder:
        figures = asyncio.run(_whole_way(Path(folder), pairs))
    return figures | _single(3 if arguments.quick else 30)


def charts(figures: dict[str, Any]) -> list[Chart]:
    """The throughput of both, and what a message costs."""
    speed = [Bar("signed", figures["signed_per_s"]), Bar("unsigned", figures["unsigned_per_s"], ours=False)]
    cost = [Bar(name, figures[name]) for name in ("sign_us", "verify_us", "sign_one_us", "verify_one_us")]
    return [Bars("events between two nodes", "per second", speed), Bars("a message", "µs", cost)]


async def _whole_way(folder: Path, pairs: int) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        ways = [await _open(folder, signatures, stack) for signatures in (OFF, SIGN)]
        windows: tuple[list[Window], list[Window]] = ([], [])
        for way in ways:
            await way.window()
        for pair in range(pairs):
            for which in (0, 1) if pair & 1 else (1, 0):
                windows[which].append(await ways[which].window())
        signed = ways[1].receiver.standing().counters
        if signed["bus_verified"] < pairs * BATCH or ways[0].receiver.standing().counters["bus_verified"]:
            raise RuntimeError(f"of {pairs * BATCH} signed messages {signed['bus_verified']} were verified")
    return ratios(*windows)


def ratios(unsigned: Sequence[Window], signed: Sequence[Window]) -> dict[str, Any]:
    """The figures of both kinds of windows."""
    seconds = [_low([one.seconds for one in windows]) for windows in (unsigned, signed)]
    cpu_s = [_low([one.cpu_s for one in windows]) for windows in (unsigned, signed)]
    return {
        "signed_ratio": round(seconds[0] / seconds[1], 3),
        "signed_cpu_ratio": round(cpu_s[0] / cpu_s[1], 3),
        "unsigned_per_s": round(BATCH / seconds[0]),
        "signed_per_s": round(BATCH / seconds[1]),
        "unsigned_cpu_us": round(cpu_s[0] / BATCH * 1e6, 2),
        "signed_cpu_us": round(cpu_s[1] / BATCH * 1e6, 2),
    }


def _low(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0]


class Way:
    """Two nodes on a bus of their own."""

    def __init__(self, sender: Live, receiver: Live) -> None:
        self.sender = sender
        self.receiver = receiver
        self._number = 0

    async def window(self) -> Window:
        """Lets 1,000 events go from one node to the other."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        events: list[Any] = []
        for _ in range(BATCH):
            self._number += 1
            event = Reading(number=self._number, co=self._number / 7, place="north wing, second floor, behind the door")
            events.append(self.sender.observe(f"Sensor/s{self._number % AGENTS}", event))
        await asyncio.gather(*events)
        async with asyncio.timeout(WAIT_S_MAX):
            while self._count() < self._number:  # noqa: ASYNC110 - a count has no event
                await asyncio.sleep(LOOK_S)
        return Window(time.perf_counter() - began_s, time.process_time() - began_cpu_s)

    def _count(self) -> int:
        """How many events the receiver has taken: each becomes one event in its log."""
        (shard,) = self.receiver.host.shards
        return shard.state.events_count


async def _open(folder: Path, signatures: str, stack: AsyncExitStack) -> Way:
    broker = f"memory:bench-{signatures}-{folder.name}"
    stack.callback(forget_broker, broker.removeprefix("memory:"))
    lives: list[Live] = []
    for name, agents in (("receiver", "Watch/*"), ("sender", "Sensor/*")):
        fleet = Fleet("bench", agents=[Sensor, Watch], shards=1)
        fleet.listen("Sensor/{id}/reading", to="Watch/{id}")
        bounds = BusSettings(
            in_flight_max=BATCH, in_flight_per_topic_max=BATCH, messages_per_s=1e9, burst=10**9, signatures=signatures
        )
        running = fleet.running(
            journal=f"sqlite:{folder / signatures}-{name}.db",
            bus=broker,
            node=name,
            agents=[agents],
            settings=structs.replace(Settings(), bus=bounds),
        )
        lives.append(await stack.enter_async_context(running))
    return Way(lives[1], lives[0])


def _single(rounds: int) -> dict[str, Any]:
    """Microseconds of processor time for one message, the least of all rounds."""
    me = Identity("bench/local/sender", Ed25519Signer(SEED))
    messages = [_message(number) for number in range(BATCH)]
    parts = [messages[at : at + LEAVES_MAX] for at in range(0, BATCH, LEAVES_MAX)]
    signed = [one for part in parts for one in sign_batch(part, me)]
    alone = [sign_batch([one], me)[0] for one in messages[:LEAVES_MAX]]

    def sign() -> None:
        for part in parts:
            sign_batch(part, me)

    def sign_alone() -> None:
        for one in messages[:LEAVES_MAX]:
            sign_batch([one], me)

    def verify(received: Sequence[BusMessage]) -> None:
        roots = CheckedRoots(Ed25519Verifier().verify, ROOTS_MAX)
        for one in received:
            bare, proof = read_signed(one)
            assert proof is not None
            assert roots.is_signed(bare, proof)
            without_proof(one)  # once more, as the handler gets it

    return {
        "sign_us": _least(sign, rounds, BATCH),
        "verify_us": _least(lambda: verify(signed), rounds, BATCH),
        "sign_one_us": _least(sign_alone, rounds, LEAVES_MAX),
        "verify_one_us": _least(lambda: verify(alone), rounds, LEAVES_MAX),
        "proof_bytes": len(signed[0].payload) - len(messages[0].payload),
        "proof_one_bytes": len(alone[0].payload) - len(messages[0].payload),
    }


def _least(work: Callable[[], None], rounds: int, count: int) -> float:
    took_s: list[float] = []
    for _ in range(rounds):
        began_s = time.process_time()
        work()
        took_s.append(time.process_time() - began_s)
    return round(min(took_s) / count * 1e6, 2)


def _message(number: int) -> BusMessage:
    event = CloudEvent(
        f"7.0.{number}.0",
        "/bench/local/agents/Sensor/s7",
        "Reading@1",
        subject="Sensor/s7",
        datacontenttype=JSON,
        data={"number": number, "co": number / 7, "place": "north wing, second floor, behind the door"},
        extensions={"sequence": str(number), "incarnation": "7", "epoch": "1", "previous": str(number - 1)},
    )
    topic = "bench/local/agents/Sensor/s7/events/reading"
    return BusMessage(topic, write_structured(event), content_type=STRUCTURED)
