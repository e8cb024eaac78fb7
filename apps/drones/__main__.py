"""The command: `python -m apps.drones --drones 500 --minutes 3 --seed 7` flies a swarm and says what was found."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from apps.drones import quality
from apps.drones.cluster import ClusterSwarm
from apps.drones.faults import FAULTS, all_of, impossible
from apps.drones.findings import show
from apps.drones.plan import AROUND_M, BUSY_SHARE, make_plan
from apps.drones.run import SPEED_MAX, Options, Swarm, Trouble
from apps.drones.telemetry import RATE_HZ
from stigmergy.testing.brokers import NoBroker

SPEED_HELP = f"""let the world run N times as fast as the clock, up to {SPEED_MAX:g}; flights, sensors, silence and
closed airspace have the world's time; messages, leases, rounds of dispatchers and restarts have the clock's, and so
take N times as long in the world"""


def read_speed(text: str) -> float:
    """From 1 to `SPEED_MAX`."""
    speed = float(text)
    if not 1.0 <= speed <= SPEED_MAX:
        why = "tracks would be too old when others hear of them" if speed > SPEED_MAX else "the world is no slower"
        raise argparse.ArgumentTypeError(f"{text}: give 1 to {SPEED_MAX:g}; {why}")
    return speed


def read_faults(text: str) -> tuple[str, ...]:
    """`all`, or a list of names."""
    names = (
        tuple(name for name in FAULTS if name != "two-drones")
        if text == "all"
        else tuple(name for name in text.split(",") if name)
    )
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: give all, or some of {', '.join(FAULTS)}")
    return names


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """What can be said."""
    parser = argparse.ArgumentParser(prog="python -m apps.drones", description=__doc__)
    parser.add_argument("--drones", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=2.0, help="for so long customers place jobs")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--faults", type=read_faults, default=(), metavar="all|NAME,NAME", help=", ".join(FAULTS))
    parser.add_argument("--speed", type=read_speed, default=1.0, metavar="N", help=SPEED_HELP)
    parser.add_argument("--share", type=float, default=BUSY_SHARE, help="of the drones that are to be busy")
    parser.add_argument("--around", type=float, default=AROUND_M, metavar="M", help="so far off customers live")
    parser.add_argument("--drain", type=float, default=900.0, metavar="S", help="wait so long for jobs to end, at most")
    parser.add_argument("--journal", choices=("sqlite", "segments"), default="sqlite")
    parser.add_argument("--serve", default="127.0.0.1:0", metavar="HOST:PORT", help="the page and the API")
    parser.add_argument("--stay", action="store_true", help="keep the page open when all has ended, until Ctrl-C")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="journals and witness go there, and stay")
    parser.add_argument(
        "--cluster", action="store_true", help="on three NATS servers and two workers, not on five nodes"
    )
    parser.add_argument("--by-hand", action="store_true", help="say what starts the cluster, and wait for it")
    parser.add_argument(
        "--telemetry", type=float, nargs="?", const=RATE_HZ, default=0.0, metavar="HZ", help="sample the airframes too"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


async def fly(options: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """One run, and what was found."""
    plan = make_plan(options.drones, options.seed, round(time.time(), 1), around_m=options.around)
    settings = Options(
        minutes=options.minutes,
        drain_s=options.drain,
        share=options.share,
        journal=options.journal,
        serve=options.serve,
        faults=options.faults,
        speed=options.speed,
        telemetry_hz=options.telemetry,
        stay=options.stay,
        by_hand=options.by_hand,
    )
    kind = ClusterSwarm if options.cluster else Swarm
    swarm = kind(
        plan, folder, settings, lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
    )
    return {"seed": options.seed, **await swarm.run(all_of)}


def main(arguments: list[str] | None = None) -> int:
    """Flies and judges. 1 if a promise was broken."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["quality"]:
        return quality.main(words[1:])
    options = parse(words)
    if options.telemetry and options.cluster:
        print("--telemetry needs rings, which workers of a cluster do not have: leave out --cluster", file=sys.stderr)
        return 2
    if options.by_hand and not options.cluster:
        print("--by-hand is for a cluster: add --cluster", file=sys.stderr)
        return 2
    if why := impossible(options.faults, options.cluster):
        print(f"--faults {why}", file=sys.stderr)
        return 2
    if options.speed > 1.0 and options.cluster:
        print(
            "--speed: sensors of a cluster measure by the clock, not by the world: leave out --cluster",
            file=sys.stderr,
        )
        return 2
    console = Console(stderr=options.json)
    try:
        with contextlib.ExitStack() as stack:
            folder = options.keep
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stigmergy-drones-")))
            folder = folder.resolve()
            folder.mkdir(parents=True, exist_ok=True)
            found = asyncio.run(fly(options, folder, console))
    except (Trouble, NoBroker) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        rounded = {key: round(one, 2) if isinstance(one, float) else one for key, one in found.items()}
        print(json.dumps(rounded))
    else:
        show(console, found)
    return 1 if found["violations"] or any(found["exit_codes"].values()) else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
