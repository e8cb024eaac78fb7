"""A table of compiled agents: rows in one array, records through one loop. Implements `Table` of `agents/columns.py`.

The hot path is one call of machine code for many records. Rare cases, such as effects that are not batched or reasons
for refused records, are handled here one by one in Python. One thread uses a table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stigmergy.agents.agent import Agent
from stigmergy.agents.codec import encode
from stigmergy.agents.columns import (
    ACTION_HEAD_BYTES,
    INPUT_BYTES_MAX,
    OTHER_BYTES,
    Halt,
    Layout,
    Say,
    Stretch,
    Templates,
)
from stigmergy.agents.messages import SECOND_NS, Effect, Message
from stigmergy.base.errors import Bug, DefinitionError, FoldMismatch, JournalCorrupt, TooLarge
from stigmergy.compiled.builder import Built, build
from stigmergy.compiled.program import ALONE, NEWCOMER, NO_CAUSE, NOW_NS, RESULT_LENGTH, SITE, SLOTS, Program
from stigmergy.compiled.reader import read_agent
from stigmergy.compiled.rows import Bytes, Rows
from stigmergy.compiled.storage import Image, RowCodec, TableStorage

# One step of a table in progress: the next records, and the results of those before. No numba.


class TableStep:
    """What becomes of the records of one step."""

    __slots__ = (
        *("actions", "count", "data", "error", "flags", "halt", "kept"),
        *("known", "left", "now", "now_ns", "number", "others", "start"),
    )

    def __init__(
        self, data: Bytes, count: int, known: int, flags: int, now_ns: int, start: int, room_bytes: int
    ) -> None:
        self.data = data
        self.count = count
        self.known = known
        self.flags = flags
        self.now = now_ns / SECOND_NS
        self.now_ns = now_ns
        self.start = self.number = start
        """The record that is next."""
        self.left = room_bytes
        self.kept = 0
        self.actions = 0
        self.others: list[tuple[int, int, Effect]] = []
        self.halt = 0
        self.error: Exception | None = None

    def mark(self) -> tuple[int, int, int, int]:
        """Where it stands, to go back to."""
        return self.number, self.kept, self.actions, self.left

    def go_back(self, mark: tuple[int, int, int, int]) -> None:
        """As if nothing had been taken since."""
        self.number, self.kept, self.actions, self.left = mark
        self.halt = 0


SHARE = 16
"""Of the room, actions may take one part in so many in one call of the compiled code."""
OTHERS_AT_ONCE = 64
"""So many effects that are no batched actions end a call, or as many as one record may cause, if that is more."""
STRIDE_MIN = 64
STRIDE_MAX = 4096
"""How many records are tried in one call where their effects are made one by one."""
_EMPTY = np.empty(0, np.uint8)
_EMPTY.flags.writeable = False
_HALTS = tuple(Halt)
_SAID = (Halt.BAD_VALUE, Halt.FAULT, Halt.REFUSED)
_action_head = struct.Struct("<IHHII")


class CompiledTable:
    """The rows of one kind in one shard."""

    def __init__(self, program: Program, built: Built, carrying: RowCodec) -> None:
        self._program = program
        self._carrying = carrying
        self._step = built.step
        self._fold = built.fold
        self._layout = program.layout
        self._layout_digest = program.layout.digest()
        self._templates_digest = program.templates.digest()
        self._holding = TableStorage(program, carrying)
        self._roster = self._holding.roster
        self._newcomer = False
        """The row behind the last holds what its first record has made of an agent that is to be enrolled now."""
        self._name_of_newcomer = ""
        self._folded = program.layout
        """The layout that was folded last, and needs no detour."""
        self._record_bytes = program.layout.record_bytes
        self._action_bytes = program.templates.action_bytes
        self._kept_bytes = program.record_max * self._record_bytes
        self._actions_bytes = program.action_max * self._action_bytes
        self._most_bytes = self._kept_bytes + self._actions_bytes
        """What one record may cause in records and batched actions."""
        self._keeps = not program.plain
        self._check_effect: Callable[[Effect], None] = _let_pass
        self._result = np.zeros(RESULT_LENGTH, np.int64)
        self._others = np.empty(max(program.action_max, OTHERS_AT_ONCE) * self._action_bytes, np.uint8)
        self._room_bytes = -1
        self._make_outputs(0)
        self.batch(())

    @property
    def layout(self) -> Layout:
        """How records and rows lie in bytes."""
        return self._layout

    @property
    def layout_digest(self) -> bytes:
        """The digest of the layout."""
        return self._layout_digest

    @property
    def templates(self) -> Templates:
        """What actions can be made."""
        return self._program.templates

    @property
    def templates_digest(self) -> bytes:
        """The digest of the templates."""
        return self._templates_digest

    @property
    def wait_ns(self) -> int:
        """How long the most urgent event may wait for the disk."""
        return self._program.wait_ns

    # ---- who is there

    def __len__(self) -> int:
        return len(self._roster)

    def find(self, name: str) -> int:
        """The number of an agent, or -1."""
        return self._roster.find(name)

    def name(self, agent: int) -> str:
        """The id of an agent."""
        return self._roster.name(agent)

    @property
    def generation(self) -> int:
        """How many enrolments there were."""
        return self._roster.generation

    def check_of(self, generation: int) -> tuple[int, bytes] | None:
        """For an enrolment the number of agents then, and the digest of their names."""
        return self._roster.check_of(generation)

    def enroll(self, names: Sequence[str]) -> None:
        """Adds agents in their first state. Raises Bug, with nothing changed, for one that is there."""
        self._holding.enroll(names, first_is_there=self._newcomer)
        self._newcomer = False

    def stop(self, agent: int, stopped: bool) -> None:
        """From now on this agent's records halt a stretch, or no longer."""
        self._check_there(agent)
        self._holding.stopped.data[agent] = stopped

    def _check_there(self, agent: int) -> None:
        if not 0 <= agent < len(self._roster):
            raise Bug(f"{self._layout.kind}: agent number {agent}, and there are {len(self._roster)}")

    # ---- stepping

    def batch(self, tags: Sequence[str]) -> None:
        """Actions with these tags go into `Stretch.actions`."""
        batched = [template.tag in tags for template in self._program.templates.templates]
        self._batched = np.array(batched, np.uint8)
        self._batched.flags.writeable = False
        self._careful = not all(batched)

    def check_effects(self, check: Callable[[Effect], None]) -> None:
        """Each effect that is no batched action is shown to `check` before what caused it counts."""
        self._check_effect = check

    def step(
        self,
        records: bytes | memoryview,
        start: int,
        known: int,
        room_bytes: int,
        now_ns: int,
        *,
        newcomer: str = "",
    ) -> Stretch:
        """Takes records from number `start` on."""
        data = _read_only(records)
        count, rest = divmod(data.size, self._record_bytes)
        if rest or not 0 <= start <= count or not 0 <= known <= len(self._roster):
            raise Bug(f"{self._layout.kind}: {data.size} bytes of records from number {start} on, of {known} agents")
        self._newcomer = False
        if newcomer:
            self._expect(known, newcomer)
        flags = (ALONE if count == 1 else 0) | (NEWCOMER if newcomer else 0)
        call = TableStep(data, count, known, flags, now_ns, start, room_bytes)
        if self._careful:
            self._take_carefully(call)
        else:
            self._take(call)
        if newcomer:
            self._newcomer = call.number > start
        return Stretch(
            taken=call.number - start,
            records=self._kept_records(records, data, start, call.number - start, call.kept),
            count=call.kept,
            actions=self._actions[: call.actions * self._action_bytes].tobytes() if call.actions else b"",
            actions_count=call.actions,
            others=call.others,
            halt=_HALTS[call.halt],
            error=self._explain(data, call.number) if call.halt in _SAID and call.error is None else call.error,
        )

    def _expect(self, known: int, newcomer: str) -> None:
        if known != len(self._roster):
            raise Bug(f"{self._layout.kind}: a newcomer behind {known} agents, and there are {len(self._roster)}")
        self._holding.expect_newcomer()
        self._name_of_newcomer = newcomer

    def _take(self, call: TableStep) -> None:
        """Calls the compiled code until all is taken, something halts it, or the room is used up.

        How many records fit depends on how many actions they cause. So most of the room is given to records and a
        little to actions, and what is left is given out again; a few calls fill it.
        """
        self._make_outputs(min(call.left, (call.count - call.number) * self._most_bytes))
        while call.number < call.count and call.halt <= Halt.FULL:
            if call.left < self._most_bytes and call.number > call.start:
                call.halt = Halt.FULL
                return
            share = max(call.left, 0) // SHARE
            records_max = max(1, (call.left - share) // self._kept_bytes)
            self._call(call, min(call.count, call.number + records_max), share)

    def _take_carefully(self, call: TableStep) -> None:
        """The same where effects must be made that are no batched actions: how much room they take is known only then,
        and making one may fail. So a quarter of the room is for them; if they take more, or one cannot be made, the
        rows are put back, and the records of that call are taken one by one."""
        self._make_outputs(min(call.left, (call.count - call.number) * self._most_bytes))
        stride, input_bytes = STRIDE_MIN, INPUT_BYTES_MAX - self._most_bytes
        while self._goes_on(call):
            free = max(call.left - INPUT_BYTES_MAX, 0)
            share, others_bytes = free // SHARE, min(free // 4, input_bytes)
            records_max = min(stride, (free - share - others_bytes) // self._kept_bytes)
            number, end = call.number, min(call.count, call.number + max(1, records_max))
            if end == number + 1 or not self._try(call, end, share, others_bytes):
                call.error = None
                while call.number < end and self._goes_on(call):
                    if not self._try(call, call.number + 1, 0, input_bytes):
                        call.halt = Halt.FAULT
            stride = max(STRIDE_MIN, min(STRIDE_MAX, 2 * (call.number - number)))

    def _goes_on(self, call: TableStep) -> bool:
        if call.number == call.count or call.halt > Halt.FULL:
            return False
        if call.left < INPUT_BYTES_MAX and call.number > call.start:
            call.halt = Halt.FULL
            return False
        return True

    def _try(self, call: TableStep, end: int, share: int, others_bytes: int) -> bool:
        """One call, with the effects that come of it, which may take so much room. If they cannot be made, False, and
        nothing has happened."""
        rows = self._holding.matrix(self._holding.ahead)
        touched = self._agents_of(call, call.number, end)
        before, mark = rows[touched], call.mark()
        others = self._call(call, end, share)
        if not others:
            return True
        try:
            made, size_bytes = self._make_others(others, mark[1], others_bytes)
        except Exception as error:
            # What the handler would have raised: whatever a class does when its objects are made. Its traceback would
            # hold on to the rows.
            rows[touched] = before
            call.go_back(mark)
            call.error = error.with_traceback(None)
            return False
        call.others += made
        call.left -= size_bytes
        return True

    def _call(self, call: TableStep, end: int, share: int) -> int:
        """One call of the compiled code, up to record `end`; how many effects it has made that are no actions."""
        holding, result, action_bytes = self._holding, self._result, self._action_bytes
        at = call.actions * action_bytes
        actions = self._actions[at : at + max(share, self._actions_bytes) // 8 * 8]
        kept = self._kept[call.kept * self._record_bytes :] if self._keeps else self._kept
        result[NOW_NS] = call.now_ns
        self._step(
            *(call.data, call.number, end, call.known, call.flags),
            *(holding.ahead.data, holding.stopped.data, holding.touched.data),
            *(kept, actions, self._others, self._batched, call.now, result),
        )
        more: list[int] = result[:5].tolist()
        taken, more_kept, more_actions, others, call.halt = more
        if not taken and call.halt <= Halt.FULL:
            raise Bug(f"{self._layout.kind}: compiled code finds no room for one record")
        if call.kept and more_actions:
            causes = actions[: more_actions * action_bytes].view(np.uint32)[2 :: action_bytes // 4]
            causes[causes != NO_CAUSE] += np.uint32(call.kept)
        call.number += taken
        call.kept += more_kept
        call.actions += more_actions
        call.left -= more_kept * self._record_bytes + more_actions * action_bytes
        return others

    def _make_outputs(self, room_bytes: int) -> None:
        """Room for all that may be made, kept for the next time; of what is not written there is no memory."""
        if room_bytes <= self._room_bytes:
            return
        self._room_bytes = room_bytes
        in_eights = room_bytes // 8 * 8
        self._kept = np.empty(self._kept_bytes + (in_eights if self._keeps else 0), np.uint8)
        self._actions = np.empty(in_eights + self._actions_bytes, np.uint8)

    def _agents_of(self, call: TableStep, start: int, end: int) -> NDArray[np.int64]:
        """The agents of these records, as far as there are such."""
        width = self._record_bytes
        numbers = call.data[start * width : end * width].view(np.uint32)[:: width // 4].astype(np.int64)
        return numbers[numbers < call.known + (call.flags & NEWCOMER)]

    def _kept_records(
        self, records: bytes | memoryview, data: Bytes, start: int, taken: int, kept: int
    ) -> bytes | memoryview:
        width = self._record_bytes
        if not kept:
            return b""
        if self._keeps or (data.size == width and self._is_command(data)):
            return self._kept[: kept * width].tobytes()
        if taken * width == data.size and isinstance(records, bytes):
            return records
        return memoryview(records)[start * width : (start + taken) * width]

    def _is_command(self, data: Bytes) -> bool:
        return self._layout.forms[int.from_bytes(data[4:6].tobytes(), "little")].is_command

    def _make_others(self, count: int, base: int, bytes_max: int) -> tuple[list[tuple[int, int, Effect]], int]:
        """The effects of a call, and how much room they take. Raises what making one raises, or TooLarge."""
        made: list[tuple[int, int, Effect]] = []
        size_bytes = 0
        width = self._action_bytes
        data = self._others[: count * width].tobytes()
        for at in range(0, count * width, width):
            agent, template, _, cause, _ = _action_head.unpack_from(data, at)
            effect = self._program.makings[template].make(
                data[at + ACTION_HEAD_BYTES : at + width], agent, self._name_of
            )
            self._check_effect(effect)
            size_bytes += len(encode(effect)) + OTHER_BYTES
            made.append((-1 if cause == NO_CAUSE else cause + base, agent, effect))
        if size_bytes > bytes_max:
            raise TooLarge(f"one input causes {size_bytes} bytes of effects, {bytes_max} at most; ask for less")
        return made, size_bytes

    def _explain(self, data: Bytes, number: int) -> Exception:
        """What to report of the record that was not taken."""
        at = number * self._record_bytes
        agent = int.from_bytes(data[at : at + 4].tobytes(), "little")
        site = self._program.sites[int(self._result[SITE])]
        return site.make(self._result[SLOTS:].tobytes(), agent, self._name_of)

    def _name_of(self, agent: int) -> str:
        return self._name_of_newcomer if agent == len(self._roster) else self._roster.name(agent)

    def record_of(self, agent: int, message: Message) -> bytes:
        """A message as a record. Raises Malformed."""
        return self._carrying.record_of(agent, message)

    # ---- following

    def fold(self, records: bytes | memoryview, layout: Layout, now_ns: int) -> None:
        """Folds kept events into the rows ahead. Raises FoldMismatch or JournalCorrupt."""
        if layout is not self._folded:
            if self._carrying.is_alike(layout):
                self._folded = layout
            else:
                records = self._carrying.to_todays_records(bytes(records), layout)
        self._fold_into(self._holding.ahead, self._holding.dirty, records, now_ns)

    def follow(self, records: bytes | memoryview, now_ns: int) -> None:
        """Folds kept events into the durable rows."""
        self._fold_into(self._holding.durable, self._holding.unasked, records, now_ns)

    def _fold_into(self, rows: Rows, dirty: Rows, records: bytes | memoryview, now_ns: int) -> None:
        data = _read_only(records)
        count, rest = divmod(data.size, self._record_bytes)
        if rest:
            raise JournalCorrupt(f"{data.size} bytes of records, each of {self._record_bytes}; restore from a copy")
        result = self._result
        result[NOW_NS] = now_ns
        self._fold(data, count, self._holding.rows_of(rows), dirty.data, now_ns / SECOND_NS, result)
        taken, _, _, _, halt = result[:5].tolist()
        if halt in _SAID:
            raise FoldMismatch(
                f"{self._layout.kind}: today's code cannot fold event {taken} of a run "
                f"({self._explain(data, taken)}); fix the @evolve handler, or use the version that wrote the log"
            )
        if halt == Halt.UNKNOWN_AGENT:
            raise FoldMismatch(
                f"{self._layout.kind}: event {taken} of a run is of an agent that is not enrolled; restore from a copy"
            )
        if halt != Halt.END:
            raise JournalCorrupt(
                f"{self._layout.kind}: event {taken} of a run is no event ({_HALTS[halt].name.lower()}); restore from "
                "a copy"
            )

    def image(self, count: int) -> Image | None:
        """The rows that so many events have changed since the last image."""
        return self._holding.image(count)

    def adopt(self, image: Image) -> None:
        """The rows of this image are durable now."""
        self._holding.adopt(image)

    def catch_up(self) -> None:
        """The durable rows become what those ahead are."""
        self._holding.catch_up()

    def agent(self, number: int, *, ahead: bool = False) -> Any:
        """An agent as an object of its class."""
        self._check_there(number)
        rows = self._holding.ahead if ahead else self._holding.durable
        return self._carrying.agent_of(self._roster.name(number), rows.one(number))

    # ---- snapshots

    def begin_snapshot(self, *, full: bool) -> Iterator[bytes]:
        """Fixes the rows as they are now, and gives them out in parts."""
        return self._holding.begin_snapshot(full=full)

    def load(self, part: bytes, layout: Layout) -> None:
        """Takes over one part. Raises FoldMismatch or JournalCorrupt."""
        self._holding.load(part, layout)

    def digest(self) -> bytes:
        """Stands for the names and the rows ahead."""
        return self._holding.digest()


def _let_pass(effect: Effect) -> None:
    """What a table does that no shard has told what to check."""


def _read_only(records: bytes | memoryview) -> Bytes:
    """Records as the compiled code takes them."""
    if not len(records):
        return _EMPTY
    data: Bytes = np.frombuffer(records, np.uint8)
    if not isinstance(records, bytes):
        data.flags.writeable = False
    return data


# The engine of a compiled agent class: reads it, compiles it or loads the compiled code, and makes its tables.


def engine_of(cls: type[Agent]) -> CompiledEngine:
    """Reads a class. Raises DefinitionError, naming lines, reasons and remedies, if it cannot be compiled."""
    program = read_agent(cls)
    most = program.record_max * program.layout.record_bytes + program.action_max * program.templates.action_bytes
    if most > INPUT_BYTES_MAX:
        raise DefinitionError(
            f"{cls.__qualname__}: one input may cause {program.record_max} events and {program.action_max} effects, "
            f"which is {most} bytes, {INPUT_BYTES_MAX} at most; yield fewer, or leave it out of compiled="
        )
    return CompiledEngine(program)


class CompiledEngine:
    """A program, made ready once, and used by as many tables as there are shards. Implements core.tables.Engine."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.built: Built | None = None
        """The machine code, once `prepare` was called."""
        self._carrying = RowCodec(program)

    @property
    def layout(self) -> Layout:
        """How records and rows lie in bytes."""
        return self.program.layout

    def prepare(self, say: Say) -> None:
        """Loads what was compiled before, or compiles and says so. Raises ConfigError for a cache that is not ours."""
        if self.built is None:
            self.built = build(self.program, say)

    def table(self) -> CompiledTable:
        """A new table without agents."""
        if self.built is None:
            raise Bug(f"{self.program.kind} is not prepared")
        return CompiledTable(self.program, self.built, self._carrying)
