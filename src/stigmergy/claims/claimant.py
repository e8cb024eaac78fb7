"""The claims of a node's agents: effects in, verdicts out, leases on the monotonic clock in between.

Nothing here waits. `propose` accepts an effect, `heard` reports that the log has advanced, `due` is called before each
step of the agents and returns what they must be told first: grants, refusals, and above all losses. Agents know only
what `due` has returned; so `due` turns a grant whose lease already ran out into a refusal.

A release goes to the ledger only when the agent knows of it: after `Released` was stepped. When a lease has expired by
our clock, the ledger is told MARGIN_MS later, so that a step in progress can end.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import SECOND_NS, Claimed
from stigmergy.agents.ordered import (
    LEDGER,
    POOL_SEPARATOR,
    ClaimAnyAsked,
    ClaimAsked,
    ClaimReleased,
    Denied,
    Granted,
    Lost,
    Released,
)
from stigmergy.claims import acquisition as acquisitions
from stigmergy.claims.acquisition import Acquisition, Advance
from stigmergy.claims.entries import (
    CLAIMANT_CHARS_MAX,
    Ask,
    AskAny,
    ClaimantName,
    Move,
    Release,
    Withdraw,
    WithdrawAny,
    claimant_id,
)
from stigmergy.claims.permissions import asked_for, read_asked
from stigmergy.claims.rules import FoldStep
from stigmergy.claims.state import MARGIN_MS, MILLISECOND_NS, Claims
from stigmergy.claims.writer import ClaimWriter
from stigmergy.metrics.histogram import Histogram
from stigmergy.shard.inputs import EffectSettled, VerdictCame
from stigmergy.shard.outbox import Pending

GATE_LOOK_NS = 5 * MILLISECOND_NS
"""How often we check whether an agent knows that it has released something."""
TIMES_COUNT_SPARE = 1_000
"""How many times of dropped claims may be kept beside the others."""
TAKEN_BACK = "it was given back before it was granted"
NOT_UP = "The ledger does not answer any more: this is how it was when it did, and nobody knows who holds it now"
TOO_MANY = "too many claims wait for the ledger; ask again later"
NAME_TOO_LONG = f"agent and claim have more than {CLAIMANT_CHARS_MAX} characters; give the agent a shorter name"

Key = tuple[str, str, str]
"""Agent, claim and resource, or the pool as one text."""
Told = tuple[int, EffectSettled | VerdictCame]
"""A shard, and its input."""
Owes = Callable[[int, int], bool]
"""Whether a shard still owes the effect of this number: its answer was not stepped yet."""


class ClaimantCounters(Struct):
    """Outcomes of claims."""

    claims_asked: int = 0
    claims_granted: int = 0
    claims_denied: int = 0
    claims_lost: int = 0
    claims_released: int = 0


class Belief(Struct, frozen=True):
    """A claim of an agent of this node, as the node sees it at this moment."""

    agent: str
    claim: str
    resource: str
    holds: bool
    """Whether it may act as the holder: nothing else counts."""
    token: int
    """0 if it does not hold it."""
    left_s: float
    """Until the lease is over, if it holds it; else until the request is given up."""
    renews: bool
    asking: bool
    pool: tuple[str, ...] = ()
    """The resources of which one is enough. Until it holds one, `resource` is all of them as one text."""


class LedgerView(Protocol):
    """What a node has seen of others in the ledger, to say why a claim was denied."""

    @property
    def is_up(self) -> bool:
        """Whether the ledger answers."""
        ...

    def name_of(self, claimant: bytes) -> ClaimantName | None:
        """Who a claimant is, if its entry was read."""
        ...

    def over_ns(self, resource: str, began: int) -> int | None:
        """When this lease or offer is over at the latest, by this node's clock."""
        ...


class _Claim:
    """A claim, its agent, and the effects that wait for its verdict."""

    __slots__ = ("acquisition", "armed_ns", "asked_ns", "claimant", "first_number", "key", "number", "owed", "shard")

    def __init__(self, shard: int, key: Key, claimant: bytes, first_number: int) -> None:
        self.shard = shard
        self.key = key
        self.claimant = claimant
        self.first_number = first_number
        self.acquisition: Acquisition | None = None
        self.owed: list[int] = []
        self.number = 0
        """Of the last move that was sent for it."""
        self.armed_ns: int | None = None
        """When it is checked next, whatever happens."""
        self.asked_ns: int | None = None
        """When the agent asked for it; None once it was told that it holds it."""

    @property
    def name(self) -> str:
        return claimant_name(self.key[0], self.key[1])


class _News(Struct):
    """A verdict on its way to its agent."""

    claim: _Claim
    verdict: acquisitions.ClaimVerdict | Released
    sequences: tuple[int, ...]


class _Gate(Struct):
    """A move that waits until its agent was told, or for a time."""

    name: str
    move: Move
    shard: int = 0
    sequence: int = 0
    """Of the effect whose answer must have been stepped."""
    not_before_ns: int = 0


def claimant_name(agent: str, claim: str) -> str:
    """The name of a claim in the ledger. Names of fields have no spaces, so it is unique."""
    return f"{agent} {claim}"


class Claimant:
    """All claims of a node."""

    def __init__(
        self, writing: ClaimWriter, incarnation: int, key: tuple[int, bytes], owes: Owes, view: LedgerView
    ) -> None:
        self._writing = writing
        self._view = view
        self._log = Claims()
        """The fold, as far as it was read."""
        self._incarnation = incarnation
        self._key = key
        self._owes = owes
        self._claims: dict[Key, _Claim] = {}
        self._by_resource: dict[str, dict[Key, None]] = {}
        self._by_number: dict[int, Key] = {}
        self._times: list[tuple[int, int, Key]] = []
        self._times_count = 0
        self._news: deque[_News] = deque()
        self._gates: deque[_Gate] = deque()
        self.refuses = ""
        """If set, nothing is asked of the ledger, and this is why."""
        self.counters = ClaimantCounters()
        self.grants = Histogram()
        """How long it took from asking to being told of the grant."""

    # ------------------------------------------------------------------ from the agents

    def propose(self, shard: int, pending: Pending, now_ns: int) -> None:
        """Accepts a durable effect of the sink "ledger"."""
        asked = read_asked(pending)
        key = (pending.agent, asked.claim, asked_for(asked))
        find = self._holding if isinstance(asked, ClaimReleased) else self._claims.get
        claim = find(key)
        if claim is not None:
            self._tick(claim, now_ns)
            claim = find(key)
        if isinstance(asked, ClaimReleased):
            self._give_back(shard, pending, asked, claim, key)
            return
        self.counters.claims_asked += 1
        if claim is None:
            claimant = claimant_id(*self._key, self._incarnation, claimant_name(*key[:2]))
            claim = _Claim(shard, key, claimant, self._writing.next_number)
        if refused := self._refusal(claim):
            self._tell(claim, acquisitions.ClaimDenied(refused), (pending.sequence,))
            return
        for sequence in claim.owed:  # the later request is answered for both
            self._news.append(_News(claim, acquisitions.ClaimDenied(""), (sequence,)))
        claim.owed = [pending.sequence]
        claim.asked_ns = now_ns
        self._claims[key] = claim
        for name in _names(key):
            self._by_resource.setdefault(name, {})[key] = None
        turn = acquisitions.ask(claim.acquisition, _wanted(claim, asked, now_ns), now_ns, self._writing.next_number)
        self._after(claim, turn, now_ns)

    def _holding(self, key: Key) -> _Claim | None:
        """The claim of this key, or the one on a pool that contains this resource."""
        others = (one for one in self._by_resource.get(key[2], ()) if one[:2] == key[:2])
        return self._claims.get(key) or next((self._claims[one] for one in others), None)

    def _refusal(self, claim: _Claim) -> str:
        """Why the ledger is not asked at all; empty if it is."""
        if self.refuses:
            return self.refuses
        if len(claim.name) > CLAIMANT_CHARS_MAX:
            return NAME_TOO_LONG
        return "" if self._writing.has_room else TOO_MANY

    def _give_back(self, shard: int, pending: Pending, asked: ClaimReleased, claim: _Claim | None, key: Key) -> None:
        acquisition = None if claim is None else claim.acquisition
        told = claim or _Claim(shard, key, b"", 0)
        self._tell(told, Released(claim=key[1], resource=key[2], token=asked.token), (pending.sequence,))
        self.counters.claims_released += 1
        if claim is None or acquisition is None:
            return
        turn = acquisitions.release(acquisition, asked.token if acquisition.held is not None else 0)
        if turn.acquisition is not None or turn.move is None:
            return
        owed, claim.owed = claim.owed, []
        if owed:
            self._tell(claim, acquisitions.ClaimDenied(TAKEN_BACK), tuple(owed))
        self._forget(claim)
        if isinstance(turn.move, Release):
            self._gates.append(_Gate(claim.name, turn.move, shard, pending.sequence))
        else:
            self._withdraw(claim, acquisition, turn.move)

    # ------------------------------------------------------------------ from the ledger

    def heard(self, steps: Sequence[FoldStep], claims: Claims, now_ns: int) -> None:
        """The log has advanced by these steps, to this state."""
        self._log = claims
        changed = (name for step in steps for name in (step.resource, *step.others))
        for name in dict.fromkeys(name for name in changed if name in self._by_resource):
            self._look_at(self._by_resource.get(name, {}), claims, now_ns)

    def jumped(self, claims: Claims, now_ns: int) -> None:
        """The log was not read step by step: everything may have changed."""
        self._log = claims
        self._look_at(self._claims, claims, now_ns)

    def _look_at(self, keys: Iterable[Key], claims: Claims, now_ns: int) -> None:
        writing = self._writing
        for key in list(keys):
            claim = self._claims.get(key)
            if claim is None or not self._tick(claim, now_ns) or claim.acquisition is None:
                continue
            turn = acquisitions.heard(
                claim.acquisition, claims, writing.writer, writing.life, now_ns, writing.next_number
            )
            self._after(claim, turn, now_ns)

    def resent(self, numbers: range, now_ns: int) -> None:
        """These moves are sent now, and were never written before."""
        for number in numbers:
            claim = self._claims.get(self._by_number.get(number, ("", "", "")))
            if claim is not None and claim.acquisition is not None:
                claim.acquisition = acquisitions.resent(claim.acquisition, numbers, now_ns)

    def give_up(self, reason: str) -> None:
        """The ledger is no longer trusted: all leases are lost, all requests are refused."""
        self.refuses = reason
        for claim in list(self._claims.values()):
            acquisition = claim.acquisition
            if acquisition is not None and acquisition.held is not None:
                self._tell(claim, acquisitions.ClaimLost(acquisition.held.token, reason), ())
            if claim.owed:
                self._tell(claim, acquisitions.ClaimDenied(reason), tuple(claim.owed))
            self._forget(claim)

    # ------------------------------------------------------------------ time

    @property
    def next_ns(self) -> int | None:
        """When `due` has something to return or to do; 0: now."""
        if self._news:
            return 0
        times = [self._times[0][0]] if self._times else []
        times += [gate.not_before_ns for gate in self._gates]
        return min(times, default=None)

    @property
    def held(self) -> int:
        """The number of held claims."""
        return sum(
            claim.acquisition is not None and claim.acquisition.held is not None for claim in self._claims.values()
        )

    @property
    def asking(self) -> int:
        """The number of claims that wait for a verdict."""
        return sum(bool(claim.owed) for claim in self._claims.values())

    @property
    def giving_back(self) -> int:
        """The number of releases that the ledger was not told of yet."""
        return len(self._gates)

    def believes(self, resource: str, now_ns: int) -> list[tuple[str, int]]:
        """Which agents of this node may act as holders of a resource now, with their tokens."""
        found: list[tuple[str, int]] = []
        for key in self._by_resource.get(resource, ()):
            acquisition = self._claims[key].acquisition
            if (
                acquisition is not None
                and acquisition.held is not None
                and acquisition.resource == resource
                and acquisition.believes(now_ns)
            ):
                found.append((key[0], acquisition.held.token))
        return found

    def lease_end_ns(self, agent: str, claimed: Claimed) -> int | None:
        """Until when an agent may act under this claim, if it holds it with the same token."""
        claim = self._holding((agent, claimed.field, claimed.resource))
        acquisition = None if claim is None else claim.acquisition
        held = None if acquisition is None or acquisition.resource != claimed.resource else acquisition.held
        return held.end_ns if held is not None and held.token == claimed.token else None

    def beliefs(self, now_ns: int) -> list[Belief]:
        """All claims of this node, ordered by resource, agent and claim."""
        found: list[Belief] = []
        for agent, name, resource in sorted(self._claims, key=lambda key: (key[2], key[0], key[1])):
            claim = self._claims[agent, name, resource]
            acquisition = claim.acquisition
            if acquisition is None:
                continue
            holds = acquisition.held if acquisition.believes(now_ns) else None
            left_ns = max(0, (acquisition.until_ns if holds is None else holds.end_ns) - now_ns)
            token = 0 if holds is None else holds.token
            times = (left_ns / SECOND_NS, acquisition.renew, bool(claim.owed))
            held = resource if holds is None else acquisition.resource
            found.append(Belief(agent, name, held, holds is not None, token, *times, acquisition.pool))
        return found

    def due(self, now_ns: int) -> list[Told]:
        """What agents must be told before anything else is stepped, in order."""
        self._open_gates(now_ns)
        while self._times and self._times[0][0] <= now_ns:
            at_ns, _, key = heapq.heappop(self._times)
            claim = self._claims.get(key)
            if claim is not None and claim.armed_ns == at_ns:
                claim.armed_ns = None
                self._tick(claim, now_ns)
        told: list[Told] = []
        over: dict[tuple[Key, int], None] = {}
        while self._news:
            news = self._news.popleft()
            told += self._told(news, now_ns, over)
        return told

    def _told(self, news: _News, now_ns: int, over: dict[tuple[Key, int], None]) -> list[Told]:
        claim, (agent, field, resource) = news.claim, news.claim.key
        event: Granted | Denied | Lost | Released
        match news.verdict:
            case acquisitions.ClaimGranted(token=token, end_ns=end_ns, resource=which) if now_ns < end_ns:
                for_s, renews = (end_ns - now_ns) / SECOND_NS, claim.acquisition is not None and claim.acquisition.renew
                event = Granted(claim=field, resource=which or resource, token=token, for_s=for_s, renews=renews)
                self.counters.claims_granted += 1
                if claim.asked_ns is not None:
                    self.grants.observe(now_ns - claim.asked_ns)
                    claim.asked_ns = None
            case acquisitions.ClaimGranted(token=token):
                over[claim.key, token] = (
                    None  # the agent was never told that it holds it, so it is not told of the loss
                )
                event = Denied(claim=field, resource=resource, reason=acquisitions.TOO_LATE)
            case acquisitions.ClaimDenied(reason=""):
                return [(claim.shard, EffectSettled(LEDGER, sequence)) for sequence in news.sequences]
            case acquisitions.ClaimDenied() as denied:
                event = self._denied(field, resource, denied, now_ns)
                self.counters.claims_denied += 1
            case acquisitions.ClaimLost(token=token, reason=reason, resource=which):
                if (claim.key, token) in over:
                    return []
                event = Lost(claim=field, resource=which or resource, token=token, reason=reason)
                self.counters.claims_lost += 1
            case Released() as event:
                pass
        body = encode(event)
        if not news.sequences:
            return [(claim.shard, VerdictCame(agent, body))]
        return [(claim.shard, EffectSettled(LEDGER, sequence, body)) for sequence in news.sequences]

    def _denied(self, field: str, resource: str, denied: acquisitions.ClaimDenied, now_ns: int) -> Denied:
        """The denial for the agent: who holds the resource, for how long, and the place in the queue."""
        if not denied.standings:
            return Denied(claim=field, resource=resource, reason=denied.reason)
        # Of a pool the one that ends first; those with an unknown end come last.
        lefts = [(self._left_s(standing, now_ns), standing) for standing in denied.standings]
        left_s, standing = min(lefts, key=lambda one: one[0] or math.inf)
        place = min((one.place for one in denied.standings if one.place), default=0)
        named = self._view.name_of(standing.holder)
        holder = "" if named is None else named.name.rpartition(" ")[0]
        reason = why_denied(denied.reason, standing, holder, left_s, place, len(denied.standings))
        if not self._view.is_up:
            reason = f"{reason}. {NOT_UP}"
        full = denied.reason == acquisitions.QUEUE_FULL
        return Denied(
            claim=field, resource=resource, reason=reason, holder=holder, held_s_max=left_s, place=place, full=full
        )

    def _left_s(self, standing: acquisitions.CurrentHolder, now_ns: int) -> float:
        over_ns = self._view.over_ns(standing.resource, standing.began)
        return 0.0 if over_ns is None or standing.offered else max(0, over_ns - now_ns) / SECOND_NS

    def _open_gates(self, now_ns: int) -> None:
        """Sends moves that waited until their agent was told, or for the margin after a lease."""
        for _ in range(len(self._gates)):
            gate = self._gates.popleft()
            if gate.not_before_ns <= now_ns:
                if not (gate.sequence and self._owes(gate.shard, gate.sequence)):
                    self._writing.put(gate.name, gate.move)
                    continue
                gate.not_before_ns = now_ns + GATE_LOOK_NS
            self._gates.append(gate)

    # ------------------------------------------------------------------ claims

    def _tick(self, claim: _Claim, now_ns: int) -> bool:
        """Whether the claim still exists at this time."""
        if claim.acquisition is None:
            return False
        before = claim.acquisition
        turn = acquisitions.tick(before, now_ns, self._writing.next_number, self._log)
        if turn.acquisition is before:
            self._remember_time(claim)
            return True
        if turn.acquisition is not None:
            self._after(claim, turn, now_ns)
            return True
        self._deliver(claim, turn.verdicts)
        self._forget(claim)
        if isinstance(turn.move, Release):
            self._gates.append(_Gate(claim.name, turn.move, not_before_ns=now_ns + MARGIN_MS * MILLISECOND_NS))
        elif turn.move is not None:
            self._withdraw(claim, before, turn.move)
        return False

    def _after(self, claim: _Claim, turn: Advance, now_ns: int) -> None:
        """Applies the result of a turn: the new acquisition, a move, verdicts."""
        self._deliver(claim, turn.verdicts)
        if turn.acquisition is None:
            self._forget(claim)
            if turn.move is not None:
                self._writing.put(claim.name, turn.move)
            return
        claim.acquisition = turn.acquisition
        if turn.move is not None:
            self._by_number.pop(claim.number, None)
            claim.number = self._writing.next_number
            if self._writing.put(claim.name, turn.move):
                self._by_number[claim.number] = claim.key
        self._remember_time(claim)

    def _withdraw(self, claim: _Claim, acquisition: Acquisition, move: Move) -> None:
        """Takes a request back; if it was never sent, the ledger need not know."""
        sent = acquisition.sent
        if sent is not None and isinstance(sent.move, Ask | AskAny):
            self._writing.recall(sent.number)
        if isinstance(move, Withdraw | WithdrawAny) and self._writing.attempted < claim.first_number:
            return
        self._writing.put(claim.name, move)

    def _remember_time(self, claim: _Claim) -> None:
        """Schedules a check of the claim when its time comes, or earlier."""
        if claim.acquisition is None or (claim.armed_ns is not None and claim.armed_ns <= claim.acquisition.next_ns):
            return
        if len(self._times) > TIMES_COUNT_SPARE + 4 * len(self._claims):
            kept = [one for one in self._times if one[2] in self._claims and self._claims[one[2]].armed_ns == one[0]]
            heapq.heapify(kept)
            self._times = kept
        self._times_count += 1
        claim.armed_ns = claim.acquisition.next_ns
        heapq.heappush(self._times, (claim.armed_ns, self._times_count, claim.key))

    def _deliver(self, claim: _Claim, verdicts: Sequence[acquisitions.ClaimVerdict]) -> None:
        for verdict in verdicts:
            if isinstance(verdict, acquisitions.ClaimLost):
                self._tell(claim, verdict, ())
            else:
                owed, claim.owed = tuple(claim.owed), []
                self._tell(claim, verdict, owed)

    def _tell(self, claim: _Claim, verdict: acquisitions.ClaimVerdict | Released, sequences: tuple[int, ...]) -> None:
        self._news.append(_News(claim, verdict, sequences))

    def _forget(self, claim: _Claim) -> None:
        claim.acquisition = None
        self._by_number.pop(claim.number, None)
        if self._claims.get(claim.key) is claim:
            del self._claims[claim.key]
            for name in _names(claim.key):
                same = self._by_resource.get(name, {})
                same.pop(claim.key, None)
                if not same:
                    self._by_resource.pop(name, None)


def _names(key: Key) -> list[str]:
    """The resources of a claim."""
    return key[2].split(POOL_SEPARATOR)


def why_denied(
    reason: str, standing: acquisitions.CurrentHolder, holder: str, left_s: float, place: int, pool_count: int = 1
) -> str:
    """A denial by the ledger for people. Of a pool it names the resource that ends first."""
    who, what = holder or "another agent", "it" if pool_count == 1 else standing.resource
    if standing.offered:
        has = f"{what} is offered to {who}"
    elif left_s > 0:
        has = f"{who} holds {what} for up to {left_s:.1f} s more unless it renews"
    else:
        has = f"{who} holds {what}"
    if pool_count > 1:
        has = f"all {pool_count} are taken; {has}"
    if place:
        has = f"place {place} in line; {has}"
    return f"{reason}: {has}"


def _wanted(claim: _Claim, asked: ClaimAsked | ClaimAnyAsked, now_ns: int) -> Acquisition:
    """The claim of an effect. Without a time to wait, a verdict is worth waiting for as long as its lease."""
    patience_s = asked.wait_s or asked.for_s
    return Acquisition(
        claimant=claim.claimant,
        resource="" if isinstance(asked, ClaimAnyAsked) else asked.resource,
        pool=asked.resources if isinstance(asked, ClaimAnyAsked) else (),
        for_ms=math.floor(asked.for_s * 1000),
        renew=asked.renew,
        waits=asked.wait_s > 0,
        until_ns=now_ns + int(patience_s * SECOND_NS),
    )
