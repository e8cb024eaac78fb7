"""What agents of a training say to each other. Nothing here holds an update of one member that could be read.

A round asks its learners with `RoundAsked`, four times and once to say that it is over; they answer with
`RoundAnswered`. A phase ends when all have answered, or when its time is over.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from stigmergy.agents.messages import Command, Event, Work
from stigmergy.federated.secure_sum import MemberKeys, OpenedShares, SealedShare, SumPlan
from stigmergy.federated.update import UpdateLimits


class Phase(IntEnum):
    """What a round waits for."""

    NEW = 0
    KEYS = 1
    SHARES = 2
    UPDATES = 3
    OPENED = 4
    SUM = 5
    ENDED = 6


class RoundTerms(Struct, frozen=True):
    """Everything that a learner needs to know before it takes part."""

    training: str
    number: int
    """Counts the rounds of the training: a learner takes part in a newer one only."""
    plan: SumPlan
    limits: UpdateLimits
    step_s: float
    """How long the round waits for each of the four answers."""


class StartTraining(Command, name="federated.StartTraining"):
    """Begins a training of so many rounds."""

    learners: tuple[str, ...]
    """The names of Learner agents."""
    model: bytes
    """The weights to start from: little-endian float64."""
    rounds: int = 20
    sample: int = 0
    """How many learners take part in a round, drawn anew for each; 0: all."""
    cohorts: int = 1
    """Sums of a round, each of other learners. One liar moves its own cohort's mean only; the server sees each sum."""
    threshold_share: float = 0.67
    """The part of a cohort that must be left at each step, over 0.5."""
    limits: UpdateLimits = UpdateLimits()
    step_s: float = 60.0
    rate: float = 1.0
    """How much of the mean update is added to the model."""
    seed: int = 0
    """Which learners are drawn for which round."""


class TrainingStarted(Event, name="federated.TrainingStarted"):
    """The terms that a training goes by from now on."""

    terms: StartTraining


class RoundsBegun(Event, name="federated.RoundsBegun"):
    """The next round, one for each cohort."""

    number: int
    cohorts: tuple[RoundTerms, ...]


class ModelImproved(Event, name="federated.ModelImproved"):
    """A round is over. `weight` is 0 if it was given up in all cohorts: the model is the one of before."""

    number: int
    model: bytes
    weight: int
    refused: tuple[str, ...] = ()
    """Of each cohort that is not in it: why."""


class TrainingEnded(Event, name="federated.TrainingEnded"):
    """All rounds are over, or too many were given up in a row."""

    model: bytes
    improved: int
    """Rounds that changed the model."""
    reason: str = ""


class BeginRound(Command, name="federated.BeginRound"):
    """Tells a round to sum."""

    terms: RoundTerms
    model: bytes
    training: str
    """The address that gets `RoundSummed` or `RoundGivenUp`."""


class SumRoundBegan(Event, name="federated.SumRoundBegan"):
    """The round invites its members."""

    terms: RoundTerms
    model: bytes
    training: str


class PhaseClosed(Event, name="federated.PhaseClosed"):
    """Whoever answers this phase from now on is too late."""

    phase: Phase
    members: tuple[str, ...]
    """Those that have answered."""


class AskNext(Event, name="federated.AskNext"):
    """A round tells itself which member to ask next: all at once would be too much for one input."""

    phase: Phase
    at: int


class AnswerRefused(Event, name="federated.AnswerRefused"):
    """An answer that was not taken: too late, a second one, or of somebody who is not in the round."""

    learner: str
    phase: Phase
    reason: str


class Unmask(Work, name="federated.Unmask"):
    """Computes the sum from what was opened. It needs no secret that the round does not have."""

    plan: SumPlan
    roster: tuple[MemberKeys, ...]
    sharers: tuple[str, ...]
    masked: tuple[str, ...]
    total: bytes
    opened: tuple[OpenedShares, ...]


class SumOpened(Event, name="federated.SumOpened"):
    """The sum of all members that are in it: all that anybody ever reads."""

    total: bytes


class RoundSummed(Event, name="federated.RoundSummed"):
    """The weighted mean update of a cohort."""

    round: str
    members: tuple[str, ...]
    weight: int
    mean: bytes
    """Little-endian float64."""


class RoundGivenUp(Event, name="federated.RoundGivenUp"):
    """Too few were left, or the sum cannot be of members who keep to the limits."""

    round: str
    reason: str


class RoundAsked(Event, name="federated.RoundAsked"):
    """What a round asks of a learner in this phase; what is not of the phase is empty."""

    phase: Phase
    terms: RoundTerms
    reply_to: str
    roster: tuple[MemberKeys, ...] = ()
    """The keys of all who take part."""
    boxes: tuple[SealedShare, ...] = ()
    """The shares that others have sealed for this learner, and its own."""
    model: bytes = b""
    """What to train, in UPDATES."""
    masked: tuple[str, ...] = ()
    """Who is in the sum, in OPENED: the own mask of these, and the masking key of the others."""


class AskRefused(Event, name="federated.AskRefused"):
    """A learner does not do what a round asks."""

    round: str
    phase: Phase
    reason: str


class TakePart(Work, name="federated.TakePart"):
    """One answer of a learner. Its worker is `Participant.take_part`, beside the data and the vault."""

    learner: str
    ask: RoundAsked


class RoundAnswered(Event, name="federated.RoundAnswered"):
    """What a learner answers, and all that leaves its device; what is not of the phase is empty."""

    round: str
    learner: str
    phase: Phase
    keys: MemberKeys | None = None
    boxes: tuple[SealedShare, ...] = ()
    numbers: bytes = b""
    """The update under its masks: random numbers to everybody without the secrets. Little-endian, 64 bits each."""
    opened: OpenedShares | None = None
