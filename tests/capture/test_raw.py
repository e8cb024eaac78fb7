"""What is raw is in no table, neither by itself nor inside what the runtime keeps."""

import pytest

from stigmergy import Agent, Event, Fleet, Settings, evolve, react
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Effects
from stigmergy.agents.messages import spec_of
from stigmergy.agents.supervision import InputFailed
from stigmergy.base.errors import ConfigError
from stigmergy.capture.tables import EventTables


class FaceSeen(Event, raw=True):
    pixels: bytes


class FaceCounted(Event):
    count: int


class Gate(Agent, kind="Gate"):
    count: int = 0

    @evolve
    def counted(self, event: FaceCounted) -> None:
        self.count = event.count

    @react
    def seen(self, event: FaceSeen) -> Effects:
        yield from ()


FLEET = Fleet("gates", agents=[Gate], settings=Settings())


def test_raw_kinds_are_left_out_also_inside_a_dead_letter() -> None:
    tables = EventTables(FLEET.plans)
    assert tables.left_out == ["FaceSeen"]
    assert "face_seen" not in [table.name for table in tables.tables]
    face = encode(FaceSeen(pixels=b"x"))
    assert not tables.takes("FaceSeen@1", face)
    assert tables.takes("FaceCounted@1", encode(FaceCounted(count=1)))
    failed = InputFailed(letter="0.1.0", to="Gate/g", source="local", error="no", input=face)
    assert not tables.takes(spec_of(InputFailed).tag, encode(failed))


def test_naming_one_is_refused_and_a_rule_lets_it_in() -> None:
    with pytest.raises(ConfigError, match="FaceSeen to capture"):
        EventTables(FLEET.plans, ["FaceSeen"])
    tables = EventTables(FLEET.plans, ["FaceSeen"], ["FaceSeen to capture"])
    assert tables.takes("FaceSeen@1", encode(FaceSeen(pixels=b"x")))
