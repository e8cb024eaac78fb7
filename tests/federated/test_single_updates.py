"""Can a server read the update of one member? It tries with all that it sees, and fails; without masks it can."""

from collections.abc import Iterator

import numpy as np
import pytest

from stigmergy.federated import secure_sum
from stigmergy.federated.secure_sum import Numbers, derived, expand, pair_mask
from stigmergy.federated.shares import put_together
from stigmergy.federated.update import UNIT, UpdateLimits, decoded, encoded
from tests.federated.transcript import Transcript, play, seed_of

NAMES = ["ann", "bob", "cid", "dan", "eve", "fay", "gus"]
COUNT = 4_000
LIMITS = UpdateLimits(clip_norm=1.0, weight_max=100)
CHANCE = 6 / COUNT**0.5
"""A correlation with random numbers is larger than this once in 500 million times."""


def updates() -> dict[str, Numbers]:
    draw = np.random.default_rng(7)
    return {name: encoded(draw.normal(0, 1, COUNT), 50 + at, LIMITS) for at, name in enumerate(NAMES)}


def guesses(told: Transcript) -> Iterator[tuple[str, Numbers]]:
    """Whatever a server can make of what it sees: it opens every secret that it was given enough shares of, takes every
    mask away that these explain, and compares vectors with each other and with the sum."""
    plan, left = told.plan, list(told.masked)
    known = {keys.member: keys for keys in told.roster}
    numbers = [plan.number(one.taker) for one in told.opened]
    opened = {
        name: put_together(dict(zip(numbers, (one.shares[at] for one in told.opened), strict=True)), plan.threshold)
        for at, name in enumerate(told.sharers)
    }
    bare: dict[str, Numbers] = {}
    for name in left:
        yield f"{name} as it came", told.masked[name]
        bare[name] = told.masked[name] - expand(opened[name], plan.values_count)
        for gone in (one for one in opened if one not in left):
            bare[name] = bare[name] + pair_mask(opened[gone], gone, known[name], plan)
        yield f"{name} without what was opened", bare[name]
        yield f"all but {name}", told.total - bare[name]
        for key in [box.box[:32] for box in told.boxes if box.giver == name] + [known[name].masking]:
            yield f"{name} under a key that was sent", bare[name] - expand(key, plan.values_count)
    for first in left:
        for second in left:
            if first < second:
                yield f"{first} and {second}", bare[first] + bare[second]
                yield f"{first} less {second}", bare[first] - bare[second]


def likeness(guess: Numbers, truth: Numbers) -> float:
    """How a guess goes with a true update: as signed numbers, by their signs, and by their low bits."""
    one, other = guess[1:].view(np.int64).astype(float), truth[1:].view(np.int64).astype(float)
    low = (guess[1:] % np.uint64(UNIT)).astype(float), (truth[1:] % np.uint64(UNIT)).astype(float)
    pairs = [(one, other), (np.sign(one), np.sign(other)), low]
    return max(abs(float(np.corrcoef(first, second)[0, 1])) for first, second in pairs)


def best(told: Transcript) -> float:
    return max(likeness(guess, truth) for _, guess in guesses(told) for truth in updates().values())


@pytest.mark.parametrize("vanished", [[], ["cid"], ["cid", "gus"]])
def test_no_guess_goes_with_any_members_update(vanished: list[str]) -> None:
    told = play(updates(), no_update=vanished)
    assert best(told) < CHANCE
    weight, mean = decoded(told.total, len(told.masked), LIMITS)  # while the sum is right
    truth = sum(updates()[name][1:].view(np.int64) for name in told.masked) / UNIT / weight
    assert np.allclose(mean, truth, atol=1e-9)


def test_without_masks_the_same_attack_reads_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_sum, "expand", lambda key, count: np.zeros(count, np.uint64))
    told = play(updates())
    found = dict(guesses(told))
    for name, truth in updates().items():
        assert np.array_equal(found[f"{name} as it came"], truth)
    assert best(told) == pytest.approx(1.0)


def test_with_both_kinds_of_shares_a_server_would_read_an_update() -> None:
    """Why a member opens one of the two only."""
    told = play(updates())
    ann, known = seed_of("ann"), {keys.member: keys for keys in told.roster}
    bare = told.masked["ann"] - expand(derived(ann, "own mask"), told.plan.values_count)
    for other in NAMES[1:]:
        bare = bare - pair_mask(derived(ann, "masking key"), "ann", known[other], told.plan)
    assert np.array_equal(bare, updates()["ann"])


def test_for_any_other_updates_with_the_same_sum_there_are_masks_that_give_the_same_transcript() -> None:
    """The exact argument: to a server without the pair masks, all ways to divide the sum are equally likely."""
    true = updates()
    told = play(true)
    count = told.plan.values_count
    private = {name: derived(seed_of(name), "masking key") for name in NAMES}
    known = {keys.member: keys for keys in told.roster}
    masks = {
        (name, other): pair_mask(private[name], name, known[other], told.plan)
        for name in NAMES
        for other in NAMES
        if name != other
    }
    own = {name: expand(derived(seed_of(name), "own mask"), count) for name in NAMES}

    def sent(numbers: dict[str, Numbers], masks: dict[tuple[str, str], Numbers]) -> dict[str, Numbers]:
        whole = {name: numbers[name] + own[name] for name in NAMES}
        for (name, _), one in masks.items():
            whole[name] = whole[name] + one
        return whole

    draw = np.random.default_rng(99)
    other = {name: draw.integers(0, 2**64, count, dtype=np.uint64) for name in NAMES}
    last = NAMES[-1]
    rest = sum((true[name] - other[name] for name in NAMES[:-1]), true[last])
    other[last] = rest
    changed = dict(masks)
    for name in NAMES[:-1]:
        changed[name, last] = masks[name, last] + true[name] - other[name]
        changed[last, name] = np.negative(changed[name, last])
    same = sent(other, changed)
    for name in NAMES:
        assert np.array_equal(sent(true, masks)[name], told.masked[name])
        assert np.array_equal(same[name], told.masked[name])
        assert not np.array_equal(other[name], true[name])
