"""Orders in bulk: columns of every type, and the same keys, tokens and sequences as one by one."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from msgspec import Meta

from stigmergy import Action
from stigmergy.agents.codec import encode
from stigmergy.agents.columns import (
    ACTION_HEAD_BYTES,
    LAYOUT_FORMAT,
    NOT_KEPT,
    SLOT_BYTES,
    Constant,
    Formatted,
    OwnName,
    Slot,
    Template,
    Templates,
    Text,
)
from stigmergy.node.column_actuators import Orders, counts_in
from stigmergy.shard.outbox import BLOCK_INDEX, INDEX_BITS, Block

np = pytest.importorskip("numpy")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Paint(Action):
    amount: float
    coats: int
    wet: bool
    colour: Colour
    text: str
    code: Annotated[bytes, Meta(min_length=4, max_length=4)] = b"none"
    rest: int = 7


class Wait(Action):
    seconds: float = 1.0


MEMBERS = [(member.name, encode(member)) for member in Colour]
TEMPLATES = Templates(
    LAYOUT_FORMAT,
    "Painter",
    ACTION_HEAD_BYTES + 5 * SLOT_BYTES,
    [
        Template(
            "Paint@1",
            [
                ("amount", Slot(0, "f8")),
                ("coats", Slot(1, "i8")),
                ("wet", Slot(2, "b1")),
                ("colour", Slot(3, "e2", MEMBERS)),
                ("text", Text([OwnName(), ": ", Formatted(0, "f8", ".1f")])),
                ("code", Slot(4, "S4")),
            ],
        ),
        Template("Wait@1", [("seconds", Slot(0, "f8"))]),
        # The same action from another `yield`, with its slots elsewhere and a constant.
        Template(
            "Paint@1",
            [
                ("coats", Slot(0, "i8")),
                ("amount", Slot(1, "f8")),
                ("wet", Slot(3, "b1")),
                ("colour", Constant(encode(Colour.BLUE))),
                ("text", Constant(encode("spare"))),
            ],
        ),
    ],
)


def action(agent: int, template: int, *slots: bytes) -> bytes:
    head = agent.to_bytes(4, "little") + template.to_bytes(2, "little") + bytes(2) + NOT_KEPT.to_bytes(4, "little")
    return (head.ljust(ACTION_HEAD_BYTES, b"\0") + b"".join(slot.ljust(8, b"\0") for slot in slots)).ljust(
        TEMPLATES.action_bytes, b"\0"
    )


def f8(value: float) -> bytes:
    return bytes(np.float64(value).tobytes())


def i8(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


ACTIONS = [
    action(3, 0, f8(1.5), i8(-2), i8(1), i8(0), b"abcd"),
    action(4, 1, f8(9.0)),
    action(5, 2, i8(2**40), f8(-0.25), i8(0), i8(1)),
    action(3, 0, f8(float("inf")), i8(0), i8(0), i8(1), b"wxyz"),
]


def orders(cls: type[Any], tag: str, actions: Sequence[bytes] = ACTIONS, index: int = 5) -> Orders[Any]:
    block = Block(2, 77, index, "Painter", b"t" * 16, 100, len(actions), b"".join(actions))
    return Orders(cls, tag, 1, block, TEMPLATES, lambda number: f"p-{number}", 3)


def test_columns_are_what_iterating_says() -> None:
    batch = orders(Paint, "Paint@1")
    one_by_one = list(batch)
    assert len(batch) == len(one_by_one) == 3
    for field in ("amount", "coats", "wet", "colour", "text", "code", "rest"):
        assert list(batch.column(field)) == [getattr(order.effect, field) for order in one_by_one], field
    assert batch.column("amount").dtype == np.float64
    assert batch.column("coats").dtype == np.int64
    assert batch.column("wet").dtype == np.bool_
    assert batch.column("text").dtype == object
    assert list(batch.column("text")) == ["p-3: 1.5", "spare", "p-3: inf"]
    assert list(batch.column("colour")) == [Colour.RED, Colour.BLUE, Colour.BLUE]
    assert list(batch.column("code")) == [b"abcd", b"none", b"wxyz"]


def test_numbers_sequences_names_keys_and_tokens_are_those_of_each_order() -> None:
    batch = orders(Paint, "Paint@1")
    one_by_one = list(batch)
    assert [f"Painter/{batch.name(number)}" for number in batch.numbers.tolist()] == [o.agent for o in one_by_one]
    assert batch.sequences.tolist() == [order.sequence for order in one_by_one] == [100, 102, 103]
    assert [order.key for order in one_by_one] == [f"2.1.77.{BLOCK_INDEX + 5 + place}" for place in (0, 2, 3)]
    assert [order.token for order in one_by_one] == [
        (77 << INDEX_BITS) + BLOCK_INDEX + 5 + place for place in (0, 2, 3)
    ]
    assert {order.attempt for order in one_by_one} == {3}
    assert (batch.kind, batch.shard, batch.attempt) == ("Painter", 1, 3)


def test_types_of_one_block_share_its_numbers() -> None:
    waits = orders(Wait, "Wait@1")
    assert waits.sequences.tolist() == [101]
    assert [order.sequence for order in waits] == [101]
    assert waits.column("seconds").tolist() == [9.0]
    keys = [order.key for batch in (waits, orders(Paint, "Paint@1")) for order in batch]
    assert len(set(keys)) == 4


def test_a_field_that_is_not_there_is_no_column() -> None:
    with pytest.raises(AttributeError):
        orders(Paint, "Paint@1").column("smell")


def test_types_are_counted_also_with_very_many_templates() -> None:
    assert counts_in(b"".join(ACTIONS), TEMPLATES) == {"Paint@1": 3, "Wait@1": 1}
    assert counts_in(b"", TEMPLATES) == {}
    many = Templates(LAYOUT_FORMAT, "T", ACTION_HEAD_BYTES, [Template(f"T{number}@1", []) for number in range(600)])
    heads = [action(0, number)[:ACTION_HEAD_BYTES] for number in (0, 255, 256, 511, 599, 256)]
    assert counts_in(b"".join(heads), many) == {"T0@1": 1, "T255@1": 1, "T256@1": 2, "T511@1": 1, "T599@1": 1}
