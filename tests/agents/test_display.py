"""What people see of shared fields: values, and changes in words."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest

from stigmergy import (
    Agent,
    DisableWinsFlag,
    EnableWinsFlag,
    GCounter,
    LWWRegister,
    Merged,
    MVRegister,
    ORMap,
    ORSet,
    PNCounter,
    Shared,
    SharedChanged,
)
from stigmergy.agents.codec import encode
from stigmergy.agents.display import CHANGED, MERGED, fields_in_words, plain_state
from stigmergy.audit.listing import readable_fields
from stigmergy.crdt.delta import Edit
from stigmergy.crdt.store import mint

WRITER = b"writer-1"


class Everything(Agent):
    count: int = 3
    added: Shared[GCounter]
    both: Shared[PNCounter]
    phase: Shared[LWWRegister[str]]
    names: Shared[MVRegister[str]]
    on: Shared[EnableWinsFlag]
    off: Shared[DisableWinsFlag]
    vehicles: Shared[ORSet[str]]
    exposure: Shared[ORMap[str, GCounter]]


def written(agent: Everything, edit: Edit) -> bytes:
    """Writes to the agent at once; returns the delta."""
    value: Any = getattr(agent, edit.field)
    delta = mint(edit, value.store, WRITER, 1_000)
    setattr(agent, edit.field, value.with_store(value.store.apply(delta)))
    return delta.to_bytes()


def new() -> Everything:
    agent: Any = Everything
    return agent(id="one")  # type: ignore[no-any-return]


def test_shared_fields_are_shown_as_what_they_mean() -> None:
    agent = new()
    for edit in (
        agent.added.add(2),
        agent.both.subtract(1),
        agent.phase.set("green"),
        agent.names.set("a"),
        agent.on.enable(),
        agent.vehicles.add("V-1"),
        agent.exposure["NO2"].add(4),
    ):
        written(agent, edit)
    assert plain_state(agent) == {
        "id": "one",
        "count": 3,
        "added": 2,
        "both": -1,
        "phase": "green",
        "names": ["a"],
        "on": True,
        "off": False,
        "vehicles": ["V-1"],
        "exposure": {"NO2": 4},
    }


def test_what_has_no_meaning_is_no_state() -> None:
    with pytest.raises(TypeError, match="no plain value"):
        plain_state([object()])


def test_changes_in_words() -> None:
    agent = new()
    writes = {edit.field: written(agent, edit) for edit in (agent.phase.set("green"), agent.exposure["NO2"].add(4))}
    writes["vehicles"] = written(agent, agent.vehicles.add("V-1"))
    writes["vehicles, gone"] = written(agent, agent.vehicles.remove("V-1"))
    writes["names"] = written(agent, agent.names.set("a"))

    def shown(name: str) -> Any:
        return readable_fields(encode(SharedChanged(field=name, delta=writes[name])))

    replica = WRITER.hex()
    assert shown("phase") == {
        "field": "phase",
        "replica": replica,
        "change": 1,
        "added": [{"at": [], "value": "green"}],
        "removed": [],
    }
    assert shown("exposure")["added"] == [{"at": ["NO2"], "total": 4}]
    assert shown("vehicles")["added"] == [{"at": ["V-1"]}]
    assert shown("vehicles, gone")["removed"] == [["V-1"]]
    assert shown("names")["added"] == [{"at": [], "value": "a"}]
    merged = Merged(field="vehicles", deltas=(writes["vehicles"],), state=b"1234")
    told = readable_fields(encode(merged))
    assert (told["field"], told["state_bytes"]) == ("vehicles", 4)
    assert [change["change"] for change in told["changes"]] == [1]


def test_other_messages_and_damage_are_not_shared_changes() -> None:
    assert fields_in_words("Other@1", b"") is None
    assert fields_in_words(CHANGED, b"\xc1") is None
    assert fields_in_words(MERGED, encode(Merged(field="x", deltas=(b"nonsense",)))) is None
    body = encode(SharedChanged(field="x", delta=b"nonsense"))
    assert readable_fields(body) == {"field": "x", "delta": msgspec.to_builtins(b"nonsense")}


class Phase(enum.Enum):
    RED = "red"


class Place(msgspec.Struct, frozen=True):
    lane: int
    phase: Phase


class Keyed(Agent):
    pairs: Shared[ORMap[tuple[int, int], GCounter]]
    places: Shared[ORMap[Place, ORSet[Phase]]]
    phases: Shared[ORMap[Phase, GCounter]]
    numbers: Shared[ORMap[int, GCounter]]


def test_keys_of_every_type_are_shown() -> None:
    agent: Any = Keyed()  # type: ignore[call-arg]
    written(agent, agent.pairs[1, 2].add(3))
    written(agent, agent.places[Place(lane=1, phase=Phase.RED)].add(Phase.RED))
    written(agent, agent.phases[Phase.RED].add(1))
    written(agent, agent.numbers[7].add(1))
    shown = plain_state(agent)
    assert shown["pairs"] == {"[1,2]": 3}
    assert shown["places"] == {'{"lane":1,"phase":"red"}': ["red"]}
    assert shown["phases"] == {"red": 1}
    assert shown["numbers"] == {"7": 1}
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown
