"""One step of a workflow: what it does, how the run learns that it is done, and what undoes it.

Pure. Mistakes are refused when it is made, with the file and line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from types import CodeType, FunctionType
from typing import Any

from msgspec import Struct

from stigmergy.agents.confirmations import Done
from stigmergy.agents.messages import BINDING, Action, Command, Event, Message, Work
from stigmergy.agents.ordered import Pool
from stigmergy.base.errors import DefinitionError
from stigmergy.workflows.matching import matched_fields

WITHIN_S = 3600.0
"""So long a step may take at each try, unless it says otherwise."""
WITHIN_S_MAX = 366 * 24 * 3600.0
TRIES_MAX = 1_000
UNDO_TRIES = 10
"""How often an undo is tried before its run is stuck."""
RETRY_S_MAX = 300.0
"""The longest pause between two tries."""
NAME_CHARS_MAX = 48
"""Of a step: its name is part of the addresses of agents."""
HERE = "here"
"""The place of a step that runs where its run is."""
UNDO = "undo "
"""Before the name of a step: the step that undoes it."""

BOUND_ELSEWHERE = (
    f"{BINDING}= binds it to a claim of the run, and the agent at= another place holds none, so it would be dropped "
    "there; leave at= out and run the workflow on the node of that place, or give it the token of the claim as a field"
)

Make = Callable[[Any], Message]


def undone_by(name: str) -> str:
    """The step that a step undoes: `Beep` of `undo Beep at gateway`; of any other step itself."""
    return name.removeprefix(UNDO).partition(" ")[0]


class AnyWorkflow:
    """A workflow, which may be a step of another one."""

    kind: str
    """Of its runs."""


class Approval(Struct, frozen=True):
    """A step that a person does: it waits for `ApproveStep` or `DenyStep`."""

    by: str
    """Who is asked, such as a role; for people to read."""


class Holding(Struct, frozen=True):
    """A step that claims a resource; the run holds it until its end, or until the step is undone."""

    resource: str | Pool
    """Such as `pad-{pad}`, or any one of `pool("pad-1", "pad-2")`."""
    for_s: float = 60.0
    wait_s: float = 600.0

    @property
    def text(self) -> str:
        """The resource, or all of a pool."""
        return self.resource.text if isinstance(self.resource, Pool) else self.resource


class Releasing(Struct, frozen=True):
    """Undoes a `Holding`: gives the claim back."""

    of: str


class Cancelling(Struct, frozen=True):
    """Undoes a workflow that is a step: its run undoes itself."""

    of: str


class Step:
    """One step: what it does, and how the run learns that it is done: `Step(TakeOff, done=Airborne)`."""

    def __init__(
        self,
        does: Any,
        *,
        done: type[Event] | None = None,
        undo: type[Message] | None = None,
        undone: type[Event] | None = None,
        to: str = "",
        at: str | Sequence[str] = HERE,
        within_s: float = WITHIN_S,
        tries: int = 1,
        retry_s: float = 1.0,
        again_from: type[Message] | str | None = None,
        on: type[Event] | None = None,
        fails: type[Event] | None = None,
        make: Make | None = None,
        make_undo: Make | None = None,
        match: Sequence[str] | None = None,
        name: str = "",
        repeat: bool = False,
    ) -> None:
        """`does` is a command for the agent `to`, an action or work for the node that is `at` a place, an event to wait
        for, an `Approval`, a `Holding`, or another workflow. `done` is the event that ends it. `undo` and `undone` are
        the same for its compensation. `tries` is how often it is begun at most; between two tries there is a pause of
        `retry_s`, and twice as long each time. `on` is an event that sends the run back to the step `again_from`, after
        such a pause; a step in between that can be undone is done once more only with `repeat`, and undone before;
        `fails` one that fails the step. `at` may name several places: if the first does not answer within `within_s`,
        the next is asked. `make` and `make_undo` make the message from the run. `match` names the fields that tell
        whose an event is, if it is not all that the command shares with it; `()` is none."""
        self.line = line_of_caller()
        """Where it is written: `delivery.py:12`."""
        if not _is_does(does):
            raise DefinitionError(
                f"{self.line}: Step({does!r}); give a command, action, work or event class, a workflow, Approval(…) or "
                "Holding(…)"
            )
        self.name = name or name_of(does)
        if not (self.name.isidentifier() and self.name.isascii() and len(self.name) <= NAME_CHARS_MAX):
            raise DefinitionError(
                f"{self.line}: step {self.name!r}: give name= up to {NAME_CHARS_MAX} letters, digits and _"
            )
        self.does = does
        self.to = to
        self.at = (at,) if isinstance(at, str) else tuple(at)
        self.within_s, self.tries, self.retry_s = float(within_s), tries, float(retry_s)
        self._check_bounds()
        self.tries = max(tries, len(self.at))
        self.done = _done_of(self.where, does, done)
        self.undo = _undo_of(self.where, does, undo, undone)
        self.undone, self.on, self.fails = undone, on, fails
        for option, event in (("undone", undone), ("on", on), ("fails", fails)):
            if event is not None and not is_class(event, Event):
                raise DefinitionError(f"{self.where}: {option}={event!r}; give the class of an event")
        self.repeat = repeat
        if repeat and undo is None and not isinstance(does, Holding | AnyWorkflow):
            raise DefinitionError(f"{self.where}: leave repeat= out; a step without undo= is done again at each round")
        self.again_from = _loop_of(self.where, again_from, on, tries)
        self.make, self.make_undo = make, make_undo
        if self.is_elsewhere and (_binds(make) or _binds(make_undo)):
            raise DefinitionError(f"{self.where}: {BOUND_ELSEWHERE}")
        self.match = None if match is None else tuple(match)
        self.matched = self._matched()
        """The fields that its events must share with its command, or with what the run knows."""

    @property
    def where(self) -> str:
        """The beginning of a sentence about it."""
        return f"{self.line}: step {self.name}"

    @property
    def is_elsewhere(self) -> bool:
        """Whether another agent than the run may carry it out, at a place."""
        return self.at != (HERE,)

    @property
    def is_told(self) -> bool:
        """Whether an agent of the fleet carries it out: it is told, and tells what happens."""
        return is_class(self.does, (Command, Event)) and bool(self.to)

    @property
    def events(self) -> list[type[Event]]:
        """What it waits for."""
        return [event for event in (self.done, self.on, self.fails) if event is not None]

    def _matched(self) -> tuple[str, ...]:
        if is_class(self.does, Command):
            return matched_fields(self.where, self.does, self.events, self.match)
        if self.match and not is_class(self.does, Event):
            raise DefinitionError(f"{self.where}: match= is for commands and events; what comes of the rest is its own")
        return matched_fields(self.where, self.does, self.events, self.match) if self.match else ()

    def _check_bounds(self) -> None:
        if not self.at or not all(self.at):
            raise DefinitionError(f"{self.where}: at={self.at!r}; name a place, such as 'gateway', or several in order")
        if self.is_elsewhere and not is_class(self.does, (Action, Work)):
            raise DefinitionError(f"{self.where}: at= is for actions and work; a command runs where its agent is")
        if not 0 < self.within_s <= WITHIN_S_MAX:
            raise DefinitionError(
                f"{self.where}: within_s={self.within_s}; give more than 0 and at most {WITHIN_S_MAX:.0f} seconds"
            )
        if not 1 <= self.tries <= TRIES_MAX:
            raise DefinitionError(f"{self.where}: tries={self.tries!r}; give 1 to {TRIES_MAX}")
        if not 0 <= self.retry_s <= RETRY_S_MAX:
            raise DefinitionError(f"{self.where}: retry_s={self.retry_s}; give 0 to {RETRY_S_MAX:.0f} seconds")

    def told_to(self, to: str) -> Step:
        """The same, for this agent unless it names another."""
        found = copy(self)
        found.to = self.to or to
        return found

    def undoing(self) -> Iterator[Step]:
        """The step that undoes this one where it was tried last; for each place of several one that undoes it there."""
        does: Any = self.undo
        if isinstance(self.does, Holding):
            does = Releasing(self.name)
        elif isinstance(self.does, AnyWorkflow):
            does = Cancelling(self.name)
        if does is None:
            return
        found = copy(self)
        found.name, found.does, found.done = f"{UNDO}{self.name}", does, self.undone
        if self.undone is None and is_class(self.undo, Action):
            found.done = _done_class(self.undo)
        found.undo = found.undone = found.on = found.fails = None
        found.tries, found.again_from, found.make = UNDO_TRIES, "", self.make_undo
        found.match = () if self.match == () else None
        found.matched = found._matched()
        yield found
        for at in self.at if len(self.at) > 1 and is_class(does, (Action, Work)) else ():
            there = copy(found)
            there.name, there.at = f"{found.name} at {at}", (at,)
            yield there

    @property
    def outline(self) -> Mapping[str, Any]:
        """What people see of it."""
        named = {"done": self.done, "undo": self.undo, "on": self.on, "again_from": self.again_from or None}
        shown = {key: getattr(value, "__name__", value) for key, value in named.items() if value is not None}
        place = {"at": " or ".join(self.at)} if self.is_elsewhere else {}
        shown |= {"match": ", ".join(self.matched)} if self.matched else {}
        return {"step": self.name, "does": name_of(self.does), "to": self.to, **shown, **place, "tries": self.tries}


def _binds(make: Make | None) -> bool:
    """Whether a function gives a message `valid_while=`. What the functions do that it calls is seen at run time."""
    codes: list[CodeType] = [make.__code__] if isinstance(make, FunctionType) else []
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    named = (name for code in codes for names in code.co_consts if isinstance(names, tuple) for name in names)
    return BINDING in named


def is_class(does: Any, of: type[Any] | tuple[type[Any], ...]) -> bool:
    return isinstance(does, type) and issubclass(does, of)


def _is_does(does: Any) -> bool:
    return is_class(does, (Command, Action, Work, Event)) or isinstance(does, Approval | Holding | AnyWorkflow)


def name_of(does: Any) -> str:
    if isinstance(does, Approval):
        return "Approval"
    if isinstance(does, Holding):
        return "Holding"
    return str(does.kind if isinstance(does, AnyWorkflow) else getattr(does, "__name__", "step"))


def _done_of(where: str, does: Any, done: type[Event] | None) -> type[Event] | None:
    """The event that ends a step: as given, or the one that is certain."""
    if isinstance(does, Approval | Holding | AnyWorkflow):
        if done is not None:
            raise DefinitionError(f"{where}: leave done= out; it is done when {name_of(does)} says so itself")
        return None
    if done is not None and not is_class(done, Event):
        raise DefinitionError(f"{where}: done={done!r}; give the class of the event that ends it")
    if done is None and is_class(does, Event):
        return does  # type: ignore[no-any-return]
    if done is None and is_class(does, Action):
        return _done_class(does)
    if done is None:
        raise DefinitionError(
            f"{where}: nobody would know when it is done; give done= the class of the event that ends it"
        )
    return done


def _done_class(action: Any) -> type[Event]:
    made: type[Event] = Done[action]
    return made


def _undo_of(where: str, does: Any, undo: Any, undone: Any) -> type[Message] | None:
    if undo is None:
        if undone is not None:
            raise DefinitionError(f"{where}: undone= without undo=; name what undoes the step")
        return None
    if isinstance(does, Approval | Holding | AnyWorkflow):
        raise DefinitionError(
            f"{where}: leave undo= out; a claim is given back and a workflow undoes itself, by themselves"
        )
    if not is_class(undo, (Command, Action, Work)):
        raise DefinitionError(
            f"{where}: undo={undo!r} cannot be carried out; give the class of a command, action or work"
        )
    if is_class(undo, Work) and undone is None:
        raise DefinitionError(f"{where}: undo={undo.__name__} is work; give undone= the event that its worker returns")
    return undo  # type: ignore[no-any-return]


def _loop_of(where: str, again_from: Any, on: Any, tries: int) -> str:
    if again_from is None and on is None:
        return ""
    if again_from is None or on is None:
        raise DefinitionError(
            f"{where}: give both, again_from= the step to go back to and on= the event that asks for it"
        )
    if tries < 2:
        raise DefinitionError(
            f"{where}: the loop has no bound; give tries=, how often the step may be begun, 2 or more"
        )
    return again_from if isinstance(again_from, str) else str(getattr(again_from, "__name__", again_from))


def line_of_caller() -> str:
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
