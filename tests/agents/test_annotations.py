"""Which types can be changed in place, and how annotations are found wherever a class is defined."""

from __future__ import annotations

import collections
import dataclasses
import threading
import typing
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from typing import Annotated, Any, ClassVar

import pytest
from msgspec import Struct

from stigmergy.agents.messages import first_mutable, parameters_of, plain_name, resolve_hints, union_members
from stigmergy.base.errors import DefinitionError


class Loose(Struct):
    a: int = 0


class Firm(Struct, frozen=True):
    a: int = 0


class FirmWithList(Struct, frozen=True):
    items: list[int]


class Node(Struct, frozen=True):
    children: tuple[Node, ...] = ()


class Pair(typing.NamedTuple):
    a: int
    b: list[int]


class Typed(typing.TypedDict):
    a: int


@dataclasses.dataclass
class LooseData:
    a: int = 0


@dataclasses.dataclass(frozen=True)
class FirmData:
    a: int = 0


@pytest.mark.parametrize(
    ("hint", "found"),
    [
        (int, None),
        (str | None, None),
        (bytes, None),
        (tuple[int, ...], None),
        (frozenset[str], None),
        (Mapping[str, int], None),
        (Sequence[int], None),
        (Firm, None),
        (FirmData, None),
        (Node, None),
        (typing.Literal["a"], None),
        (Annotated[int, "metres"], None),
        (ClassVar[list[int]], None),
        (list[int], "list"),
        (typing.List[int], "list"),  # noqa: UP006
        (dict[str, int], "dict"),
        (set[int], "set"),
        (bytearray, "bytearray"),
        (collections.deque[int], "deque"),
        (collections.defaultdict[str, int], "defaultdict"),
        (collections.Counter[str], "dict"),
        (MutableMapping[str, int], "dict"),
        (MutableSequence[int], "list"),
        (MutableSet[int], "set"),
        (tuple[int, list[int]], "list"),
        (int | list[int], "list"),
        (Annotated[list[int], "few"], "list"),
        (Any, "Any"),
        (object, "Any"),
        (Loose, "Loose"),
        (LooseData, "LooseData"),
        (FirmWithList, "list"),
        (Pair, "list"),
        (Typed, "dict"),
    ],
)
def test_what_can_be_changed_in_place(hint: Any, found: str | None) -> None:
    assert first_mutable(hint) == found


def test_hints_of_a_class_inside_a_function() -> None:
    class Inner(Struct):
        a: int

    class Outer(Struct):
        inner: Inner
        itself: Outer | None = None

    assert resolve_hints(Outer, "Outer") == {"inner": Inner, "itself": Outer | None}


def called(levels: int, make: Any) -> Any:
    return make() if levels == 0 else called(levels - 1, make)


def test_names_are_looked_for_in_so_many_functions_and_no_more() -> None:
    class Holder:
        value: Far  # type: ignore[name-defined]  # noqa: F821

    def far(levels: int) -> dict[str, Any]:
        Far = str  # noqa: F841
        found: dict[str, Any] = called(levels, lambda: resolve_hints(Holder, "Holder"))
        return found

    # Beside these calls there are resolve_hints, the lambda, the last of the calls, and the function that knows it.
    assert far(12) == {"value": str}
    with pytest.raises(DefinitionError, match="'Far', which is not defined"):
        far(13)


def test_the_nearest_function_wins() -> None:
    Name = int

    def nearer() -> dict[str, Any]:
        Name = str

        class Holder:
            value: Name  # type: ignore[valid-type]

        return resolve_hints(Holder, "Holder")

    assert nearer() == {"value": str}
    assert Name is int


def test_a_name_that_is_nowhere() -> None:
    def handler(self: Any, event: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(DefinitionError, match=r"Drone\.handler: the annotation names 'Missing'"):
        resolve_hints(handler, "Drone.handler")


def test_a_class_at_the_bottom_of_a_deep_stack() -> None:
    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
            return

        class Deep:
            value: Missing  # type: ignore[name-defined]  # noqa: F821

        resolve_hints(Deep, "Deep")

    with pytest.raises(DefinitionError, match="Missing"):
        descend(40)


def test_a_class_near_the_end_of_the_stack() -> None:
    class Near:
        value: Missing  # type: ignore[name-defined]  # noqa: F821

    errors: list[Exception] = []

    def resolve() -> None:
        try:
            resolve_hints(Near, "Near")
        except DefinitionError as error:
            errors.append(error)

    thread = threading.Thread(target=resolve)
    thread.start()
    thread.join()
    assert "Near: the annotation names 'Missing'" in str(errors[0])


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (int, "int"),
        (Firm, "Firm"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Mapping[str, list[Firm]], "Mapping[str, list[Firm]]"),
        (str | None, "NoneType | str"),
        (typing.Optional[str], "NoneType | str"),  # noqa: UP045
        (typing.Literal["a", 1], "Literal['a', 1]"),
        (Any, "Any"),
    ],
)
def test_a_hint_as_text_names_no_module(hint: Any, name: str) -> None:
    assert plain_name(hint) == name


def test_members_of_a_union() -> None:
    assert union_members(int | str) == (int, str)
    assert union_members(typing.Optional[int]) == (int, type(None))  # noqa: UP045
    assert union_members(int) == (int,)


def test_parameters_of_a_function() -> None:
    def function(a: int, b: int, *c: int, d: int = 0) -> None:
        e = a
        del e

    assert parameters_of(function) == ["a", "b"]
