"""Changes that their author has not signed, or that are not its own to make, are refused, whoever brings them."""

from collections.abc import Callable

import pytest
from msgspec import structs

from stigmergy.crdt.anti_entropy.authorship import delta_statement, object_id
from stigmergy.crdt.anti_entropy.messages import Change, write_frame
from stigmergy.crdt.delta import Delta
from stigmergy.crdt.store import EMPTY, mint
from tests.crdt.anti_entropy.fleet import FLEET, OBJECT, Fleet, Member, ORSet, id_of, toy_signature

OTHER = "Thing.other/all"


def adding(member: Member, element: str = "x") -> Delta:
    value = ORSet.empty(ORSet[str], "seen")
    assert isinstance(value, ORSet)
    return mint(value.add(element), EMPTY, member.replica().id, 0)


def change_of(member: Member, delta: Delta, *, fleet: str = FLEET, name: str = OBJECT, address: str = "") -> Change:
    """A change as this node would sign it."""
    body, address = delta.to_bytes(), address or member.replica().address
    statement = delta_statement(fleet, name, address, member.incarnation, delta, body)
    signature = toy_signature(member.key, statement)
    return Change(1, member.key, member.incarnation, address, object_id(name), body, signature)


def as_it_should_be(a: Member, b: Member) -> Change:
    return change_of(a, adding(a))


def with_another_body(a: Member, b: Member) -> Change:
    return structs.replace(change_of(a, adding(a)), delta=adding(a, "forged").to_bytes())


def with_another_signature(a: Member, b: Member) -> Change:
    change = change_of(a, adding(a))
    return structs.replace(change, signature=bytes([change.signature[0] ^ 1]) + change.signature[1:])


def signed_by_another_key(a: Member, b: Member) -> Change:
    return structs.replace(change_of(a, adding(a)), key=b.key)


def of_a_replica_of_somebody_else(a: Member, b: Member) -> Change:
    return change_of(b, adding(a))


def of_somebody_else_under_its_address(a: Member, b: Member) -> Change:
    return change_of(b, adding(a), address=a.replica().address)


def of_an_agent_of_another_name(a: Member, b: Member) -> Change:
    return change_of(a, adding(a), address="Thing/somebody")


def of_another_incarnation(a: Member, b: Member) -> Change:
    return structs.replace(change_of(a, adding(a)), incarnation=a.incarnation + 1)


def of_another_object(a: Member, b: Member) -> Change:
    return structs.replace(change_of(a, adding(a), name=OTHER), object=object_id(OBJECT))


def of_another_fleet(a: Member, b: Member) -> Change:
    return change_of(a, adding(a), fleet="elsewhere")


REFUSED: tuple[Callable[[Member, Member], Change], ...] = (
    with_another_body,
    with_another_signature,
    signed_by_another_key,
    of_a_replica_of_somebody_else,
    of_somebody_else_under_its_address,
    of_an_agent_of_another_name,
    of_another_incarnation,
    of_another_object,
    of_another_fleet,
)


def heard(make: Callable[[Member, Member], Change]) -> Member:
    """What c makes of it: a has the replica, b brings it."""
    fleet = Fleet("a b c").start()
    fleet.run(1)
    fleet.cut = lambda sender, to: True
    assert id_of(fleet["a"].key, 1, "Thing/a") == fleet["a"].replica().id
    fleet["c"].hear("b", write_frame(make(fleet["a"], fleet["b"])))
    fleet.run(1)
    return fleet["c"]


def test_what_its_author_has_signed_is_taken_from_anybody() -> None:
    assert list(heard(as_it_should_be).value()) == ["x"]


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_its_author_has_not_signed_is_refused_and_counted(make: Callable[[Member, Member], Change]) -> None:
    member = heard(make)
    assert list(member.value()) == []
    assert member.machine.counters.shared_refused == 1
    assert not member.machine.quarantined(), "it proves nothing against anybody"
