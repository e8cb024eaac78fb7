"""Batch actuators: carry out blocks of actions in order, a whole block at a time, and confirm how far they are.

Blocks of one shard and kind run one after the other; shards and kinds run side by side. An actuator that raises is
tried again with the same orders, a bounded number of times; then the block is given up and counted, and the next one
follows. An action is confirmed only when everything before it is settled: after a crash the rest comes again, with the
same keys and sequences.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, structs

from stigmergy.agents.codec import printable
from stigmergy.agents.columns import ACTION_HEAD_BYTES, SLOT_BYTES, Slot, Templates, read_actions
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action
from stigmergy.base.errors import DeviceRefused
from stigmergy.devices.actuators import PAUSE_S_MAX, RetryPolicy
from stigmergy.devices.equipment import Actuators
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.node.settings import Settings
from stigmergy.shard.inputs import ActionsConfirmed
from stigmergy.shard.outbox import BLOCK_INDEX, INDEX_BITS, Block
from stigmergy.shard.state import ShardState

# Orders in bulk: the actions of one type that a block owes, as a batch actuator gets them.
#
#     @fleet.batch_actuator(Descend)
#     def descend(orders: Orders[Descend]) -> None:
#         radio.send_all(orders.numbers, orders.column("altitude_m"))       # arrays, no object per order
#
# An actuator that prefers objects iterates: each is an `Order` as any actuator gets it. `column` and `numbers` need
# numpy, which compiled agents require anyway.

ActionT = TypeVar("ActionT", bound=Action)


class Orders(Generic[ActionT]):
    """The orders of one action type in one block, in their order."""

    def __init__(
        self,
        action: type[ActionT],
        tag: str,
        shard: int,
        block: Block,
        templates: Templates,
        name_of: Callable[[int], str],
        attempt: int,
    ) -> None:
        self._action = action
        self._tag = tag
        self._shard = shard
        self._block = block
        self._templates = templates
        self._name_of = name_of
        self.attempt = attempt
        self._mine = [number for number, made in enumerate(templates.templates) if made.tag == tag]
        self._rows: Any = None

    @property
    def kind(self) -> str:
        """Of the agents that ask."""
        return self._block.kind

    @property
    def shard(self) -> int:
        """Of the agents that ask: their numbers count there."""
        return self._shard

    @property
    def incarnation(self) -> int:
        """Of the journal. One that was restored from a copy has another, and may give out the same sequences again."""
        return self._block.incarnation

    @property
    def numbers(self) -> Any:
        """The numbers of the agents in their shard, as an array of u4; `name` tells who that is."""
        return self._selected()[1]["agent"]

    @property
    def sequences(self) -> Any:
        """The number of each among all orders to this kind's batch actuators, dense over all of them. Types of actions
        are carried out one after the other, so a receiver that drops repetitions remembers the highest for each type
        and `incarnation`."""
        return self._selected()[0] + self._block.first

    def name(self, number: int) -> str:
        """The id of an agent by its number."""
        return self._name_of(number)

    def column(self, field: str) -> Any:
        """A field of all orders as an array: of numbers, or of objects where it is a text or an enum."""
        import numpy as np

        rows = self._selected()[1]
        made = [dict(self._templates.templates[number].fields).get(field) for number in self._mine]
        if not all(isinstance(part, Slot) and part.code in ("f8", "i8", "b1") for part in made):
            return np.array([getattr(order.effect, field) for order in self], dtype=object)
        values: Any = None
        for number, part in zip(self._mine, made, strict=True):
            if isinstance(part, Slot):
                kind = "<f8" if part.code == "f8" else "<i8"
                found = rows[f"slot {part.slot} {kind}"]
                values = found if values is None else np.where(rows["template"] == number, found, values)
        return values.astype(bool) if all(isinstance(p, Slot) and p.code == "b1" for p in made) else values

    def __len__(self) -> int:
        return len(self._selected()[0])

    def __iter__(self) -> Iterator[Order[ActionT]]:
        decode = msgspec.msgpack.Decoder(self._action).decode
        block = self._block
        for place, made in enumerate(read_actions(block.actions, self._templates, self._name_of)):
            if made.tag == self._tag:
                index = BLOCK_INDEX + block.index + place
                yield Order(
                    agent=f"{block.kind}/{self._name_of(made.agent)}",
                    effect=decode(made.body),
                    key=f"{block.incarnation}.{self._shard}.{block.position}.{index}",
                    token=(block.position << INDEX_BITS) + index,
                    sequence=block.first + place,
                    attempt=self.attempt,
                )

    def _selected(self) -> tuple[Any, Any]:
        """The places of this type's orders in the block, and their rows."""
        if self._rows is None:
            import numpy as np

            rows = np.frombuffer(self._block.actions, dtype=_dtype(self._templates.action_bytes))
            numbers = rows["template"]
            wanted = numbers == self._mine[0]
            for number in self._mine[1:]:
                wanted |= numbers == number
            places = np.flatnonzero(wanted)
            self._rows = (places, rows[places])
        return self._rows[0], self._rows[1]


def counts_in(actions: bytes, templates: Templates) -> dict[str, int]:
    """How many actions of each type are in a block, in the order of their templates."""
    low, high = actions[4 :: templates.action_bytes], actions[5 :: templates.action_bytes]
    if any(high):
        numbers = [one + 256 * other for one, other in zip(low, high, strict=True)]
        found = dict(sorted(Counter(numbers).items()))
    else:
        # As almost always; then there is no look at each action.
        found = {number: low.count(number) for number in sorted(dict.fromkeys(low))}
    counts: dict[str, int] = {}
    for number, count in found.items():
        tag = templates.templates[number].tag
        counts[tag] = counts.get(tag, 0) + count
    return counts


@functools.cache
def _dtype(action_bytes: int) -> Any:
    """An action record as numpy sees it: each slot both as a float and as a whole number."""
    names, formats, offsets = ["agent", "template", "cause"], ["<u4", "<u2", "<u4"], [0, 4, 8]
    for slot in range((action_bytes - ACTION_HEAD_BYTES) // SLOT_BYTES):
        for kind in ("<f8", "<i8"):
            names.append(f"slot {slot} {kind}")
            formats.append(kind)
            offsets.append(ACTION_HEAD_BYTES + slot * SLOT_BYTES)
    import numpy as np

    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": action_bytes})


Lane = tuple[int, str]
"""Shard and kind."""
TROUBLE_CHARS_MAX = 300


class BlockCounters(Struct):
    """What became of actions in blocks."""

    batched: int = 0
    batched_done: int = 0
    batched_failed: int = 0
    batched_retries: int = 0


class _Work(Struct):
    """A block under way, and what of it is still to be done."""

    block: Block
    left: dict[str, int]
    """The types of its actions that are not over, and how many there are of each."""
    failed: int = 0
    """How many of its actions were given up."""
    attempt: int = 0
    """How often the first of these types was tried."""
    begun: Any = None
    """What the last of these tries has returned, if it is still to be waited for."""


class BatchedActuators:
    """Carries out blocks. `confirm` is told, per shard, how far a kind's actions are over."""

    def __init__(
        self,
        actuators: Actuators,
        states: Callable[[int], ShardState],
        settings: Settings,
        confirm: Callable[[int, ActionsConfirmed], None],
    ) -> None:
        self._actuators = actuators
        self._states = states
        self._settings = settings
        self._confirm = confirm
        self._lanes: dict[Lane, deque[_Work]] = {}
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        self._halted = False
        self.counters = BlockCounters()
        self.trouble = ""
        """What was wrong last, for people."""

    @property
    def busy(self) -> int:
        """How many lanes have something under way."""
        return len(self._lanes)

    def troubles(self) -> list[Trouble]:
        """What people should know: that actions were given up, and why the last of them."""
        failed = self.counters.batched_failed
        text = f"{failed} actions of batch actuators were given up, the last because of {self.trouble}"
        return coded("actuator-failed", [text] if failed else [])

    def release(self, shard: int, blocks: Sequence[Block]) -> None:
        """Has durable blocks carried out, after those of the same shard and kind before them."""
        if self._halted:
            return
        for block in _joined(blocks):
            self.counters.batched += block.count
            lane, work = (shard, block.kind), self._work_of(shard, block)
            waiting = self._lanes.get(lane)
            if waiting is not None:
                waiting.append(work)
            elif not self._done_at_once(shard, work):
                self._lanes[lane] = deque([work])
                self._tasks[lane] = asyncio.ensure_future(self._work_off(lane))

    def halt(self) -> None:
        """Begins nothing more."""
        self._halted = True

    async def close(self) -> None:
        """Ends what is under way. What was not confirmed is released again after the next start."""
        self._halted = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        deadline = asyncio.get_running_loop().time() + self._settings.drain_s
        # An actuator that ignores its cancellation is abandoned.
        while not all(task.done() for task in tasks) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0)
            if not all(task.done() for task in tasks):
                await asyncio.sleep(0.001)
        for work in (work for works in self._lanes.values() for work in works):
            _leave(work.begun)
        self._lanes.clear()

    def _done_at_once(self, shard: int, work: _Work) -> bool:
        """Whether plain functions have carried it out, all of them without waiting. If not, the rest goes on later,
        from where this has come: nothing that was done is done again."""
        while work.left:
            tag = next(iter(work.left))
            if inspect.iscoroutinefunction(self._call_of(tag)[1]):
                return False
            work.attempt = 1
            try:
                work.begun = self._begin(shard, work.block, tag, attempt=1)
            except Exception as error:
                if not self._refused(tag, error):
                    return False
                work.failed += work.left[tag]
            if inspect.isawaitable(work.begun):
                return False
            self._next_type(work, tag)
        self._over(shard, work)
        return True

    async def _work_off(self, lane: Lane) -> None:
        works = self._lanes[lane]
        try:
            while works and not self._halted:
                await self._carry_out(lane[0], works[0])
                works.popleft()
        finally:
            self._tasks.pop(lane, None)
            self._lanes.pop(lane, None)

    async def _carry_out(self, shard: int, work: _Work) -> None:
        """Carries a block out, type by type; each type is tried for itself, so none is repeated for another's sake."""
        while work.left:
            tag = next(iter(work.left))
            done = await self._carry_out_type(shard, work, tag)
            if self._halted and not done:
                return
            work.failed += 0 if done else work.left[tag]
            self._next_type(work, tag)
        self._over(shard, work)

    def _next_type(self, work: _Work, tag: str) -> None:
        del work.left[tag]
        work.attempt, work.begun = 0, None

    async def _carry_out_type(self, shard: int, work: _Work, tag: str) -> bool:
        retry_policy = self._actuators.retry_policy.get(tag, RetryPolicy())
        tries = retry_policy.tries or self._settings.effect_tries
        pause_s = self._settings.effect_pause_s
        while work.begun is not None or work.attempt < tries:
            if work.begun is None:
                if work.attempt:
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, PAUSE_S_MAX)
                    self.counters.batched_retries += 1
                if self._halted:
                    return False
                work.attempt += 1
            try:
                begun, work.begun = work.begun, None
                if begun is None:
                    begun = self._begin(shard, work.block, tag, work.attempt)
                if inspect.isawaitable(begun):
                    async with asyncio.timeout(retry_policy.within_s or self._settings.effect_within_s):
                        await begun
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    raise
                if self._refused(tag, error):
                    return False
            else:
                return True
        return False

    def _refused(self, tag: str, error: BaseException) -> bool:
        """Remembers what an actuator raised; returns whether another try is useless."""
        if isinstance(error, DeviceRefused):
            self.trouble = printable(f"{tag}: {error}", TROUBLE_CHARS_MAX)
            return True
        self.trouble = printable(f"{tag}: {type(error).__name__}: {error}", TROUBLE_CHARS_MAX)
        return False

    def _begin(self, shard: int, block: Block, tag: str, attempt: int) -> Any:
        action, call, batched = self._call_of(tag)
        state = self._states(shard)
        name_of = _names(state, block.kind)
        templates = state.directory.templates_of(block.templates)
        orders: Orders[Any] = Orders(action, tag, shard, block, templates, name_of, attempt)
        return call(orders) if batched else _one_by_one(call, orders)

    def _call_of(self, tag: str) -> tuple[type[Action], Callable[[Any], Any], bool]:
        """The actuator of an action, and whether it works in bulk. The ordinary one for an action that lost its batch
        actuator."""
        batched = self._actuators.batched.get(tag)
        if batched is not None:
            return batched[0], batched[1], True
        ordinary = self._actuators.by_tag.get(tag)
        if ordinary is None or not issubclass(ordinary[0], Action):
            raise DeviceRefused(f"nobody is registered to carry out {tag}")
        return ordinary[0], ordinary[1], False

    def _work_of(self, shard: int, block: Block) -> _Work:
        """What is to be done for a block; what nobody is there for has failed."""
        templates = self._states(shard).directory.templates_of(block.templates)
        found = counts_in(block.actions, templates)
        left = {tag: count for tag, count in found.items() if self._is_there(tag)}
        if len(left) < len(found):
            missing = ", ".join(tag for tag in found if tag not in left)
            self.trouble = printable(f"nobody is registered to carry out {missing}", TROUBLE_CHARS_MAX)
        return _Work(block, left, failed=block.count - sum(left.values()))

    def _is_there(self, tag: str) -> bool:
        return tag in self._actuators.batched or (
            tag in self._actuators.by_tag and issubclass(self._actuators.by_tag[tag][0], Action)
        )

    def _over(self, shard: int, work: _Work) -> None:
        block = work.block
        self.counters.batched_done += block.count - work.failed
        self.counters.batched_failed += work.failed
        self._confirm(shard, ActionsConfirmed(block.kind, block.first + block.count - 1))


def _is_cancelled() -> bool:
    """Whether this task is to end; an actuator may raise the same for its own reasons."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _leave(begun: Any) -> None:
    """Ends an awaitable that an actuator returned and nobody awaits any more."""
    close = getattr(begun, "close", None) or getattr(begun, "cancel", None)
    if close is not None:
        close()


def _joined(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, with adjacent ones of one commit and kind joined: an actuator is called once for all of them."""
    runs: list[list[Block]] = []
    for block in blocks:
        if runs and _follows(runs[-1][-1], block):
            runs[-1].append(block)
        else:
            runs.append([block])
    return [run[0] if len(run) == 1 else _put_together(run) for run in runs]


def _follows(one: Block, other: Block) -> bool:
    """Whether keys and sequences run on from one block to the other."""
    same = (one.position, one.kind, one.templates) == (other.position, other.kind, other.templates)
    return same and one.index + one.count == other.index and one.first + one.count == other.first


def _put_together(run: Sequence[Block]) -> Block:
    count, actions = sum(block.count for block in run), b"".join(block.actions for block in run)
    return structs.replace(run[0], count=count, actions=actions)


async def _one_by_one(call: Callable[[Any], Any], orders: Orders[Any]) -> None:
    for order in orders:
        result = call(order)
        if inspect.isawaitable(result):
            await result


def _names(state: ShardState, kind: str) -> Callable[[int], str]:
    table = state.tables.get(kind)
    if table is not None:
        return table.name
    names: Mapping[str, list[str]] = state.directory.names
    return lambda number: names[kind][number]
