"""Ordered fields: what they ask for, and what verdicts make of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs

from stigmergy import (
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Events,
    Granted,
    Lost,
    Ordered,
    Released,
    Supervise,
    decide,
    evolve,
    ordered,
    pool,
    react,
)
from stigmergy.agents.codec import canonical_bytes, encode, tag_of
from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.ordered import LEDGER, ClaimAnyAsked, ClaimAsked, ClaimReleased, OrderedField, read_verdict
from stigmergy.base.errors import DefinitionError
from stigmergy.shard.commit import open_commit
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import Delivery, EffectSettled, VerdictCame
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import ShardState, plan_agents

NOW_NS = 1_000 * SECOND_NS


class Arrived(Event):
    pass


class Gone(Event):
    pass


class CrossingHeld(Event):
    token: int
    was_held: bool


class Boom(Event):
    pass


def crossing_of(name: str) -> str:
    if name == "broken":
        raise RuntimeError("no crossing for this one")
    return f"crossing-{name}"


class Car(Agent):
    crossing: Ordered[Claim] = ordered(of=crossing_of)
    cell: Ordered[Claim]
    lane: Ordered[Claim] = ordered(of="lane-1")
    token: int = 0
    was_held: bool = False
    denials: int = 0
    supervision = Supervise(stop_after=1)

    @react
    def ask(self, event: Arrived) -> Effects:
        yield self.crossing.claim(for_s=5, wait_s=2, renew=True)
        yield self.cell.claim(of="cell/A7", for_s=1)

    @react
    def give(self, event: Gone) -> Effects:
        yield self.crossing.release()

    @decide
    def granted(self, verdict: Granted) -> Events:
        yield CrossingHeld(token=verdict.token, was_held=self.crossing.held)

    @evolve
    def held(self, event: CrossingHeld) -> None:
        self.token = event.token
        self.was_held = event.was_held

    @evolve
    def denied(self, event: Denied) -> None:
        self.denials += 1

    @react
    def boom(self, event: Boom) -> Effects:
        if not self.denials:
            raise RuntimeError("on purpose")
        yield self.crossing.release()

    @react
    def lost(self, event: Lost) -> Effects:
        yield self.crossing.claim(for_s=5)


PLANS = plan_agents([Car])


class Road:
    """A shard of cars, and all that it has committed."""

    def __init__(self) -> None:
        self.shard = Shard(ShardState(0, PLANS))
        self.now_ns = NOW_NS
        self.readies: list[Ready] = []

    def step(self, one: Any) -> Ready | None:
        self.now_ns += 1_000_000
        self.shard.step([one], self.now_ns)
        ready = self.shard.seal()
        if ready is not None:
            self.readies.append(ready)
        return ready

    def observe(self, event: Event, name: str = "1") -> Ready | None:
        return self.step(Delivery(source="test", items=[(f"Car/{name}", encode(event))]))

    def verdict(self, verdict: Event) -> Ready | None:
        return self.step(VerdictCame(agent="Car/1", verdict=encode(verdict)))

    @property
    def car(self) -> Any:
        return self.shard.state.agents["Car/1"]

    def held(self, name: str = "crossing") -> bool:
        token = step_time_ns.set(self.now_ns)
        try:
            return bool(getattr(self.car, name).held)
        finally:
            step_time_ns.reset(token)

    def check_replay(self) -> None:
        again = ShardState(0, PLANS)
        for ready in self.readies:
            apply(again, open_commit(ready.sealed.body), ready.sealed.digest)
        assert digest_of_state(again) == digest_of_state(self.shard.state)


def arrived() -> Road:
    road = Road()
    road.observe(Arrived())
    return road


GRANTED = Granted(claim="crossing", resource="crossing-1", token=41, for_s=4.5)


def test_what_is_asked_of_the_ledger() -> None:
    road = arrived()
    owed = road.readies[0].owed
    assert [one.sink for one in owed] == [LEDGER, LEDGER]
    asked = [msgspec.msgpack.decode(one.body, type=ClaimAsked) for one in owed]
    assert asked[0] == ClaimAsked(claim="crossing", resource="crossing-1", for_s=5.0, wait_s=2.0, renew=True)
    assert asked[1] == ClaimAsked(claim="cell", resource="cell/A7", for_s=1.0)
    assert not road.held()


def test_an_answer_settles_and_is_kept_in_one_commit() -> None:
    road = arrived()
    first = road.readies[0].owed[0]
    ready = road.step(EffectSettled(LEDGER, first.sequence, encode(GRANTED)))
    assert ready is not None
    assert [tag_of(body) for _, body in ready.commit.events] == ["stigmergy.Granted@1", "CrossingHeld@1"]
    assert ready.commit.settled[0].sequences == [first.sequence]
    assert road.held()
    assert (road.car.token, road.car.was_held) == (41, True)
    assert road.step(EffectSettled(LEDGER, first.sequence, encode(GRANTED))) is None
    road.check_replay()


def test_an_answer_without_a_verdict_only_settles() -> None:
    road = arrived()
    ready = road.step(EffectSettled(LEDGER, road.readies[0].owed[0].sequence))
    assert ready is not None
    assert not ready.commit.events
    assert len(ready.commit.settled) == 1


def test_a_lease_ends_by_the_agents_own_time_whatever_comes() -> None:
    road = arrived()
    road.verdict(GRANTED)
    assert road.held()
    road.now_ns += int(4.5 * SECOND_NS)
    assert not road.held()
    assert road.car.crossing.token == 41


@pytest.mark.parametrize(
    "end",
    [
        Lost(claim="crossing", resource="crossing-1", token=41, reason="the lease ran out"),
        Released(claim="crossing", resource="crossing-1", token=41),
    ],
)
def test_what_is_lost_or_released_is_not_held(end: Event) -> None:
    road = arrived()
    road.verdict(GRANTED)
    road.verdict(end)
    assert not road.held()
    road.check_replay()


def test_what_is_prolonged_by_itself_is_held_until_it_is_lost() -> None:
    road = arrived()
    road.verdict(structs.replace(GRANTED, renews=True))
    road.now_ns += 3600 * 10**9
    assert road.held()
    road.verdict(Lost(claim="crossing", resource=GRANTED.resource, token=GRANTED.token, reason="over"))
    assert not road.held()
    road.check_replay()


def test_nothing_is_held_where_there_is_no_time() -> None:
    road = arrived()
    road.verdict(GRANTED)
    assert road.held()
    assert road.car.crossing.until_ns > road.now_ns
    assert not road.car.crossing.held


@pytest.mark.parametrize("end", [Lost, Released])
def test_the_end_of_something_else_says_nothing_of_what_is_held(end: Any) -> None:
    road = arrived()
    road.verdict(GRANTED)
    more = {"reason": "over"} if end is Lost else {}
    road.verdict(end(claim="crossing", resource="crossing-9", token=99, **more))
    assert road.held()


def test_a_wish_is_taken_back_without_giving_up_what_is_held() -> None:
    road = arrived()
    road.verdict(GRANTED)
    assert road.car.crossing.release() == ClaimReleased(claim="crossing", resource="crossing-1", token=41)
    assert road.car.crossing.release(of="other") == ClaimReleased(claim="crossing", resource="other", token=0)
    road.verdict(Released(claim="crossing", resource="other", token=0))
    assert road.held()


def test_what_was_held_before_is_not_released_in_place_of_what_is_asked_for() -> None:
    road = arrived()
    road.verdict(Granted(claim="lane", resource="lane-9", token=3, for_s=1))
    road.verdict(Lost(claim="lane", resource="lane-9", token=3, reason="over"))
    assert road.car.lane.release() == ClaimReleased(claim="lane", resource="lane-1", token=0)


def test_a_late_loss_of_an_earlier_grant_says_nothing_of_the_present_one() -> None:
    road = arrived()
    road.verdict(GRANTED)
    road.verdict(Granted(claim="crossing", resource="crossing-1", token=43, for_s=5.0))
    road.verdict(Lost(claim="crossing", resource="crossing-1", token=41, reason="late"))
    assert road.held()
    assert road.car.crossing.token == 43


def test_a_denial_changes_nothing_that_is_held() -> None:
    road = arrived()
    road.verdict(GRANTED)
    road.verdict(Denied(claim="crossing", resource="crossing-2", reason="taken"))
    assert road.held()
    assert road.car.denials == 1


def test_release_names_what_is_held_and_its_token() -> None:
    road = arrived()
    road.verdict(GRANTED)
    ready = road.observe(Gone())
    assert ready is not None
    released = msgspec.msgpack.decode(ready.owed[0].body, type=ClaimReleased)
    assert released == ClaimReleased(claim="crossing", resource="crossing-1", token=41)


def test_a_verdict_for_a_field_that_is_not_there_is_passed_over() -> None:
    road = arrived()
    assert road.verdict(Granted(claim="other", resource="r", token=1, for_s=1.0)) is None
    nobody = VerdictCame(agent="Car/9", verdict=encode(GRANTED))
    assert road.step(nobody) is None
    assert "Car/9" not in road.shard.state.agents


def test_a_replay_passes_over_verdicts_for_a_field_that_was_taken_out() -> None:
    class Smaller(Agent, kind="Car"):
        lane: Ordered[Claim]

    road = arrived()
    road.verdict(GRANTED)
    again = ShardState(0, plan_agents([Smaller]))
    for ready in road.readies:
        apply(again, open_commit(ready.sealed.body), ready.sealed.digest)
    assert again.agents["Car/1"].lane == Claim(field="lane")


def test_a_stopped_agent_learns_of_verdicts_and_does_nothing() -> None:
    road = arrived()
    road.verdict(GRANTED)
    road.observe(Boom())
    assert "Car/1" in road.shard.state.stopped
    ready = road.verdict(Lost(claim="crossing", resource="crossing-1", token=41, reason="the lease ran out"))
    assert ready is not None
    assert not ready.owed
    assert not road.held()
    road.check_replay()


def test_two_fields_of_one_agent_are_two() -> None:
    road = arrived()
    road.verdict(Granted(claim="cell", resource="cell/A7", token=7, for_s=1.0))
    assert road.held("cell")
    assert not road.held("crossing")


def test_a_function_that_fails_is_said_where_the_claim_is_made() -> None:
    road = Road()
    road.observe(Arrived(), "broken")
    assert "name it in ordered(of=…)" in road.shard.state.letters.all()[0].error


def test_a_restored_agent_claims_what_todays_class_says() -> None:
    road = arrived()
    old = Claim(field="lane", of="lane-0", token=3)
    road.car.lane = old
    restored = PLANS["Car"].restore(canonical_bytes(road.car))
    assert (restored.lane.of, restored.lane.token, restored.crossing.of) == ("lane-1", 3, "crossing-1")


@pytest.mark.parametrize("for_s", [0, 0.01, 1e9, float("nan"), "5"])
def test_leases_have_bounds(for_s: Any) -> None:
    with pytest.raises(ValueError, match="for_s"):
        Claim(field="x", of="r").claim(for_s=for_s)


@pytest.mark.parametrize("wait_s", [-1, 1e9, float("nan"), None])
def test_waits_have_bounds(wait_s: Any) -> None:
    with pytest.raises(ValueError, match="wait_s"):
        Claim(field="x", of="r").claim(for_s=1, wait_s=wait_s)


@pytest.mark.parametrize("resource", ["", "a b", "x" * 129])
def test_resources_have_names(resource: str) -> None:
    with pytest.raises(DefinitionError, match="a resource is a text"):
        Claim(field="x").claim(for_s=1, of=resource)
    with pytest.raises(DefinitionError, match="a resource is a text"):
        Claim(field="x").release(of=resource)


def test_any_of_a_pool_is_asked_for_and_what_is_held_is_given_back() -> None:
    docks = pool("dock-1", "dock-2")
    free = Claim(field="dock", of=docks.text)
    asked = ClaimAnyAsked(claim="dock", resources=("dock-1", "dock-2"), for_s=5.0, wait_s=3.0, renew=True)
    assert free.claim(for_s=5, wait_s=3, renew=True) == asked
    assert Claim(field="dock", of="gate").claim(for_s=5, wait_s=3, renew=True, of=docks) == asked
    assert free.claim(for_s=5, of="gate") == ClaimAsked(claim="dock", resource="gate", for_s=5.0)
    assert free.release() == ClaimReleased(claim="dock", resource="dock-1|dock-2", token=0)
    held = free.after(Granted(claim="dock", resource="dock-2", token=7, for_s=5.0), now_ns=1)
    given_back = ClaimReleased(claim="dock", resource="dock-2", token=7)
    assert held.release() == held.release(of=docks) == given_back
    assert held.after(Released(claim="dock", resource="dock-2", token=7), now_ns=2).until_ns == 0


def test_a_pool_may_follow_from_the_agents_id() -> None:
    field = OrderedField("dock", lambda name: pool(f"{name}-1", f"{name}-2"))
    assert field.first("north").of == "north-1|north-2"
    assert OrderedField("dock", pool("x", "y")).first("a").of == "x|y"


@pytest.mark.parametrize("resources", [(), ("a", "a"), ("a", "b c"), ("a|b",), tuple(f"dock-{n}" for n in range(33))])
def test_pools_that_cannot_be(resources: tuple[str, ...]) -> None:
    with pytest.raises(DefinitionError, match=r"pool\("):
        pool(*resources)


def test_declarations_that_cannot_be() -> None:
    with pytest.raises(DefinitionError, match=r"ordered\(of='a b'\)"):
        ordered(of="a b")
    with pytest.raises(DefinitionError, match=r"Ordered\[Claim\]"):

        class Counts(Agent):
            count: Ordered[int]

    with pytest.raises(DefinitionError, match=r"Ordered\[Claim\]"):

        class Given(Agent):
            count: Ordered[Claim] = Claim()

    with pytest.raises(DefinitionError, match=r"annotate it with Ordered\[Claim\]"):

        class Bare(Agent):
            count: int = ordered(of="x")


def test_verdicts_are_read_from_their_bytes() -> None:
    assert read_verdict(encode(GRANTED)) == GRANTED
    with pytest.raises(msgspec.DecodeError):
        read_verdict(b"nonsense")
