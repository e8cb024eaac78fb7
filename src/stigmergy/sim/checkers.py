"""Checkers: each examines plain evidence and reports, in sentences, which promise was broken.

A checker uses only evidence seen from outside, so that no component can hide its own mistake. It returns findings; an
empty list is good. Users may pass their own evidence too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from msgspec import Struct

from stigmergy.shard.commit import Commit, Signature, genesis_of, statement

# Nothing acknowledged is lost: an input that was acknowledged as durable is in the log of the node that said so.

FINDINGS_MAX = 20


class AcknowledgedInput(Struct, frozen=True):
    """One acknowledged input: the node, the agent, and its bytes."""

    node: str
    source: str
    number: int
    address: str
    body: bytes


def nothing_acknowledged_is_lost(
    acknowledged: Iterable[AcknowledgedInput],
    kept: Collection[tuple[str, str, bytes]],
    skipped: Sequence[tuple[str, str, int, int]] = (),
) -> list[str]:
    """`kept` has (node, address, body) of what is in a log, as it came or as an input that failed.

    `skipped` has (node, source, first, last) of what a log says was given up: shed, or declared lost by its sender.
    """
    findings: list[str] = []
    for one in acknowledged:
        if (one.node, one.address, one.body) in kept:
            continue
        if any(
            (node, source) == (one.node, one.source) and first <= one.number <= last
            for node, source, first, last in skipped
        ):
            continue
        findings.append(
            f"{one.node}: {one.source} {one.number} for {one.address} was acknowledged and is not in the log"
        )
        if len(findings) >= FINDINGS_MAX:
            break
    return findings


# The chain is valid: each commit cites the digest of the one before it, and each group is signed by its node.

Verify = Callable[[int, bytes, bytes, bytes], bool]
"""Algorithm, key, message, signature."""


class SignedLog(Struct, frozen=True):
    """The log of one shard of one node: its commits, their digests, and the signatures over their heads."""

    node: str
    fleet: str
    shard: int
    commits: Sequence[Commit]
    digests: Sequence[bytes]
    signatures: Sequence[Signature]
    key: bytes


def chain_is_valid(log: SignedLog, verify: Verify) -> list[str]:
    """Positions without a gap, every digest cited by the next, every signature good and by the node's own key."""
    findings: list[str] = []
    where = f"{log.node}, shard {log.shard}"
    before = genesis_of(log.fleet, log.shard)
    for position, (commit, digest) in enumerate(zip(log.commits, log.digests, strict=True), start=1):
        if commit.position != position:
            findings.append(f"{where}: position {commit.position} stands where {position} should")
        if commit.previous != before:
            findings.append(f"{where}: position {position} does not follow from the one before it")
        before = digest
    for signature in log.signatures:
        if signature.key != log.key:
            findings.append(f"{where}: signed by another key than the node's")
        elif not verify(signature.algorithm, signature.key, statement(signature.heads), signature.value):
            findings.append(f"{where}: a signature over {[head.position for head in signature.heads]} does not verify")
        for head in signature.heads:
            known = head.shard == log.shard and 1 <= head.position <= len(log.digests)
            if known and log.digests[head.position - 1] != head.digest:
                findings.append(f"{where}: what was signed at {head.position} is not what is in the log")
    return findings


# Replicas converge: once everything is healed, all replicas of an object are equal, and correct.

T = TypeVar("T")


def replicas_converge(replicas: Mapping[str, Mapping[str, bytes]]) -> list[str]:
    """Per object, per node a digest or the canonical bytes of what it holds: all of one object must be equal."""
    findings: list[str] = []
    for name in sorted(replicas):
        held = replicas[name]
        groups: dict[bytes, list[str]] = {}
        for node in sorted(held):
            groups.setdefault(held[node], []).append(node)
        if len(groups) > 1:
            parted = " | ".join(f"{', '.join(nodes)}: {body.hex()[:16]}" for body, nodes in groups.items())
            findings.append(f"{name} has not converged: {parted}")
    return findings


# Nothing is doubled: a receiver that keeps marks takes each message of each source once, in their order.


class TakenMessage(Struct, frozen=True):
    """What a receiver took: the source and the number of its message."""

    receiver: str
    source: str
    number: int
    what: str = ""


def nothing_is_doubled(taken: Iterable[TakenMessage]) -> list[str]:
    """Looks at what was taken in the order in which it was taken: per receiver and source the numbers must grow."""
    findings: list[str] = []
    last: dict[tuple[str, str], int] = {}
    for one in taken:
        before = last.get((one.receiver, one.source), 0)
        if one.number == before:
            findings.append(f"{one.receiver} took {one.source} {one.number} twice: {one.what}")
        elif one.number < before:
            findings.append(f"{one.receiver} took {one.source} {one.number} after {before}: {one.what}")
        last[one.receiver, one.source] = max(before, one.number)
    return findings


# Tells arrive: what agents tell an agent of another node is taken there once and in order, unless it is given up.


class ToldPair(Struct, frozen=True):
    """What one shard told an agent of another node, in order, and what that node has taken of it, in order."""

    teller: str
    to: str
    told: list[bytes]
    taken: list[bytes]
    given_up: list[bytes] = []
    """What is in the dead letters of the teller's node. It may have been taken all the same: nobody said so in time."""
    owed: list[bytes] = []
    """What was still owed at the end."""


def tells_arrive(pairs: Iterable[ToldPair]) -> list[str]:
    """Per pair, what was taken is what was told, in the same order, without what was given up or is still owed."""
    findings: list[str] = []
    for pair in pairs:
        left, excused = deque(pair.taken), Counter([*pair.given_up, *pair.owed])
        lost: list[bytes] = []
        for body in pair.told:
            if left and left[0] == body:
                left.popleft()
            elif excused[body]:
                excused[body] -= 1
            else:
                lost.append(body)
        if lost:
            findings.append(f"{pair.teller} told {pair.to}, and {len(lost)} were not taken: {lost[0]!r}")
        if left:
            findings.append(f"{pair.to} took from {pair.teller} twice, or out of order: {left[0]!r}")
    return findings[:FINDINGS_MAX]


# One holder per claim: no two believe at the same moment that they hold the same thing, and tokens only grow.


class Hold(Struct, frozen=True):
    """That somebody believed to hold something, from one moment to another, in one time for all: the simulator's."""

    resource: str
    holder: str
    token: int
    from_ns: int
    until_ns: int
    """Not included. Of a holder that died it is the moment of its death."""


def one_holder_at_a_time(holds: Iterable[Hold]) -> list[str]:
    """Holds of different holders must not overlap, and who holds later must have a higher token."""
    findings: list[str] = []
    by_resource: dict[str, list[Hold]] = {}
    for hold in holds:
        if hold.until_ns > hold.from_ns:
            by_resource.setdefault(hold.resource, []).append(hold)
    for resource in sorted(by_resource):
        ordered = sorted(by_resource[resource], key=lambda hold: (hold.from_ns, hold.token, hold.holder))
        longest = ordered[0]
        for hold in ordered[1:]:
            if hold.holder != longest.holder:
                if hold.from_ns < longest.until_ns:
                    findings.append(
                        f"{resource}: {longest.holder} (token {longest.token}) held it until {_s(longest.until_ns)}, "
                        f"{hold.holder} (token {hold.token}) from {_s(hold.from_ns)}"
                    )
                elif hold.token <= longest.token:
                    findings.append(
                        f"{resource}: {hold.holder} holds it with token {hold.token}, after {longest.holder} had "
                        f"{longest.token}"
                    )
            if hold.until_ns >= longest.until_ns:
                longest = hold
    return findings


class HoldRecorder:
    """Makes holds of what is seen from moment to moment: `seen` for everybody who believes to hold, then `looked`."""

    def __init__(self) -> None:
        self.holds: list[Hold] = []
        self._open: dict[tuple[str, str, int], int] = {}
        """Since when somebody is seen to hold something."""
        self._last: dict[tuple[str, str, int], int] = {}
        self._now: dict[tuple[str, str, int], None] = {}

    def seen(self, resource: str, holder: str, token: int) -> None:
        """At this moment somebody believes to hold something."""
        self._now[resource, holder, token] = None

    def looked(self, time_ns: int) -> None:
        """Everybody was asked. Who is not seen any more has held until the look before; never longer than is known."""
        for key in [key for key in self._open if key not in self._now]:
            resource, holder, token = key
            # At least for the moment itself: two that are seen together in one look overlap.
            self.holds.append(Hold(resource, holder, token, self._open.pop(key), self._last.pop(key) + 1))
        for key in self._now:
            self._open.setdefault(key, time_ns)
            self._last[key] = time_ns
        self._now.clear()

    def finish(self, time_ns: int) -> list[Hold]:
        """All holds, those that are not over included."""
        self.looked(time_ns)
        return self.holds


def _s(time_ns: int) -> str:
    return f"{time_ns // 1_000_000_000}.{time_ns // 1_000_000 % 1000:03d} s"


# Progress after heal: once everything works again, every node runs and everything finishes in time.


class Settling(Struct, frozen=True):
    """Where one node stands some time after the heal."""

    node: str
    runs: bool
    untold: int = 0
    """Inputs from outside that are not acknowledged or answered."""
    waiting: int = 0
    """Inputs that it has and has not decided."""
    owed: int = 0
    """Effects that are not settled."""
    held: int = 0
    """Messages that the network still has for it."""
    why: str = ""


def everything_makes_progress(nodes: Iterable[Settling]) -> list[str]:
    """Every node runs, and nothing is open there."""
    findings: list[str] = []
    for one in nodes:
        if not one.runs:
            findings.append(f"{one.node} does not run{f': {one.why}' if one.why else ''}")
        open_ = [
            f"{count} {what}"
            for count, what in (
                (one.untold, "not acknowledged"),
                (one.waiting, "not decided"),
                (one.owed, "still owed"),
                (one.held, "held by the network"),
            )
            if count
        ]
        if open_:
            findings.append(f"{one.node} has not come to an end: {', '.join(open_)}")
    return findings


# Safe action in time: an agent that has heard nothing for T is made safe within T and a tick, whatever else happens.

TICK_NS = 300_000_000
"""How late a safe action may be, seen from outside: a turn of the host, and the way to the device."""
NEVER_NS = 1 << 63
CLOCK_SHARE = 100
"""A clock may run ahead by one part in so many."""


class Watched(Struct, frozen=True):
    """One agent and one rule, as seen from outside. All times are the simulator's, and sorted by their first.

    When exactly a node heard something is not seen from outside: it was between the moment when it was delivered and
    that when it was durable.
    """

    agent: str
    after_ns: int
    fresh_ns: Sequence[tuple[int, int]]
    """When it was fresh, earliest and latest: something that the rule waits for was kept, or the node was started."""
    maybe_ns: Sequence[int]
    """When something was delivered that may have been heard, and is in no log yet."""
    safe_ns: Sequence[int]
    """When a safe action reached the device, whether that took it or not."""
    up_ns: Sequence[tuple[int, int]]
    """From when to when its node ran."""


def safe_action_in_time(watched: Iterable[Watched], *, tick_ns: int = TICK_NS) -> list[str]:
    """Looks at every silence that is certain, and for a safe action in it.

    A silence after some moment is certain if nothing that may have been heard after it began before the action was due.
    The moments overlap, so each is compared with all that end later, not only with the next one.
    """
    findings: list[str] = []
    for one in watched:
        fresh = sorted(one.fresh_ns, key=lambda moment: (moment[1], moment[0]))
        # For each moment, when the first of those that end later may have begun.
        next_ns = list(accumulate((earliest for earliest, _ in reversed(fresh)), min, initial=NEVER_NS))[-2::-1]
        for (earliest, latest), following in zip(fresh, next_ns, strict=True):
            due = latest + one.after_ns + tick_ns
            if following <= due:
                continue
            if bisect_right(one.maybe_ns, due) > bisect_right(one.maybe_ns, earliest):
                continue
            if not any(begin <= latest and due <= end for begin, end in one.up_ns):
                continue
            since = earliest + one.after_ns - one.after_ns // CLOCK_SHARE
            found = bisect_left(one.safe_ns, since)
            if found == len(one.safe_ns) or one.safe_ns[found] > due:
                findings.append(
                    f"{one.agent}: silent since {latest // 1_000_000} ms, not made safe by {due // 1_000_000} ms"
                )
    return findings
