"""A whole run on this machine: five servers for the ledger, five gateways with brokers of their own, sensors, faults.

Each gateway is a process, its broker another one, and one of the ledger's servers stands beside it: when a gateway dies
in a run, that server dies, too. All that leaves a gateway passes a wire that can be cut, and is kept. At the end a
checker that is not part of this application judges by journals, receivers and what the world has witnessed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

import stigmergy
from apps.city.feeds import Feed, Truth
from apps.city.fleet import FLEET
from apps.city.links import Relay, Wire, quiet_ports, start_relay
from apps.city.messages import Acknowledge, incidents
from apps.city.plan import City, distance_m, district_of, place_of
from apps.city.readings import LEAK, REACH_M, plan_leaks
from apps.city.receivers import Hooks, receivers
from apps.processes import NodeProcess, end_task, printed, read_lives
from stigmergy import StigmergyError
from stigmergy.testing.nats import NatsCluster, start_single

LOOK_S = 1.0
KEYS = "keys"
"""The folder with a key for each gateway: in a real city a file that its disk does not hold, or a secure element."""
ACKNOWLEDGE_S, ACKNOWLEDGE_TRIES = 3.0, 200
"""A responder needs so long, and asks so often, once a second."""
IGNORED_EVERY = 5
"""Of so many incidents one is not acknowledged until it has been escalated."""
FAR_M = 4 * REACH_M["co"]
"""So far from a leak its gas is not smelt, nor by the next neighbours."""
LEDGER = f"{FLEET}.{incidents.name}"
Say = Callable[[str], None]


class Options(Struct, frozen=True):
    """What is to be run."""

    sensors: int = 2000
    gateways: int = 5
    steps: int = 30
    """Readings of each sensor."""
    period_s: float = 4.0
    """Between two readings of a sensor."""
    leaks: int = 20
    broken: int = 3
    """Sensors whose heaters fail, and whose neighbours contradict them."""
    seed: int = 7
    faults: tuple[str, ...] = ()
    drain_s: float = 180.0
    serve: bool = True


class Outcome(Struct):
    """How the run itself went; what became of leaks is for the checker to say."""

    sensors: int = 0
    gateways: int = 0
    seed: int = 0
    readings: int = 0
    readings_per_s: float = 0.0
    wall_s: float = 0.0
    drained: bool = False
    faults: list[str] = field(default_factory=list)
    restarts: int = 0
    exit_codes: dict[str, int] = field(default_factory=dict)
    bytes_left: dict[str, int] = field(default_factory=dict)
    ledger_writers: int = 0
    """Keys that the log of the ledger lets write: one for each gateway."""
    coap_taken: int = 0
    coap_refused: int = 0
    dead_letters: int = 0
    """That are there at the end."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    """That the gateways computed, in all their lives."""


class Gateway(NodeProcess):
    """A gateway in a process of its own, that can be killed, lose its disk, and be started again."""

    def __init__(self, name: str, folder: Path, arguments: list[str], wire: Wire) -> None:
        super().__init__(name, folder, "apps.city.node", arguments)
        self.wire = wire
        self.disks = 1
        self._disk_is_new = False

    async def start(self, *more: str) -> None:
        """Returns when it is ready."""
        (self.folder / self.name).mkdir(exist_ok=True)
        await super().start(*more, *(("--take-over",) if self._disk_is_new else ()))
        self._disk_is_new = False

    def lose_disk(self) -> None:
        """The next start is from an empty disk. The old journal is kept for the checker, where no gateway finds it. The
        key is elsewhere and stays, so all others go on trusting it. A node whose key has signed a journal that is gone
        refuses to start, until somebody has said that it is meant."""
        (self.folder / KEYS / f"{self.name}.key-journals").unlink()
        (self.folder / self.name).rename(self.folder / f"{self.name}.lost-{self.disks}")
        self.disks += 1
        self._disk_is_new = True


class CityRun:
    """All parts of a run. Faults take hold of them."""

    def __init__(self, folder: Path, options: Options, say: Say) -> None:
        self.folder = folder
        self.options = options
        self.city = City(options.sensors, options.gateways)
        self.leaks = plan_leaks(self.city, options.seed, options.leaks, options.steps)
        self.gateways: dict[str, Gateway] = {}
        self.wires: dict[str, Wire] = {}
        self.servers: NatsCluster | None = None
        self.step = 0
        self.outcome = Outcome(sensors=options.sensors, gateways=options.gateways, seed=options.seed)
        self.truth = Truth(folder, self.leaks)
        self._say = say
        self._made_s = time.monotonic()
        self._responding: set[asyncio.Task[None]] = set()
        self._incidents = 0

    def say(self, text: str) -> None:
        """Says it, with the minutes and seconds since the command was given."""
        minutes, seconds = divmod(int(time.monotonic() - self._made_s), 60)
        self._say(f"{minutes}:{seconds:02d}  {text}")

    def say_fault(self, text: str) -> None:
        """Says what was broken or mended. It is among the findings, too."""
        self.outcome.faults.append(text)
        self.truth.note("fault", text=text)
        self.say(text)

    async def wait_step(self, share: float) -> None:
        """Waits until so much of the run has passed."""
        while self.step < share * self.options.steps:  # noqa: ASYNC110 - a step takes seconds
            await asyncio.sleep(0.1)

    # ------------------------------------------------------------------ all of it

    async def run(self, faults: Callable[[CityRun], Any]) -> dict[str, Any]:
        """From the first process to the last; how it went, and what the checker found."""
        async with contextlib.AsyncExitStack() as stack:
            hooks = await stack.enter_async_context(receivers(self.folder, self._respond))
            feeds = await self._start(stack, hooks)
            self.say(f"{self.options.sensors} sensors at {self.options.gateways} gateways, {len(self.leaks)} leaks")
            began_s = time.monotonic()
            breaking = asyncio.ensure_future(faults(self))
            stack.push_async_callback(end_task, breaking)
            watching = asyncio.ensure_future(self._watch())
            stack.push_async_callback(end_task, watching)
            for step in range(self.options.steps):
                self.step = step
                self.truth.step(step)
                for payloads in await asyncio.gather(*(feed.send(step, self.options.period_s) for feed in feeds)):
                    self.truth.sent(payloads)
            self.step = self.options.steps
            await breaking
            self.outcome.readings = sum(feed.sent for feed in feeds)
            self.outcome.wall_s = time.monotonic() - began_s
            self.outcome.readings_per_s = self.outcome.readings / self.outcome.wall_s
            self.say("the sensors are calm; what is open is finished")
            await self._drain(feeds)
            watching.cancel()
            for task in list(self._responding):
                await end_task(task)
            await self.stop()
            assert self.servers is not None
            where = ("--ledger", self.servers.url, "--name", LEDGER)
            shown = await asyncio.to_thread(printed, "stigmergy", "ledger", "show", *where)
            self.outcome.ledger_writers = len(shown["writers"])
        self.truth.close()
        self._read_reports()
        self.say("all has stopped; the checker reads journals, receivers and wires")
        return {**to_builtins(self.outcome), **await asyncio.to_thread(printed, "rigs.city_checker", str(self.folder))}

    async def _start(self, stack: contextlib.AsyncExitStack, hooks: Hooks) -> list[Feed]:
        names = self.city.gateway_names()
        servers = self.servers = await asyncio.to_thread(
            NatsCluster.start, self.folder / "servers", len(names), sync_always=False
        )
        stack.callback(servers.stop)
        (self.folder / "mesh.key").write_text(os.urandom(32).hex())
        (self.folder / KEYS).mkdir()
        keys = {name: self.folder / KEYS / f"{name}.key" for name in names}
        made = [await asyncio.to_thread(printed, "stigmergy", "keys", "new", str(path)) for path in keys.values()]
        public = {name: one["public_key"] for name, one in zip(names, made, strict=True)}
        quiet = iter(quiet_ports(3 * len(names)))
        ports = {name: (next(quiet), next(quiet)) for name in names}
        by_port: dict[int, Wire] = {}
        relays: list[Relay] = []
        feeds: list[Feed] = []
        stack.push_async_callback(self.stop)
        for name in names:
            broker = await asyncio.to_thread(start_single, self.folder / f"{name}-broker", mqtt=True, sync_always=False)
            stack.callback(broker.stop)
            wire = self.wires[name] = Wire(self.folder / f"{name}.wire")
            stack.push_async_callback(wire.close)
            taps = [await wire.tap(server.plan.port) for server in servers.servers]
            own, outside = ports[name]
            by_port[own] = wire
            relays.append(relay := await start_relay(outside, own, by_port))
            stack.callback(relay.close)
            peers = ",".join(f"{one}@127.0.0.1:{ports[one][1]}" for one in names if one != name)
            replicas = next(count for count in (5, 3, 1) if count <= len(names))
            coap = f"127.0.0.1:{next(quiet)}"
            hosts = ",".join(f"127.0.0.1:{port}" for port in taps)
            arguments = [
                *("--sensors", str(self.city.sensors), "--gateways", str(self.city.gateways)),
                *("--key", str(keys[name])),
                *(f"--peer={key}" for one, key in public.items() if one != name),
                *("--bus", broker.url, "--ledger", f"nats://{hosts}?replicas={replicas}"),
                "--mesh",
                f"udp://127.0.0.1:{own}?peers={peers}&key_file={self.folder / 'mesh.key'}"
                f"&advertise=127.0.0.1:{outside}",
                *("--webhook", hooks.url, "--mail", hooks.mail, "--coap", coap),
                *(("--serve", "127.0.0.1:0") if self.options.serve else ()),
            ]
            self.gateways[name] = Gateway(name, self.folder, arguments, wire)
            mqtt_port = broker.servers[0].plan.mqtt_port
            feeds.append(Feed(name, self.city, self.options.seed, self.leaks, mqtt_port, coap))
            stack.push_async_callback(feeds[-1].close)
        self._break_sensors(feeds)
        await asyncio.gather(*(gateway.start() for gateway in self.gateways.values()))
        return feeds

    def _break_sensors(self, feeds: list[Feed]) -> None:
        """Sensors fail where no gas comes to them or to their neighbours."""
        calm = [(feed, one) for feed in feeds for one in feed.readings.gas if self._can_break(one)]
        for number in range(min(self.options.broken, len(calm))):
            feed, sensor = calm[number * len(calm) // max(self.options.broken, 1)]
            feed.readings.broken[sensor] = self.options.steps // 4
            self.truth.note("broken", sensor=sensor)

    def _can_break(self, sensor: str) -> bool:
        place, district = place_of(sensor), district_of(sensor)
        leaks = [one for one in self.leaks if one.district == district and one.what in LEAK]
        return len(self.city.near(sensor)) > 1 and all(distance_m(place, (one.x, one.y)) > FAR_M for one in leaks)

    async def _drain(self, feeds: list[Feed]) -> None:
        """Sensors go on, calm, until every incident is cleared and all desks know the same."""
        deadline_s, step = time.monotonic() + self.options.drain_s, self.options.steps
        for feed in feeds:
            feed.readings.broken.clear()
        while time.monotonic() < deadline_s:
            await asyncio.gather(*(feed.send(step, self.options.period_s) for feed in feeds))
            step += 1
            desks = [await self._desk(name) for name in self.gateways]
            if None in desks:
                continue
            open_count = sum(not one["cleared"] for desk in desks if desk for one in desk["known"])
            known = {  # by position: a desk knows its own incidents before those that came first
                tuple(sorted((one["position"], one["entry"]["incident_id"]) for one in desk["known"]))
                for desk in desks
                if desk
            }
            exposed = {json.dumps(desk["exposure"], sort_keys=True) for desk in desks if desk}
            if not open_count and len(known) == len(exposed) == 1:
                self.outcome.drained = True
                return
            self.say(f"{open_count} open, {len(known)} views of the ledger, {len(exposed)} of exposure")

    async def _desk(self, name: str) -> dict[str, Any] | None:
        try:
            async with stigmergy.connect(self.gateways[name].url, fleet=FLEET, within_s=10) as client:
                found: dict[str, Any] = await client.query(f"Desk/{name}")
                return found
        except StigmergyError as error:
            self.say(f"{name} does not answer: {error}")
            return None

    # ------------------------------------------------------------------ responders

    def _respond(self, notice: dict[str, Any]) -> None:
        """Somebody is notified, and acknowledges a little later; some incidents are ignored at first."""
        self._incidents += notice["stage"] == "opened"
        if self._incidents % IGNORED_EVERY == 0 and notice["severity"] < 3:
            return
        task = asyncio.ensure_future(self._acknowledge(notice["incident"]))
        self._responding.add(task)
        task.add_done_callback(self._responding.discard)

    async def _acknowledge(self, incident: str) -> None:
        """At whichever gateway answers."""
        await asyncio.sleep(ACKNOWLEDGE_S)
        names = list(self.gateways)
        for attempt in range(ACKNOWLEDGE_TRIES):
            name = names[attempt % len(names)]
            with contextlib.suppress(StigmergyError):
                async with stigmergy.connect(self.gateways[name].url, fleet=FLEET, within_s=10) as client:
                    if await client.send(f"Desk/{name}", Acknowledge(incident=incident, by="responder")):
                        return
            await asyncio.sleep(1.0)

    # ------------------------------------------------------------------ the end

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for gateway in [one for one in self.gateways.values() if one.has_failed]:
                self.outcome.restarts += 1
                self.say(f"{gateway.name} has ended by itself, and is started again: {gateway.said()[-300:]}")
                await gateway.start()

    async def stop(self) -> None:
        """Stops the gateways that run."""
        running = [one for one in self.gateways.values() if one.is_running]
        codes = await asyncio.gather(*(one.stop() for one in running))
        self.outcome.exit_codes |= {one.name: code for one, code in zip(running, codes, strict=True)}
        self.outcome.bytes_left = {name: wire.bytes_left for name, wire in self.wires.items()}

    def _read_reports(self) -> None:
        for name in self.gateways:
            lives = read_lives(self.folder / f"{name}.reports")
            self.outcome.dead_letters += lives[-1]["dead_letters"] if lives else 0
            self.outcome.cpu_s[name] = round(sum(one["cpu_s"] for one in lives), 1)
            self.outcome.coap_taken += sum(one["coap_taken"] for one in lives)
            self.outcome.coap_refused += sum(one["coap_refused"] for one in lives)
