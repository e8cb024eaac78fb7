"""dbos with its SQLite store: the same five steps of a delivery, `python -m bench.contestants.dbos_workflow FOLDER`.

A step is a function that returns at once, and its result is on disk before the next one begins. What it has to undo is
written by hand in the workflow, as its manual shows. It opens SQLite with its defaults. Runs wait in threads.
"""

# mypy: disable-error-code="untyped-decorator, no-any-return"
# `make check` does without the library: what it finds must not depend on who has it.

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dbos import DBOS, SetWorkflowID

from bench.subjects import serve
from bench.workflows import STUCK, Flown, Fly
from stigmergy.base.system import make_process_ours


@DBOS.step()
def plan_route(drone: str) -> int:
    """Legs of a route."""
    return len(drone)


@DBOS.step()
def take_off(drone: str) -> str:
    """It flies."""
    return drone


@DBOS.step()
def land_here(drone: str) -> str:
    """Undoes it."""
    return drone


@DBOS.step()
def fly_to(drone: str, legs: int) -> tuple[str, int]:
    """It is there."""
    return drone, legs


@DBOS.step()
def release_parcel(drone: str, parcel: str) -> tuple[str, str]:
    """The parcel is there."""
    if parcel == STUCK:
        raise ValueError("the hook does not open")
    return drone, parcel


@DBOS.step()
def return_parcel(drone: str, parcel: str) -> tuple[str, str]:
    """Undoes it."""
    return drone, parcel


@DBOS.step()
def fly_home(drone: str) -> str:
    """It is back."""
    return drone


@DBOS.workflow()
def deliver(drone: str, parcel: str) -> str:
    """A delivery, with its compensation."""
    legs = plan_route(drone)
    take_off(drone)
    try:
        fly_to(drone, legs)
        release_parcel(drone, parcel)
    except Exception:
        land_here(drone)
        raise
    try:
        return fly_home(drone)
    except Exception:
        return_parcel(drone, parcel)
        land_here(drone)
        raise


class Flights:
    """The library, and how many runs it has carried out."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{folder}/delivery.sqlite"
        DBOS(
            config={"name": "delivery", "system_database_url": url, "run_admin_server": False, "log_level": "CRITICAL"}
        )
        DBOS.launch()
        self._count = 0

    def fly(self, request: Fly) -> Flown:
        """Carries out runs."""
        numbers = range(self._count, self._count + request.runs)
        self._count += request.runs
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(request.at_a_time) as threads:
            took_s = list(threads.map(_fail if request.fails else _run, numbers))
        return Flown(time.perf_counter() - began_s, time.process_time() - began_cpu_s, took_s)

    def close(self) -> None:
        """Ends it."""
        DBOS.destroy()


def _run(number: int) -> float:
    began_s = time.perf_counter()
    with SetWorkflowID(f"J-{number}"):
        if not deliver(f"D-{number}", f"P-{number}"):
            raise RuntimeError(f"J-{number} is not done")
    return time.perf_counter() - began_s


def _fail(number: int) -> float:
    began_s = time.perf_counter()
    try:
        with SetWorkflowID(f"J-{number}"):
            deliver(f"D-{number}", STUCK)
    except ValueError:
        return time.perf_counter() - began_s
    raise RuntimeError(f"J-{number} is done")


def main(arguments: list[str]) -> None:
    """Has it carry out what is asked for."""
    (folder,) = arguments
    flights = Flights(Path(folder))
    make_process_ours()
    try:
        serve(Fly, flights.fly)
    finally:
        flights.close()


if __name__ == "__main__":
    main(sys.argv[1:])
