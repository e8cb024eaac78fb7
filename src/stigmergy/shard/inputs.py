"""The inputs of a shard's step. Everything from outside enters through one of these types."""

from __future__ import annotations

from msgspec import Struct, structs

from stigmergy.shard.commit import SnapshotNote
from stigmergy.shard.judging import OUTSIDE, Sender
from stigmergy.shard.tracing import TraceContext, TracedCommit, Traces

LOCAL = "local"
"""The source of what the embedding program tells us; it has no sequence, because a call is made once."""


ELSEWHERE = bytes(bytearray(b"elsewhere"))
"""Stands, by identity, for an item whose agent lives in another shard, or has no handler for it: it is passed over, the
mark moves past it."""


class Delivery(Struct, frozen=True):
    """Consecutive inputs of one source. With `sequence` 0 they have no sequence and are taken as they come."""

    source: str
    items: list[tuple[str, bytes]]
    sequence: int = 0
    incarnation: int = 0
    epoch: int = 0
    size_bytes: int = 0
    """The length of the envelope, if these items are all of it: they cannot take more room in a commit. 0: count them.
    The shard trusts it, so a figure that is too low makes a commit too large, which stops the node."""
    traces: Traces = ()
    """Those of its items that belong to one."""
    sender: Sender | None = OUTSIDE
    """Who sent it: a policy is asked about the commands in it, and, of another fleet, about all of it. None for what
    agents of this fleet tell each other."""

    @property
    def length(self) -> int:
        """How many inputs there are."""
        return len(self.items)

    def behind(self, count: int) -> Delivery:
        """What follows its first so many items."""
        sequence = self.sequence and self.sequence + count
        traces = traces_behind(self.traces, count)
        return structs.replace(self, items=self.items[count:], sequence=sequence, size_bytes=0, traces=traces)

    def until(self, count: int) -> Delivery:
        """Its first so many items."""
        traces = tuple((place, context) for place, context in self.traces if place < count)
        return structs.replace(self, items=self.items[:count], size_bytes=0, traces=traces)


def traces_behind(traces: Traces, count: int) -> Traces:
    """The traces of a delivery without its first so many items."""
    return tuple((place - count, context) for place, context in traces if place >= count)


class ColumnDelivery(Struct, frozen=True):
    """Consecutive records of one source for compiled agents of one kind, all of this shard. Nothing of it is consumed
    unless layout and generation are known here: a stale mapping must not write into another agent."""

    source: str
    kind: str
    layout: bytes
    generation: int
    check: bytes
    records: bytes | memoryview
    count: int
    """How many records there are in all."""
    sequence: int = 0
    """Of the first record that is not taken yet; 0: they have no sequence."""
    incarnation: int = 0
    epoch: int = 0
    start: int = 0
    """So many of the records were taken before."""

    @property
    def length(self) -> int:
        """How many inputs are left."""
        return self.count - self.start


class Travel(Struct, frozen=True):
    """How a command came to this node, and whether it has to go on."""

    elsewhere: bool = False
    """Another node runs the agent: this one keeps the command until it is answered there."""
    expires_ns: int = 0
    """By the wall clock; 0: the place where it was given says none."""
    keep_ns: int = 0
    """How long it may be on its way at most if its type says nothing; for the node where it was given."""
    origin: str = ""
    replaces: str = ""
    superseded_by: str = ""
    """The id of the newer command that has cancelled it on its way here."""
    hops: int = 0
    """Through how many nodes it came."""
    came_by: str = ""
    refused: str = ""
    """Why this node does not send it on; empty if it does."""


HERE = Travel()


class Ask(Struct, frozen=True):
    """A command whose sender waits for the answer and, not knowing whether it arrived, may send it again."""

    agent: str
    command_id: str
    command: bytes
    source: str = LOCAL
    client: str = ""
    """Whose share of the remembered ids it takes; empty: the embedding program's."""
    travel: Travel = HERE
    trace: TraceContext | None = None
    sender: Sender = OUTSIDE


class CommandAnswered(Struct, frozen=True):
    """A command that was sent on has its answer, or is given up before anybody can have got it."""

    sequence: int
    """Of the sink `forward`."""
    refused: str | None


Asked = tuple[str, str, bytes]
"""The target of an answer: the agent, the command's id and its bytes. Another command may have the same id."""


class TimerDue(Struct, frozen=True):
    """A timer's time has come. Passed over if the timer was cancelled or set anew since."""

    agent: str
    name: str
    due_ns: int


class EffectSettled(Struct, frozen=True):
    """A sink has carried out an effect or given up on it; `result` comes back to the agent as an observed event."""

    sink: str
    sequence: int
    result: bytes | None = None
    times_ns: tuple[int, int] = (0, 0)
    """When its actuator was first called and when it was done, by the wall clock; for an effect of a trace."""
    failed: str = ""
    """Why it is given up; empty if it is not, or nobody asks."""


class ResultsCame(Struct, frozen=True):
    """A sink has carried out several effects, whose results come back in this order."""

    results: list[EffectSettled]

    @property
    def length(self) -> int:
        """How many there are."""
        return len(self.results)

    def behind(self, count: int) -> ResultsCame:
        """What follows its first so many results."""
        return ResultsCame(self.results[count:])

    def until(self, count: int) -> ResultsCame:
        """Its first so many results."""
        return ResultsCame(self.results[:count])


class EffectsSettled(Struct, frozen=True):
    """A sink is done with several effects whose results nobody waits for."""

    sink: str
    sequences: list[int]


class TellGivenUp(Struct, frozen=True):
    """A tell to an agent that another node runs is given up: it becomes a dead letter, and its teller hears why."""

    sink: str
    sequence: int
    reason: str


class SequencesSkipped(Struct, frozen=True):
    """A source's inputs up to `last` will not come, or were shed: the mark passes them, and the log says so.

    With `because` empty the source never had inputs with these numbers for us: the mark passes them, that is all.
    """

    source: str
    incarnation: int
    epoch: int
    last: int
    because: str


class LetterRetried(Struct, frozen=True):
    """A dead letter is given to its agent once more."""

    letter: str


class LetterDropped(Struct, frozen=True):
    """A dead letter is given up."""

    letter: str


class ResumeAgent(Struct, frozen=True):
    """A stopped agent may go on."""

    agent: str
    by: str


class SafeActionOut(Struct, frozen=True):
    """A safe action went out on its own; now it is written down."""

    agent: str
    action: str
    because: str


class SnapshotStored(Struct, frozen=True):
    """A snapshot is in the journal; a commit that notes it makes it count."""

    note: SnapshotNote


class EnrollSigner(Struct, frozen=True):
    """Another key may sign from the next commit on."""

    algorithm: int
    public_key: bytes
    sender: Sender | None = None
    """Who wants that; None: the node itself, at its first start, and nobody is asked."""


class RevokeSigner(Struct, frozen=True):
    """A key's signatures count up to this position and no further."""

    algorithm: int
    public_key: bytes
    last_position: int


class EnrollAgents(Struct, frozen=True):
    """Compiled agents of a kind are to have numbers. Those that have one already keep it."""

    kind: str
    names: list[str]
    sender: Sender = OUTSIDE


class ActionsConfirmed(Struct, frozen=True):
    """A batch actuator has settled the actions of a kind of compiled agents up to this sequence."""

    kind: str
    upto: int


class SharedReceived(Struct, frozen=True):
    """Peers have written to an object that a field of this agent is a replica of."""

    agent: str
    field: str
    deltas: tuple[bytes, ...] = ()
    state: bytes = b""

    @property
    def size_bytes(self) -> int:
        """How much of a commit it takes, about."""
        return len(self.state) + sum(len(delta) for delta in self.deltas)


class CommitDurable(Struct, frozen=True):
    """A commit with inputs of traces is durable; now it is written down since when."""

    notes: tuple[TracedCommit, ...]


class VerdictCame(Struct, frozen=True):
    """What has become of a claim, without having been asked for just now: it was lost, or granted after a wait."""

    agent: str
    verdict: bytes


class FactCame(Struct, frozen=True):
    """What a service of the node says to an agent, as it is: a `FollowedFact`."""

    agent: str
    fact: bytes
    source: str


Single = (
    Ask
    | CommandAnswered
    | TimerDue
    | EffectSettled
    | EffectsSettled
    | TellGivenUp
    | SequencesSkipped
    | LetterRetried
    | LetterDropped
    | ResumeAgent
    | SafeActionOut
    | SnapshotStored
    | EnrollSigner
    | RevokeSigner
    | EnrollAgents
    | ActionsConfirmed
    | SharedReceived
    | CommitDurable
    | VerdictCame
    | FactCame
)
"""An input that is one thing: taken, or left for the next commit, as a whole."""

Input = Delivery | ColumnDelivery | ResultsCame | Single


UNSAID = "?"
"""Stands for the position of a command that was sent on, if the node that has decided it has not said where."""


class Accepted(Struct, frozen=True):
    """The command was accepted and what followed from it is durable."""

    position: int
    after: str = ""
    """What to give to a view so that it has seen this: shard, log and position, `0@5f3a9c1e:41`, of the node that has
    decided. If that one has not said it, `Cart/c01:?`, which is refused with a sentence."""

    def __bool__(self) -> bool:
        return True


class Refused(Struct, frozen=True):
    """The command was refused; nothing of it was done."""

    reason: str

    def __bool__(self) -> bool:
        return False


Verdict = Accepted | Refused
