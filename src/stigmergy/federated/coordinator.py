"""The server of a training: `Training` draws who takes part and keeps the model, `SumRound` makes one sum.

A round has five phases. Each ends when all have answered, or when its time is over: with `threshold` answers the next
one begins, with fewer the round is given up and nothing is opened. An answer to a phase that is over is refused, and
so is a second one. Neither agent ever holds what could unmask one member: vectors are added up as they come.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.effects import Effects, Events, Tell, Timer, Woken, WorkFailed
from stigmergy.federated.messages import (
    AnswerRefused,
    AskNext,
    BeginRound,
    ModelImproved,
    Phase,
    PhaseClosed,
    RoundAnswered,
    RoundAsked,
    RoundGivenUp,
    RoundsBegun,
    RoundSummed,
    RoundTerms,
    StartTraining,
    SumOpened,
    SumRoundBegan,
    TrainingEnded,
    TrainingStarted,
    Unmask,
)
from stigmergy.federated.secure_sum import VALUES_COUNT_MAX, MemberKeys, OpenedShares, SealedShare, SumPlan, SumRefused
from stigmergy.federated.secure_sum import unmask as unmask_sum
from stigmergy.federated.update import decoded

GIVEN_UP_MAX = 5
"""Rounds that end without a sum in a row, before a training ends."""
ROUNDS_MAX = 10_000
COHORTS_BYTES_MAX = 2 * 8 * VALUES_COUNT_MAX
"""Of the model, once for each cohort: they begin in one step."""
STEP_S_MAX = 7 * 24 * 3600
"""Devices may be away for days."""


class PhaseOver(Timer, name="federated.PhaseOver"):
    """The time for the answers of a phase."""


def unmask(work: Unmask) -> SumOpened:
    """The worker of `Unmask`. Raises SumRefused if a share was wrong."""
    total = np.frombuffer(work.total, "<u8").astype(np.uint64)
    opened = unmask_sum(work.plan, work.roster, work.sharers, work.masked, total, work.opened)
    return SumOpened(total=opened.astype("<u8").tobytes())


class SumRound(Agent, kind="Round"):
    """One sum of the updates of a cohort. There is a new agent for each."""

    terms: RoundTerms | None = None
    training: str = ""
    model: bytes = b""
    phase: Phase = Phase.NEW
    answered: tuple[str, ...] = ()
    """Who has answered the phase that runs."""
    roster: tuple[MemberKeys, ...] = ()
    boxes: tuple[SealedShare, ...] = ()
    sharers: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    total: bytes = b""
    """The sum so far, under all masks."""
    opened: tuple[OpenedShares, ...] = ()
    reason: str = ""
    """Why it was given up."""

    @decide
    def begin(self, command: BeginRound) -> Events:
        """Once."""
        if self.phase is not Phase.NEW:
            reject("this round has begun already")
        try:
            command.terms.plan.check()
            command.terms.limits.check()
        except SumRefused as error:
            reject(str(error))
        yield SumRoundBegan(terms=command.terms, model=command.model, training=command.training)

    @decide
    def hear(self, event: RoundAnswered) -> Events:
        """Takes the first answer of each member to the phase that runs."""
        wrong = self._wrong(event)
        if wrong:
            yield AnswerRefused(learner=event.learner, phase=event.phase, reason=wrong)
            return
        yield event
        if len(self.answered) + 1 == len(self._expected()):
            yield PhaseClosed(phase=event.phase, members=(*self.answered, event.learner))

    @decide
    def next_one(self, event: AskNext) -> Events:
        """As long as the phase runs."""
        if event.phase is self.phase:
            yield event

    @decide
    def time_is_up(self, woken: Woken[PhaseOver]) -> Events:
        """Goes on with those that have answered, if they are enough."""
        if self.terms is None or self.phase in (Phase.SUM, Phase.ENDED):
            return
        plan = self.terms.plan
        if len(self.answered) >= plan.threshold:
            yield PhaseClosed(phase=self.phase, members=self.answered)
        else:
            few = f"{len(self.answered)} of {len(plan.members)} members answered {self.phase.name} in time"
            yield RoundGivenUp(round=plan.round, reason=f"{few}, {plan.threshold} are needed")

    @decide
    def summed(self, event: SumOpened) -> Events:
        """Takes the sum if members who keep to the limits can have made it."""
        assert self.terms is not None
        plan = self.terms.plan
        yield event
        try:
            total = np.frombuffer(event.total, "<u8").astype(np.uint64)
            weight, mean = decoded(total, len(self.masked), self.terms.limits)
        except SumRefused as error:
            yield RoundGivenUp(round=plan.round, reason=str(error))
            return
        yield RoundSummed(round=plan.round, members=self.masked, weight=weight, mean=mean.astype("<f8").tobytes())

    @decide
    def not_summed(self, event: WorkFailed) -> Events:
        """A share was wrong."""
        if self.terms is not None and self.phase is Phase.SUM:
            yield RoundGivenUp(round=self.terms.plan.round, reason=event.reason)

    @evolve
    def began(self, event: SumRoundBegan) -> None:
        self.terms, self.model, self.training, self.phase = event.terms, event.model, event.training, Phase.KEYS
        self.total = bytes(8 * event.terms.plan.values_count)

    @evolve
    def took(self, event: RoundAnswered) -> None:
        self.answered = (*self.answered, event.learner)
        self.roster = (*self.roster, event.keys) if event.keys else self.roster
        self.boxes = (*self.boxes, *event.boxes)
        self.opened = (*self.opened, event.opened) if event.opened else self.opened
        if event.numbers:
            summed = np.frombuffer(self.total, "<u8") + np.frombuffer(event.numbers, "<u8")
            self.total = summed.astype("<u8").tobytes()

    @evolve
    def closed(self, event: PhaseClosed) -> None:
        if event.phase is Phase.SHARES:
            self.sharers = event.members
        elif event.phase is Phase.UPDATES:
            self.masked = event.members
        self.phase, self.answered = Phase(event.phase + 1), ()

    @evolve
    def ended(self, event: RoundSummed | RoundGivenUp) -> None:
        self.phase = Phase.ENDED
        self.model, self.total, self.roster, self.boxes, self.opened = b"", b"", (), (), ()
        self.reason = event.reason if isinstance(event, RoundGivenUp) else ""

    @react
    def invite(self, event: SumRoundBegan) -> Effects:
        """All members of the plan."""
        yield PhaseOver.wake(after_s=event.terms.step_s)
        yield from self._ask(0)

    @react
    def go_on(self, event: PhaseClosed) -> Effects:
        """Asks those that have answered for the next."""
        assert self.terms is not None
        if event.phase is Phase.OPENED:
            yield PhaseOver.cancel()
            opened = self.opened[: self.terms.plan.threshold]
            yield Unmask(self.terms.plan, self.roster, self.sharers, self.masked, self.total, opened)
            return
        yield PhaseOver.wake(after_s=self.terms.step_s)
        yield from self._ask(0)

    @react
    def report(self, event: RoundSummed | RoundGivenUp) -> Effects:
        """To the training, and to all members: nothing is asked any more."""
        yield PhaseOver.cancel()
        yield Tell(self.training, event)
        yield from self._ask(0)

    @react
    def ask_next(self, event: AskNext) -> Effects:
        """One after the other."""
        yield from self._ask(event.at)

    def _ask(self, at: int) -> Effects:
        """What this phase needs of a learner, and a reminder to ask the one after it."""
        assert self.terms is not None
        asked = self.terms.plan.members if self.phase is Phase.ENDED else self._expected()
        learner = asked[at]
        ask = RoundAsked(
            phase=self.phase,
            terms=self.terms,
            reply_to=self.address,
            roster=self.roster,
            boxes=tuple(box for box in self.boxes if box.taker == learner and box.giver in self.sharers),
            model=self.model if self.phase is Phase.UPDATES else b"",
            masked=self.masked,
        )
        yield Tell(f"Learner/{learner}", ask, within_s=self.terms.step_s)
        if at + 1 < len(asked):
            yield Tell(self.address, AskNext(phase=self.phase, at=at + 1))

    def _expected(self) -> tuple[str, ...]:
        """Who may answer the phase that runs."""
        assert self.terms is not None
        match self.phase:
            case Phase.KEYS:
                return self.terms.plan.members
            case Phase.SHARES:
                return tuple(keys.member for keys in self.roster)
            case Phase.UPDATES:
                return self.sharers
            case Phase.OPENED:
                return self.masked
            case _:
                return ()

    def _wrong(self, event: RoundAnswered) -> str:
        """Why an answer is not taken; empty: it is."""
        if self.terms is None or event.round != self.terms.plan.round:
            return "it is for another round"
        if event.phase != self.phase:
            return f"{event.phase.name} is over" if event.phase < self.phase else f"{event.phase.name} has not begun"
        if event.learner in self.answered:
            return "it has answered already"
        if event.learner not in self._expected():
            return "it is not in this round, or not any more"
        me, phase = event.learner, self.phase
        keys = (event.keys.member,) if event.keys else ()
        opened = [event.opened] if event.opened else []
        whole = (
            keys == ((me,) if phase is Phase.KEYS else ())
            and {(box.giver, box.taker): 1 for box in event.boxes}
            == {(me, other.member): 1 for other in self.roster if phase is Phase.SHARES}
            and len(event.numbers) == (len(self.total) if phase is Phase.UPDATES else 0)
            and [one.taker for one in opened] == ([me] if phase is Phase.OPENED else [])
            and all(len(one.shares) == len(self.sharers) for one in opened)
        )
        return "" if whole else "it is not complete, or not the sender's own"


class Training(Agent):
    """Rounds until the model is trained. Ask its state for the model, or react to `TrainingEnded` of it."""

    terms: StartTraining | None = None
    model: bytes = b""
    number: int = 0
    """Rounds that are over."""
    improved: int = 0
    given_up: int = 0
    """Rounds given up since the last that was not."""
    open: tuple[str, ...] = ()
    """The rounds of the cohorts that have not reported yet."""
    sums: tuple[RoundSummed, ...] = ()
    refused: tuple[str, ...] = ()
    status: str = "new"

    @decide
    def start(self, command: StartTraining) -> Events:
        """Once. Refused if no round could ever be held."""
        if self.terms is not None:
            reject("this training has started already; give the next one a name of its own")
        if not 1 <= command.rounds <= ROUNDS_MAX or not 0.5 < command.threshold_share <= 1 or command.cohorts < 1:
            reject(f"rounds: 1 to {ROUNDS_MAX}; threshold_share: over 0.5, at most 1; cohorts: at least 1")
        if not 0 < command.step_s <= STEP_S_MAX or len(command.model) % 8:
            reject(f"step_s: over 0, at most {STEP_S_MAX}; model: a whole number of weights of 8 bytes")
        if len({*command.learners}) != len(command.learners) or not 0 <= command.sample <= len(command.learners):
            reject("each learner is named once, and a sample has no more than there are")
        if command.cohorts * len(command.model) > COHORTS_BYTES_MAX:
            reject(f"cohorts times weights: at most {COHORTS_BYTES_MAX // 8}; choose fewer cohorts or a smaller model")
        first = tuple(cohorts_of(command, self.id, 0))
        try:
            for terms in first:
                terms.plan.check()
                terms.limits.check()
        except SumRefused as error:
            reject(str(error))
        yield TrainingStarted(terms=command)
        yield RoundsBegun(number=0, cohorts=first)

    @decide
    def cohort_over(self, event: RoundSummed | RoundGivenUp) -> Events:
        """Adds up what the cohorts have; the last one ends the round."""
        if self.terms is None or event.round not in self.open:
            return
        yield event
        if len(self.open) > 1:
            return
        last = event if isinstance(event, RoundSummed) else None
        sums = (*self.sums, last) if last else self.sums
        why = self.refused if last else (*self.refused, f"{event.round}: {getattr(event, 'reason', '')}")
        weight = sum(one.weight for one in sums)
        model = improved(self.model, sums, self.terms.rate) if sums else self.model
        yield ModelImproved(number=self.number, model=model, weight=weight, refused=why)
        number, given_up = self.number + 1, 0 if sums else self.given_up + 1
        if number == self.terms.rounds or given_up == GIVEN_UP_MAX:
            reason = (
                f"{given_up} rounds in a row were given up; the last: {why[-1]}" if given_up == GIVEN_UP_MAX else ""
            )
            yield TrainingEnded(model=model, improved=self.improved + bool(sums), reason=reason)
        else:
            yield RoundsBegun(number=number, cohorts=tuple(cohorts_of(self.terms, self.id, number)))

    @evolve
    def started(self, event: TrainingStarted) -> None:
        self.terms, self.model, self.status = event.terms, event.terms.model, "runs"

    @evolve
    def begun(self, event: RoundsBegun) -> None:
        self.open = tuple(terms.plan.round for terms in event.cohorts)
        self.sums, self.refused = (), ()

    @evolve
    def one_less(self, event: RoundSummed | RoundGivenUp) -> None:
        self.open = tuple(round for round in self.open if round != event.round)
        if isinstance(event, RoundSummed):
            self.sums = (*self.sums, event)
        else:
            self.refused = (*self.refused, f"{event.round}: {event.reason}")

    @evolve
    def learned(self, event: ModelImproved) -> None:
        self.model, self.number = event.model, event.number + 1
        self.improved += event.weight > 0
        self.given_up = 0 if event.weight else self.given_up + 1

    @evolve
    def over(self, event: TrainingEnded) -> None:
        self.status = "given up" if event.reason else "done"

    @react
    def begin_rounds(self, event: RoundsBegun) -> Effects:
        """Each cohort is an agent of its own."""
        for terms in event.cohorts:
            begin = BeginRound(terms=terms, model=self.model, training=self.address)
            yield Tell(f"Round/{terms.plan.round}", begin)


def cohorts_of(terms: StartTraining, training: str, number: int) -> Iterator[RoundTerms]:
    """Who sums with whom in a round: drawn anew for each, so that a liar does not stay with the same ones."""
    drawn = sorted(
        terms.learners, key=lambda name: blake3(f"{terms.seed}/{training}/{number}/{name}".encode()).digest()
    )
    drawn = drawn[: terms.sample or len(drawn)]
    for cohort in range(terms.cohorts):
        members = tuple(drawn[cohort :: terms.cohorts])
        threshold = max(int(len(members) * terms.threshold_share + 0.999), len(members) // 2 + 1)
        plan = SumPlan(f"{training}.{number}.{cohort}", members, threshold, 1 + len(terms.model) // 8)
        yield RoundTerms(training=training, number=number, plan=plan, limits=terms.limits, step_s=terms.step_s)


def improved(model: bytes, sums: tuple[RoundSummed, ...], rate: float) -> bytes:
    """The model plus the weighted mean of the cohorts. Plain Python: each machine adds up the same."""
    count = len(model) // 8
    weights = struct.unpack(f"<{count}d", model)
    means = [struct.unpack(f"<{count}d", one.mean) for one in sums]
    total = sum(one.weight for one in sums)
    moved = [
        weight + rate * sum(one.weight * mean[at] for one, mean in zip(sums, means, strict=True)) / total
        for at, weight in enumerate(weights)
    ]
    return struct.pack(f"<{count}d", *moved)
