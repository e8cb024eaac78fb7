"""One agent class in both engines, input by input, and every difference between them.

The interpreted engine is the core's own shard, on the checked class. The compiled one is a table: its program either as
machine code, or as the plain Python that it also is, which takes no compiling and so can be tried far more often.
"""

from __future__ import annotations

import math
import operator
import struct
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, structs

from rigs.checked import checked
from stigmergy.agents.agent import Agent, Rejection
from stigmergy.agents.codec import REASON_CHARS_MAX, canonical_bytes, describe, encode, printable, tag_of
from stigmergy.agents.columns import Halt, read_actions, read_records
from stigmergy.agents.effects import ACTUATORS
from stigmergy.agents.messages import SECOND_NS, Command, Message, Work, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import InputFailed
from stigmergy.compiled.builder import Built, build
from stigmergy.compiled.program import Program
from stigmergy.compiled.reader import read_agent
from stigmergy.compiled.storage import RowCodec
from stigmergy.compiled.table import CompiledEngine, CompiledTable
from stigmergy.shard.commit import NO_CAUSE, Commit, column_cause
from stigmergy.shard.draft import pack_effect
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import Ask, Delivery, Refused
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import ShardState, plan_agents

OTHER_NAN = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
"""A NaN with a sign and other bits than the canonical one."""
NAMES = ("one", "D-2", "x:3")
ROOM_BYTES = 1024 * 1024
_FAILED = spec_of(InputFailed).tag
_HANDLER_FAILED = "the handler failed: "


class Difference(AssertionError):
    """The engines disagree."""


Effected = tuple[int, str, bytes]
"""The event behind an effect, its sink, its bytes."""


class Outcome(Struct, frozen=True):
    """All that one input has caused, in bytes, and the agent after it."""

    events: list[bytes]
    effects: list[Effected]
    refused: str | None
    failed: str | None
    state: bytes


class Tried(Struct):
    """How many inputs of which kind were compared: a proof without faults or effects would prove little."""

    programs: int = 0
    inputs: int = 0
    events: int = 0
    effects: int = 0
    refusals: int = 0
    faults: dict[str, int] = {}

    def count(self, outcome: Outcome) -> None:
        """One more input."""
        self.inputs += 1
        self.events += len(outcome.events)
        self.effects += len(outcome.effects)
        self.refusals += outcome.refused is not None
        if outcome.failed is not None:
            kind = outcome.failed.partition(":")[0]
            self.faults[kind] = self.faults.get(kind, 0) + 1

    def add(self, other: Tried) -> None:
        """What another has tried."""
        self.programs += other.programs
        self.inputs += other.inputs
        self.events += other.events
        self.effects += other.effects
        self.refusals += other.refusals
        for kind, count in other.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count


class Interpreted:
    """The core's shard on the checked class."""

    def __init__(self, cls: type[Agent]) -> None:
        self._begin(plan_agents([checked(cls)]))

    def _begin(self, plans: dict[str, AgentPlan]) -> None:
        (self.kind,) = plans
        self.state = ShardState(0, plans)
        self._shard = Shard(self.state)
        self._asked = 0

    def take(self, name: str, message: Message, now_ns: int) -> Outcome:
        """Steps and seals one input."""
        address, body = f"{self.kind}/{name}", encode(message)
        if isinstance(message, Command):
            self._asked += 1
            self._shard.step([Ask(address, f"ask-{self._asked}", body)], now_ns)
        else:
            self._shard.step([Delivery("test", [(address, body)])], now_ns)
        ready = self._shard.seal()
        state = canonical_bytes(self.agent(address))
        if ready is None:
            return Outcome([], [], None, None, state)
        commit, refused, failed = ready.commit, None, None
        for _, verdict in ready.verdicts:
            if isinstance(verdict, Refused) and not verdict.reason.startswith(_HANDLER_FAILED):
                refused = verdict.reason
        for _, event in commit.events:
            if tag_of(event) == _FAILED:
                failed = msgspec.msgpack.decode(event, type=InputFailed).error
        # Nobody carries anything out here.
        self.state.outbox = type(self.state.outbox)()
        return Outcome(*self.read(commit), refused, failed, state)

    def agent(self, address: str) -> Any:
        """The agent as it is, or would be."""
        return self.state.agents.get(address) or self.state.new_agent(address, self.state.plans[self.kind])

    def read(self, commit: Commit) -> tuple[list[bytes], list[Effected]]:
        """The events and effects of a commit."""
        events = [_with_one_nan(event) for _, event in commit.events if tag_of(event) != _FAILED]
        return events, [(owed.cause, owed.sink, _with_one_nan(owed.body)) for owed in commit.owed]


class Sharded(Interpreted):
    """The core's shard on the compiled class: newcomers are enrolled, faults become letters, all in a commit."""

    def __init__(self, cls: type[Agent], program: Program, built: Built) -> None:
        engine = CompiledEngine(program)
        engine.built = built
        self._begin({kind: structs.replace(plan, engine=engine) for kind, plan in plan_agents([cls]).items()})

    def agent(self, address: str) -> Any:
        """The agent as it is ahead, or would be."""
        table = self.state.tables[self.kind]
        number = table.find(address.partition("/")[2])
        return super().agent(address) if number < 0 else table.agent(number, ahead=True)

    def read(self, commit: Commit) -> tuple[list[bytes], list[Effected]]:
        """The events and effects of a commit; the causes of effects count what is in columns."""
        layout = self.state.tables[self.kind].layout
        events = [record.body for run in commit.columns for record in read_records(run.records, layout)]
        causes = [
            cause if cause == NO_CAUSE else column_cause(0) - cause for cause in (one.cause for one in commit.owed)
        ]
        return events, [(cause, one.sink, bytes(one.body)) for cause, one in zip(causes, commit.owed, strict=True)]


def _with_one_nan(body: bytes) -> bytes:
    """A message that comes alone is kept as it came; as a record it has the one NaN that records have."""
    return bytes(body).replace(encode(OTHER_NAN), encode(math.nan))


class Compiled:
    """A table with three agents. `batched` says whether actions go through as records."""

    def __init__(self, program: Program, built: Built, state: ShardState, *, batched: bool = False) -> None:
        self.table = CompiledTable(program, built, RowCodec(program))
        self.table.enroll(NAMES)
        self.layout = program.layout
        self._state = state
        self._now_ns = 0
        self.table.check_effects(self._check)
        if batched:
            actions = [making.effect for making in program.makings]
            self.table.batch([spec_of(effect).tag for effect in actions if sink_is_plain(effect)])

    def take(self, name: str, message: Message, now_ns: int) -> Outcome:
        """Steps one record, alone."""
        number = NAMES.index(name)
        self._now_ns = now_ns
        stretch = self.table.step(self.table.record_of(number, message), 0, len(NAMES), ROOM_BYTES, now_ns)
        refused, failed = self._verdict(stretch)
        self.table.follow(stretch.records, now_ns)
        state = canonical_bytes(self.table.agent(number, ahead=True))
        if canonical_bytes(self.table.agent(number)) != state:
            raise Difference(f"the durable row is another one than that ahead: {self.table.agent(number)}")
        events, effects = self.read(stretch, now_ns)
        return Outcome(events, effects, refused, failed, state)

    def _check(self, effect: Any) -> None:
        """As the shard does it."""
        pack_effect(self._state, Homes(), effect, (None, b""), self._now_ns)

    def _verdict(self, stretch: Any) -> tuple[str | None, str | None]:
        match stretch.halt, stretch.error:
            case Halt.END, None:
                return None, None
            case Halt.REFUSED, Rejection() as rejection:
                return printable(rejection.reason, REASON_CHARS_MAX), None
            case Halt.FAULT, Exception() as error:
                return None, describe(error)
            case halt, error:
                raise Difference(f"the table halts with {halt!r}: {error!r}")

    def read(self, stretch: Any, now_ns: int) -> tuple[list[bytes], list[Effected]]:
        """The events and effects of a stretch, as the core would write them."""
        events = [record.body for record in read_records(stretch.records, self.layout)]
        effects = [
            (cause, *pack_effect(self._state, Homes(), effect, (None, b""), now_ns))
            for cause, _, effect in stretch.others
        ]
        for action in read_actions(stretch.actions, self.table.templates, self.table.name):
            cause = NO_CAUSE if action.cause == 0xFFFFFFFF else action.cause
            effects.append((cause, ACTUATORS, action.body))
        return events, effects


def sink_is_plain(effect: type[Any]) -> bool:
    """Whether effects of this type are actions, which can be batched."""
    return not effect.__module__.startswith("stigmergy.") and not issubclass(effect, Work)


def plain_python(program: Program) -> Built:
    """The program as it stands, run by Python: its functions know numpy, and nothing of numba."""
    module = types.ModuleType("program")
    exec(compile(program.source, "program.py", "exec"), module.__dict__)
    for name, value in list(vars(module).items()):
        if getattr(value, "py_func", None) is not None:
            setattr(module, name, _in_eight_bytes(_EXACT[name]) if name in _EXACT else value.py_func)
    step, fold = (_ignoring(module.__dict__[name]) for name in ("step", "fold"))
    return Built(step, fold, 0.0, False, None)


_EXACT: dict[str, Callable[[int, int], int]] = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
"""What machine code does with the processor's own operations; tests/compiled/test_equal_arithmetic.py compares them."""


def _in_eight_bytes(operation: Callable[[int, int], int]) -> Callable[[Any, Any], tuple[Any, bool]]:
    def calculate(a: Any, b: Any) -> tuple[Any, bool]:
        exact = operation(int(a), int(b))
        return np.int64((exact + 2**63) % 2**64 - 2**63), not -(2**63) <= exact < 2**63

    return calculate


def _ignoring(function: Callable[..., None]) -> Callable[..., None]:
    """Numpy warns of what machine code does in silence."""

    def call(*given: Any) -> None:
        with np.errstate(all="ignore"):
            function(*given)

    return call


def machine_code(program: Program, folder: Path | None = None) -> Built:
    """The program, compiled, and kept in this folder."""
    return build(program, lambda _: None, folder)


Input = tuple[str, Message, int]
"""The agent's name, what it is told, and when."""


def compare(cls: type[Agent], inputs: Sequence[Input], make: Callable[[Program], Built]) -> Tried:
    """Gives all inputs to both engines. Raises Difference at the first that they do not agree on."""
    tried = Tried(programs=1)
    for outcome in outcomes_of(cls, inputs, make):
        tried.count(outcome)
    return tried


def outcomes_of(cls: type[Agent], inputs: Sequence[Input], make: Callable[[Program], Built]) -> list[Outcome]:
    """What both engines make of each input. Raises Difference."""
    program = read_agent(cls)
    built = make(program)
    interpreted = Interpreted(cls)
    alone = Compiled(program, built, interpreted.state)
    batching = Compiled(program, built, interpreted.state, batched=True)
    sharded = Sharded(cls, program, built)
    lived: list[tuple[Input, Outcome]] = []
    for number, one in enumerate(inputs):
        expected = interpreted.take(*one)
        for compiled in (alone, batching, sharded):
            try:
                found = compiled.take(*one)
            except Difference:
                raise
            except Exception as error:
                raise Difference(f"input {number}, {one}: {type(error).__name__}: {error}; not {expected}") from error
            if by_sink(found) != by_sink(expected):
                raise Difference(f"input {number}, {one}:\n{_differing(expected, found)}")
        lived.append((one, expected))
    if alone.table.digest() != batching.table.digest():
        raise Difference("the digests of two tables differ")
    _compare_in_batches(program, built, interpreted.state, lived, alone.table.digest())
    return [outcome for _, outcome in lived]


def by_sink(outcome: Outcome) -> Outcome:
    """With the effects of each sink in their order: between sinks there is none."""
    effects = sorted(outcome.effects, key=lambda effect: effect[1])
    return structs.replace(outcome, effects=effects)


def _compare_in_batches(
    program: Program, built: Built, state: ShardState, lived: list[tuple[Input, Outcome]], digest: bytes
) -> None:
    """The same inputs again, as many at once as there are of one time, with little room for what they cause."""
    compiled = Compiled(program, built, state)
    folded = Compiled(program, built, state)
    table = compiled.table
    at = 0
    while at < len(lived):
        (_, message, now_ns), _ = lived[at]
        end = at + 1
        while not isinstance(message, Command) and end < len(lived):
            (_, other, other_ns), _ = lived[end]
            if isinstance(other, Command) or other_ns != now_ns:
                break
            end += 1
        records = b"".join(table.record_of(NAMES.index(name), one) for (name, one, _), _ in lived[at:end])
        start = 0
        while start < end - at:
            stretch = table.step(records, start, len(NAMES), 4096, now_ns)
            took = [outcome for _, outcome in lived[at + start : at + start + stretch.taken]]
            if any(outcome.failed is not None or outcome.refused is not None for outcome in took):
                raise Difference(f"in a batch from input {at + start} on a fault goes through")
            events, effects = compiled.read(stretch, now_ns)
            if events != [event for outcome in took for event in outcome.events]:
                raise Difference(f"in a batch from input {at + start} on other events are kept: {events}")
            if effects != _counted_on(took):
                raise Difference(f"in a batch from input {at + start} on there are other effects: {effects}")
            folded.table.fold(stretch.records, program.layout, now_ns)
            start += stretch.taken
            if stretch.halt in (Halt.FAULT, Halt.REFUSED):
                halted = lived[at + start][1]
                if (halted.refused, halted.failed) != compiled._verdict(stretch):
                    raise Difference(f"in a batch input {at + start} halts with {stretch.error!r}, not {halted}")
                start += 1
        at = end
    if table.digest() != digest or folded.table.digest() != digest:
        raise Difference("taken in batches, or folded from what was kept, the agents end in another state")


def _counted_on(outcomes: Sequence[Outcome]) -> list[Effected]:
    """The effects of several inputs; their causes count the events of all of them."""
    counted: list[Effected] = []
    base = 0
    for outcome in outcomes:
        counted += [(c if c == NO_CAUSE else base + c, sink, body) for c, sink, body in outcome.effects]
        base += len(outcome.events)
    return counted


def _differing(expected: Outcome, found: Outcome) -> str:
    lines: list[str] = []
    for name in Outcome.__struct_fields__:
        left, right = getattr(by_sink(expected), name), getattr(by_sink(found), name)
        if left != right:
            lines.append(f"    {name}, interpreted: {_shown(left)}\n    {name}, compiled:    {_shown(right)}")
    return "\n".join(lines)


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return msgspec.msgpack.decode(value)
        except msgspec.DecodeError:
            return value
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    return value


def times(count: int, step: int = 7) -> list[int]:
    """Times for so many inputs, several at each."""
    return [(1_000 + number // step) * SECOND_NS + (number // step) * 123_456_789 for number in range(count)]
