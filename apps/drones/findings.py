"""What was found, for people: what became of the jobs, what was broken meanwhile, and whether promises were kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

PROMISES = {
    "lost": "jobs lost",
    "doubled": "jobs delivered twice",
    "given_twice": "jobs given to two drones at a time",
    "separation_violations": "drones too close",
    "zone_intrusions": "drones that flew into closed airspace",
    "batteries_empty_in_the_air": "batteries empty in the air",
    "double_held_pads": "cells and pads with two drones",
}
"""What must not happen, as the checker counts it."""
NOTES = {"separation_violations": "must be 0: nearer than 10 m and 4 m in height"}
REASSIGNED_S_MAX = 10.0
"""The aim for a job whose drone has failed, at p99."""
FAILED = {"motor": "lost its motors", "radio": "lost its link", "computer": "restarted"}
TAKE_OVERS_MAX = 8
"""So many are told one by one."""


def show(console: Console, found: dict[str, Any]) -> None:
    """Prints all of it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for heading, rows in (("Jobs", _jobs), ("Promises", _promises), ("The run", _load)):
        table.add_row(f"[bold]{heading}[/bold]")
        for what, value, note in rows(found):
            table.add_row(f"  {what}", value, note)
        table.add_row()
    broken = list(_broken(found))
    if broken:
        console.print("\n[bold]What was broken[/bold]")
    for line in broken:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    console.print()
    console.print(table, highlight=False)
    for line in found["details"]:
        console.print(f"  [red]{line}[/red]", highlight=False, soft_wrap=True)
    kept = "[green]Every promise was kept.[/green]"
    console.print(f"[red]Broken promises: {found['violations']}.[/red]" if found["violations"] else kept)


def _jobs(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    minutes, seconds = divmod(round(found["delivery_mean_s"]), 60)
    yield "ordered by customers", str(found["jobs"]), ""
    yield "delivered", str(found["delivered"]), f"after {minutes}:{seconds:02d} minutes on average"
    yield "refused", str(found["refused"]), "too heavy for any drone"
    for key, note in (("given_up", "no drone could fly them"), ("cancelled", ""), ("under_way", "when the run ended")):
        if found[key]:
            yield key.replace("_", " "), str(found[key]), note


def _promises(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, what in PROMISES.items():
        yield what, _judged(str(found[key]), found[key] == 0), NOTES.get(key, "must be 0")
    if found["least_distance_m"] >= 0:
        yield (
            "least distance of two in the air",
            f"{found['least_distance_m']:.0f} m",
            "at another height, if below 10 m",
        )
    cut_off = found["reassigned_cut_off"]
    if linked := found["reassigned"] - cut_off:
        note = f"p99 of {linked} jobs, p50 {found['reassignment_p50_s']:.1f} s; aim: {REASSIGNED_S_MAX:.0f} s"
        yield "from a failure to the next drone", *_timed(found["reassignment_linked_p99_s"], note)
    if cut_off:
        note = f"the slowest of {cut_off} jobs behind a cut or a node that was down, since it was back"
        yield "the same, where nobody could know", *_timed(found["reassignment_rejoined_s_max"], note)


def _timed(seconds: float, note: str) -> tuple[str, str]:
    colour = "green" if seconds <= REASSIGNED_S_MAX else "yellow"
    return f"[{colour}]{seconds:.1f} s[/]", note


def _judged(value: str, is_kept: bool) -> str:
    return f"[{'green' if is_kept else 'bold red'}]{value}[/]"


def _load(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "drones", str(found["drones"]), f"{found['flown_h']:.1f} hours in the air, together"
    yield "seconds of the world in a second", f"{found['real_time_factor']:.2f}", ""
    busy = sorted(found["busy_share"].items(), key=lambda one: -one[1])
    yield "cores that were busy", f"{sum(found['busy_share'].values()):.2f}", _listed(busy)
    if found["frames_dropped"] or found["restarts"] or found["dead_letters"]:
        told = [(key, found[key]) for key in ("frames_dropped", "restarts", "dead_letters") if found[key]]
        yield "troubles", "", ", ".join(f"{key.replace('_', ' ')} {count}" for key, count in told)
    for key, value in found.items():
        if key.startswith("telemetry_"):
            yield key.replace("_", " "), f"{value:.2f}" if isinstance(value, float) else str(value), ""


def _listed(busy: list[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {share:.2f}" for name, share in busy[:4])


def _broken(found: dict[str, Any]) -> Iterator[str]:
    yield from found["faults"]
    if found["inside_when_announced"]:
        yield (
            f"{found['inside_when_announced']} drones were inside when it was announced; "
            f"the last one was out after {found['time_to_leave_s_max']:.0f} s"
        )
    take_overs = found["take_overs"]
    for one in take_overs[:TAKE_OVERS_MAX]:
        begin = f"{one['failed']} {FAILED[one['kind']]} while it had {one['job']}"
        yield f"{begin}; {one['by']} got it {one['after_s']:.1f} s later" if "by" in one else begin
    if len(take_overs) > TAKE_OVERS_MAX:
        yield f"… {found['reassigned']} jobs went to other drones"
