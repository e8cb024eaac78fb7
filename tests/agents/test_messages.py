"""What a message class may say, how it is kept, and how old versions become new ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec import Struct, field

from stigmergy.agents.messages import (
    SECOND_NS,
    Blob,
    Command,
    Event,
    Keep,
    Keeping,
    Message,
    category_of,
    durable,
    latest,
    newer_version,
    older_versions,
    spec_of,
    to_newest,
    transient,
    upcast,
    within,
)
from stigmergy.base.errors import DefinitionError


class Started(Event):
    mission: str


class Frame(Event, keep=transient):
    picture: Blob


class Spot(Event, name="Position", version=3, keep=latest):
    x: float
    notes: Mapping[str, str] = field(default_factory=dict)


def test_a_tag_is_the_name_and_the_version() -> None:
    assert spec_of(Started).tag == "Started@1"
    assert spec_of(Spot).tag == "Position@3"
    assert (spec_of(Spot).name, spec_of(Spot).version) == ("Position", 3)


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Started(mission="a").mission = "b"


@pytest.mark.parametrize(
    ("cls", "keep"),
    [
        (Started, durable),
        (Frame, transient),
        (Spot, Keep(Keeping.LATEST, wait_ns=SECOND_NS)),
    ],
)
def test_keeping_is_said_by_the_class(cls: type[Message], keep: Keep) -> None:
    assert spec_of(cls).keep == keep


def test_within_waits_so_long() -> None:
    assert within(seconds=0.5) == Keep(Keeping.WITHIN, wait_ns=SECOND_NS // 2)


def test_within_may_wait_an_hour_and_hardly_at_all() -> None:
    assert within(seconds=3600).wait_ns == 3600 * SECOND_NS
    assert within(seconds=0.001).wait_ns == SECOND_NS // 1000
    assert durable.wait_ns == transient.wait_ns == 0


def test_promises_keep_their_numbers() -> None:
    assert [(keeping.name, keeping.value) for keeping in Keeping] == [
        ("DURABLE", 0),
        ("WITHIN", 1),
        ("LATEST", 2),
        ("TRANSIENT", 3),
    ]


@pytest.mark.parametrize("seconds", [0, -1, 3600.001, 3601, float("nan"), float("inf")])
def test_within_is_bounded(seconds: float) -> None:
    with pytest.raises(DefinitionError, match=r"give more than 0 and at most 3600 seconds"):
        within(seconds=seconds)


def test_a_version_below_one() -> None:
    with pytest.raises(DefinitionError, match="Early: version=0; versions count from 1"):

        class Early(Event, version=0):
            pass


def test_a_name_with_a_version_in_it() -> None:
    with pytest.raises(DefinitionError, match="At: name='At@2'; a name has no '@', the version is added to it"):

        class At(Event, name="At@2"):
            pass


def test_a_mutable_default() -> None:
    with pytest.raises(DefinitionError, match=r"Listed.items: the default \[\] is mutable .*default_factory=list"):

        class Listed(Event):
            items: tuple[int, ...] = []  # type: ignore[assignment]


class Loose(Struct):
    a: int = 0


@pytest.mark.parametrize(
    ("hint", "instead"),
    [
        ("list[int]", "list can be changed in place, and messages are shared; use tuple[X, ...]"),
        ("dict[str, int]", "use Mapping[K, V]"),
        ("tuple[set[int], ...]", "set can be changed in place, and messages are shared; use frozenset[X]"),
        ("bytearray | None", "use bytes"),
        ("Loose", "Loose can be changed in place, and messages are shared; use a struct with frozen=True"),
        ("object", "Any can be changed in place"),
    ],
)
def test_a_field_that_can_be_changed(hint: str, instead: str) -> None:
    names = {"Event": Event, "Loose": Loose, "__name__": __name__}
    code = f"class Held(Event):\n    field: {hint}"
    with pytest.raises(DefinitionError, match=r"Held\.field") as caught:
        exec(code, names)
    assert instead in str(caught.value)


def test_an_unknown_annotation() -> None:
    with pytest.raises(DefinitionError, match="Vague: the annotation names 'Nonsense', which is not defined"):

        class Vague(Event):
            what: Nonsense  # type: ignore[name-defined]  # noqa: F821


class Tree(Event):
    value: int
    children: tuple[Tree, ...] = ()


def test_a_message_may_contain_its_own_kind() -> None:
    assert Tree(value=1, children=(Tree(value=2),)).children[0].value == 2


class MeasuredV1(Event, name="Measured", version=1):
    millimetres: int


class MeasuredV2(Event, name="Measured", version=2):
    metres: float


class Measured(Event, name="Measured", version=3):
    metres: float
    sensor: str = "unknown"


@upcast
def measured_1_to_2(old: MeasuredV1) -> MeasuredV2:
    return MeasuredV2(metres=old.millimetres / 1000)


@upcast
def measured_2_to_3(old: MeasuredV2) -> Measured:
    return Measured(metres=old.metres)


def test_a_message_is_carried_through_all_its_versions() -> None:
    assert to_newest(MeasuredV1(millimetres=1500)) == Measured(metres=1.5)
    assert to_newest(MeasuredV2(metres=2.0)) == Measured(metres=2.0)
    assert to_newest(Measured(metres=3.0)) == Measured(metres=3.0)
    assert older_versions(Measured) == [MeasuredV2, MeasuredV1]
    assert older_versions(MeasuredV1) == []
    assert newer_version(MeasuredV1) is MeasuredV2
    assert newer_version(Measured) is None


def test_an_upcaster_needs_two_annotations() -> None:
    with pytest.raises(DefinitionError, match="annotate one message argument and the message it returns"):

        @upcast  # type: ignore[type-var]
        def convert(old, other: int):  # type: ignore[no-untyped-def]
            return old

    with pytest.raises(DefinitionError, match="annotate one message argument and the message it returns"):

        @upcast  # type: ignore[type-var]
        def convert_two(old: MeasuredV1, other: MeasuredV1) -> MeasuredV2:
            return MeasuredV2(metres=1)


def test_an_upcaster_keeps_the_name_and_raises_the_version() -> None:
    with pytest.raises(DefinitionError, match="goes from Started@1 to Measured@3; an upcaster keeps the name"):

        @upcast
        def started_to_measured(old: Started) -> Measured:
            return Measured(metres=1)

    with pytest.raises(DefinitionError, match=r'write class Measured\(…, name="Measured", version=1\)'):

        @upcast
        def backwards(old: Measured) -> MeasuredV1:
            return MeasuredV1(millimetres=1)


def test_a_version_has_one_upcaster() -> None:
    with pytest.raises(DefinitionError, match="Measured@1 has an upcaster already, measured_1_to_2"):

        @upcast
        def another(old: MeasuredV1) -> Measured:
            return Measured(metres=1)


def test_the_same_upcaster_may_be_declared_again() -> None:
    upcast(measured_1_to_2)


class WrongV1(Command, name="Wrong", version=1):
    pass


class Wrong(Command, name="Wrong", version=2):
    pass


@upcast
def wrong_1_to_2(old: WrongV1) -> Wrong:
    return old  # type: ignore[return-value]


def test_an_upcaster_that_returns_something_else() -> None:
    with pytest.raises(TypeError, match="wrong_1_to_2 returned WrongV1, not Wrong"):
        to_newest(WrongV1())


def test_a_category_is_declared_and_found_by_its_tag() -> None:
    class Overheated(Event, category="alert"):
        severity: str

    assert spec_of(Overheated).category == "alert"
    assert category_of("Overheated@1") == "alert"
    assert spec_of(Started).category is None
    assert category_of("Started@1") is None
    with pytest.raises(DefinitionError, match="sensor, control, state, alert"):

        class Odd(Event, category="noise"):
            pass
