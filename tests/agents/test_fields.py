"""How shared and ordered fields are declared: in which words, and what is refused with which remedy."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest

import stigmergy as framework
from stigmergy import (
    Agent,
    Claim,
    Event,
    GCounter,
    LWWRegister,
    Ordered,
    ORMap,
    ORSet,
    Shared,
    evolve,
    ordered,
    shared,
)
from stigmergy import Shared as Common
from stigmergy.agents.messages import plain_name, resolve_hints
from stigmergy.agents.plans import plan_agent
from stigmergy.base.errors import DefinitionError

Names = Shared[ORSet[str]]


class Phase(enum.Enum):
    RED = 1
    GREEN = 2


class Place(msgspec.Struct, frozen=True):
    lane: int
    phase: Phase


class Base(Agent):
    names: Shared[ORSet[str]]
    slot: Ordered[Claim] = ordered(of="slot")


def test_an_alias_and_another_name_for_shared_are_the_same() -> None:
    class Aliased(Agent):
        names: Names
        others: Names = shared(by="all")
        phase: Common[LWWRegister[Phase]]
        count: framework.Shared[GCounter]
        slot: framework.Ordered[framework.Claim]

    plan = plan_agent(Aliased)
    assert list(plan.shared) == ["names", "others", "phase", "count"]
    assert list(plan.ordered) == ["slot"]


def test_other_annotations_may_name_what_is_defined_further_down() -> None:
    class Early(Agent):
        names: Shared[ORSet[str]]
        next: Later | None = None

    class Later(msgspec.Struct, frozen=True):
        n: int

    assert list(Early.__agent_filled__) == ["names"]


def test_elements_of_every_kind_and_a_class_inside_a_function() -> None:
    class Inside(Agent):
        phase: Shared[LWWRegister[Phase]]
        places: Shared[ORMap[str, LWWRegister[Place]]]
        pairs: Shared[ORSet[tuple[int, Phase]]]

    agent = plan_agent(Inside).restore(msgspec.msgpack.encode({"id": "a"}))
    assert agent.pairs.add((1, Phase.RED)).field == "pairs"
    assert agent.places["x"].set(Place(lane=1, phase=Phase.GREEN)).after_ns == 0


def test_the_nearest_declaration_of_a_field_counts() -> None:
    class Left(Base):
        pass

    class Right(Base):
        names: Shared[ORSet[str]] = shared(by="right")

    class Both(Left, Right):
        pass

    field: Any = Both.__agent_filled__["names"]
    assert field.by == "right"
    assert list(plan_agent(Both).ordered) == ["slot"]
    assert Base.__agent_filled__["names"].by is None  # type: ignore[union-attr]


def test_a_field_of_the_users_own_event_of_the_same_name_is_another() -> None:
    class Merged(Event):
        names: tuple[str, ...] = ()

    class Own(Base):
        @evolve
        def merged(self, event: Merged) -> None:
            pass

    assert {"Merged@1", "stigmergy.Merged@1"} <= plan_agent(Own).known_tags


def test_what_would_be_filled_by_nobody_is_refused() -> None:
    alone = r"write names: Shared\[…\], alone"
    with pytest.raises(DefinitionError, match=alone):

        class Optional(Agent):
            names: Shared[ORSet[str]] | None = None

    with pytest.raises(DefinitionError, match=alone):

        class Unmarked(Agent):
            names: ORSet[str]

    with pytest.raises(DefinitionError, match=alone):

        class Tupled(Agent):
            names: tuple[ORSet[str], ...] = ()

    with pytest.raises(DefinitionError, match=r"write slot: Ordered\[Claim\], alone"):

        class Loose(Agent):
            slot: Claim = Claim()


def test_what_has_no_bytes_cannot_be_shared() -> None:
    with pytest.raises(DefinitionError, match=r"Wrong.number: values of type complex cannot be shared"):

        class Wrong(Agent):
            number: Shared[LWWRegister[complex]]


def test_a_shared_field_cannot_become_something_else_in_a_subclass() -> None:
    with pytest.raises(DefinitionError, match="names: a base class has it as a shared or ordered field"):

        class Other(Base):
            names: int = 0  # type: ignore[assignment]

    with pytest.raises(DefinitionError, match="slot: a base class has it as a shared or ordered field"):

        class Another(Base):
            slot: int = 0  # type: ignore[assignment]


def test_layouts_are_the_same_however_annotations_are_written() -> None:
    written: dict[str, Any] = {"Shared": Shared, "ORSet": ORSet, "Agent": Agent, "LWWRegister": LWWRegister}
    written |= {"Phase": Phase, "Place": Place, "ORMap": ORMap, "Ordered": Ordered, "Claim": Claim, "ordered": ordered}
    body = (
        "class Made(Agent):\n    a: Shared[ORSet[Place]]\n    b: Shared[LWWRegister[Phase]]\n"
        "    c: Shared[ORMap[str, LWWRegister[Place]]]\n    d: Ordered[Claim]\n"
    )
    layouts = []
    for future in ("", "from __future__ import annotations\n"):
        names = {**written, "__name__": __name__}
        exec(compile(future + body, "made", "exec", dont_inherit=True), names)
        made = names["Made"]
        layouts.append(plan_agent(made).layout)
        assert plain_name(resolve_hints(made, "Made")["b"]) == "Annotated[LWWRegister[Phase], shared]"
        assert plain_name(resolve_hints(made, "Made")["d"]) == "Annotated[Claim, ordered]"
    assert layouts[0] == layouts[1]
    # Pinned: another one would refuse every snapshot there is.
    assert layouts[0].hex() == "99965a922f10041cbe3b745938f9175e"
