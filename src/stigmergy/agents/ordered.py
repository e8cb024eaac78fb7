"""Ordered fields of agents: claims on exclusive resources, and their verdicts.

    crossing: Ordered[Claim] = ordered(of="crossing-7")

    yield self.crossing.claim(for_s=5)          # in @react: asks the ledger, once the event behind it is durable
    def granted(self, verdict: Granted) ...     # in @decide, @evolve or @react: `verdict.claim` names the field

The ledger has one order for everybody, so there is one winner. **No verdict means not held**: `self.crossing.held` is
true from `Granted` until `Released` or `Lost`. `Lost` comes when the lease runs out on our own monotonic clock, which
starts before we ask. After a restart nothing is held until the agent asks again and is granted. The fencing token,
`token`, only grows for a resource: a device that remembers the highest one refuses orders of a former holder once it
has seen the newer grant. An action with `valid_while=self.crossing` is dropped if the claim is lost before it is
carried out.

Verdicts are facts: they are kept and folded whatever handlers do. A `decide` handler for one may add events.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stigmergy.agents.messages import SECOND_NS, Claimed, Effect, Event, is_number
from stigmergy.agents.now import step_time_ns
from stigmergy.base.errors import DefinitionError

LEDGER = "ledger"
"""The sink of what is asked of the ledger."""
RESOURCE_CHARS_MAX = 128
LEASE_S_BOUNDS = (0.05, 86_400.0)
WAIT_S_MAX = 86_400.0
RENEWED_NS = 2**62
"""The end of a lease that is prolonged by itself: behind every time. `Lost` comes before, by the monotonic clock."""
_RESOURCE = re.compile(r"[A-Za-z0-9_.:@=~/-]{1,128}", re.ASCII)

POOL_COUNT_MAX = 32
"""Resources of one pool."""
POOL_SEPARATOR = "|"
"""Between the resources of a pool where it is written as one text; no resource has it in its name."""

T = TypeVar("T")


class Pool(Struct, frozen=True):
    """Several resources of which any one would do; `pool("dock-1", "dock-2")` makes one."""

    resources: tuple[str, ...]

    @property
    def text(self) -> str:
        """The pool as one text, such as `dock-1|dock-2`: what `Denied.resource` says of it."""
        return POOL_SEPARATOR.join(self.resources)


def pool(*resources: str) -> Pool:
    """Several resources of which an agent claims any one: one place in line, the first that is free."""
    where = f"pool({', '.join(map(repr, resources))})"
    if not 1 <= len(resources) <= POOL_COUNT_MAX or len(dict.fromkeys(resources)) < len(resources):
        raise DefinitionError(f"{where}: give 1 to {POOL_COUNT_MAX} resources, each once")
    for resource in resources:
        _check_resource(where, resource)
    return Pool(resources)


Of = Callable[[str], str | Pool] | str | Pool | None
"""What a field claims unless a claim says otherwise: this, what the function says for the agent's id, or nothing."""


class _OrderedMark:
    """What tells an ordered field from others."""

    def __repr__(self) -> str:
        return "ordered"


ORDERED = _OrderedMark()
Ordered = Annotated[T, ORDERED]
"""A field whose changes are ordered by the ledger: one holder, or an honest refusal."""


class OrderedOf(Struct, frozen=True):
    """What `ordered` returns: the place of a default, with the resource in it."""

    of: Of


def ordered(*, of: Of = None) -> Any:
    """Declares what a field claims: a text, a pool of which any one would do, or a function of the agent's id that
    returns one of these. `claim(of=…)` may say something else."""
    if of is not None and not isinstance(of, Pool) and not callable(of):
        _check_resource(f"ordered(of={of!r})", of)
    return OrderedOf(of)


class ClaimAsked(Effect, name="stigmergy.ClaimAsked"):
    """Asks the ledger for a resource. The answer is `Granted` or `Denied`."""

    claim: str
    resource: str
    for_s: float
    wait_s: float = 0.0
    renew: bool = False


class ClaimAnyAsked(Effect, name="stigmergy.ClaimAnyAsked"):
    """Asks the ledger for any one of several resources. The answer is `Granted`, which says which, or `Denied`."""

    claim: str
    resources: tuple[str, ...]
    for_s: float
    wait_s: float = 0.0
    renew: bool = False


class ClaimReleased(Effect, name="stigmergy.ClaimReleased"):
    """Gives a resource back, or takes the wish for it back. The answer is `Released`."""

    claim: str
    resource: str
    token: int


class Granted(Event, name="stigmergy.Granted"):
    """The agent holds the resource, for so many seconds from now, whatever others do."""

    claim: str
    resource: str
    token: int
    for_s: float
    renews: bool = False
    """Whether the lease is prolonged by itself: then it is held until `Lost` or `Released`, and nothing is said of each
    renewal."""

    @property
    def fencing_token(self) -> int:
        """`token` under the name that tells it from the token of an order."""
        return self.token


class Denied(Event, name="stigmergy.Denied", omit_defaults=True):
    """The agent does not get the resource: another holds it, too many wait, or the ledger could not be asked."""

    claim: str
    resource: str
    reason: str
    holder: str = ""
    """The agent that held it, or was offered it; empty where the ledger did not say or the node has not read its name
    since it started."""
    held_s_max: float = 0.0
    """So long the holder may hold it from now, counted by this node since it saw the grant; the holder may renew it, or
    give it back earlier. 0: not known, or over by this node's clock."""
    place: int = 0
    """The place in line when the wait ended, 1 for the next to be served; 0: it was not in line."""
    full: bool = False
    """As many wait already as may; a later try may find room."""


class Released(Event, name="stigmergy.Released"):
    """The agent has given the resource back."""

    claim: str
    resource: str
    token: int


class Lost(Event, name="stigmergy.Lost"):
    """The agent holds the resource no longer: its lease ran out, or the node was started anew."""

    claim: str
    resource: str
    token: int
    reason: str


CLAIM_EVENTS = (Granted, Denied, Released, Lost)
Verdict = Granted | Denied | Released | Lost
_decoder: msgspec.msgpack.Decoder[Verdict] = msgspec.msgpack.Decoder(Granted | Denied | Released | Lost)


def read_verdict(body: bytes) -> Verdict:
    """A verdict from its bytes. Raises msgspec's errors for other bytes."""
    return _decoder.decode(body)


class Claim(Claimed, frozen=True, kw_only=True):
    """What an agent knows of its claim. Immutable; the framework changes the field when a verdict comes."""

    @property
    def held(self) -> bool:
        """Whether the resource is ours now. Never true after the lease has run out by our own clock.

        Only handlers have a time. Elsewhere, in a query for example, it is never true: compare `until_ns` with a clock.
        """
        return 0 < step_time_ns.get() < self.until_ns

    def claim(
        self, *, for_s: float, of: str | Pool = "", wait_s: float = 0.0, renew: bool = False
    ) -> ClaimAsked | ClaimAnyAsked:
        """Asks for the resource, or any one of a pool, for so many seconds; yield it from a @react handler.

        With `wait_s` it queues for so long behind the present holder; without, it is denied at once. With `renew` the
        lease is prolonged by itself until it is released. A holder that asks again prolongs its lease.
        """
        resource = of.text if isinstance(of, Pool) else of or self.of
        where = f"{self.field}.claim(of={resource!r})"
        any_of = tuple(resource.split(POOL_SEPARATOR)) if POOL_SEPARATOR in resource else ()
        for one in any_of or (resource,):
            _check_resource(where, one)
        low, high = LEASE_S_BOUNDS
        if not is_number(for_s) or not low <= for_s <= high:
            raise ValueError(f"{where}: for_s={for_s}; give {low:g} to {high:g} seconds")
        if not is_number(wait_s) or not 0 <= wait_s <= WAIT_S_MAX:
            raise ValueError(f"{where}: wait_s={wait_s}; give 0 to {WAIT_S_MAX:g} seconds")
        if any_of:
            return ClaimAnyAsked(
                claim=self.field, resources=any_of, for_s=float(for_s), wait_s=float(wait_s), renew=bool(renew)
            )
        return ClaimAsked(
            claim=self.field, resource=resource, for_s=float(for_s), wait_s=float(wait_s), renew=bool(renew)
        )

    def release(self, *, of: str | Pool = "") -> ClaimReleased:
        """Gives back what is held, or takes back what was asked for; yield it from a @react handler.

        What was asked for with `claim(of=…)` and is not held yet is named here as well.
        """
        named = of.text if isinstance(of, Pool) else of
        resource = named or (self.resource if self.until_ns else "") or self.of or self.resource
        if self.until_ns and self.resource in resource.split(POOL_SEPARATOR):
            resource = self.resource
        for one in resource.split(POOL_SEPARATOR):
            _check_resource(f"{self.field}.release(of={resource!r})", one)
        return ClaimReleased(claim=self.field, resource=resource, token=self.token if resource == self.resource else 0)

    def after(self, verdict: Verdict, now_ns: int) -> Claim:
        """The field once this verdict is known."""
        if isinstance(verdict, Granted):
            until_ns = RENEWED_NS if verdict.renews else now_ns + int(verdict.for_s * SECOND_NS)
            return replace(self, resource=verdict.resource, token=verdict.token, until_ns=until_ns)
        if isinstance(verdict, Denied):
            return self
        # A loss of something else, or of what was held before, says nothing of what is held now.
        lost = verdict.resource == self.resource and verdict.token >= self.token
        return replace(self, until_ns=0) if lost else self


class OrderedField(Struct, frozen=True):
    """An ordered field of an agent class."""

    name: str
    of: Of

    def first(self, agent_id: str) -> Claim:
        """The field of a new agent."""
        return Claim(field=self.name, of=self.resource_of(agent_id))

    def resource_of(self, agent_id: str) -> str:
        """What the field claims unless a call says otherwise. Nothing, where the users' function fails: then `claim`
        says so, in the handler that calls it."""
        of = self.of
        try:
            if callable(of):
                of = of(agent_id)
                if not isinstance(of, Pool):
                    _check_resource(self.name, of)
        except Exception:
            return ""
        return of.text if isinstance(of, Pool) else of or ""


def fold_verdict(agent: Any, verdict: Verdict, now_ns: int) -> None:
    """Takes a verdict into the agent."""
    claim = getattr(agent, verdict.claim, None)
    if isinstance(claim, Claim):  # or the field was taken out of the class since
        setattr(agent, verdict.claim, claim.after(verdict, now_ns))


def _check_resource(where: str, resource: object) -> None:
    if not isinstance(resource, str) or _RESOURCE.fullmatch(resource) is None:
        raise DefinitionError(
            f"{where}: a resource is a text of 1 to {RESOURCE_CHARS_MAX} letters, digits and _.:@=~/-; "
            "name it in ordered(of=…) or claim(of=…)"
        )
