"""One gateway: `python -m apps.city.node --name g1 --folder F …`. Its sensors speak to its own broker, or by CoAP.

The bus is the broker of the gateway, so raw readings stay on it. The ledger is on servers that the gateways share, and
gossip goes over UDP. It says `ready` on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from apps.city.coap import Door, coap_door
from apps.city.desk import Desk
from apps.city.fleet import make_fleet
from apps.city.messages import OpenDesk, OpenDistrict, Sound
from apps.city.notify import Mail, Notifier, Webhook
from apps.city.plan import City
from stigmergy import Live, StigmergyError, make_process_ours
from stigmergy.serve.embedded import ServedFleet

MODELS = Path(__file__).parent / "models"
REPORT_S = 2.0
RETRY_S = 0.2


def agents_of(gateway: str) -> list[str]:
    """The agents of a gateway."""
    return [f"{kind}/{gateway}d*" for kind in ("GasSensor", "Meter", "District")] + [f"Desk/{gateway}"]


class Sirens:
    """Writes down which district was warned, and when: for the checker."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def sound(self, order: Sound) -> None:
        """Switches one on; switching it on again changes nothing."""
        line = {"at_s": time.time(), "district": order.district, "what": order.what, "incident": order.incident}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


async def send(live: Live, address: str, command: Any) -> None:
    """Until it is answered."""
    while True:
        try:
            await live.send(address, command)
            return
        except StigmergyError:
            await asyncio.sleep(RETRY_S)


async def report(live: Live, name: str, path: Path, door: Door | None) -> None:
    """Writes down every few seconds how it is, until it is cancelled."""
    started_s = time.time()
    while True:
        standing = live.standing()
        line = {
            "name": name,
            "started_s": started_s,
            "at_s": time.time(),
            "cpu_s": time.process_time(),
            "dead_letters": standing.dead_letters,
            "troubles": standing.troubles[:5],
            "coap_taken": 0 if door is None else door.taken,
            "coap_refused": 0 if door is None else door.refused,
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        note_exposure(live, name, path.parent)
        await asyncio.sleep(REPORT_S)


def note_exposure(live: Live, name: str, folder: Path) -> None:
    """Writes down what the desk counts: for the checker."""
    desk = live.query(f"Desk/{name}", Desk)
    sums = {place: counter.value for place, counter in desk.exposure.items()}
    (folder / f"{name}.exposure").write_text(json.dumps({"exposure": sums}) + "\n", encoding="utf-8")


@contextlib.asynccontextmanager
async def running_tasks(tasks: list[asyncio.Task[Any]]) -> AsyncIterator[None]:
    """Ends them with the block."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run(options: argparse.Namespace) -> int:
    """Runs the gateway until SIGTERM."""
    folder, name, city = options.folder, options.name, City(options.sensors, options.gateways)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    notifiers: list[Notifier] = [Webhook(options.webhook)]
    if options.mail:
        notifiers.append(Mail(options.mail, f"{name}@stigmergy.city", "duty@stigmergy.city"))
    fleet = make_fleet(Sirens(folder / f"{name}.sirens").sound, notifiers, city=city)
    running = fleet.running(
        journal=f"sqlite:{folder / name / 'city.db'}",
        key=options.key,
        peers=options.peer,
        agents=agents_of(name),
        bus=options.bus,
        site=name,
        node=name,
        ledger=options.ledger,
        mesh=options.mesh,
        take_over=options.take_over,
        models=f"folder:{options.models}",
        model_keys=[str(options.models / "signer.pub")],
    )
    async with contextlib.AsyncExitStack() as stack:
        live = await stack.enter_async_context(running)
        ready: dict[str, Any] = {"ready": name}
        if options.serve:
            served = await stack.enter_async_context(ServedFleet(running, live, options.serve))
            ready["url"] = served.url
        door = None
        if options.coap:
            host, _, port = options.coap.rpartition(":")
            door = await stack.enter_async_context(coap_door(live, host, int(port)))
        tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(report(live, name, folder / f"{name}.reports", door))]
        await stack.enter_async_context(running_tasks(tasks))
        for district in city.districts_of(name):
            await send(live, f"District/{district}", OpenDistrict(city))
        await send(live, f"Desk/{name}", OpenDesk(city.gateways))
        make_process_ours()
        print(json.dumps(ready), flush=True)
        tasks.append(failed := asyncio.ensure_future(live.wait_failure()))
        tasks.append(asyncio.ensure_future(stopped.wait()))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        note_exposure(live, name, folder)
        if failed.done():
            print(f"{name}: {failed.result()}", file=sys.stderr)
            return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m apps.city.node", description=__doc__)
    parser.add_argument("--name", required=True, help="g1, g2, …")
    parser.add_argument("--folder", type=Path, required=True, help="of the run")
    parser.add_argument("--sensors", type=int, required=True, help="of the whole city")
    parser.add_argument("--gateways", type=int, required=True)
    parser.add_argument("--key", type=Path, required=True, help="its own; not on the disk of the journal")
    parser.add_argument("--peer", action="append", default=[], metavar="KEY", help="the public key of another gateway")
    parser.add_argument("--bus", required=True, metavar="URL", help="the gateway's own broker")
    parser.add_argument("--ledger", required=True, metavar="URL")
    parser.add_argument("--mesh", required=True, metavar="URL")
    parser.add_argument("--webhook", required=True, metavar="URL")
    parser.add_argument("--mail", metavar="HOST:PORT")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--take-over", action="store_true", help="once, where the disk of this gateway was lost")
    parser.add_argument("--coap", metavar="HOST:PORT")
    parser.add_argument("--serve", metavar="HOST:PORT", help="the page and the API there")
    return asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
