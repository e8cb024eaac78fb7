"""A link is cut a thousand times while messages go over it, and none is lost, none doubled, none out of order.

Publishers and a receiver, each with an adapter of ours and behind a proxy of its own, talk through a real broker: NATS
by MQTT, Mosquitto, and NATS by its own protocol. At random moments a link is cut, or hangs, or loses what the broker
says, or the receiver's program ends and another one takes its place with the same session. Publishers repeat what they
were not told about; the receiver keeps marks. What the receiver has taken at the end is compared with what was
published.

    python -m proofs.link_cuts [--cuts N] [--broker nats|mosquitto|jetstream] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from proofs.report import Proof
from stigmergy.base.errors import LinkDown, Overloaded, SequenceGap
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.nats.bus import open_bus as open_nats_bus
from stigmergy.testing.brokers import Broker, NoBroker, start_mosquitto, start_nats
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import start_single
from stigmergy.testing.proxy import LinkProxy

CUTS = 1_000
CUTS_QUICK = 30
SOURCES = 3
ACK_WAIT_S = 0.1
"""NATS repeats after so long what was under way on a broken link; by default after 30 s, which would take all day."""
BETWEEN_S_MAX = 0.3
BETWEEN_COUNT_MIN = 25
"""Messages that must have been answered between two cuts: on a busy machine cuts wait for traffic."""
DOWN_S_MAX = 0.06
FINISH_S_MAX = 90.0
RESTART_SHARE = 0.05
"""Of the cuts, so many end the receiver's program, too."""
OVERLOAD_SHARE = 0.01
WINDOW = 16
PACE_S = 0.05
"""Between two windows of a source, so that the receiver keeps up on a small machine."""
BROKERS = ("nats", "mosquitto", "jetstream")
MQTT = "mqtt://127.0.0.1:{port}?reconnect_s_max=0.05&keepalive_s=5"
NATS = "nats://127.0.0.1:{port}/siege?topics=sources/%23"


class Tally(Struct):
    """What was done, and what was seen."""

    cuts: int = 0
    restarts: int = 0
    published: int = 0
    publishes_repeated: int = 0
    arrivals_repeated: int = 0
    arrivals_early: int = 0
    not_taken: int = 0
    links: int = 0
    cut_under_way: int = 0
    """Cuts at which a publisher waited for an answer."""


class Source:
    """Publishes 1, 2, 3 … on a topic of its own: a window of them at once, repeated from the first unanswered one."""

    def __init__(self, name: str, bus: Bus, tally: Tally) -> None:
        self.name = name
        self.topic = f"sources/{name}"
        self.answered = 0
        self.bus = bus
        self.is_publishing = False
        self._tally = tally
        self._sent = 0
        self.ends_at: int | None = None

    async def run(self) -> None:
        while self.ends_at is None or self.answered < self.ends_at:
            last = self.answered + WINDOW if self.ends_at is None else min(self.ends_at, self.answered + WINDOW)
            numbers = range(self.answered + 1, last + 1)
            self._tally.publishes_repeated += max(0, min(self._sent, last) - self.answered)
            self._sent = max(self._sent, last)
            self.is_publishing = True
            outcomes = await asyncio.gather(*(self._publish(number) for number in numbers))
            self.is_publishing = False
            # Answers come in order; what is behind the first failure is published again, too.
            for outcome in outcomes:
                if not outcome:
                    break
                self.answered += 1
            await asyncio.sleep(PACE_S)

    async def _publish(self, number: int) -> bool:
        try:
            await self.bus.publish(BusMessage(self.topic, b"%d" % number))
        except LinkDown:
            return False
        return True


class Receiver:
    """Keeps a mark for each topic, as a node does in its journal: it outlives the program that writes to it."""

    def __init__(self, chance: random.Random, tally: Tally) -> None:
        self.taken: dict[str, list[int]] = {}
        self._chance = chance
        self._tally = tally

    async def handle(self, message: BusMessage) -> None:
        taken = self.taken.setdefault(message.topic, [])
        number = int(message.payload)
        if number <= len(taken):
            self._tally.arrivals_repeated += 1
            return
        if number > len(taken) + 1:
            self._tally.arrivals_early += 1
            raise SequenceGap(f"{message.topic}: {number} came, {len(taken) + 1} is still to come", sequence=number)
        if self._chance.random() < OVERLOAD_SHARE:
            self._tally.not_taken += 1
            raise Overloaded("not now")
        taken.append(number)
        # The disk: until it is done the broker hears nothing.
        await asyncio.sleep(self._chance.random() * 0.002)


class Siege:
    """The publishers, the receiver, the proxies, and who cuts."""

    def __init__(self, url: str, port: int, seed: int) -> None:
        self.tally = Tally()
        self.violations: list[str] = []
        self._url = url
        self._port = port
        self._chance = random.Random(seed)
        self._receiver = Receiver(self._chance, self.tally)
        self._proxies: dict[str, LinkProxy] = {}
        self._sources: list[Source] = []
        self._hearing: Bus | None = None

    async def run(self, cuts: int) -> None:
        await self._hear()
        for number in range(SOURCES):
            name = f"source-{number}"
            self._sources.append(Source(name, await self._bus(name), self.tally))
        running = [asyncio.ensure_future(source.run()) for source in self._sources]
        try:
            for _ in range(cuts):
                enough = self._answered + BETWEEN_COUNT_MIN
                await asyncio.sleep(self._chance.random() * BETWEEN_S_MAX)
                await self._wait_answered(enough)
                await self._harm()
            await self._finish(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for bus in (*(source.bus for source in self._sources), self._hearing):
                if bus is not None:
                    await bus.close()
            for proxy in self._proxies.values():
                self.tally.links += proxy.connections
                await proxy.close()

    @property
    def _answered(self) -> int:
        return sum(source.answered for source in self._sources)

    async def _wait_answered(self, count: int) -> None:
        await wait_until(lambda: self._answered >= count)

    async def _bus(self, name: str) -> Bus:
        if name not in self._proxies:
            self._proxies[name] = LinkProxy(self._port)
            await self._proxies[name].start()
        url = self._url.format(port=self._proxies[name].port)
        open_it = open_bus if url.startswith("mqtt:") else open_nats_bus
        bus: Bus = open_it(url, name, SystemEntropy())
        await bus.open()
        return bus

    async def _hear(self) -> None:
        self._hearing = await self._bus("receiver")
        await self._hearing.subscribe("sources/+", self._receiver.handle)
        # Nobody holds messages for a session that was never made.
        await wait_until(lambda: self._hearing is not None and self._hearing.is_up)

    async def _harm(self) -> None:
        name = self._chance.choice(list(self._proxies))
        proxy = self._proxies[name]
        self.tally.cuts += 1
        self.tally.cut_under_way += any(source.is_publishing for source in self._sources if source.name == name)
        how = self._chance.randrange(3)
        if how == 0:
            proxy.mute_server()
            await asyncio.sleep(self._chance.random() * 0.02)
        elif how == 1:
            proxy.stall()
            await asyncio.sleep(self._chance.random() * 0.02)
        proxy.cut()
        if name == "receiver" and self._chance.random() < RESTART_SHARE * len(self._proxies):
            self.tally.restarts += 1
            if self._hearing is not None:
                await self._hearing.close()
            proxy.restore()
            await self._hear()
            return
        await asyncio.sleep(self._chance.random() * DOWN_S_MAX)
        proxy.restore()

    def _has_all(self) -> bool:
        return all(len(self._receiver.taken.get(source.topic, [])) >= source.answered for source in self._sources)

    async def _finish(self, running: Sequence[asyncio.Future[None]]) -> None:
        """No more harm: everything that was published must arrive."""
        for source in self._sources:
            source.ends_at = source.answered + WINDOW
        try:
            async with asyncio.timeout(FINISH_S_MAX):
                await asyncio.gather(*running)
                await wait_until(self._has_all, within_s=FINISH_S_MAX)
        except TimeoutError:
            self.violations.append(f"not everything has arrived {FINISH_S_MAX:g} s after the last cut")
        for source in self._sources:
            self.tally.published += source.answered
            self.violations += compare(source.topic, source.answered, self._receiver.taken.get(source.topic, []))


def compare(topic: str, answered: int, taken: list[int]) -> list[str]:
    """What a receiver's list says that it should not. What was sent but not answered may be there, too."""
    wrong: list[str] = []
    lost = sorted({*range(1, answered + 1)} - {*taken})
    if lost:
        wrong.append(f"{topic}: {len(lost)} of {answered} lost, the first are {lost[:10]}")
    doubled = len(taken) - len({*taken})
    if doubled:
        wrong.append(f"{topic}: {doubled} doubled")
    if taken != sorted(taken):
        wrong.append(f"{topic}: out of order")
    return wrong


def run(cuts: int, broker_name: str, seed: int) -> Siege:
    """Cuts links at a fresh broker."""
    with tempfile.TemporaryDirectory(prefix="stigmergy-cuts-") as folder:
        if broker_name == "jetstream":
            with start_single(Path(folder)) as single:
                return asyncio.run(_besiege(NATS, single.servers[0].plan.port, cuts, seed))
        by_mqtt = start_mosquitto if broker_name == "mosquitto" else _start_nats
        with by_mqtt(Path(folder)) as broker:
            return asyncio.run(_besiege(MQTT, broker.port, cuts, seed))


async def _besiege(url: str, port: int, cuts: int, seed: int) -> Siege:
    siege = Siege(url, port, seed)
    await siege.run(cuts)
    return siege


def _start_nats(folder: Path) -> Broker:
    return start_nats(folder, ack_wait_s=ACK_WAIT_S)


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it: on all brokers that are there."""
    cuts = CUTS_QUICK if quick else CUTS
    figures: dict[str, object] = {}
    violations: list[str] = []
    cases = 0
    for broker in BROKERS:
        try:
            siege = run(cuts, broker, seed=1)
        except NoBroker as missing:
            figures[broker] = f"NOT TRIED: {missing}"
            continue
        cases += siege.tally.cuts
        violations += [f"{broker}: {violation}" for violation in siege.violations]
        figures[broker] = [
            f"{getattr(siege.tally, name):>9,} {name.replace('_', ' ')}" for name in Tally.__struct_fields__
        ]
    return Proof(
        name="link_cuts",
        promise="whenever a link is cut: nothing lost, nothing doubled after the marks, order kept per source",
        cases=cases,
        violations=violations,
        figures=figures,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=CUTS)
    parser.add_argument("--broker", choices=BROKERS, default="nats")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    siege = run(options.cuts, options.broker, options.seed)
    print(siege.tally)
    for violation in siege.violations:
        print("violation:", violation)
    return 1 if siege.violations else 0


if __name__ == "__main__":
    sys.exit(main())
