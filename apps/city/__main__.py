"""The command: `python -m apps.city --sensors 2000 --gateways 5 --faults all --json` runs a city and judges it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from apps.city.faults import FAULTS, all_of
from apps.city.run import CityRun, Options
from apps.processes import Trouble
from stigmergy.testing.brokers import NoBroker


def read_faults(text: str) -> tuple[str, ...]:
    """`all`, or a list of names."""
    names = tuple(FAULTS) if text == "all" else tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: give all, or some of {', '.join(FAULTS)}")
    return names


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """What can be said."""
    parser = argparse.ArgumentParser(prog="python -m apps.city", description=__doc__)
    parser.add_argument(
        "--sensors", type=int, default=2000, help="at least 20 for each district, of which a gateway has 4"
    )
    parser.add_argument("--gateways", type=int, choices=(1, 3, 5), default=5)
    parser.add_argument("--steps", type=int, default=30, help="readings of each sensor")
    parser.add_argument("--period", type=float, default=4.0, metavar="S", help="between two readings of a sensor")
    parser.add_argument("--leaks", type=int, default=20)
    parser.add_argument("--broken", type=int, default=3, help="sensors whose heaters fail")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--faults", type=read_faults, default=(), metavar="all|NAME,NAME", help=", ".join(FAULTS))
    parser.add_argument("--drain", type=float, default=180.0, metavar="S", help="wait so long for the end, at most")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="journals and wires go there, and stay")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def show(found: dict[str, Any]) -> None:
    """For people."""
    for key, value in found.items():
        if key not in ("details", "faults"):
            print(f"{key.replace('_', ' '):32} {value}")
    for line in (*found["faults"], *found["details"]):
        print(f"  {line}")


def main(arguments: list[str] | None = None) -> int:
    """Runs and judges. 1 if a promise was broken."""
    options = parse(arguments)
    if options.sensors < options.gateways * 80:
        print(f"--sensors {options.sensors}: give at least {options.gateways * 80}", file=sys.stderr)
        return 2
    settings = Options(
        sensors=options.sensors,
        gateways=options.gateways,
        steps=options.steps,
        period_s=options.period,
        leaks=options.leaks,
        broken=options.broken,
        seed=options.seed,
        faults=options.faults,
        drain_s=options.drain,
    )
    try:
        with contextlib.ExitStack() as stack:
            folder = options.keep
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stigmergy-city-")))
            folder = folder.resolve()
            folder.mkdir(parents=True, exist_ok=True)
            out = sys.stderr if options.json else sys.stdout
            run = CityRun(folder, settings, lambda text: print(text, file=out, flush=True))
            found = asyncio.run(run.run(all_of))
    except (Trouble, NoBroker) as error:
        print(error, file=sys.stderr)
        return 1
    rounded = {key: round(one, 3) if isinstance(one, float) else one for key, one in found.items()}
    if options.json:
        print(json.dumps(rounded))
    else:
        show(rounded)
    return 1 if found["violations"] or any(found["exit_codes"].values()) else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
