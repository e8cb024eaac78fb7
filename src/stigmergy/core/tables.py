"""Tables: the rows of one kind of compiled agents in one shard. What the core asks of an engine; `compiled` is one.

An engine reads an agent class once (`Engine`) and makes a table for each shard. A table has two versions of its rows:
*ahead*, which steps change, and *durable*, which follows when a commit is on disk; queries see the durable ones.
Nothing here does I/O, and given the same calls a table always ends with the same bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stigmergy.core.columns import ColumnRun, Layout, Templates
from stigmergy.core.messages import Effect, Message

INPUT_BYTES_MAX = 80 * 1024
"""What one input may cause at most, counted as `Table.step` says: so with so much room a step can take a record."""
OTHER_BYTES = 257
"""Counted for each ordinary effect beside its own bytes: the longest address and the framing."""

Say = Callable[[str], None]
"""Told in a sentence what takes long: a cold start says what it is doing."""


class Halt(enum.IntEnum):
    """Why a stretch ended where it did."""

    END = 0
    """All records were taken."""
    FULL = 1
    """There might be no room for all that the next record causes."""
    UNKNOWN_AGENT = 2
    UNKNOWN_FORM = 3
    """No form, or a command: those are sent one by one."""
    STOPPED = 4
    """Its agent is stopped by its supervision."""
    BAD_VALUE = 5
    """A value that the message does not allow: outside of its bounds, no member of its enum, a spare byte in use."""
    FAULT = 6
    """A handler failed; the agent is as it was before."""
    REFUSED = 7
    """A command was refused; only where it was sent alone."""


class Stretch(Struct, frozen=True):
    """What a step has made of consecutive records. The record that halted it is not among those taken."""

    taken: int
    records: bytes | memoryview
    """The events that are kept; they need not be those that came."""
    count: int
    actions: bytes = b""
    """Actions for batched hands; their causes count `records`, or are NOT_KEPT."""
    actions_count: int = 0
    others: list[tuple[int, int, Effect]] = []
    """All other effects in their order: the place of the event behind it in `records` (-1: it is not kept), the agent,
    the effect. All have passed what `check_effects` was told."""
    halt: Halt = Halt.END
    error: Exception | None = None
    """With BAD_VALUE a Malformed, with REFUSED a Rejection, with FAULT what the handler raised; else None."""


class Table(Protocol):
    """The rows of one kind in one shard.

    Order: records are taken in order; what one input causes is all there or not at all.
    Numbers: an agent's number is its place in the order of enrolment, dense from 0, never used again.
    """

    @property
    def layout(self) -> Layout:
        """How records and rows lie in bytes."""
        ...

    @property
    def layout_digest(self) -> bytes:
        """The digest of the layout, at hand."""
        ...

    @property
    def templates(self) -> Templates:
        """What actions can be made."""
        ...

    @property
    def templates_digest(self) -> bytes:
        """The digest of the templates, at hand."""
        ...

    @property
    def wait_ns(self) -> int:
        """How long the most urgent event of this kind may wait for the disk."""
        ...

    # ---- who is there

    def __len__(self) -> int:
        """How many agents are enrolled."""
        ...

    def find(self, name: str) -> int:
        """The number of an agent; -1 if it is not enrolled."""
        ...

    def name(self, agent: int) -> str:
        """The id of an agent."""
        ...

    @property
    def generation(self) -> int:
        """How many enrolments there were."""
        ...

    def check_of(self, generation: int) -> tuple[int, bytes] | None:
        """Of an enrolment, how many agents there were then, and 8 bytes that stand for all their names; None for one
        that has not been yet. Generation 0 has no agents."""
        ...

    def enroll(self, names: Sequence[str]) -> None:
        """Adds agents, in their first state, as one enrolment, ahead and durable. The caller has made sure that none is
        there. If the last call was a step of a newcomer that made records, the first of them is that one, and has the
        row that this step made."""
        ...

    def stop(self, agent: int, stopped: bool) -> None:
        """From now on this agent's records halt a stretch, or no longer. Not part of the rows, the digest or a
        snapshot: the shard says it again after a restart."""
        ...

    # ---- stepping

    def batch(self, tags: Sequence[str]) -> None:
        """Actions with these tags go into `Stretch.actions`; before this call none do. A later call replaces it."""
        ...

    def check_effects(self, check: Callable[[Effect], None]) -> None:
        """From now on each effect that is no batched action is shown to `check` before what caused it counts. What that
        raises is a FAULT: only the shard knows who is in the fleet."""
        ...

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
        """Takes records from number `start` on, until the end, one that cannot be taken, or until there might be no
        room for the next. Agents are known up to number `known` (exclusive). Nothing of the record that halted the
        stretch is done.

        What a step makes takes `room_bytes` at most, never more: each kept event and each batched action takes its
        record, each other effect `len(encode(effect))` and OTHER_BYTES. There are always INPUT_BYTES_MAX of room, and
        with these any record finds some: an input that would cause more is a FAULT with TooLarge, or its class is
        refused beforehand.

        With `newcomer`, a name, the one record may be for the agent that would be enrolled next under that name, in its
        first state. If it has made records of events or actions, the caller enrols it at once; otherwise it is as if it
        had never been.
        A command is taken only where `records` is one record; in a batch it is an UNKNOWN_FORM, as is an event that
        the agent only yields.
        """
        ...

    def record_of(self, agent: int, message: Message) -> bytes:
        """A message, one that the agent handles or yields, as a record. Raises Malformed for a value that has no place
        in one."""
        ...

    # ---- following

    def fold(self, records: bytes | memoryview, layout: Layout, now_ns: int) -> None:
        """Folds kept events into the rows ahead, while replaying: `evolve` alone. `layout` is that of the records,
        which may be an older one. Raises FoldMismatch for what today's code cannot fold, and for an agent that is not
        enrolled."""
        ...

    def follow(self, records: bytes | memoryview, now_ns: int) -> None:
        """Folds kept events, of a commit that has become durable, into the durable rows. In the layout of today."""
        ...

    def image(self, count: int) -> Any:
        """A commit with so many events of this kind was sealed: the rows that have changed since the last call, as they
        are now, for `adopt`; or None where it is cheaper to have `follow` fold the events once more."""
        ...

    def adopt(self, image: Any) -> None:
        """The commit of this image has become durable: its rows are the durable ones now. Images and events of commits
        are taken in the order of the commits."""
        ...

    def catch_up(self) -> None:
        """The durable rows become what those ahead are: after a replay."""
        ...

    def agent(self, number: int, *, ahead: bool = False) -> Any:
        """An agent as an object of its class, from the durable rows, or from those ahead."""
        ...

    # ---- snapshots: of the rows ahead

    def begin_snapshot(self, *, full: bool) -> Iterator[bytes]:
        """Fixes the rows as they are now, before it returns, and gives them out in compressed parts. A full one has
        names, enrolments and all rows; another what is new or changed since the last one was begun, or since the last
        part was loaded. Without agents, or without changes, there may be no part."""
        ...

    def load(self, part: bytes, layout: Layout) -> None:
        """Takes over one part: those of a full one replace all that is there, those of another add to it. `layout` is
        the one it was written with. Ends with the rows ahead; `catch_up` follows. Raises FoldMismatch or
        JournalCorrupt."""
        ...

    def digest(self) -> bytes:
        """Stands for names, enrolments and rows ahead: equal ones have equal digests, however they were reached."""
        ...


class Engine(Protocol):
    """An agent class made ready to run as a table."""

    @property
    def layout(self) -> Layout:
        """How records and rows lie in bytes; known without compiling."""
        ...

    def prepare(self, say: Say) -> None:
        """Compiles, or loads what was compiled before. May take seconds, the first time; tables need it."""
        ...

    def table(self) -> Table:
        """A new table without agents."""
        ...


def images_of(tables: Mapping[str, Table], runs: Sequence[ColumnRun]) -> dict[str, Any]:
    """Per kind that has changed in these runs, its table's image of that."""
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.kind] = counts.get(run.kind, 0) + run.count
    return {kind: tables[kind].image(count) for kind, count in counts.items()}
