"""The story: a refusal, a mission with a kill in the middle, a mission with a cut link, and the proofs.

Exits with 1 if anything is not as it must be. Nothing in it is faked: the broker is real, the kill is a SIGKILL, the
link is cut at its socket, and every figure at the end is counted from the journals.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from apps.edge_agent.demo.asking import Trouble, environment
from apps.edge_agent.demo.evidence import Finding, Recovered, prove, published, read_log
from apps.edge_agent.demo.field import DRONE, PILOT, Field
from apps.edge_agent.demo.screen import Screen, show, told
from stigmergy.testing.brokers import NoBroker

FAR_M = 400.0
FIRST_M = 50.0
SECOND_M = 150.0
FLIGHT_S_MAX = 90.0
LAST_S_MAX = 10.0
TWICE_S = 0.5


class Story:
    """One run."""

    def __init__(self, console: Console, field: Field, screen: Screen, chance: random.Random) -> None:
        self._console = console
        self._field = field
        self._screen = screen
        self._chance = chance

    async def tell(self) -> Recovered:
        """All of it; what was recovered after the kill is left to be judged."""
        screen, ground = self._screen, self._field.to_ground
        screen.say("a broker, an aircraft, the drone's program, a ground station: four processes")
        await ground.send(PILOT, "Watch")
        await self._until("the drone to know its battery", lambda: screen.drone.get("battery") is not None)
        await self._until("the drone to hear the ground", lambda: screen.drone.get("heard_s", 0) > 0)
        await self._refuse()
        recovered = await self._first_mission()
        await self._second_mission()
        return recovered

    async def _refuse(self) -> None:
        screen = self._screen
        await self._field.to_ground.send(PILOT, "Launch", mission="M0", distance_m=FAR_M)
        await self._until("an answer", lambda: screen.pilot.get("answers") == 1)
        screen.say(f"M0, {FAR_M:g} m: refused on board, {screen.pilot['refused_because']}")

    async def _first_mission(self) -> Recovered:
        screen, field = self._screen, self._field
        await field.to_ground.send(PILOT, "Launch", mission="M1", distance_m=FIRST_M)
        await self._until("M1 to begin", lambda: screen.drone.get("mission") == "M1")
        screen.say(f"M1, {FIRST_M:g} m: accepted, ordered and answered over MQTT")
        kill_at_m = self._chance.uniform(0.4, 0.8) * FIRST_M
        await self._until("the middle of M1", lambda: screen.drone.get("distance_m", 0) > kill_at_m)
        before = await field.to_drone.state(DRONE)
        await field.drone.kill()
        screen.say("kill -9 of the drone's program, in flight", "bold red")
        began_s = time.monotonic()
        await field.drone.start()
        await field.wait_up(field.drone, field.to_drone)
        took_s = time.monotonic() - began_s
        now = await field.to_drone.state(DRONE)
        same_position = await field.to_drone.state(DRONE, at=before["position"])
        state = now["state"]
        screen.say(
            f"started again in {took_s:.1f} s: {state['phase']} {state['mission']} as before, "
            f"battery {state['battery']:.1f} %; the aircraft had hovered meanwhile",
            "bold green",
        )
        answers = screen.pilot["answers"]
        await field.to_ground.send(PILOT, "RepeatOrder")
        await self._until("the answer to be repeated", lambda: screen.pilot["answers"] > answers)
        await self._until("M1 to be delivered", lambda: screen.drone.get("deliveries") == 1)
        screen.say("M1 delivered; comes home")
        await self._until("M1 to end", lambda: screen.drone.get("phase") == "parked")
        return Recovered(before, same_position, now)

    async def _second_mission(self) -> None:
        screen, field = self._screen, self._field
        await field.to_ground.send(PILOT, "Launch", mission="M2", distance_m=SECOND_M)
        await self._until("M2 to fly", lambda: screen.drone.get("mission") == "M2")
        await self._until("M2 to be under way", lambda: screen.drone.get("distance_m", 0) > 15)
        heard = told(screen.pilot)
        field.link.cut()
        screen.say("M2 under way: the link is cut", "bold red")
        await self._until("the drone to land by itself", lambda: screen.drone.get("phase") == "landing")
        screen.say("the ground is not heard for 3 s: it decides alone, and lands")
        await self._until("the drone to be down", lambda: screen.drone.get("phase") == "parked")
        waiting = screen.link.get("owed", 0)
        field.link.restore()
        screen.say(f"the link is back; {waiting} reports were kept on board meanwhile", "bold green")
        await self._until("the reports to arrive", lambda: screen.link.get("owed") == 0 and self._is_told(heard))

    def _is_told(self, heard: int) -> bool:
        return told(self._screen.pilot) > heard and str(self._screen.pilot["doing"]).startswith("stands")

    async def _until(self, what: str, condition: object) -> None:
        assert callable(condition)
        await self._field.wait(what, condition, FLIGHT_S_MAX)


async def run(console: Console, folder: Path, seed: int, pace: float) -> list[Finding]:
    """The whole demonstration."""
    chance = random.Random(seed)
    async with Field(folder, seed=seed, pace=pace) as field:
        async with Screen(console, field) as screen:
            recovered = await Story(console, field, screen, chance).tell()
            screen.say(f"{screen.pilot['doing']}. Both nodes stop, and their journals are read")
            stopped = await field.drone.stop()
            log = await read_log(field.drone.folder)
            await wait_told(field, screen, sum(len(reports) for reports in published(log).values()))
        codes = stopped, await field.ground.stop()
        findings = await prove(folder, log, recovered, "M0", chance)
        if codes != (0, 0):
            findings.append(Finding(False, f"the nodes ended with {codes}, and not in order"))
        findings.append(written(field))
    return findings


async def wait_told(field: Field, screen: Screen, count: int) -> None:
    """Until the ground has heard so many reports, and a little longer, in case that one comes twice.

    Whether they are the right ones is for the journals to say. If they do not come, the journals say that, too.
    """
    with contextlib.suppress(Trouble):
        await field.wait("the last reports", lambda: told(screen.pilot) >= count, LAST_S_MAX)
    await asyncio.sleep(TWICE_S)


def written(field: Field) -> Finding:
    """What it cost."""
    parts = []
    for program in (field.drone, field.ground):
        journal = program.folder / f"{program.name}.db"
        parts.append(
            f"{program.name} {program.bytes_written / 1024:,.0f} KiB (journal {journal.stat().st_size // 1024:,})"
        )
    total = field.drone.bytes_written
    return Finding(total > 0, f"written to disk in {field.seconds:.0f} s: {', '.join(parts)}")


@contextlib.contextmanager
def page_of(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Plays the flight back on the page, from the drone's journal: the page's address, and the process that has it."""
    command = [sys.executable, "-m", "stigmergy", "serve", "apps.edge_agent.drone:fleet", "--json"]
    place = folder / "drone"
    with subprocess.Popen(
        [*command, "--log", "drone.db", "--listen", "127.0.0.1:0"],
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        said = json.loads(serving.stdout.readline() or "{}")
        if "url" not in said:
            raise Trouble(f"the page is not served: {said.get('error', 'its process ended')}")
        try:
            yield f"{said['url']}/", serving
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.wait()


def stay(console: Console, folder: Path) -> None:
    """Keeps the page of the flight open until Ctrl-C."""
    with page_of(folder) as (address, serving):
        console.print(f"the flight, played back: {address}  (Ctrl-C ends it)", highlight=False)
        with contextlib.suppress(KeyboardInterrupt):
            serving.wait()


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration in a folder that is gone afterwards."""
    parser = argparse.ArgumentParser(prog="make demo-edge", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="when the kill comes, which bit is flipped, the noise")
    parser.add_argument("--pace", type=float, default=1.0, help="fly so many times faster")
    parser.add_argument("--stay", action="store_true", help="show the flight on the page afterwards, until Ctrl-C")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="stigmergy-demo-") as folder:
            findings = asyncio.run(run(console, Path(folder), seed, options.pace))
            show(console, findings)
            if options.stay:
                stay(console, Path(folder))
            else:
                console.print(
                    "the journals are gone with this demonstration; the next one ends with the address of a page that "
                    "plays its flight back, and keeps it open, with: make demo-edge ARGS=--stay",
                    highlight=False,
                )
    except (Trouble, NoBroker) as error:
        findings = [Finding(False, str(error))]
        show(console, findings)
    console.print(f"seed {seed}", style="dim")
    return 0 if all(finding.holds for finding in findings) else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
