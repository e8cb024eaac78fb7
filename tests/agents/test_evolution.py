"""Messages change over the years: what was kept then is folded today, and what an old agent does not know survives it.

The logs of published versions are in tests/fixtures and replayed by tests/formats.
"""

from __future__ import annotations

import msgspec

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event, upcast
from stigmergy.shard.commit import Commit, digest_commit, open_commit
from stigmergy.shard.inputs import Ask, Delivery
from stigmergy.shard.replay import apply
from stigmergy.shard.state import ShardState, plan_agents
from tests.shard.shards import Probe, observed


class FuelledV1(Event, name="evolution.Fuelled", version=1):
    litres: int


class FuelledV2(Event, name="evolution.Fuelled", version=2):
    litres: float


class Fuelled(Event, name="evolution.Fuelled", version=3):
    kilograms: float
    station: str = "unknown"


@upcast
def fuelled_1_to_2(old: FuelledV1) -> FuelledV2:
    return FuelledV2(litres=float(old.litres))


@upcast
def fuelled_2_to_3(old: FuelledV2) -> Fuelled:
    return Fuelled(kilograms=old.litres * 0.8)


class Refuel(Command):
    litres: float


class Truck(Agent):
    kilograms: float = 0.0
    stations: tuple[str, ...] = ()

    @decide
    def refuel(self, command: Refuel) -> Events:
        yield FuelledV2(litres=command.litres)

    @evolve
    def fuelled(self, event: Fuelled) -> None:
        self.kilograms += event.kilograms
        self.stations = (*self.stations, event.station)


T = "Truck/t"


def test_every_version_that_was_kept_is_folded_today() -> None:
    probe = Probe(Truck)
    probe.observe(T, FuelledV1(litres=10), FuelledV2(litres=5.0), Fuelled(kilograms=1.0, station="north"))
    assert probe.agent(T).kilograms == 8.0 + 4.0 + 1.0
    assert probe.agent(T).stations == ("unknown", "unknown", "north")


def test_the_log_keeps_each_event_as_it_came() -> None:
    probe = Probe(Truck)
    commit = probe.observe(T, FuelledV1(litres=10))
    assert commit.events == [(T, encode(FuelledV1(litres=10)))]


def test_a_yielded_old_version_is_folded_as_a_replay_will_fold_it() -> None:
    probe = Probe(Truck)
    probe.take(Ask(T, "a", encode(Refuel(litres=10.0))))
    assert probe.agent(T).kilograms == 8.0


def test_fields_that_an_agent_does_not_know_survive_it_byte_for_byte() -> None:
    body = msgspec.msgpack.encode(
        {"type": "evolution.Fuelled@3", "kilograms": 2.0, "price": {"eur": 3}, "pump": [1, 2]}
    )
    probe = Probe(Truck)
    probe.take(Delivery("s", [(T, body)], sequence=1))
    assert open_commit(probe.log[0]).events == [(T, body)]
    assert probe.replayed().agents[T].kilograms == 2.0


def test_a_field_that_is_new_has_its_default_in_old_events() -> None:
    body = msgspec.msgpack.encode({"type": "evolution.Fuelled@3", "kilograms": 2.0})
    probe = Probe(Truck)
    probe.take(Delivery("s", [(T, body)]))
    assert probe.agent(T).stations == ("unknown",)


def test_an_event_that_nothing_is_for_any_more_stays_in_the_log() -> None:
    class Retired(Event):
        pass

    class Before(Agent, kind="Truck"):
        retired: bool = False

        @evolve
        def retires(self, event: Retired) -> None:
            self.retired = True

    probe = Probe(Before)
    probe.take(observed(T, Retired()), observed(T, Retired()))
    state = ShardState(0, plan_agents([Truck]))
    commit: Commit = open_commit(probe.log[0])
    apply(state, commit, digest_commit(probe.log[0]))
    assert state.agents[T] == Truck(id="t")
    assert state.events_count == 2
