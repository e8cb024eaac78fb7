"""Where agents live: by the hash of their address, or of what a function of the fleet says of it."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, react
from stigmergy.agents.effects import Effects, Events, Tell
from stigmergy.agents.messages import Command, Event
from stigmergy.base.errors import DefinitionError, JournalForeign, UnknownKind
from stigmergy.shard import homes as module
from stigmergy.shard.homes import KEY_CHARS_MAX, Homes, shard_of
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import ShardState, plan_agents
from tests.agents.meters import meter_plans
from tests.shard.shards import Probe


class Call(Command):
    to: str


class Called(Event):
    to: str


class Rung(Event):
    pass


class Caller(Agent):
    rung: int = 0

    @decide
    def call(self, command: Call) -> Events:
        yield Called(to=command.to)

    @react
    def called(self, event: Called) -> Effects:
        yield Tell(event.to, Rung())


def zone_of(address: str) -> str:
    return address.partition("/")[2].partition("-")[0]


def test_without_a_function_it_is_the_hash_of_the_address() -> None:
    homes = Homes(16)
    assert homes.key_name == ""
    assert [homes.of(f"Caller/{n}") for n in range(200)] == [shard_of(f"Caller/{n}", 16) for n in range(200)]
    assert Homes().of("Caller/a") == 0


def test_with_a_function_who_has_the_same_text_lives_together() -> None:
    homes = Homes(16, zone_of)
    assert homes.key_name == "zone_of"
    assert {homes.of(f"Caller/harbour-{n}") for n in range(50)} == {shard_of("harbour", 16)}
    assert len({homes.of(f"Caller/z{n}-1") for n in range(200)}) == 16
    assert Homes(1, zone_of).of("Caller/harbour-1") == 0


def test_many_are_found_as_one_by_one() -> None:
    homes = Homes(16, zone_of)
    addresses = [f"Caller/z{n}-{m}" for n in range(20) for m in range(2)]
    for _ in range(2):
        assert homes.of_all(addresses) == [shard_of(zone_of(address), 16) for address in addresses]
    assert homes.of_all([]) == []
    assert Homes().of_all(addresses[:3]) == [0, 0, 0]


def test_what_is_no_address_is_never_shown_to_the_function() -> None:
    def strict(address: str) -> str:
        kind, slash, name = address.partition("/")
        assert len(kind) * len(slash) * len(name) > 0
        return name

    homes = Homes(8, strict)
    for text in ("", "nonsense", "/", "a b/c", "Kind/", "Kind/ä", "x" * 500):
        assert homes.of(text) == shard_of(text, 8)


def test_an_answer_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_KNOWN_MAX", 3)
    asked: list[str] = []

    def noted(address: str) -> str:
        asked.append(address)
        return address

    homes = Homes(4, noted)
    for _ in range(3):
        homes.of("Caller/a")
    assert len(asked) == 2, "asked once, and once more to see whether it says the same"
    for n in range(10):
        assert homes.of(f"Caller/{n}") == shard_of(f"Caller/{n}", 4)
        assert len(homes._known) <= 3


def raises(_: str) -> str:
    raise KeyError("no such zone")


def returns(value: Any) -> Callable[[str], Any]:
    def given(_: str) -> Any:
        return value

    return given


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (raises, "raises raised KeyError"),
        (returns(None), "given returned None"),
        (returns(7), "given returned 7"),
        (returns(b"x"), "given returned b'x'"),
        (returns(""), "given returned ''"),
        (returns("x" * (KEY_CHARS_MAX + 1)), "1 to 256 characters"),
        (returns("\ud800"), "given returned"),
    ],
)
def test_a_bad_answer_is_refused_with_what_to_do(key: Callable[[str], Any], said: str) -> None:
    with pytest.raises(UnknownKind, match=said) as caught:
        Homes(4, key).of("Caller/a")
    assert "Caller/a: " in str(caught.value)
    assert "let it return a text" in str(caught.value)
    assert Homes(4, returns("x" * KEY_CHARS_MAX)).of("Caller/a") == shard_of("x" * KEY_CHARS_MAX, 4)


def test_a_function_that_changes_its_mind_is_found_out() -> None:
    numbers = itertools.count()

    def moody(_: str) -> str:
        return str(next(numbers))

    with pytest.raises(UnknownKind, match="depend on the address alone"):
        Homes(4, moody).of("Caller/a")


@pytest.mark.parametrize("key", [lambda address: address, 7, "zone_of", zone_of("A/b-c"), object()])
def test_a_function_without_a_name_is_refused(key: Any) -> None:
    with pytest.raises(DefinitionError, match="a function with a name"):
        Homes(4, key)


def test_a_tell_goes_to_the_shard_that_the_function_names() -> None:
    probe = Probe(Caller, homes=Homes(16, zone_of))
    probe.ask("Caller/harbour-1", Call(to="Caller/hill-9"))
    (owed,) = probe.state.outbox.owed()
    assert owed.sink == f"shard/{shard_of('hill', 16)}"


def test_a_tell_to_nowhere_fails_the_input_and_nothing_else() -> None:
    def only_harbour(address: str) -> str:
        return {"harbour": "h"}[zone_of(address)]

    probe = Probe(Caller, homes=Homes(16, only_harbour))
    probe.ask("Caller/harbour-1", Call(to="Caller/hill-9"))
    (letter,) = probe.state.letters.all()
    assert "only_harbour raised KeyError" in letter.error
    assert not list(probe.state.outbox.owed())


class TestAgentsOfALog:
    def shard(self, *addresses: str, number: int, homes: Homes) -> Shard:
        state = ShardState(number, plan_agents([Caller]))
        for address in addresses:
            state.agents[address] = state.new_agent(address, state.plan_at(address))
        return Shard(state, homes)

    def test_agents_that_live_where_they_are_found_are_fine(self) -> None:
        homes = Homes(16, zone_of)
        shard = self.shard("Caller/hill-1", "Caller/hill-2", number=shard_of("hill", 16), homes=homes)
        homes.check_agents(shard.state.shard, shard.state.addresses())

    def test_a_function_that_was_changed_is_refused(self) -> None:
        homes = Homes(16, zone_of)
        elsewhere = (shard_of("hill", 16) + 1) % 16
        shard = self.shard("Caller/hill-1", number=elsewhere, homes=homes)
        with pytest.raises(JournalForeign, match=f"lives in shard {elsewhere}, and zone_of puts it into"):
            homes.check_agents(shard.state.shard, shard.state.addresses())
        Homes(16).check_agents(shard.state.shard, shard.state.addresses())
        Homes(1, zone_of).check_agents(shard.state.shard, shard.state.addresses())

    def test_compiled_agents_are_looked_at_too(self) -> None:
        state = ShardState(3, meter_plans())
        state.tables["Meter"].enroll(["hill-1"])
        with pytest.raises(JournalForeign, match="Meter/hill-1 lives in shard 3"):
            Homes(16, zone_of).check_agents(state.shard, state.addresses())
