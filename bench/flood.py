"""What one agent that floods does to the others: 100 times its quota through a real broker.

The others send at a steady rate from a process of their own, the flooder from another. What counts is the time from an
event's sending to its action, which includes the broker, the node's door, its disk and its effector. In the windows to
compare with, the same flood goes to a site that our node does not serve: so flooder and broker cost this machine the
same in both, and the difference is what the flood costs the node.

`python -m bench.flood URL SITE FIRST COUNT RATE SECONDS` is such a sender: COUNT agents from number FIRST on,
RATE messages a second in all. It prints how many it has sent. With a RATE of 0 it sends SECONDS messages as fast as the
broker takes them.

Beside that, one burst at the settings that everybody has: 40,000 messages of one agent as fast as the broker takes
them, while another one sends 20 a second; what counts is the worst delay of those. `python -m bench.flood
FOLDER URL COUNT` is the node that takes it, in a process of its own that is set up as `stigmergy run` does it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.rig import SEED, in_process, open_file
from bench.sender import percentile
from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.effects import Effects, Order
from stigmergy.agents.messages import SECOND_NS, Action, Event, spec_of
from stigmergy.base.errors import LinkDown
from stigmergy.base.system import SystemClock, SystemEntropy, make_process_ours
from stigmergy.bus import mqtt
from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, write_structured
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.topics import Channel, Topics
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.network.bus_link import BusLink
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Connections, Host, open_host
from stigmergy.node.settings import BusSettings, Settings

QUOTA_PER_S = 10
FLOOD_TIMES = 100
OTHERS = 20
OTHERS_PER_S = 100
IN_FLIGHT_MAX = 200
BURST_COUNT = 40_000
QUIET_PER_S = 20
QUIET_BEFORE_S = 2.0
QUIET_AFTER_S = 3.0
BURST_S_MAX = 300.0
CONNECT_S_MAX = 10.0
MILLISECOND_NS = 1_000_000
OURS, ELSEWHERE = "site", "elsewhere"


class Sent(Event):
    """A message with the moment of its sending, by the clock that all processes of a machine share."""

    at_ns: int


class Arrived(Action):
    """What follows from it."""

    at_ns: int


class Gauge(Agent):
    """Reacts to everything."""

    last_ns: int = 0

    @evolve
    def sent(self, event: Sent) -> None:
        self.last_ns = event.at_ns

    @react
    def arrived(self, event: Sent) -> Effects:
        yield Arrived(at_ns=event.at_ns)


class Flood(Struct, frozen=True):
    """Medians over the windows."""

    quota_per_s: int
    sent_per_s: float
    shed: int
    baseline_p99_ms: float
    flooded_p99_ms: float
    ratio: float
    ratios: list[float]


class Burst(Struct, frozen=True):
    """What one agent notices of another one's burst."""

    sent: int
    took_s: float
    shed: int
    worst_before_ms: float
    worst_ms: float


def _open_bus(url: str, client: str) -> Bus:
    if not url.startswith("nats"):
        return mqtt.open_bus(url, client, SystemEntropy())
    from stigmergy.nats import bus as nats_bus

    return nats_bus.open_bus(f"{url}/bench", client, SystemEntropy())


def measure_burst(folder: Path, url: str, count: int = BURST_COUNT) -> Burst:
    """Sends a burst to a node with default settings, and looks at what another agent notices."""
    return in_process(Burst, "bench.flood", folder, url, count)


def _make_receiver(fleet: Declaration, path: Path, url: str, settings: Settings | None = None) -> tuple[Host, BusLink]:
    made: list[BusLink] = []

    def connect(host: Host) -> Connections:
        made.append(BusLink(host, _open_bus(url, "receiver"), SystemEntropy(), site=OURS, node="receiver"))
        return made[0].connections

    signer, verifier = Ed25519Signer(SEED), Ed25519Verifier()
    host = open_host(fleet, open_file(path), signer, verifier, SystemClock(), settings, connect=connect)
    return host, made[0]


async def _take_burst(folder: Path, url: str, count: int) -> Burst:
    taken_ns: list[int] = []
    fleet = Declaration("bench", agents=[Gauge])

    @fleet.actuator(Arrived)
    def act(order: Order[Arrived]) -> None:
        if order.agent == "Gauge/1":
            taken_ns.append(time.monotonic_ns() - order.effect.at_ns)

    host, link = _make_receiver(fleet, folder / "burst.db", url)
    await host.start()
    await link.start()
    try:
        quiet = await _sender(url, OURS, 1, 1, QUIET_PER_S, BURST_S_MAX)
        await _wait_count(taken_ns, int(QUIET_PER_S * QUIET_BEFORE_S))
        before_ns, began_s = max(taken_ns), time.monotonic()
        taken_ns.clear()
        flooder = await _sender(url, OURS, 0, 1, 0, count)
        sent, _ = await flooder.communicate()
        took_s = time.monotonic() - began_s
        await asyncio.sleep(QUIET_AFTER_S)
        quiet.terminate()
        await quiet.wait()
        if not taken_ns:
            raise RuntimeError("nothing of the quiet agent came while the other one flooded")
        shed = link.subscriber.counters.bus_shed
    finally:
        await link.stop()
        await host.stop()
    return Burst(int(sent), took_s, shed, before_ns / MILLISECOND_NS, max(taken_ns) / MILLISECOND_NS)


async def _wait_count(taken_ns: list[int], count: int) -> None:
    async with asyncio.timeout(BURST_S_MAX):
        while len(taken_ns) < count:  # noqa: ASYNC110 - an actuator counts
            await asyncio.sleep(0.05)


async def measure_flood(folder: Path, url: str, windows: int, window_s: float) -> Flood:
    """Runs windows with the flood elsewhere and here, in turn."""
    taken_ns: list[int] = []
    fleet = Declaration("bench", agents=[Gauge])

    @fleet.actuator(Arrived)
    def act(order: Order[Arrived]) -> None:
        if order.agent != "Gauge/0":
            taken_ns.append(time.monotonic_ns() - order.effect.at_ns)

    settings = Settings(bus=BusSettings(messages_per_s=float(QUOTA_PER_S), burst=2 * QUOTA_PER_S))
    host, link = _make_receiver(fleet, folder / "flood.db", url, settings)
    await host.start()
    await link.start()
    quiet_ns: list[int] = []
    flooded_ns: list[int] = []
    sent = 0
    try:
        await _send(url, window_s / 2, flooded=False)
        for _ in range(windows):
            taken_ns.clear()
            await _send(url, window_s, flooded=False)
            quiet_ns.append(_p99(taken_ns, window_s))
            taken_ns.clear()
            sent += await _send(url, window_s, flooded=True)
            flooded_ns.append(_p99(taken_ns, window_s))
        shed = link.subscriber.counters.bus_shed
    finally:
        await link.stop()
        await host.stop()
    ratios = [flooded / quiet for flooded, quiet in zip(flooded_ns, quiet_ns, strict=True)]
    return Flood(
        quota_per_s=QUOTA_PER_S,
        sent_per_s=sent / windows / window_s,
        shed=shed,
        baseline_p99_ms=statistics.median(quiet_ns) / MILLISECOND_NS,
        flooded_p99_ms=statistics.median(flooded_ns) / MILLISECOND_NS,
        ratio=statistics.median(ratios),
        ratios=ratios,
    )


def _p99(taken_ns: list[int], window_s: float) -> int:
    if len(taken_ns) < OTHERS_PER_S * window_s / 2:
        raise RuntimeError(f"only {len(taken_ns)} of the others' events came to their action")
    return percentile(taken_ns, 0.99)


async def _send(url: str, seconds: float, *, flooded: bool) -> int:
    """Runs the senders for a window; how many messages the flooder has sent."""
    others = await _sender(url, OURS, 1, OTHERS, OTHERS_PER_S, seconds)
    flooder = await _sender(url, OURS if flooded else ELSEWHERE, 0, 1, QUOTA_PER_S * FLOOD_TIMES, seconds)
    await others.communicate()
    output, _ = await flooder.communicate()
    return int(output)


async def _sender(url: str, site: str, first: int, count: int, rate: int, seconds: float) -> asyncio.subprocess.Process:
    arguments = [str(value) for value in (site, first, count, rate, seconds)]
    command = [sys.executable, "-m", "bench.flood", url, *arguments]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def _send_window(url: str, topics: Topics, first: int, count: int, rate: int, seconds: float) -> int:
    """Sends at fixed times, whether the broker keeps up or not, up to a bound under way; how many it took."""
    bus = _open_bus(url, f"sender-{first}")
    up = asyncio.Event()
    bus.on_link(lambda is_up: up.set() if is_up else None)
    await bus.open()
    async with asyncio.timeout(CONNECT_S_MAX):
        await up.wait()
    tag = spec_of(Sent).tag
    taken, flying = 0, dict[int, asyncio.Task[None]]()

    async def publish(number: int) -> None:
        nonlocal taken
        address = f"Gauge/{first + number % count}"
        now_ns = time.monotonic_ns()
        event = CloudEvent(
            id=f"{now_ns}.{number}", source=f"/bench/{first}", type=tag, datacontenttype=JSON, data={"at_ns": now_ns}
        )
        try:
            topic = topics.of_agent(address, Channel.INPUTS)
            await bus.publish(BusMessage(topic, write_structured(event), content_type=STRUCTURED))
            taken += 1
        except LinkDown:
            pass
        finally:
            flying.pop(number, None)

    start_ns = time.monotonic_ns()
    number = 0
    while not rate and number < seconds:
        if len(flying) < IN_FLIGHT_MAX:
            flying[number] = asyncio.ensure_future(publish(number))
            number += 1
        else:
            await asyncio.sleep(0)
    while rate and (now_ns := time.monotonic_ns()) < start_ns + seconds * SECOND_NS:
        while start_ns + number * SECOND_NS // rate <= now_ns and len(flying) < IN_FLIGHT_MAX:
            flying[number] = asyncio.ensure_future(publish(number))
            number += 1
        await asyncio.sleep(min(0.01, 1 / rate))
    await asyncio.gather(*flying.values())
    await bus.close()
    return taken


def main(arguments: list[str]) -> None:
    """Takes a burst, or sends one window."""
    if len(arguments) == 3:
        folder, url, burst = arguments
        make_process_ours()
        print(msgspec.json.encode(asyncio.run(_take_burst(Path(folder), url, int(burst)))).decode())
        return
    url, site, first, count, rate, seconds = arguments
    topics = Topics("bench", site)
    print(asyncio.run(_send_window(url, topics, int(first), int(count), int(rate), float(seconds))))


if __name__ == "__main__":
    main(sys.argv[1:])
