"""`make prove [ARGS="kill flips --quick"]`: runs the proofs one after the other and says what each has shown.

Each runs in a process of its own: some fork, some fill memory on purpose, and a crash of one is a result, not the end.
A proof is a module of this package with `prove(*, quick: bool) -> Proof`. One that is not there is skipped, loudly.
Each has a stated time; one that is not done after TIME_FACTOR times that is ended and has failed. `make nightly` runs
all of them. Ends with 1 if a promise does not hold.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from proofs.report import Proof

ROOT = Path(__file__).resolve().parent.parent


class Row(Struct, frozen=True):
    """A proof, the row of the scorecard that it is for, and about how long it takes."""

    name: str
    row: str
    minutes: float
    """At full counts, on two cores with nothing else to do."""


ROWS = (
    Row("kill", "1", 4),
    Row("column_kill", "1", 6),
    Row("power_loss", "2", 4),
    Row("io_faults", "3", 5),
    Row("flips", "4", 4),
    Row("column_disk", "2-4", 8),
    Row("simulation", "5", 60),
    Row("fleets", "5, 6, 21", 60),
    Row("traffic", "21", 20),
    Row("drones", "21", 40),
    Row("exhaustive", "5", 3),
    Row("determinism", "6", 1),
    Row("planted", "7", 25),
    Row("mutation", "7", 18),
    Row("replay", "8", 5),
    Row("column_histories", "8", 3),
    Row("crdt_laws", "9", 25),
    Row("crdt_churn", "10", 1),
    Row("returning", "11", 6),
    Row("ledger_faults", "12", 35),
    Row("deltas", "15", 1),
    Row("fuzz", "17", 5),
    Row("airspace", "24, 14", 6),
    Row("workers", "25", 30),
    Row("claims", "", 8),
    Row("link_cuts", "", 6),
    Row("tells_routed", "", 25),
    Row("levels", "", 40),
    Row("gateways", "", 10),
    Row("engines", "", 20),
    Row("ring_kill", "", 1),
    Row("capture", "", 10),
    Row("nats_pipeline", "13", 18),
    Row("nats_fencing", "", 12),
    Row("copies", "", 8),
    Row("membership", "", 8),
    Row("long_tests", "", 25),
)
BY_NAME = {row.name: row for row in ROWS}
TIME_FACTOR = 1.5
"""A proof may take so many times its stated time: a machine may be slower or busy, but a night is short."""
END_S = 30.0
"""What a proof that took too long has to stop its servers, before it is killed."""


HISTORIES = 10_000
HISTORIES_QUICK = 150


def prove_replay(*, quick: bool = False) -> Proof:
    """Row 8: its check raises at the first history that goes wrong."""
    from proofs.replay import check_histories

    checked = check_histories(HISTORIES_QUICK if quick else HISTORIES, seed=1)
    return Proof(
        name="replay",
        promise="replay from zero, and snapshot with tail, end in the very state that was lived",
        cases=checked.histories,
        figures=msgspec.structs.asdict(checked),
    )


ADAPTED: dict[str, Callable[..., Proof]] = {"replay": prove_replay}
"""Checks that report in another way."""


class Missing(Exception):
    """There is no such proof in this checkout."""


def find(name: str) -> Callable[..., Proof]:
    """The function that runs a proof."""
    if importlib.util.find_spec(f"proofs.{name}") is None:
        raise Missing(f"proofs/{name}.py is not there")
    module = importlib.import_module(f"proofs.{name}")
    prove = getattr(module, "prove", None) or ADAPTED.get(name)
    if prove is None:
        raise Missing(f"proofs/{name}.py has no prove(*, quick)")
    found: Callable[..., Proof] = prove
    return found


def run_here(name: str, quick: bool) -> Proof:
    """Runs one proof in this process; an exception is a violation."""
    begin_s = time.monotonic()
    prove = find(name)
    try:
        proof = prove(quick=quick)
    except Exception as error:
        return Proof(
            name=name,
            promise="to run to its end",
            cases=1,
            violations=[f"{type(error).__name__}: {error}"],
            seconds=time.monotonic() - begin_s,
        )
    return msgspec.structs.replace(proof, seconds=time.monotonic() - begin_s)


def run_apart(name: str, quick: bool, seconds_max: float) -> Proof:
    """Runs one proof in a process of its own, and ends it with all that it has started if it takes longer than this."""
    begin_s = time.monotonic()
    command = [sys.executable, "-m", "proofs", name, "--here", *(["--quick"] if quick else [])]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        start_new_session=True,
        # What a shell runs in the background ignores a Ctrl-C, and so does all that it starts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        said, _ = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        late = f"not done after {seconds_max / 60:.1f} minutes; look where it hangs, or allow more with --time-factor"
        return Proof(name=name, promise="to end in time", cases=1, violations=[late], seconds=seconds_max)
    finally:
        _end(process)
    last = said.splitlines()[-1] if said.splitlines() else b""
    try:
        return msgspec.json.decode(last, type=Proof)
    except msgspec.DecodeError:
        ended = f"ended with {process.returncode} and without a result: {last[-300:].decode(errors='replace')}"
        return Proof(name=name, promise="to end", cases=1, violations=[ended], seconds=time.monotonic() - begin_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a proof that still runs: as Ctrl-C would, so that it stops its servers, and then by force."""
    for number, wait_s in ((signal.SIGINT, END_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            continue


def show(proof: Proof, console: Console) -> None:
    """What one proof has shown, in full."""
    style, verdict = ("green", "holds") if proof.holds else ("bold red", "DOES NOT HOLD")
    console.rule(f"{proof.name}: {verdict}", style=style, align="left")
    console.print(f"{proof.promise}", style="italic", highlight=False)
    for name, value in proof.figures.items():
        lines = value if isinstance(value, list) else [f"{value:,}" if isinstance(value, int) else str(value)]
        for number, line in enumerate(lines):
            console.print(f"  {name if number == 0 else '':32} {line}", highlight=False, soft_wrap=True)
    for violation in proof.violations:
        console.print(f"  violation: {violation}", style="red", highlight=False, soft_wrap=True)


def show_all(proofs: list[Proof], skipped: dict[str, str], seconds: float, console: Console) -> None:
    """The table at the end."""
    table = Table(title=f"{len(proofs)} proofs in {seconds / 60:.1f} minutes", title_justify="left")
    for column in ("row", "proof", "cases", "violations", "seconds", ""):
        table.add_column(column, justify="right" if column in ("cases", "violations", "seconds") else "left")
    for proof in proofs:
        verdict = "[green]holds[/]" if proof.holds else "[bold red]does not hold[/]"
        row = BY_NAME[proof.name].row if proof.name in BY_NAME else ""
        counts = (f"{proof.cases:,}", str(len(proof.violations)), f"{proof.seconds:.1f}")
        table.add_row(row, proof.name, *counts, verdict)
    for name, why in skipped.items():
        table.add_row(BY_NAME[name].row, name, "", "", "", f"[bold yellow]SKIPPED: {why}[/]")
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """Runs what the command line names, or everything."""
    parser = argparse.ArgumentParser(prog="make prove", description=__doc__)
    parser.add_argument("proof", nargs="*", metavar="PROOF", help=f"of {', '.join(BY_NAME)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="small counts: a minute or two in all")
    parser.add_argument(
        "--time-factor",
        type=float,
        default=TIME_FACTOR,
        help="a proof fails if it takes longer than so many times its stated time (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome for machines")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.proof if name not in BY_NAME]
    if unknown:
        parser.error(f"{unknown[0]!r} is no proof; there are {', '.join(BY_NAME)}")
    if options.here:
        print(msgspec.json.encode(run_here(options.proof[0], options.quick)).decode(), flush=True)
        return 0
    return run_all(options.proof or list(BY_NAME), options.quick, options.json, options.time_factor)


def run_all(names: list[str], quick: bool, as_json: bool, time_factor: float = TIME_FACTOR) -> int:
    """Runs these proofs and prints what they have shown."""
    console = Console(stderr=as_json)
    begin_s = time.monotonic()
    proofs: list[Proof] = []
    skipped: dict[str, str] = {}
    if not quick:
        minutes = sum(BY_NAME[name].minutes for name in names)
        console.print(f"{len(names)} proofs, about {minutes:.0f} minutes in all, {time_factor * minutes:.0f} at most")
    for name in names:
        try:
            find(name)
        except Missing as why:
            skipped[name] = str(why)
            console.print(f"SKIPPED {name}: {why}", style="bold yellow")
            continue
        console.print(f"{name} …", style="dim")
        proofs.append(run_apart(name, quick, time_factor * BY_NAME[name].minutes * 60))
        show(proofs[-1], console)
    seconds = time.monotonic() - begin_s
    show_all(proofs, skipped, seconds, console)
    holds = bool(proofs) and all(proof.holds for proof in proofs)
    if as_json:
        outcome = {"holds": holds, "seconds": seconds, "proofs": proofs, "skipped": skipped}
        print(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
