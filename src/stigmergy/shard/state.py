"""The state of a shard: its agents and its tables, and the fold that both stepping and replaying use.

Nothing here decides; it only applies decisions. So a replay of the commits ends in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from stigmergy.agents.agent import Agent
from stigmergy.agents.assignment import Assignment
from stigmergy.agents.codec import UNDECODABLE, encode, keepable
from stigmergy.agents.columns import ColumnRun, Layout, Table, Templates
from stigmergy.agents.effects import MODELS, WindowClosed
from stigmergy.agents.messages import Event, FollowedFact, Message
from stigmergy.agents.ordered import CLAIM_EVENTS, Claim, Denied, fold_verdict
from stigmergy.agents.plans import AgentPlan, Plan, plan_agent
from stigmergy.agents.shared import SHARED_EVENTS, Merged, check_merged, fold_shared, replica_id
from stigmergy.agents.supervision import (
    AgentResumed,
    AgentsEnrolled,
    AgentStopped,
    ColumnsDeclared,
    InputFailed,
    LetterTaken,
    SignerEnrolled,
    SignerRevoked,
)
from stigmergy.agents.windows import Window
from stigmergy.base.errors import ConfigError, DefinitionError, JournalCorrupt, Overloaded, PeerError
from stigmergy.shard.commit import GENESIS, Head
from stigmergy.shard.directory import Directory
from stigmergy.shard.homes import plan_at
from stigmergy.shard.marks import Marks
from stigmergy.shard.memory import Answers, DeadLetter, DeadLetters, Failures, Pasts
from stigmergy.shard.outbox import Blocks, Outbox, OwedTraces
from stigmergy.shard.timers import Timers

AGENTS_COUNT_MAX = 1_000_000
COLUMNS_BYTES_MAX = 4 * 1024 * 1024
COLUMNS_BYTES_BOUNDS = (256 * 1024, 8 * 1024 * 1024)
"""An action takes 16 bytes or more: so no commit has more of them than there are ids for, see blocks.BLOCK_INDEX."""
DECISION_BYTES_MAX = 80 * 1024
"""Events and effects that one input may cause; it holds the largest message, passed on."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of a shard. What happens at each is said where it is used."""

    agents_count_max: int = AGENTS_COUNT_MAX
    events_per_decision_max: int = 1_000
    bytes_per_decision_max: int = DECISION_BYTES_MAX
    columns_bytes_max: int = COLUMNS_BYTES_MAX
    """So far a commit is filled with records of compiled agents: the more there are, the less each costs."""

    def __post_init__(self) -> None:
        low, high = COLUMNS_BYTES_BOUNDS
        if not low <= self.columns_bytes_max <= high:
            raise ConfigError(f"columns_bytes_max={self.columns_bytes_max}: give {low} to {high}")
        if not 1 <= self.bytes_per_decision_max <= DECISION_BYTES_MAX:
            raise ConfigError(
                f"bytes_per_decision_max={self.bytes_per_decision_max}: give 1 to {DECISION_BYTES_MAX}, "
                "so that what one input causes fits into a commit"
            )


class EnrolledSigner(Struct, array_like=True, frozen=True):
    """A key that may sign this shard's groups; `revoked_after` is the last position its signatures count for."""

    algorithm: int
    public_key: bytes
    revoked_after: int | None = None


def plan_agents(
    classes: Iterable[type[Agent]], also: Mapping[str, Iterable[type[Message]]] | None = None
) -> dict[str, AgentPlan]:
    """Makes agent classes ready to run, by kind. `also` are events that a kind takes without a handler."""
    plans: dict[str, AgentPlan] = {}
    for cls in classes:
        kind = cls.__agent_kind__
        if kind in plans:
            raise DefinitionError(
                f"two agent classes of kind {kind!r}: {plans[kind].cls.__module__}.{plans[kind].cls.__qualname__} and "
                f"{cls.__module__}.{cls.__qualname__}; give one of them kind=…"
            )
        plans[kind] = plan_agent(cls, (also or {}).get(kind, ()))
    return plans


class ShardState:
    """Agents and tables. Changed only by the fold below and by the shard's step."""

    def __init__(
        self,
        shard: int,
        plans: Mapping[str, AgentPlan],
        limits: Limits | None = None,
        *,
        genesis: bytes = GENESIS,
        incarnation: int = 0,
    ) -> None:
        self.shard = shard
        self.plans = dict(plans)
        self.plan_of: dict[type, AgentPlan] = {plan.cls: plan for plan in plans.values()}
        self.limits = limits or Limits()
        self.agents: dict[str, Any] = {}
        """The interpreted ones."""
        self.assignment = Assignment()
        """Which agents this node runs; see `assign`."""
        self.at_rest: dict[str, None] = {}
        """Agents of this log that the node is not told to run: nothing reaches them, and they do nothing."""
        self.tables: dict[str, Table] = {kind: plan.engine.table() for kind, plan in plans.items() if plan.engine}
        """The compiled ones, by kind."""
        self.enrolled: dict[str, int] = {}
        """How many agents of each table are durable."""
        self.rows_since = 0
        """The position of the last snapshot that was begun or loaded: since then tables note which rows change."""
        self.directory = Directory()
        self.blocks = Blocks()
        self.marks = Marks()
        self.outbox = Outbox()
        self.traces = OwedTraces()
        self.instance = ""
        """What the node or worker that goes on with the log is called in its traces."""
        self.timers = Timers()
        self.answers = Answers()
        self.letters = DeadLetters()
        self.failures = Failures()
        self._past_letters: Pasts[list[DeadLetter]] = Pasts()
        self.stopped: dict[str, str] = {}
        self._past_stopped: Pasts[dict[str, str]] = Pasts()
        self.signers: list[EnrolledSigner] = []
        self.position = 0
        self.genesis = genesis
        """What the first commit cites: it stands for the fleet and the shard."""
        self.digest = genesis
        self.incarnation = incarnation
        """The journal's, stamped on every commit; not part of the state that is digested."""
        self.replica_seed = bytes(32)
        """What the ids of replicas are made from; the owner's, and no part of the state either."""
        self.epoch = 0
        self.time_ns = 0
        self.events_count = 0

    @property
    def head(self) -> Head:
        """Where this shard stands."""
        return Head(shard=self.shard, position=self.position, epoch=self.epoch, digest=self.digest)

    def assign(self, assignment: Assignment) -> None:
        """Sets which agents run here, before the first step; the others of this log are at rest from now on.

        Raises ConfigError for compiled ones: records name them by number, many at a time.
        """
        self.assignment = assignment
        self.at_rest = {address: None for address in self.agents if not assignment.runs(address)}
        for kind, table in self.tables.items():
            names = (table.name(number) for number in range(0 if assignment.is_everything else len(table)))
            other = next((name for name in names if not assignment.runs(f"{kind}/{name}")), None)
            if other is not None:
                raise ConfigError(
                    f"{kind}/{other} is in this journal, and not among agents; compiled agents cannot be left at rest: "
                    f"name all that the journal has, for example '{kind}/*', or begin with another journal"
                )

    def plan_at(self, address: str) -> AgentPlan:
        """The plan of the agent kind that this address names."""
        return plan_at(self.plans, address)

    def table_at(self, address: str) -> tuple[Table | None, int]:
        """The table of an agent and its number there: none for an interpreted kind, -1 for one not enrolled."""
        kind, _, name = address.partition("/")
        table = self.tables.get(kind)
        return (None, -1) if table is None else (table, table.find(name))

    def has_agent(self, address: str) -> bool:
        """Whether this agent exists."""
        return address in self.agents or self.table_at(address)[1] >= 0

    @property
    def agents_count(self) -> int:
        """How many agents there are."""
        return len(self.agents) + sum(len(table) for table in self.tables.values())

    def addresses(self) -> Iterator[str]:
        """The addresses of all agents, also of those at rest."""
        yield from self.agents
        for kind, table in self.tables.items():
            yield from (f"{kind}/{table.name(number)}" for number in range(len(table)))

    def letters_at(self, position: int) -> list[DeadLetter]:
        """The dead letters as the commit at this position left them, one of the last few."""
        return self._past_letters.at(position, self.letters.all)

    def stopped_at(self, position: int) -> dict[str, str]:
        """The stopped agents as the commit at this position left them, one of the last few."""
        return self._past_stopped.at(position, self.stopped.copy)

    def new_agent(self, address: str, plan: AgentPlan) -> Any:
        """An agent in its first state; not yet one of ours."""
        name = address.partition("/")[2]
        agent = plan.cls(id=name)
        for field in plan.ordered.values():
            setattr(agent, field.name, field.first(name))
        return agent

    def replica_of(self, address: str) -> bytes:
        """The id under which this agent writes to shared fields."""
        return replica_id(self.replica_seed, address)

    def note(self, address: str, event: Message, time_ns: int) -> None:
        """Takes an event of the framework into the tables."""
        # A draft and a replayed commit are both the one behind the position that the state is at.
        if isinstance(event, InputFailed | LetterTaken):
            self._past_letters.keep(self.position + 1, self.letters.all)
        if isinstance(event, AgentStopped | AgentResumed):
            self._past_stopped.keep(self.position + 1, self.stopped.copy)
        match event:
            case InputFailed():
                self.letters.put(DeadLetter(event.letter, event.to, event.source, event.error, event.input))
            case LetterTaken():
                self.letters.take(event.letter)
            case AgentStopped():
                self.stopped[address] = event.reason
                self.stop_row(address, stopped=True)
            case AgentResumed():
                self.stopped.pop(address, None)
                self.failures.forget(address)
                self.stop_row(address, stopped=False)
            case ColumnsDeclared():
                self.directory.declare(event.layout, event.templates)
            case AgentsEnrolled():
                self._enroll(event)
            case SignerEnrolled():
                self.signers.append(EnrolledSigner(event.algorithm, event.public_key))
            case SignerRevoked():
                self.signers = [
                    EnrolledSigner(known.algorithm, known.public_key, event.last_position)
                    if (known.algorithm, known.public_key) == (event.algorithm, event.public_key)
                    else known
                    for known in self.signers
                ]
            case _:
                pass
        if isinstance(event, InputFailed) and address:
            self.failures.add(address, time_ns, self.plan_at(address).supervision.within_s)

    def stop_row(self, address: str, *, stopped: bool) -> None:
        """Tells the table of a compiled agent that its records halt a stretch from now on, or no longer."""
        table, agent = self.table_at(address)
        if table is not None and agent >= 0:
            table.stop(agent, stopped)

    def _enroll(self, event: AgentsEnrolled) -> None:
        table, directory = self.tables.get(event.kind), self.directory
        if table is None:
            names = directory.names.setdefault(event.kind, [])
            _check_first(event, len(names))
            names.extend(event.names)
            return
        _check_first(event, len(table) - len(directory.unlisted.get(event.kind, ())))
        new = event.names[directory.list_names(event.kind, event.names) :]
        if new:
            table.enroll(new)


def addresses_of(state: ShardState, concerned: Callable[[AgentPlan], object]) -> Iterator[str]:
    """The addresses of all agents of kinds that this concerns, also of those that are not on disk yet: whether they
    are to be made safe does not wait for it. Without those at rest, which another node may run."""
    kinds = [kind for kind, plan in state.plans.items() if concerned(plan)]
    for address in list(state.agents):
        if address.partition("/")[0] in kinds and address not in state.at_rest:
            yield address
    for kind in kinds:
        table = state.tables.get(kind)
        if table is not None:
            yield from (f"{kind}/{table.name(number)}" for number in range(len(table)))


def _check_first(event: AgentsEnrolled, known: int) -> None:
    if event.first != known:
        raise JournalCorrupt(
            f"{event.kind} has {known} agents, and the next ones are enrolled from {event.first} on; "
            "restore from a copy"
        )


def evolve_event(plan: Plan, agent: Any, event: Any, now_ns: int) -> None:
    """Folds one event into one agent: what the framework fills first, then its own handler."""
    _fill(plan, agent, event, now_ns)
    if plan.evolve is not None:
        plan.evolve(agent, event)


def fold_fact(agent_plan: AgentPlan, agent: Any, event: Message, now_ns: int) -> Any:
    """Folds an event that stays a fact even if the agent's handler for it fails; returns the agent as it is then."""
    image = agent_plan.copy(agent)
    plan = agent_plan.plans[type(event)]
    try:
        evolve_event(plan, agent, event, now_ns)
    except Exception:
        _fill(plan, image, event, now_ns)
        return image
    return agent


def _fill(plan: Plan, agent: Any, event: Any, now_ns: int) -> None:
    """Takes an event into the fields that the framework fills. It cannot fail."""
    for name in plan.windows:
        setattr(agent, name, getattr(agent, name).add(now_ns, event))
    if not plan.fact:
        return
    if isinstance(event, WindowClosed):
        window = getattr(agent, event.window, None)
        if isinstance(window, Window):  # or it was taken out of the class since
            setattr(agent, event.window, window.close())
    elif isinstance(event, SHARED_EVENTS):
        fold_shared(agent, event)
    elif isinstance(event, CLAIM_EVENTS):
        fold_verdict(agent, event, now_ns)


def letter_of(fact: Event) -> bytes:
    """A fact as a dead letter holds it. A merged state may be too large for one, and is part of the agent's state
    anyway."""
    body = encode(fact)
    return encode(Merged(field=fact.field)) if isinstance(fact, Merged) and not keepable(body) else body


def fact_in(letter: DeadLetter, agent_plan: AgentPlan, agent: Any) -> Event | None:
    """The fact in a dead letter; None for any other input, and for facts forged in the framework's name: an agent must
    know of its own facts."""
    try:
        fact = agent_plan.decode(letter.input)
        if isinstance(fact, Merged):
            return fact if check_merged(agent, fact) is None else None
    except (*UNDECODABLE, PeerError, Overloaded):
        return None
    if isinstance(fact, FollowedFact):
        return fact if letter.source == MODELS else None
    if not isinstance(fact, CLAIM_EVENTS) or fact.claim not in agent_plan.ordered:
        return None
    claim: Claim = getattr(agent, fact.claim)
    return fact if isinstance(fact, Denied) or (fact.resource, fact.token) == (claim.resource, claim.token) else None


class ShardReading:
    """What a running shard knows, for readers of its log beside it."""

    def __init__(self, state: ShardState) -> None:
        self._state = state

    def layout_of(self, run: ColumnRun) -> Layout:
        """The layout of a run's records."""
        return self._state.directory.layout_of(run)

    def templates_of(self, digest: bytes) -> Templates:
        """The templates with this digest."""
        return self._state.directory.templates_of(digest)

    def name(self, kind: str, number: int) -> str:
        """The id of an agent."""
        table = self._state.tables.get(kind)
        if table is None or not 0 <= number < len(table):
            return self._state.directory.name(kind, number)
        return table.name(number)

    def find(self, kind: str, name: str) -> int:
        """The number of an agent."""
        table = self._state.tables.get(kind)
        return self._state.directory.find(kind, name) if table is None else table.find(name)
