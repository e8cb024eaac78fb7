"""`stigmergy workflows`: the runs of workflows on a running node or a fleet on workers, and one of them step by step.

Runs are agents, so this asks what any listing of agents asks. Which kinds are runs is told by the commands they take.
"""

from __future__ import annotations

import argparse
from typing import Any

from msgspec import Struct

from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import UnknownKind
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, HEADING, NAME, WARN, Cell, Output, shown_fields
from stigmergy.cli.display.places import add_place, ask, find_place
from stigmergy.control.protocol import AgentsRequest, ExplainRequest, NamesRequest
from stigmergy.control.replies import ListedAgent, MissingPart
from stigmergy.workflows.messages import ApproveStep, CancelRun, DenyStep, RetryUndo

HISTORY_COUNT_MAX = 1_000
"""So many of the last entries of a run's log are shown."""
STATUSES = ("running", "undoing", "done", "undone", "stuck")
STYLES = {"running": GOOD, "undoing": WARN, "undone": WARN, "stuck": BAD, "failed": BAD, "again": WARN}
COMMANDS = {command.__name__ for command in (ApproveStep, CancelRun, DenyStep, RetryUndo)}
OURS = "stigmergy."
LEFT_OPEN = ("", 0, -1)
"""Values of fields that say nothing: no step, no try, not again."""
SAID = ("holds",)
"""Fields of which every value says something."""
EXAMPLES = """examples:
  stigmergy workflows                                  all runs, and where each stands
  stigmergy workflows Delivery --status stuck
  stigmergy workflows Delivery/J-17                    one run, step by step
  stigmergy send Delivery/J-17 CancelRun reason=rain   ends it: what it has done is undone
"""


class ShownStep(Struct, frozen=True):
    """What is known of a step."""

    step: str
    state: str
    attempt: int
    since: str
    to: str
    reason: str


class ShownRun(Struct, frozen=True):
    """Where a run stands. `since` is the time of its last step, `steps` are those under way, or of one run all."""

    run: str
    kind: str
    status: str
    version: int
    reason: str
    since: str
    parent: str
    steps: list[ShownStep]
    stopped: str | None


class ShownRuns(Struct, frozen=True):
    """A page of runs."""

    runs: list[ShownRun]
    next: str | None
    missing: list[MissingPart]


def add_commands(commands: Any) -> None:
    """Adds `workflows`."""
    parser = commands.add_parser(
        "workflows",
        run=show,
        help="show runs of workflows, or one step by step",
        description="Lists the runs of workflows of a running node or of a fleet on workers; of one run, shows each "
        "step and what happened, with times and reasons.",
        epilog=EXAMPLES,
    )
    parser.add_argument("agent", metavar="KIND/NAME", nargs="?", help="one run; or only a KIND, such as Delivery")
    parser.add_argument("--status", choices=STATUSES, help="only runs that stand so")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="so many at most (100)")
    parser.add_argument("--after", metavar="KIND/NAME", default="", help="begin behind this one")
    add_place(parser, nats=True)


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Lists runs, or shows one."""
    place = find_place(arguments)
    kinds = [
        kind for kind, names in ask(place, NamesRequest(limit=1)).kinds.items() if names.commands.keys() >= COMMANDS
    ]
    kind, slash, _ = (arguments.agent or "").partition("/")
    if kind and kind not in kinds:
        raise UnknownKind(f"{kind!r} is no workflow here; there are {', '.join(sorted(kinds)) or 'none'}")
    if slash:
        return _show_run(place, arguments.agent, output)
    found = _runs(place, [kind] if kind else kinds, arguments)
    output.document(found)
    rows = [row for run in found.runs for row in _rows(run)]
    output.table(("RUN", "STATUS", "STEP", "SINCE", "TRY", "REASON") if rows else (), rows)
    if not rows:
        output.note("no such runs" if kinds else "the fleet has no workflows")
    if found.next is not None:
        output.note(f"there are more: --after {found.next}")
    for part in found.missing:
        output.note(f"not shown: {part.why}", BAD)
    return exits.NOT_RUNNING if found.missing else exits.OK


def _runs(place: Any, kinds: list[str], arguments: argparse.Namespace) -> ShownRuns:
    """A page of the runs of these kinds, by address."""
    where = ["status!=new"] if arguments.status is None else [f"status={arguments.status}"]
    runs: list[ShownRun] = []
    missing: dict[str, MissingPart] = {}
    for kind in sorted(kinds, key=lambda one: f"{one}/"):
        left = arguments.limit - len(runs)
        if not left:
            return ShownRuns(runs, runs[-1].run, list(missing.values()))
        page = ask(place, AgentsRequest(kind=kind, where=where, limit=left, after=arguments.after))
        runs += [_shown(one) for one in page.agents]
        missing |= {part.why: part for part in page.missing}
        if page.next is not None:
            return ShownRuns(runs, page.next, list(missing.values()))
    return ShownRuns(runs, None, list(missing.values()))


def _shown(listed: ListedAgent, *, every_step: bool = False) -> ShownRun:
    state = listed.state
    steps = [
        ShownStep(name, its["state"], its["attempt"], _time(its["since_s"]), its["to"], its["reason"])
        for name, its in state["steps"].items()
    ]
    return ShownRun(
        run=listed.agent,
        kind=listed.agent.partition("/")[0],
        status=state["status"],
        version=state["version"],
        reason=state["reason"],
        since=max((step.since for step in steps), default=""),
        parent=state["parent"],
        steps=[step for step in steps if every_step or step.state in ("begun", "again")],
        stopped=listed.stopped,
    )


def _time(since_s: float) -> str:
    return readable_time(round(since_s * 1e9))


def _rows(run: ShownRun) -> list[tuple[Cell, ...]]:
    """A line for each step under way; one for a run that has none."""
    name: Cell = (run.run, BAD if run.stopped else NAME)
    status: Cell = (run.status, STYLES.get(run.status, ""))
    if not run.steps:
        return [(name, status, "", run.since, "", run.stopped or run.reason)]
    return [
        (name, status, step.step, step.since, str(step.attempt), run.stopped or step.reason or run.reason)
        for step in run.steps
    ]


def _show_run(place: Any, address: str, output: Output) -> int:
    """One run: its steps, and its log."""
    found = ask(place, ExplainRequest(agent=address, limit=HISTORY_COUNT_MAX))
    if found.state["status"] == "new":
        output.document({"run": address, "status": "new"})
        output.note(f"{address} has not begun, or was never asked for")
        return exits.REFUSED
    run = _shown(ListedAgent(found.agent, found.shard, found.stopped, found.state), every_step=True)
    history = [
        {"time": one.time, "position": one.position, "event": one.type.partition("@")[0], "fields": one.fields}
        for one in found.entries
        if one.kind == "event"
    ]
    output.document({**{name: getattr(run, name) for name in ShownRun.__struct_fields__}, "history": history})
    said: list[Cell] = [(run.run, NAME), "  ", (run.status, STYLES.get(run.status, "")), f"  version {run.version}"]
    output.line(*said, f"  {run.reason}" if run.reason else "", f"  a step of {run.parent}" if run.parent else "")
    if run.stopped:
        output.line(("stopped", BAD), f"  {run.stopped}; go on with: stigmergy resume {run.run}")
    rows: list[tuple[Cell, ...]] = [
        (one.step, (one.state, STYLES.get(one.state, "")), one.since, str(one.attempt), one.to, one.reason)
        for one in run.steps
    ]
    output.table(("STEP", "STATE", "SINCE", "TRY", "AT", "REASON"), rows)
    output.line(("what happened", HEADING))
    output.table((), [_happened(one) for one in history])
    return exits.OK


def _happened(one: dict[str, Any]) -> tuple[Cell, ...]:
    """A line of the history; of the framework's own events without what they leave open."""
    name, fields = one["event"], one["fields"]
    if name.startswith(OURS):
        fields = {key: value for key, value in fields.items() if value not in LEFT_OPEN or key in SAID}
    return (f"  {one['time']}", (name.removeprefix(OURS), NAME), shown_fields(fields))
