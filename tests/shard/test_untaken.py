"""What a step could not take is named, and what is not kept does not fill the draft for good."""

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Event, transient
from stigmergy.base.errors import SequenceGap, StaleEpoch
from stigmergy.shard.inputs import Delivery, SequencesSkipped
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import ShardState, plan_agents


class Counted(Event):
    number: int


class Glimpsed(Event, keep=transient):
    pixels: bytes


class Counter(Agent):
    total: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.total += event.number

    @decide
    def glimpsed(self, event: Glimpsed) -> Events:
        if not event.pixels:
            yield Counted(number=1)


def make_shard() -> Shard:
    return Shard(ShardState(0, plan_agents([Counter])))


def delivery(sequence: int, *, epoch: int = 0) -> Delivery:
    return Delivery("s", [("Counter/a", encode(Counted(number=1)))], sequence=sequence, epoch=epoch)


def test_a_delivery_that_comes_too_early_is_named_with_the_reason() -> None:
    shard = make_shard()
    early = delivery(5)
    stepped = shard.step([delivery(1), early], 1)
    assert [(one, type(error)) for one, error in stepped.untaken] == [(early, SequenceGap)]
    assert not shard.step([], 1).untaken


def test_a_replaced_releaser_is_told_so_for_deliveries_and_skips() -> None:
    shard = make_shard()
    shard.step([delivery(1, epoch=2)], 1)
    old, skip = delivery(2, epoch=1), SequencesSkipped("s", 0, 1, 9, "missing")
    stepped = shard.step([old, skip], 1)
    assert [type(error) for _, error in stepped.untaken] == [StaleEpoch, StaleEpoch]
    assert shard.state.marks.consumed("s", 0) == 1


def test_events_that_are_not_kept_never_fill_the_draft_for_good() -> None:
    shard = make_shard()
    shard.step([delivery(1)], 1)
    shard.seal()
    body = encode(Glimpsed(pixels=bytes(50_000)))
    glimpses = [Delivery("local", [("Counter/a", body)], size_bytes=len(body)) for _ in range(20)]
    left: list[Delivery] = glimpses
    for _ in range(20):
        if not left:
            break
        left = [one for one in shard.step(left, 1).left if isinstance(one, Delivery)]
        assert shard.seal() is None
    assert not left


def test_numbers_that_were_never_for_us_are_passed_without_a_word() -> None:
    shard = make_shard()
    shard.step([SequencesSkipped("s", 0, 0, 4, ""), delivery(5)], 1)
    ready = shard.seal()
    assert ready is not None
    assert [address for address, _ in ready.commit.events] == ["Counter/a"]
    assert shard.state.marks.consumed("s", 0) == 5
    assert shard.counters.skipped == 0
    assert shard.state.events_count == 1
