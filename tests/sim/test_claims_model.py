"""Claims under every interleaving of a small scope: nobody ever believes what the ledger has given to others.

The larger scopes run in `make prove` (proofs/claims.py). The planted errors are what shows that the search has teeth.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from rigs.claims_model import CELL, FOR_MS, ClaimsModel, Faults
from stigmergy.claims import acquisition as acquisitions
from stigmergy.claims.acquisition import Acquisition, Advance
from stigmergy.claims.entries import Ask, AskAny, Expire, Written
from stigmergy.claims.rules import FoldStep, apply
from stigmergy.claims.state import FREE, MILLISECOND_NS, Claims, lease_end_ns
from stigmergy.sim.explore import explore

STATES_MAX = 400_000

SCOPES = {
    "lease and expiry": Faults(entries=3),
    "queue, offer, take, release": Faults(waits=True, releases=True, entries=3),
}


@pytest.mark.parametrize("faults", SCOPES.values(), ids=SCOPES.keys())
def test_nobody_believes_what_was_given_away(faults: Faults) -> None:
    model = ClaimsModel(faults)
    found = explore(model, states_count_max=STATES_MAX)
    assert found.counterexample is None, found.schedule(model.describe)
    assert found.complete
    assert found.states > 10_000


def test_nobody_has_two_of_a_pool_or_loses_its_place() -> None:
    """As far as the first states go; `make prove ARGS=claims` searches more of them."""
    model = ClaimsModel(Faults(claimants=3, pool=2, waits=True, releases=True, entries=4))
    found = explore(model, states_count_max=20_000)
    assert found.counterexample is None, found.schedule(model.describe)


# ------------------------------------------------------------------ planted errors


def no_margin(seen_ns: int, for_ms: int) -> int:
    """The observer takes its own clock for the holder's."""
    return seen_ns + for_ms * MILLISECOND_NS


def counts_from_the_verdict(
    acquisition: Acquisition, claims: Claims, writer: bytes, life: int, now_ns: int, number: int
) -> Advance:
    """The holder counts its lease from when it heard of it."""
    turn = acquisitions.heard(acquisition, claims, writer, life, now_ns, number)
    if turn.acquisition is None or turn.acquisition.held is None or acquisition.held is not None:
        return turn
    held = structs.replace(turn.acquisition.held, end_ns=lease_end_ns(now_ns, acquisition.for_ms))
    return turn._replace(acquisition=structs.replace(turn.acquisition, held=held))


def believes_any_grant(
    acquisition: Acquisition, claims: Claims, writer: bytes, life: int, now_ns: int, number: int
) -> Advance:
    """A grant of an earlier life is taken for one's own, and counted from the new question."""
    grant = claims.holds(acquisition.resource, acquisition.claimant)
    if acquisition.held is None and grant is not None and acquisition.sent is not None:
        end_ns = lease_end_ns(acquisition.sent.sent_ns, acquisition.for_ms)
        held = acquisitions.HeldClaim(grant.token, acquisition.sent.sent_ns, grant.for_ms, end_ns)
        return Advance(structs.replace(acquisition, held=held, sent=None, asking=False))
    return acquisitions.heard(acquisition, claims, writer, life, now_ns, number)


def expires_whatever_is_there(claims: Claims, position: int, written: Written) -> FoldStep:
    """An Expire frees the resource, whichever lease it meant."""
    grant = claims.resource(CELL).grant
    if isinstance(written.move, Expire) and grant is not None:
        return apply(claims, position, written._replace(move=Expire(CELL, grant.began)))
    return apply(claims, position, written)


def takes_the_dead_for_the_living(claims: Claims, position: int, written: Written) -> FoldStep:
    """What an earlier life still sends counts."""
    mark = claims.writers.get(written.writer)
    if mark is None or mark.life <= written.life:
        return apply(claims, position, written)
    step = apply(structs.replace(claims, writers=claims.writers.delete(written.writer)), position, written)
    return structs.replace(step, claims=structs.replace(step.claims, writers=claims.writers))


def takes_an_offer_for_a_grant(
    acquisition: Acquisition, claims: Claims, writer: bytes, life: int, now_ns: int, number: int
) -> Advance:
    """Who is offered it holds it, without a word to the ledger."""
    offer = claims.offered(acquisition.resource, acquisition.claimant)
    if offer is None:
        return acquisitions.heard(acquisition, claims, writer, life, now_ns, number)
    held = acquisitions.HeldClaim(offer.position, now_ns, acquisition.for_ms, lease_end_ns(now_ns, acquisition.for_ms))
    return Advance(structs.replace(acquisition, held=held, sent=None, asking=False))


def grants_to_everybody(claims: Claims, position: int, written: Written) -> FoldStep:
    """Whoever asks gets it."""
    if isinstance(written.move, Ask):
        return apply(structs.replace(claims, resources=Claims().resources), position, written)
    return apply(claims, position, written)


def shortens_without_saying(before: Acquisition | None, wanted: Acquisition, now_ns: int, number: int) -> Advance:
    """Asks for a shorter lease, and goes on believing in the longer one until it hears of it."""
    turn = acquisitions.ask(before, wanted, now_ns, number)
    if before is None or before.held is None or turn.acquisition is None:
        return turn
    return turn._replace(acquisition=structs.replace(turn.acquisition, held=before.held))


def keeps_its_other_places(claims: Claims, position: int, written: Written) -> FoldStep:
    """Who is offered one of a pool stays in the other lines."""
    step = apply(claims, position, written)
    known = step.claims.resource(step.resource)
    offer, pools = known.offer, claims.pools
    if offer is None or offer.claimant not in pools or offer.claimant in step.claims.pools:
        return step
    resources = step.claims.resources
    for name in pools[offer.claimant]:
        if name != step.resource:
            resources = resources.set(name, claims.resource(name))
    return structs.replace(step, claims=structs.replace(step.claims, resources=resources))


def joins_only_the_first_line(claims: Claims, position: int, written: Written) -> FoldStep:
    """Who waits for a pool waits for its first resource only."""
    if isinstance(written.move, AskAny) and len(claims.resources) == len(written.move.resources):
        written = written._replace(move=AskAny(written.move.resources[:1], FOR_MS, waits=True))
    return apply(claims, position, written)


def grants_another_one(claims: Claims, position: int, written: Written) -> FoldStep:
    """Who holds one of a pool and asks again, after a crash, gets one more."""
    if isinstance(written.move, AskAny):
        free = tuple(name for name in written.move.resources if claims.resource(name) is FREE)
        if free:
            written = written._replace(move=AskAny(free, FOR_MS, waits=True))
    return apply(claims, position, written)


PLANTED: dict[str, tuple[Faults, dict[str, Any]]] = {
    "no margin for drift": (Faults(entries=3), {"expiry": no_margin}),
    "lease counted from the verdict": (Faults(entries=3), {"hear": counts_from_the_verdict}),
    "a grant of an earlier life believed": (Faults(entries=3, crashes=1, asks=2), {"hear": believes_any_grant}),
    "expiry that names no grant": (Faults(entries=4, renew=True), {"rules": expires_whatever_is_there}),
    "entries of a dead life count": (Faults(entries=2, crashes=1, asks=2), {"rules": takes_the_dead_for_the_living}),
    "an offer taken for a grant": (
        Faults(entries=3, waits=True, releases=True),
        {"hear": takes_an_offer_for_a_grant},
    ),
    "everybody is granted": (Faults(entries=2), {"rules": grants_to_everybody}),
    "an offer leaves the other places of a pool": (
        Faults(entries=4, claimants=3, pool=2, waits=True, releases=True),
        {"rules": keeps_its_other_places},
    ),
    "a pool that waits in one line": (
        Faults(entries=3, claimants=3, pool=2, waits=True),
        {"rules": joins_only_the_first_line},
    ),
    "two of a pool for one": (
        Faults(entries=2, pool=2, crashes=1, asks=2, waits=True),
        {"rules": grants_another_one},
    ),
    "a shorter lease in silence": (Faults(entries=3, asks=2, short_ms=250), {"ask": shortens_without_saying}),
}


@pytest.mark.parametrize(
    "name",
    [name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.prove) for number, name in enumerate(PLANTED)],
)
def test_planted_errors_are_found(name: str) -> None:
    faults, wrong_part = PLANTED[name]
    model = ClaimsModel(faults, **wrong_part)
    found = explore(model, states_count_max=STATES_MAX)
    assert found.counterexample is not None, f"{name}: {found.schedule()}"
    assert "ledger" in found.schedule(model.describe)
