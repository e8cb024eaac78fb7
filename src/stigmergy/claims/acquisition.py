"""One claim as its claimant sees it: asking, waiting, holding, giving up. Pure: the caller sends, reads, has a clock.

    turn = ask(None, …)                          a move to send, with the number given for it
    turn = heard(acquisition, claims, …)         the fold has advanced: what it means for this claim
    turn = tick(acquisition, now_ns, number)     time has passed; call it before any other use of the claim

The caller sends moves in the order of their numbers, repeats a move until it knows the outcome, and calls `tick` before
every step of the agent. A held claim counts as held up to `end_ns` and no longer, whether or not it is called. A claim
is given up here before the ledger is told.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, structs

from stigmergy.claims.entries import Ask, AskAny, Move, Release, Renew, Take, Withdraw, WithdrawAny
from stigmergy.claims.state import QUEUE_COUNT_MAX, Claims, lease_end_ns, renewal_ns

NO_VERDICT = "no verdict in time; nobody knows who holds it"
"""Only if the ledger did not answer."""
NOT_SERVED = "its turn did not come in time"
NOT_PROLONGED = "no verdict in time; it is held as before, until its lease is over"
TOO_LATE = "the verdict came after the lease was over"
HELD_BY_OTHERS = "somebody else holds it"
QUEUE_FULL = f"somebody else holds it, and {QUEUE_COUNT_MAX} wait already"
LEASE_OVER = "its time is over"
NOT_RENEWED = "its time is over, and no renewal came through"
TAKEN_AWAY = "the ledger says that the lease is over"
NOT_HEARD = "the ledger takes nothing from this node"


class ClaimGranted(Struct, frozen=True):
    """The agent holds the claim, until `end_ns` of its own clock."""

    token: int
    end_ns: int
    resource: str = ""
    """Which one, of a pool; empty if only one was asked for."""


class CurrentHolder(Struct, frozen=True):
    """Who held the resource, by the ledger, when a claim on it was denied."""

    resource: str
    holder: bytes
    """The claimant that holds it, or is offered it."""
    began: int
    """The position of the entry that began its lease, or the offer."""
    offered: bool = False
    place: int = 0
    """The denied claim's place in the queue, counted from 1; 0: it was not queued."""


class ClaimDenied(Struct, frozen=True):
    """The agent does not hold the claim, and no longer waits for it."""

    reason: str
    standings: tuple[CurrentHolder, ...] = ()
    """Of each requested resource; none if the ledger did not answer."""


class ClaimLost(Struct, frozen=True):
    """The agent held the claim, and no longer does."""

    token: int
    reason: str
    resource: str = ""
    """As in a grant."""


ClaimVerdict = ClaimGranted | ClaimDenied | ClaimLost


class SentMove(Struct, frozen=True):
    """A sent move whose effect has not been read yet."""

    move: Ask | AskAny | Take | Renew
    number: int
    sent_ns: int
    """A time before it was first sent, or could have been."""


class HeldClaim(Struct, frozen=True):
    """A held lease, by its holder's clock."""

    token: int
    sent_ns: int
    """A time before the move that began the lease was sent."""
    for_ms: int
    end_ns: int
    """It is no longer held from then on."""


class Acquisition(Struct, frozen=True):
    """One claim on one resource, or on any one of a pool."""

    claimant: bytes
    resource: str
    """The requested resource. Of a pool, the one that it holds or accepts; empty before."""
    for_ms: int
    renew: bool
    waits: bool
    until_ns: int
    """Without a verdict by then it is refused."""
    asking: bool = True
    """Whether the agent waits for a verdict."""
    sent: SentMove | None = None
    held: HeldClaim | None = None
    pool: tuple[str, ...] = ()
    """It wants any one of these resources; empty: only `resource`."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The resources of which one is enough."""
        return self.pool or (self.resource,)

    @property
    def next_ns(self) -> int:
        """When `tick` has something to do, if nothing else happens before."""
        times = [self.until_ns] if self.asking else []
        if self.held is not None:
            times.append(self.held.end_ns)
            if self.renew and self.sent is None:
                times.append(renewal_ns(self.held.sent_ns, self.held.for_ms))
        return min(times)

    def believes(self, now_ns: int) -> bool:
        """Whether the agent may act as the holder at this time of its own clock."""
        return self.held is not None and now_ns < self.held.end_ns


class Advance(NamedTuple):
    """The result: the new acquisition (None: drop it), a move to send, and verdicts for the agent."""

    acquisition: Acquisition | None
    move: Move | None = None
    verdicts: tuple[ClaimVerdict, ...] = ()


def ask(before: Acquisition | None, wanted: Acquisition, now_ns: int, number: int) -> Advance:
    """Requests a resource, or a longer lease. `wanted` says what and for how long; its other fields are ignored."""
    if before is not None and before.believes(now_ns) and before.held is not None:
        kept = structs.replace(wanted, held=before.held, resource=before.resource)
        return _renew(kept, before.held, now_ns, number)
    return _send(wanted, _question(wanted), now_ns, number)


def release(acquisition: Acquisition, token: int) -> Advance:
    """Gives up the lease with this token, or, with 0, whatever there is. An older token changes nothing."""
    held = acquisition.held
    if held is not None and token in (0, held.token):
        return Advance(None, Release(acquisition.resource, held.token))
    if held is None and token == 0:
        return Advance(None, _withdrawal(acquisition))
    return Advance(acquisition)


def resent(acquisition: Acquisition, numbers: range, now_ns: int) -> Acquisition:
    """These moves are sent now, and were certainly never written before: the lease may count from now."""
    if acquisition.sent is None or acquisition.sent.number not in numbers:
        return acquisition
    return structs.replace(acquisition, sent=structs.replace(acquisition.sent, sent_ns=now_ns))


def tick(acquisition: Acquisition, now_ns: int, number: int, claims: Claims | None = None) -> Advance:
    """Handles the end of a lease, the end of the wait, or a renewal. `claims` is the fold as far as it was read, to say
    why a claim was not served."""
    held = acquisition.held
    if held is not None and now_ns >= held.end_ns:
        lost = ClaimLost(held.token, NOT_RENEWED if acquisition.renew else LEASE_OVER, _of_pool(acquisition))
        denied = (ClaimDenied(NO_VERDICT),) if acquisition.asking else ()
        return Advance(None, Release(acquisition.resource, held.token), (lost, *denied))
    if acquisition.asking and now_ns >= acquisition.until_ns:
        if held is None:
            return Advance(None, _withdrawal(acquisition), (_not_served(acquisition, claims),))
        return Advance(structs.replace(acquisition, asking=False), None, (ClaimDenied(NOT_PROLONGED),))
    if (
        held is not None
        and acquisition.renew
        and acquisition.sent is None
        and now_ns >= renewal_ns(held.sent_ns, held.for_ms)
    ):
        return _renew(acquisition, held, now_ns, number)
    return Advance(acquisition)


def heard(acquisition: Acquisition, claims: Claims, writer: bytes, life: int, now_ns: int, number: int) -> Advance:
    """The fold has advanced. Call `tick` with the same time first: an expired claim is not granted."""
    sent = acquisition.sent
    if sent is not None and claims.has_seen(writer, life, sent.number):
        acquisition = structs.replace(acquisition, sent=None)
        for name in acquisition.wanted:
            grant = claims.holds(name, acquisition.claimant)
            if grant is not None and (grant.life, grant.sequence) == (life, sent.number):
                end_ns = lease_end_ns(sent.sent_ns, grant.for_ms)
                won = structs.replace(acquisition, resource=name)
                return _won(won, HeldClaim(grant.token, sent.sent_ns, grant.for_ms, end_ns), now_ns)
    if acquisition.held is not None:
        return _still_held(acquisition, acquisition.held, claims)
    if acquisition.sent is not None:
        return Advance(acquisition)
    for name in acquisition.wanted:
        offer = claims.offered(name, acquisition.claimant)
        if offer is not None:
            taking = structs.replace(acquisition, resource=name)
            return _send(taking, Take(name, offer.position, acquisition.for_ms), now_ns, number)
    if any(claims.waits(name, acquisition.claimant) for name in acquisition.wanted):
        return Advance(acquisition)
    if acquisition.waits and (sent is None or isinstance(sent.move, Take)):
        # The offer was passed on before it could be accepted: queue again at the end.
        return _send(acquisition, _question(acquisition), now_ns, number)
    return Advance(None, None, (ClaimDenied(_why_refused(acquisition, claims), standings_of(acquisition, claims)),))


def _question(acquisition: Acquisition) -> Ask | AskAny:
    if acquisition.pool:
        return AskAny(acquisition.pool, acquisition.for_ms, acquisition.waits)
    return Ask(acquisition.resource, acquisition.for_ms, acquisition.waits)


def _withdrawal(acquisition: Acquisition) -> Withdraw | WithdrawAny:
    return WithdrawAny(acquisition.pool) if acquisition.pool else Withdraw(acquisition.resource)


def _of_pool(acquisition: Acquisition) -> str:
    """Which one of a pool it is."""
    return acquisition.resource if acquisition.pool else ""


def _won(acquisition: Acquisition, held: HeldClaim, now_ns: int) -> Advance:
    """A move was granted: it holds the claim, unless its time is over already."""
    if now_ns >= held.end_ns:
        return Advance(None, Release(acquisition.resource, held.token), _gone(acquisition, TOO_LATE))
    verdicts = (ClaimGranted(held.token, held.end_ns, _of_pool(acquisition)),) if acquisition.asking else ()
    return Advance(structs.replace(acquisition, held=held, asking=False), None, verdicts)


def _still_held(acquisition: Acquisition, held: HeldClaim, claims: Claims) -> Advance:
    grant = claims.holds(acquisition.resource, acquisition.claimant)
    if grant is not None and grant.token == held.token:
        return Advance(acquisition)
    return Advance(None, None, _gone(acquisition, TAKEN_AWAY))


def _gone(acquisition: Acquisition, reason: str) -> tuple[ClaimVerdict, ...]:
    """The agent's verdicts: its lease is lost, and its pending request is refused."""
    lost: tuple[ClaimVerdict, ...] = (
        () if acquisition.held is None else (ClaimLost(acquisition.held.token, reason, _of_pool(acquisition)),)
    )
    return (*lost, ClaimDenied(reason)) if acquisition.asking else lost


def standings_of(acquisition: Acquisition, claims: Claims) -> tuple[CurrentHolder, ...]:
    """The holders of the requested resources, and its place in the queues; nothing for a free resource."""
    found: list[CurrentHolder] = []
    for name in acquisition.wanted:
        known, place = claims.resource(name), claims.place(name, acquisition.claimant)
        if known.grant is not None:
            found.append(CurrentHolder(name, known.grant.claimant, known.grant.began, place=place))
        elif known.offer is not None:
            found.append(CurrentHolder(name, known.offer.claimant, known.offer.position, True, place))
    return tuple(found)


def _not_served(acquisition: Acquisition, claims: Claims | None) -> ClaimDenied:
    """The end of the wait. While a move is on its way, the ledger has not answered the last request."""
    if acquisition.sent is not None or claims is None:
        return ClaimDenied(NO_VERDICT)
    return ClaimDenied(NOT_SERVED, standings_of(acquisition, claims))


def _why_refused(acquisition: Acquisition, claims: Claims) -> str:
    known = [claims.resource(name) for name in acquisition.wanted]
    if any(one.grant is None and one.offer is None for one in known):
        return NOT_HEARD
    full = all(len(one.queue) >= QUEUE_COUNT_MAX for one in known)
    return QUEUE_FULL if acquisition.waits and full else HELD_BY_OTHERS


def _renew(acquisition: Acquisition, held: HeldClaim, now_ns: int, number: int) -> Advance:
    """Asks for a new lease. If that is shorter, the old one is shortened now: observers count the new one from when the
    move is written."""
    cut = structs.replace(held, end_ns=min(held.end_ns, lease_end_ns(now_ns, acquisition.for_ms)))
    return _send(
        structs.replace(acquisition, held=cut),
        Renew(acquisition.resource, held.token, acquisition.for_ms),
        now_ns,
        number,
    )


def _send(acquisition: Acquisition, move: Ask | AskAny | Take | Renew, now_ns: int, number: int) -> Advance:
    return Advance(structs.replace(acquisition, sent=SentMove(move, number, now_ns)), move)
