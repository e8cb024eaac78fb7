"""The sum is exact whoever vanishes; what is against the protocol is refused."""

import numpy as np
import pytest
from hypothesis import given, strategies
from msgspec.structs import replace

from stigmergy.federated.secure_sum import (
    MEMBERS_COUNT_MAX,
    VALUES_COUNT_MAX,
    Numbers,
    SumRefused,
    keys_of,
    mask,
    open_shares,
    seal_shares,
    unmask,
)
from stigmergy.federated.shares import put_together, share_out
from tests.federated.transcript import plan_of, play, seed_of

NAMES = ["ann", "bob", "cid", "dan", "eve", "fay", "gus"]


def vectors(names: list[str] = NAMES, count: int = 5) -> dict[str, Numbers]:
    draw = np.random.default_rng(1)
    return {name: draw.integers(0, 2**64, count, dtype=np.uint64, endpoint=False) for name in names}


def sum_of(numbers: dict[str, Numbers], *without: str) -> list[int]:
    kept = [one for name, one in numbers.items() if name not in without]
    return [sum(int(one[at]) for one in kept) % 2**64 for at in range(5)]


def test_the_sum_is_exact_when_all_stay() -> None:
    assert play(vectors()).total.tolist() == sum_of(vectors())


@pytest.mark.parametrize("step", ["no_keys", "no_shares", "no_update"])
def test_who_vanishes_before_its_update_came_is_not_in_the_sum(step: str) -> None:
    told = play(vectors(), **{step: ["bob", "fay"]})  # type: ignore[arg-type]
    assert told.total.tolist() == sum_of(vectors(), "bob", "fay")


def test_who_vanishes_after_its_update_came_is_in_the_sum() -> None:
    assert play(vectors(), no_opening=["ann", "gus"]).total.tolist() == sum_of(vectors())


def test_one_vanishes_at_each_step() -> None:
    told = play(vectors(), threshold=4, no_keys=["ann"], no_shares=["bob"], no_update=["cid"], no_opening=[])
    assert told.total.tolist() == sum_of(vectors(), "ann", "bob", "cid")


@given(strategies.data())
def test_the_sum_is_exact_whoever_vanishes(data: strategies.DataObject) -> None:
    steps = data.draw(strategies.lists(strategies.sampled_from(range(5)), min_size=7, max_size=7))
    gone = {step: [name for name, at in zip(NAMES, steps, strict=True) if at == step] for step in range(4)}
    if sum(len(names) for names in gone.values()) > 7 - 4:
        with pytest.raises(SumRefused):
            play(vectors(), threshold=4, no_keys=gone[0], no_shares=gone[1], no_update=gone[2], no_opening=gone[3])
        return
    told = play(vectors(), threshold=4, no_keys=gone[0], no_shares=gone[1], no_update=gone[2], no_opening=gone[3])
    assert told.total.tolist() == sum_of(vectors(), *gone[0], *gone[1], *gone[2])


def test_too_few_are_left_and_nothing_is_opened() -> None:
    with pytest.raises(SumRefused, match="4 members are left, 5 are needed"):
        play(vectors(), no_update=["ann", "bob", "cid"])
    with pytest.raises(SumRefused, match="4 shares; 5 are needed"):
        play(vectors(), no_opening=["ann", "bob", "cid"])


def test_a_member_opens_one_kind_of_share_for_each_other() -> None:
    """What two different questions would give is the vault's to refuse; one question never gives both."""
    told = play(vectors(), no_update=["bob"])
    assert [(one.taker, len(one.shares)) for one in told.opened] == [(name, 7) for name in NAMES if name != "bob"]


def test_what_a_server_may_not_ask_is_refused() -> None:
    told = play(vectors())
    plan, roster = told.plan, told.roster
    boxes = [box for box in told.boxes if box.taker == "ann"]
    twice = [*roster[:-1], replace(roster[-1], masking=roster[0].masking)]

    def refused(why: str, masked: list[str], roster: list[object] = roster, boxes: list[object] = boxes) -> None:  # type: ignore[assignment]
        with pytest.raises(SumRefused, match=why):
            open_shares(seed_of("ann"), plan, "ann", roster, boxes, masked)  # type: ignore[arg-type]

    refused("4 members are left", NAMES[:4])
    refused("named twice", [*NAMES[:4], "ann"])
    refused("were not there", [*NAMES, "zoe"])
    refused("ann is not in this round", NAMES[1:])
    refused("not for ann, or damaged", NAMES, boxes=[replace(box, box=b"x" + box.box[1:]) for box in boxes])
    refused("not for ann, or damaged", NAMES, boxes=[replace(box, giver=NAMES[-at]) for at, box in enumerate(boxes)])
    from stigmergy.federated.secure_sum import check_roster

    for wrong, why in ((twice, "there twice"), (roster[1:], "ann is not in this round"), (roster[:3], "3 members")):
        with pytest.raises(SumRefused, match=why):
            check_roster(seed_of("ann"), plan, "ann", wrong)
    with pytest.raises(SumRefused, match="not those that it has shown"):
        check_roster(seed_of("other"), plan, "ann", roster)
    with pytest.raises(SumRefused, match="a public key is none"):
        seal_shares(seed_of("ann"), plan, "ann", [replace(keys, sealing=bytes(32)) for keys in roster])
    with pytest.raises(SumRefused, match="4 values, 5 were agreed"):
        mask(seed_of("ann"), plan, "ann", roster, NAMES, np.zeros(4, np.uint64))


def test_a_plan_that_would_show_numbers_is_refused() -> None:
    plan = plan_of(NAMES, 5)
    many = tuple(str(number) for number in range(MEMBERS_COUNT_MAX + 1))
    for wrong in (
        replace(plan, threshold=3),
        replace(plan, threshold=8),
        replace(plan, members=("ann", "ann")),
        replace(plan, members=("ann",), threshold=1),
        replace(plan, members=many, threshold=60),
        replace(plan, values_count=0),
        replace(plan, values_count=VALUES_COUNT_MAX + 1),
    ):
        with pytest.raises(SumRefused):
            wrong.check()
    plan.check()


def test_a_wrong_share_is_noticed() -> None:
    told = play(vectors(), no_update=["bob"])
    added = np.zeros(5, np.uint64)
    for one in told.masked.values():
        added = added + one
    for giver, what in (("cid", "own mask of cid"), ("bob", "key of bob")):
        first, at = told.opened[0], told.sharers.index(giver)
        wrong = (*first.shares[:at], b"\x01" * 33, *first.shares[at + 1 :])
        opened = [replace(first, shares=wrong), *told.opened[1:]]
        with pytest.raises(SumRefused, match=what):
            unmask(told.plan, told.roster, told.sharers, list(told.masked), added, opened)


def test_any_threshold_of_the_shares_gives_the_secret_and_fewer_say_nothing() -> None:
    secret, seed = bytes(range(32)), b"s" * 32
    shares = dict(enumerate(share_out(secret, 3, 5, seed), 1))
    for chosen in ((1, 2, 3), (5, 1, 4), (2, 3, 5)):
        assert put_together({at: shares[at] for at in chosen}, 3) == secret
    # For two shares and any other secret there is a third share that gives that one: they say nothing.
    assert put_together({1: shares[1], 2: shares[2], 3: bytes(33)}, 3) != secret
    with pytest.raises(ValueError, match="2 shares; 3 are needed"):
        put_together({1: shares[1], 2: shares[2]}, 3)


def test_seeds_of_members_give_keys_of_their_own() -> None:
    shown = [keys_of(seed_of(name), name) for name in NAMES]
    keys = [key for one in shown for key in (one.sealing, one.masking, one.own_digest)]
    assert len({*keys}) == 3 * len(NAMES)
