"""What a workflow consists of: steps, branches, parallel parts. Checked when it is defined; pure.

    delivery = Workflow(
        "Delivery", Deliver,                                   # the kind of its runs, and the command that begins one
        Step(PlanRoute, done=RoutePlanned, at="gateway"),
        Step(TakeOff, done=Airborne, undo=LandHere, within_s=30),
        Step(FlyTo, done=Arrived, again_from=PlanRoute, on=ObstacleDetected, tries=3),
        to="Drone/{drone}",
    )

The fields of a step's message are taken by name from the command that began the run and from the events of the steps
before it; `make=` says something else. A definition is compiled to a list of instructions, which `run` carries out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from string import Formatter
from typing import Any, Literal

from blake3 import blake3
from msgspec import NODEFAULT, Struct, structs
from msgspec.structs import fields as struct_fields

from stigmergy.agents.codec import encode
from stigmergy.agents.confirmations import Done, Failed
from stigmergy.agents.messages import (
    Action,
    Command,
    Event,
    Message,
    Work,
    own_fields,
    plain_name,
    resolve_hints,
    spec_of,
)
from stigmergy.base.errors import DefinitionError
from stigmergy.workflows.program import (
    Choose,
    Condition,
    Do,
    End,
    Fork,
    Instruction,
    Join,
    Jump,
    parts_of,
)
from stigmergy.workflows.step import (
    UNDO,
    AnyWorkflow,
    Holding,
    Step,
    is_class,
    line_of_caller,
    name_of,
    undone_by,
)

STEPS_COUNT_MAX = 200


class Parallel:
    """Parts that run at the same time, each a step or a tuple of steps.

    `join="all"` goes on when all are done; `"any"` with the first, and undoes the others."""

    def __init__(self, *parts: Any, join: Literal["all", "any"] = "all") -> None:
        line = line_of_caller()
        if len(parts) < 2 or join not in ("all", "any"):
            raise DefinitionError(
                f"{line}: Parallel(…, join={join!r}); give two parts or more, and join='all' or 'any'"
            )
        self.parts = tuple(_part(line, part) for part in parts)
        self.join = join

    @property
    def outline(self) -> Mapping[str, Any]:
        """What people see of it."""
        return {"parallel": [_outline(part) for part in self.parts], "join": self.join}


class Branch:
    """`then` if the condition holds for the run, `otherwise` if not; each a step or a tuple of steps.

    The choice is an event in the run's log: a replay does not choose again."""

    def __init__(self, condition: Condition, *, then: Any, otherwise: Any = (), name: str = "") -> None:
        line = line_of_caller()
        if not callable(condition):
            raise DefinitionError(f"{line}: Branch({condition!r}); give a function of the run that says yes or no")
        self.condition = condition
        self.name = name or getattr(condition, "__name__", "").replace("<lambda>", "")
        self.then, self.otherwise = _part(line, then), _part(line, otherwise)

    @property
    def outline(self) -> Mapping[str, Any]:
        """What people see of it."""
        return {"branch": self.name or "if", "then": _outline(self.then), "otherwise": _outline(self.otherwise)}


def _outline(items: tuple[Any, ...]) -> list[Any]:
    return [item.outline for item in items]


def _part(line: str, part: Any) -> tuple[Any, ...]:
    items = tuple(part) if isinstance(part, list | tuple) else (part,)
    for item in items:
        if not isinstance(item, Step | Parallel | Branch):
            raise DefinitionError(f"{line}: {item!r} is no part of a workflow; give Step(…), Parallel(…) or Branch(…)")
    return items


class Workflow(AnyWorkflow):
    """A definition. `Fleet(…, workflows=[delivery])` runs it; each run is an agent of its kind: `Delivery/J-17`."""

    def __init__(self, kind: str, start: type[Command], *items: Any, to: str = "", version: int = 1) -> None:
        """`start` is the command that begins a run. `to` is the agent of all steps that name none, such as
        `Drone/{drone}`. Raise `version` when you change the steps, and give the fleet both, so that runs under way end
        as they began."""
        self.line = line_of_caller()
        if not str(kind).isidentifier():
            raise DefinitionError(
                f"{self.line}: Workflow({kind!r}, …): the kind of its runs is a name, such as Delivery"
            )
        if not is_class(start, Command):
            raise DefinitionError(
                f"{self.line}: workflow {kind}: give the class of the command that begins a run first"
            )
        if version < 1:
            raise DefinitionError(f"{self.line}: workflow {kind}: version={version!r}; versions count from 1")
        self.kind, self.start, self.version = kind, start, version
        self.steps: dict[str, Step] = {}
        """All steps by name; those that undo others as `undo TakeOff`."""
        self.program: list[Instruction] = []
        self.at: dict[str, int] = {}
        """Where each step is in the program."""
        items = _part(self.line, items)
        if not items:
            raise DefinitionError(f"{self.line}: workflow {kind} has no step")
        self.outline = _outline(items)
        """Its steps as people see them: nested, for a page that draws them."""
        self._compile(items, to)
        self.program.append(End())
        self._check_loops()
        self._check_told_apart()
        FieldCheck(self).check(items)
        self.digest = blake3(encode(self._described())).hexdigest(length=16)

    def _compile(self, items: tuple[Any, ...], to: str) -> None:
        for item in items:
            if isinstance(item, Step):
                self._add(item, to)
            elif isinstance(item, Branch):
                self._compile_branch(item, to)
            else:
                self._compile_parallel(item, to)

    def _compile_branch(self, item: Branch, to: str) -> None:
        start = len(self.program)
        self.program.append(End())  # replaced below
        self._compile(item.then, to)
        over = len(self.program)
        self.program.append(End())
        self.program[start] = Choose(item.name or f"branch {start}", item.condition, len(self.program))
        self._compile(item.otherwise, to)
        self.program[over] = Jump(len(self.program))

    def _compile_parallel(self, item: Parallel, to: str) -> None:
        start = len(self.program)
        self.program.append(End())
        parts, ends = [], []
        for part in item.parts:
            parts.append(len(self.program))
            self._compile(part, to)
            ends.append(len(self.program))
            self.program.append(End())
        join = len(self.program)
        self.program.append(Join(item.join == "any"))
        self.program[start] = Fork(tuple(parts), join)
        for end in ends:
            self.program[end] = Jump(join)

    def _add(self, item: Step, to: str) -> None:
        if item.name in self.steps:
            raise DefinitionError(f"{item.line}: two steps are called {item.name}; give one of them name=")
        if len(self.at) >= STEPS_COUNT_MAX:
            raise DefinitionError(f"{item.line}: more than {STEPS_COUNT_MAX} steps; make a part of them a workflow")
        found = item.told_to(to)
        if is_class(found.does, Command):
            _check_target(found)
        self.steps[found.name] = found
        self.at[found.name] = len(self.program)
        self.program.append(Do(found.name))
        for undo in found.undoing():
            if is_class(undo.does, Command):
                _check_target(undo)
            self.steps[undo.name] = undo

    def _check_loops(self) -> None:
        """A run goes back only to a step before: not out of or into a part of a Parallel, and not into a Branch."""
        for one in self.steps.values():
            if not one.again_from:
                continue
            if one.again_from not in self.at:
                raise DefinitionError(f"{one.where}: again_from={one.again_from} is no step of {self.kind}")
            back, here = self.at[one.again_from], self.at[one.name]
            into = [arm for arm in self._arms() if back in arm and here not in arm]
            if back > here or into or self._parts_at(back) != self._parts_at(here):
                raise DefinitionError(
                    f"{one.where}: again_from={one.again_from} must be a step before it, in the same part of a "
                    "Parallel, and not inside a Branch"
                )

    def _arms(self) -> Iterator[range]:
        """The instructions of each side of each branch."""
        for at, one in enumerate(self.program):
            if isinstance(one, Choose):
                over = self.program[one.otherwise - 1]
                assert isinstance(over, Jump)
                yield range(at + 1, one.otherwise)
                yield range(one.otherwise, over.to)

    def _parts_at(self, at: int) -> tuple[range, ...]:
        """The parts of Parallels that an instruction is in, the outermost first."""
        return tuple(part for fork in self._forks() for part in parts_of(fork) if at in part)

    def _forks(self) -> list[Fork]:
        return [one for one in self.program if isinstance(one, Fork)]

    def _check_told_apart(self) -> None:
        """Two steps that may be under way at once must not wait for the same: it could not be told whose it is."""
        for first, second in combinations(self.steps.values(), 2):
            alike = _alike(first, second)
            if alike and self._may_overlap(first.name, second.name):
                raise DefinitionError(
                    f"{second.where}: {alike} could not be told from that of the step {first.name}, which may be under "
                    "way at the same time; derive a class of its own for one of them"
                )

    def _may_overlap(self, first: str, second: str) -> bool:
        """Whether both steps may be under way at once: in two parts of a Parallel, or what undoes a part that was not
        the first beside what comes next."""
        ats = [self.at[undone_by(name)] for name in (first, second)]
        again = any(self.steps[undone_by(name)].repeat for name in (first, second))
        undoes = [name.startswith(UNDO) for name in (first, second)]
        for fork in self._forks():
            inside = [next((part for part in parts_of(fork) if at in part), None) for at in ats]
            loses = isinstance(join := self.program[fork.join], Join) and join.any
            if inside[0] == inside[1]:
                continue
            if None not in inside and (not any(undoes) or loses or again):
                return True
            if loses and any(part is not None and undo for part, undo in zip(inside, undoes, strict=True)):
                return True
        return False

    def _described(self) -> Any:
        """What a run under way depends on. Texts, times and functions may change."""
        lines: list[Any] = [(self.kind, spec_of(self.start).tag)]
        for one in self.program:
            if isinstance(one, Do):
                lines.append(("do", one.step, *_description(self.steps[one.step])))
            else:
                lines.append((type(one).__name__, [one.otherwise] if isinstance(one, Choose) else structs.astuple(one)))
        return lines

    def messages(self) -> Iterator[type[Message]]:
        """All actions and work that its steps carry out themselves."""
        for one in self.steps.values():
            if is_class(one.does, (Action, Work)):
                yield one.does

    def __repr__(self) -> str:
        return f"Workflow({self.kind!r}, version={self.version})"


def _check_target(of: Step) -> None:
    kind, slash, agent = of.to.partition("/")
    if not slash or not kind or not agent or "/" in agent or "{" in kind:
        raise DefinitionError(
            f"{of.where}: to={of.to!r}; name the agent that carries it out in the step or in the workflow, "
            "such as to='Drone/{drone}'"
        )


def names_in(template: str) -> list[str]:
    """The names between braces."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def _description(of: Step) -> tuple[Any, ...]:
    does = of.does
    what = spec_of(does).tag if isinstance(does, type) else name_of(does)
    tags = [None if event is None else spec_of(event).tag for event in (of.done, of.undo, of.undone, of.on, of.fails)]
    return (what, *tags, of.again_from)


def _alike(first: Step, second: Step) -> str:
    """What comes back of both and says nothing of which it is of; empty: nothing."""
    if first.is_told and second.is_told:
        commanded = is_class(first.does, Command) and is_class(second.does, Command)
        same = first.done if commanded and first.to == second.to and first.done is second.done else None
        return same.__name__ if same is not None else ""
    shared = _taken_by_type(first) & _taken_by_type(second)
    return ", ".join(sorted(one.__name__ for one in shared))


def _taken_by_type(of: Step) -> set[type[Any]]:
    """What a run takes for the step only because of its type."""
    if of.is_told or not isinstance(of.does, type):
        return set()
    return {one for one in (of.does, of.done, of.on, of.fails) if one is not None}


def _hints(message: type[Message]) -> dict[str, str]:
    hints = resolve_hints(message, message.__qualname__)
    return {name: plain_name(hints[name]) for name in own_fields(message)}


class KnownFields(Struct, frozen=True):
    """What is known by a name at some point of a workflow, with the names of its types."""

    certain: frozenset[str]
    """What is known however the run came there."""
    types: Mapping[str, frozenset[str]]

    def after(self, event: type[Message]) -> KnownFields:
        """Once this has come."""
        hints = _hints(event)
        return KnownFields(
            self.certain | set(hints), {**self.types, **{name: frozenset({hint}) for name, hint in hints.items()}}
        )

    def perhaps_after(self, events: Iterable[type[Message]]) -> KnownFields:
        """If one or the other of these may have come."""
        types = dict(self.types)
        for name, hint in (pair for event in events for pair in _hints(event).items()):
            types[name] = types.get(name, frozenset()) | {hint}
        return KnownFields(self.certain, types)


def _met(ways: Sequence[KnownFields], *, any_of: bool) -> KnownFields:
    """Where several ways meet: one of them was gone, or all of them."""
    certain = ways[0].certain
    for way in ways[1:]:
        certain = certain & way.certain if any_of else certain | way.certain
    names = dict.fromkeys(name for way in ways for name in way.types)
    return KnownFields(
        certain, {name: frozenset().union(*(way.types.get(name, frozenset()) for way in ways)) for name in names}
    )


class FieldCheck:
    """Checks that each field of a step's message, and each name in a template, comes from somewhere."""

    def __init__(self, workflow: Workflow) -> None:
        self._steps = workflow.steps
        self._known = KnownFields(frozenset(), {}).after(workflow.start)
        self._again: dict[str, list[type[Event]]] = {}
        """By step, what may have come when the run goes back to it."""
        for one in workflow.steps.values():
            if one.again_from:
                loop = range(workflow.at[one.again_from], workflow.at[one.name] + 1)
                inside = [event for name, at in workflow.at.items() if at in loop for event in self._events(name)]
                self._again.setdefault(one.again_from, []).extend(inside)
        self._all = [event for name in workflow.at for event in self._events(name)]

    def _events(self, name: str) -> list[type[Event]]:
        found = self._steps[name]
        return [event for event in (found.done, found.on) if event is not None and not issubclass(event, Done | Failed)]

    def check(self, items: Iterable[Any]) -> None:
        """Raises DefinitionError, with the line of the step."""
        self._walk(items, self._known)

    def _walk(self, items: Iterable[Any], known: KnownFields) -> KnownFields:
        for item in items:
            if isinstance(item, Step):
                known = self._step(item.name, known)
            elif isinstance(item, Branch):
                known = _met([self._walk(item.then, known), self._walk(item.otherwise, known)], any_of=True)
            else:
                inside = [event for name in _names(item.parts) for event in self._events(name)]
                known = known.perhaps_after(inside)
                known = _met([self._walk(part, known) for part in item.parts], any_of=item.join == "any")
        return known

    def _step(self, name: str, known: KnownFields) -> KnownFields:
        step, undo = self._steps[name], self._steps.get(f"{UNDO}{name}")
        known = known.perhaps_after(self._again.get(name, ()))
        _check_step(step, known)
        if step.done is not None and not issubclass(step.done, Done | Failed):
            known = known.after(step.done)
        if undo is not None:
            _check_step(undo, known.perhaps_after(self._all))
        return known


def _names(parts: Iterable[Any]) -> Iterator[str]:
    """The steps in these parts."""
    for item in (item for part in parts for item in part):
        if isinstance(item, Step):
            yield item.name
        else:
            yield from _names(item.parts if isinstance(item, Parallel) else (item.then, item.otherwise))


def _check_step(of: Step, known: KnownFields) -> None:
    names = ", ".join(name for name in known.types if name in known.certain) or "no fields"
    if is_class(of.does, Event):
        for name in of.matched:
            if name not in known.certain or known.types[name] != {_hints(of.does)[name]}:
                raise DefinitionError(f"{of.where}: match={of.matched!r}: {name} is not known then, with the same type")
    texts = [of.to, *of.at, *([of.does.text] if isinstance(of.does, Holding) else [])]
    for name in (name for text in texts for name in names_in(text)):
        if name not in known.certain:
            raise DefinitionError(
                f"{of.where}: {{{name}}} is not known then; known are {names}, of the command that begins the run and "
                "of the events before"
            )
    does = of.does.start if isinstance(of.does, Workflow) else of.does
    if is_class(does, (Action, Work)) and does.__struct_config__.forbid_unknown_fields:
        raise DefinitionError(
            f"{of.where}: {does.__name__} has forbid_unknown_fields, but its try is written beside its fields; leave "
            "that out"
        )
    if of.make is not None or not is_class(does, (Command, Action, Work)):
        return
    for field in struct_fields(does):
        wanted = _hints(does).get(field.name)
        if wanted is None:
            continue
        has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
        if field.name not in known.certain and not has_default:
            raise DefinitionError(
                f"{of.where}: nobody says what {does.__name__}.{field.name} is; known are {names}; give the step make="
            )
        others = known.types.get(field.name, frozenset()) - {wanted, *(("int",) if wanted == "float" else ())}
        if others:
            raise DefinitionError(
                f"{of.where}: {does.__name__}.{field.name} is {wanted}, and what is known by that name is "
                f"{' or '.join(sorted(others))}; give the step make="
            )
