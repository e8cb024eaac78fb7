"""What the embedding program gives wrongly: said at once, in an error of ours with a remedy; nothing is harmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stigmergy import Action, Agent, Command, Event, Events, decide, evolve, pack_envelope
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import ConfigError, DefinitionError, Malformed, StigmergyError, TrustError, UnknownKind
from stigmergy.control.live import Live
from stigmergy.shard.inputs import Accepted
from stigmergy.shard.memory import DeadLetter


class Go(Command):
    steps: int = 1


class Went(Event):
    steps: int = 1
    note: str = ""


class Stop(Action):
    pass


class Rover(Agent):
    steps: int = 0

    @decide
    def go(self, command: Go) -> Events:
        yield Went(steps=command.steps)

    @evolve
    def went(self, event: Went) -> None:
        self.steps += event.steps


def fleet(shards: int = 2) -> Fleet:
    return Fleet("rovers", agents=[Rover], shards=shards)


R = "Rover/r"
LATER: Any = DeadLetter("7.1.0", R, "s", "e", b"")
NAMELESS: Any = DeadLetter("x", R, "s", "e", b"")
WRONG: dict[str, tuple[Callable[[Live, Any], Any], Any, type[StigmergyError], str]] = {
    "a class for a command": (lambda live, one: live.send(R, one), Go, Malformed, r"not a command; make one: Go\("),
    "an event for a command": (lambda live, one: live.send(R, one), Went(), Malformed, "observe events, send commands"),
    "a text for a command": (lambda live, one: live.send(R, one), "go", Malformed, "subclasses Command"),
    "nothing for a command": (lambda live, one: live.send(R, one), None, Malformed, "None is not a command"),
    "a long number": (lambda live, one: live.send(R, Go(steps=one)), 2**70, Malformed, "at most 64 bits"),
    "an object": (lambda live, one: live.send(R, Go(steps=one)), object(), Malformed, "Go cannot be written"),
    "a number for an id": (lambda live, one: live.send(R, Go(), command_id=one), 5, Malformed, "no command id"),
    "a list for an id": (lambda live, one: live.send(R, Go(), command_id=one), [], Malformed, "no command id"),
    "a class for an event": (
        lambda live, one: live.observe(R, one),
        Went,
        Malformed,
        r"not an event; make one: Went\(",
    ),
    "a command for an event": (lambda live, one: live.observe(R, one), Go(), Malformed, "observe events, send"),
    "half a pair": (lambda live, one: live.observe(R, Went(note=one)), "\ud800", Malformed, "surrogate"),
    "no envelope": (lambda live, one: live.deliver(one), None, Malformed, "no envelope; give the bytes"),
    "a text for an envelope": (lambda live, one: live.deliver(one), "x", Malformed, "no envelope; give the bytes"),
    "half a pair in an address": (lambda live, one: live.send(one, Go()), "Rover/\ud800", UnknownKind, "no address"),
    "half a pair observed": (lambda live, one: live.observe(one, Went()), "Rover/\ud800", UnknownKind, "no address"),
    "half a pair asked": (lambda live, one: live.query(one), "Rover/\ud800", UnknownKind, "no address"),
    "a number asked": (lambda live, one: live.query(one), 5, UnknownKind, "no address"),
    "a text for a class": (lambda live, one: live.query(R, one), "Drone", UnknownKind, "is a Rover, not a Drone"),
    "a number for a class": (lambda live, one: live.agents(one), 5, UnknownKind, "is no agent kind here"),
    "no letter": (lambda live, one: live.retry(one), None, ConfigError, "no dead letter of this node"),
    "no letter to drop": (lambda live, one: live.drop(one), "0.1.0", ConfigError, "no dead letter of this node"),
    "a letter of no shard": (lambda live, one: live.retry(one), LATER, ConfigError, "no dead letter of this node"),
    "a letter of no name": (lambda live, one: live.retry(one), NAMELESS, ConfigError, "no dead letter of this node"),
    "half a pair to resume": (lambda live, one: live.resume(one, "me"), "Rover/\ud800", UnknownKind, "no address"),
    "a text for an algorithm": (lambda live, one: live.enroll_signer(one, b"k"), "x", TrustError, "its algorithm"),
    "a text for a key": (lambda live, one: live.enroll_signer(1, one), "k", TrustError, "bytes of its key"),
    "a text for a position": (lambda live, one: live.revoke_signer(1, b"k", one), "1", ConfigError, "last position"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_running_fleet_says_what_is_wrong_and_goes_on(name: str) -> None:
    call, given, error, said = WRONG[name]
    async with fleet().running(journal="memory:") as live:
        with pytest.raises(error, match=said):
            await call(live, given)
        assert live.failure is None
        assert isinstance(await live.send(R, Go()), Accepted)
        assert live.query(R, Rover).steps == 1
        assert live.agents(Rover) == [R]
        assert live.dead_letters() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"journal": 5}, "journal=5: give a text"),
        ({"journal": Path("x.db")}, "give a text like"),
        ({"journal": "sqlite:a\0b"}, "give a text like"),
        ({"key": 5}, "key=5: give the path"),
        ({"key": "a\0b"}, "give the path"),
        ({"settings": {}}, "give Settings"),
        ({"trust": "ab"}, "trust='ab': give a list of texts"),
        ({"trust": [5]}, "give a list of texts"),
        ({"bus": 5}, "bus=5: give a text"),
        ({"node": b"n"}, "node=b'n': give a text"),
        ({"agents": "Rover/r"}, "agents='Rover/r': give a list of texts"),
    ],
)
def test_arguments_of_running(arguments: dict[str, Any], said: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        fleet().running(**arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (5, {"agents": [Rover]}),
        ("x", {"agents": Rover}),
        ("x", {"agents": [Rover()]}),
        ("x", {"agents": ["Rover"]}),
        ("x", {"agents": None}),
        ("x", {"agents": [Rover], "shards": "2"}),
        ("x", {"agents": [Rover], "shards": 1.5}),
        ("x", {"agents": [Rover], "settings": 5}),
        ("x", {"agents": [Rover], "streams": 5}),
        ("x", {"agents": [Rover], "streams": {"s": 5}}),
    ],
)
def test_arguments_of_a_fleet(name: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"fleet {name!r}"):
        Fleet(name, **arguments)


@pytest.mark.parametrize(
    ("register", "said"),
    [
        (lambda wrong: wrong.actuator(5)(print), "name a class that subclasses Action"),
        (lambda wrong: wrong.actuator(Go)(print), "name a class that subclasses Action"),
        (lambda wrong: wrong.worker(Go())(print), "name a class that subclasses Work"),
        (lambda wrong: wrong.actuator(Stop)(5), "5 is no function"),
    ],
)
def test_hands_that_are_none(register: Callable[[Fleet], Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        register(fleet())


@pytest.mark.parametrize(
    "arguments",
    [
        {"items": [(R, Went)]},
        {"items": [(R, Went(steps=2**70))]},
        {"items": [("\ud800", Went())]},
        {"items": [R]},
        {"items": None},
        {"sequence": 2**70},
        {"source": "\ud800"},
    ],
)
def test_what_has_no_envelope(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {"source": "s", "items": [(R, Went())], "sequence": 1, **arguments}
    with pytest.raises(Malformed, match="cannot be put into an envelope"):
        pack_envelope(**given)
