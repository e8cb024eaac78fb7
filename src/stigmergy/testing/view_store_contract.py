"""What every view store must do, as tests: inherit them to prove your own adapter. Needs only pytest.

    class TestMyViewStore(ViewStoreContract):
        @pytest.fixture
        def open_view_store(self, tmp_path):
            return lambda: MyViewStore(f"my:{tmp_path}/views")

`open_view_store` opens another connection to the same place each time within a test, and a fresh place for each test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from stigmergy.agents.messages import Event
from stigmergy.agents.view import Key, View, plan_of, project
from stigmergy.base.errors import StigmergyError, StoreConflict, StoreForeign
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.views.port import (
    NEXT,
    RowChanges,
    RowCondition,
    ViewPosition,
    ViewStore,
    check_selection,
    cursor_of,
)

OpenViewStore = Callable[[], ViewStore]


class Sighted(Event):
    name: str
    number: int


class Everything(View):
    """A row with a column of each kind."""

    name: Key[str]
    number: Key[int]
    text: str = ""
    count: int = 0
    level: float = 0.0
    on: bool = False
    data: bytes = b""
    maybe: int | None = None
    doubt: float | None = None
    said: str | None = None
    tags: tuple[str, ...] = ()

    @project
    def seen(self, event: Sighted) -> None:
        self.count += 1


class Short(View):
    """One key, and nothing else."""

    name: Key[str]

    @project
    def seen(self, event: Sighted) -> None:
        pass


PLAN = plan_of(Everything)
T = PLAN.name
ROWS = (
    Everything(
        name="a", number=1, text="é 𝄞 \"'", count=2**62, level=1.5, on=True, data=b"\0\xff", maybe=3, tags=("x",)
    ),
    Everything(name="a", number=2, count=-(2**63), level=-0.5, doubt=2.0, said="yes", tags=("x", "y")),
    Everything(name="b", number=1, level=math.inf, maybe=0, said=""),
    Everything(name="b", number=2, level=math.nan, doubt=math.nan),
    Everything(name="z", number=-7, level=-math.inf, on=True),
)


def at(position: int, shard: int = 0) -> dict[str, ViewPosition]:
    """A position of one shard."""
    return {f"fleet/{shard}": ViewPosition(position, b"\1" * 32, 2, 3)}


def values(*rows: View) -> list[tuple[Any, ...]]:
    """Rows as columns."""
    return [PLAN.values_of(row) for row in rows]


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    """Whether rows are equal, with NaN equal to NaN, and of the same types."""
    return [[(type(one), repr(one)) for one in row] for row in found] == [
        [(type(one), repr(one)) for one in row] for row in expected
    ]


class ViewStoreContract:
    """Every sentence of the port's docstring, one test or more each."""

    @pytest.fixture
    def open_view_store(self) -> OpenViewStore:
        """Opens the store of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture open_view_store: see the module's docstring")

    async def filled(self, store: ViewStore) -> None:
        """Makes the table with all rows."""
        await store.create(T, PLAN.columns, PLAN.digest)
        await store.write(T, PLAN.columns, RowChanges(values(*ROWS), [], at(9), 0))

    async def asked(self, store: ViewStore, *where: RowCondition, order: Any = (), **how: Any) -> list[tuple[str, int]]:
        """The keys of the rows that are found."""
        rows, _ = await store.select(T, PLAN.columns, check_selection(PLAN, where, order, **how))
        return [row[:2] for row in rows]

    @in_a_loop
    async def test_rows_and_positions_are_read_back_as_they_were(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        assert await store.find(T) is None
        await self.filled(store)
        known = await store.find(T)
        assert known is not None
        assert (known.digest, known.shape, known.positions, known.revision) == (PLAN.digest, PLAN.shape, at(9), 1)
        keys = [(row.name, row.number) for row in ROWS]
        found = await store.load(T, PLAN.columns, [*keys, ("none", 1)])
        assert same(sorted(found), sorted(values(*ROWS)))
        assert repr(sorted(map(repr, map(PLAN.row_of, found)))) == repr(sorted(map(repr, ROWS)))
        await store.close()

    @in_a_loop
    async def test_another_connection_finds_what_was_written(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        await self.filled(store)
        await store.sync()
        await store.close()
        again = open_view_store()
        assert len(await self.asked(again)) == len(ROWS)
        await again.close()

    @in_a_loop
    async def test_a_row_takes_the_place_of_the_one_with_its_key(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        await self.filled(store)
        changed = Everything(name="a", number=1, text="new")
        await store.write(T, PLAN.columns, RowChanges(values(changed), [("b", 1), ("none", 0)], at(10, shard=1), 1))
        assert await self.asked(store) == [("a", 1), ("a", 2), ("b", 2), ("z", -7)]
        assert same(await store.load(T, PLAN.columns, [("a", 1)]), values(changed))
        known = await store.find(T)
        assert known is not None
        assert known.positions == {**at(9), **at(10, shard=1)}
        await store.close()

    @in_a_loop
    async def test_a_view_of_keys_alone(self, open_view_store: OpenViewStore) -> None:
        store, plan = open_view_store(), plan_of(Short)
        await store.create(plan.name, plan.columns, plan.digest)
        for revision in range(2):
            await store.write(plan.name, plan.columns, RowChanges([("a",), ("b",)], [], at(revision + 1), revision))
        await store.write(plan.name, plan.columns, RowChanges([], ["a"], at(3), 2))
        assert await store.load(plan.name, plan.columns, ["a", "b"]) == [("b",)]
        await store.close()

    @in_a_loop
    async def test_only_the_writer_that_knows_the_newest_revision_writes(self, open_view_store: OpenViewStore) -> None:
        store, other = open_view_store(), open_view_store()
        await self.filled(store)
        for revision in (0, 2):
            with pytest.raises(StoreConflict):
                await other.write(T, PLAN.columns, RowChanges([], [("a", 1)], at(99), revision))
        assert ("a", 1) in await self.asked(other)
        known = await other.find(T)
        assert known is not None
        assert known.positions == at(9)
        await store.close()
        await other.close()

    @in_a_loop
    async def test_a_table_is_made_beside_another_and_takes_its_place(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        await self.filled(store)
        await store.create(T + NEXT, PLAN.columns, b"other")
        await store.write(T + NEXT, PLAN.columns, RowChanges(values(ROWS[0]), [], at(5), 0))
        assert len(await self.asked(store)) == len(ROWS)
        await store.swap(T + NEXT, T)
        assert await self.asked(store) == [("a", 1)]
        known = await store.find(T)
        assert known is not None
        assert (known.digest, known.positions, known.revision) == (b"other", at(5), 1)
        assert await store.find(T + NEXT) is None
        with pytest.raises(StoreForeign):
            await store.swap(T + NEXT, T)
        assert await self.asked(store) == [("a", 1)]
        await store.close()

    @in_a_loop
    async def test_to_make_a_table_again_empties_it(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        await self.filled(store)
        await store.create(T, PLAN.columns, b"new")
        assert await self.asked(store) == []
        known = await store.find(T)
        assert known is not None
        assert (known.positions, known.revision) == ({}, 0)
        await store.close()

    @in_a_loop
    async def test_conditions_mean_the_same_everywhere(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        await self.filled(store)
        a1, a2, b1, b2, z = [(row.name, row.number) for row in ROWS]
        for condition, expected in (
            (RowCondition("name", "=", "a"), [a1, a2]),
            (RowCondition("number", "<", 2), [a1, b1, z]),
            (RowCondition("level", ">", 1.0), [a1, b1, b2]),  # NaN is the largest
            (RowCondition("level", "<=", -0.5), [a2, z]),
            (RowCondition("on", "=", True), [a1, z]),
            (RowCondition("data", "=", b"\0\xff"), [a1]),
            (RowCondition("maybe", "=", None), [a2, b2, z]),
            (RowCondition("maybe", "!=", None), [a1, b1]),
            (RowCondition("maybe", "!=", 3), [a2, b1, b2, z]),
            (RowCondition("maybe", ">=", 0), [a1, b1]),
            (RowCondition("said", "=", ""), [b1]),
            (RowCondition("text", "=", ROWS[0].text), [a1]),
        ):
            assert await self.asked(store, condition) == expected, condition
        assert await self.asked(store, RowCondition("name", "=", "a"), RowCondition("number", "=", 2)) == [a2]
        await store.close()

    @in_a_loop
    async def test_pages_follow_each_other_in_any_order(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        await self.filled(store)
        orders: list[list[tuple[str, bool]]] = [[], [("name", True)], [("on", True), ("number", False)]]
        whole: list[tuple[Any, ...]] = []
        for order in (*orders, [("level", False)], [("level", True)]):
            whole, _ = await store.select(T, PLAN.columns, check_selection(PLAN, (), order))
            found: list[tuple[Any, ...]] = []
            cursor = ""
            for _ in range(len(ROWS) + 1):
                wanted = check_selection(PLAN, (), order, 1, cursor)
                rows, known = await store.select(T, PLAN.columns, wanted)
                assert known.positions == at(9)
                if not rows:
                    break
                found += rows
                cursor = cursor_of(PLAN, wanted, rows[-1])
            assert same(found, whole), order
            assert len(found) == len(ROWS)
        levels = [row[PLAN.columns.index(next(c for c in PLAN.columns if c.name == "level"))] for row in whole]
        assert math.isnan(levels[0])
        assert levels[1:] == [math.inf, 1.5, -0.5, -math.inf]
        await store.close()

    @in_a_loop
    async def test_texts_are_ordered_by_their_code_points(self, open_view_store: OpenViewStore) -> None:
        store, plan = open_view_store(), plan_of(Short)
        names = sorted(["a", "B", "ä", "Z", "aa", "é", "𝄞", "_", "a b"])
        await store.create(plan.name, plan.columns, plan.digest)
        await store.write(plan.name, plan.columns, RowChanges([(name,) for name in reversed(names)], [], at(1), 0))
        rows, _ = await store.select(plan.name, plan.columns, check_selection(plan, ()))
        assert [row[0] for row in rows] == names
        await store.close()

    @in_a_loop
    async def test_rows_of_other_code_are_not_taken_for_ours(self, open_view_store: OpenViewStore) -> None:
        store, short = open_view_store(), plan_of(Short)
        await store.create(T, short.columns, short.digest)
        with pytest.raises(StoreForeign):
            await self.asked(store)
        with pytest.raises(StoreForeign):
            await store.select("Nothing", PLAN.columns, check_selection(PLAN, ()))
        await store.close()

    @in_a_loop
    async def test_a_closed_store_takes_no_calls(self, open_view_store: OpenViewStore) -> None:
        store = open_view_store()
        await self.filled(store)
        await store.close()
        await store.close()
        for call in (store.find(T), store.write(T, PLAN.columns, RowChanges([], [], at(1), 1))):
            with pytest.raises(StigmergyError):
                await call
