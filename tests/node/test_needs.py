"""What a fleet needs beside its journal: read from its fields, its declarations and the code of its reactions."""

from typing import Any

import pytest

import stigmergy as st
from stigmergy import (
    Action,
    Agent,
    Claim,
    Effects,
    Event,
    Ordered,
    ORSet,
    Publish,
    Shared,
    WhenStale,
    evolve,
    ordered,
    react,
    shared,
)
from stigmergy.base.errors import ConfigError
from stigmergy.node.declaration import Declaration
from stigmergy.node.needs import Needs, check_needs, hasty_rules, needs_of


class Seen(Event):
    what: str = ""


class Plain(Agent):
    count: int = 0

    @react
    def nothing(self, event: Seen) -> Effects:
        yield from ()


class Cart(Agent):
    board: Shared[ORSet[str]] = shared(by="hall")
    dock: Ordered[Claim] = ordered(of="dock-1")


def in_a_function(event: Seen) -> Effects:
    yield Publish("seen", event)


class Directly(Agent):
    @react
    def tell(self, event: Seen) -> Effects:
        yield Publish("seen", event)


class ByTheModule(Agent):
    @react
    def tell(self, event: Seen) -> Effects:
        return [st.Publish("seen", event)]


class ByAFunction(Agent):
    @react
    def tell(self, event: Seen) -> Effects:
        yield from in_a_function(event)


class ByAMethod(Agent):
    @react
    def tell(self, event: Seen) -> Effects:
        yield from self.announce(event)

    def announce(self, event: Seen) -> Effects:
        return [made for made in (Publish("seen", event),)]  # noqa: C416 - a nested scope


class ByInheritance(ByAMethod):
    pass


class ByAnImport(Agent):
    @react
    def tell(self, event: Seen) -> Effects:
        from stigmergy import Publish as elsewhere

        yield elsewhere("seen", event)


def made_within() -> Any:
    effect = Publish

    class Closed(Agent):
        @react
        def tell(self, event: Seen) -> Effects:
            yield effect("seen", event)

    return Closed


@pytest.mark.parametrize(
    "cls", [Directly, ByTheModule, ByAFunction, ByAMethod, ByInheritance, ByAnImport, made_within()]
)
def test_an_agent_that_publishes_is_found_by_its_code(cls: type[Agent]) -> None:
    assert needs_of(Declaration("one", agents=[cls])).publishes == (cls.__name__,)


def test_a_fleet_of_its_own_needs_nothing() -> None:
    needs = needs_of(Declaration("alone", agents=[Plain]))
    assert needs == Needs()
    assert needs.unmet(bus=False, ledger=False) == {}


def test_fields_and_classes_are_named() -> None:
    needs = needs_of(Declaration("hall", agents=[Plain, Cart, Directly]))
    assert needs.unmet(bus=False, ledger=False) == {
        "bus": "Cart.board is shared; Directly publishes",
        "ledger": "Cart.dock is claimed",
    }
    assert needs.unmet(bus=True, ledger=True) == {}
    assert needs.why_heard == "Directly publishes", "shared fields of one node meet without a bus"


def test_only_the_agents_of_a_node_count_where_it_names_them() -> None:
    fleet = Declaration("hall", agents=[Plain, Cart, Directly])
    assert needs_of(fleet, ("Plain/1",)) == Needs()
    assert needs_of(fleet, ("Cart/c0*", "Plain/1")).claims == ("Cart.dock",)
    assert needs_of(fleet, ("*",)) == needs_of(fleet)


def test_what_is_declared_to_come_by_a_bus_needs_one() -> None:
    fleet = Declaration("hall", agents=[Cart, Taker])
    fleet.listen("Cart/{id}/seen", to="Taker/{id}")
    fleet.device("carts/{id}/seen", to="Taker/{id}", event=Seen)
    assert needs_of(fleet).listens == ("Cart/{id}/seen", "carts/{id}/seen")


class Taker(Agent):
    @react
    def seen(self, event: Seen) -> Effects:
        yield from ()


def test_many_fields_are_counted() -> None:
    needs = Needs(claims=tuple(f"Cart.d{number}" for number in range(8)))
    assert needs.why_ledger == "Cart.d0, Cart.d1, Cart.d2, Cart.d3, Cart.d4 and 3 more are claimed"


def test_a_fleet_that_lacks_something_is_refused_with_the_line_to_write() -> None:
    fleet = Declaration("hall", agents=[Cart])
    url = "nats://hub:4222?replicas=3"
    with pytest.raises(ConfigError) as refused:
        check_needs(fleet, url, bus=True, ledger=False)
    assert str(refused.value) == (
        "fleet 'hall' needs a ledger (Cart.dock is claimed), and this worker has none; write "
        'ledger = "nats://hub:4222?replicas=3" under [fleet] in stigmergy.toml, or give --ledger; the same for all '
        "its workers"
    )
    check_needs(fleet, url, bus=True, ledger=True)


class Stop(Action):
    pass


class Hasty(Agent):
    silence = WhenStale(Seen, after_s=3, then=Stop())

    @evolve
    def seen(self, event: Seen) -> None:
        pass


class Patient(Agent):
    silence = WhenStale(Seen, after_s=9, then=Stop())

    @evolve
    def seen(self, event: Seen) -> None:
        pass


def test_staleness_rules_that_a_dying_server_sets_off_are_said() -> None:
    """The drones of a swarm landed all at once when a server was killed: their log had no leader for 5 s."""
    (said,) = hasty_rules(Declaration("town", agents=[Hasty, Patient, Plain]))
    assert said.startswith("Hasty takes its safe action after 3 s without Seen: it will do so whenever the server")
    assert said.endswith("give WhenStale more, or run these agents on their device or gateway")
