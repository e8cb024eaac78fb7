"""Orders in bulk: the actions of one type that a block owes, as a batched hand gets them.

    @fleet.batch_actuator(Descend)
    def descend(orders: Orders[Descend]) -> None:
        radio.send_all(orders.numbers, orders.column("altitude_m"))       # arrays, no object per order

A hand that prefers objects iterates: each is an `Order` as any actuator gets it. `column` and `numbers` need numpy,
which whoever compiles agents has.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from stigmergy.core.blocks import BLOCK_INDEX, Block
from stigmergy.core.columns import ACTION_HEAD_BYTES, SLOT_BYTES, Slot, Templates, read_actions
from stigmergy.core.effects import Order
from stigmergy.core.messages import Action
from stigmergy.runtime.effector import INDEX_BITS

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
        """The number of each among all orders to this kind's batched hands, dense over all of them. Types of actions
        are carried out one after the other, so a receiver that drops what it had remembers the highest for each type,
        and anew with each `incarnation`."""
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
