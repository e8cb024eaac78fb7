"""A client of a training: the agent `Learner`, and `Participant`, which has its data and secrets.

The agent answers each question of a round once. Its state and log hold what a server may see; the rows, the trained
weights and the secrets stay with `Participant`, in the worker. A Work is repeated after a crash: the vault sees to it
that the second try masks the same vector, or is refused.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, Tell, WorkFailed
from stigmergy.federated.messages import AskRefused, Phase, RoundAnswered, RoundAsked, TakePart
from stigmergy.federated.secure_sum import Numbers, SumRefused, check_roster, keys_of, mask, open_shares, seal_shares
from stigmergy.federated.update import UpdateLimits, Values, encoded
from stigmergy.federated.vault import Secrets, Vault


class Learner(Agent):
    """Takes part in one round after the other, and in the newest only."""

    asked: RoundAsked | None = None
    """What it was asked last."""
    rounds: int = 0
    """Rounds that it was in to the end."""
    failure: str = ""
    """Why it could not answer last."""

    @decide
    def ask(self, event: RoundAsked) -> Events:
        """One phase after the other, each once; an older round of this training than the last is refused."""
        last, terms = self.asked, event.terms
        known = (last.terms.number, last.phase) if last and last.terms.training == terms.training else (-1, Phase.NEW)
        if (terms.number, event.phase) <= known:
            reason = f"{known[1].name} of round {known[0]} was asked already"
            yield AskRefused(round=terms.plan.round, phase=event.phase, reason=reason)
            return
        going_on = last is not None and last.terms == terms
        if going_on or event.phase is Phase.KEYS:
            yield event
        else:
            yield AskRefused(round=terms.plan.round, phase=event.phase, reason="it was not asked for its keys")

    @evolve
    def was_asked(self, event: RoundAsked) -> None:
        if self.asked is not None and event.phase is Phase.ENDED:
            self.rounds += self.asked.phase is Phase.OPENED
        self.asked, self.failure = event, ""

    @evolve
    def could_not(self, event: WorkFailed) -> None:
        self.failure = event.reason

    @react
    def compute(self, event: RoundAsked) -> Effects:
        """The worker computes the answer."""
        yield TakePart(learner=self.id, ask=event)

    @react
    def answer(self, event: RoundAnswered) -> Effects:
        """What it has computed goes to the round, where it is of use until the phase is over."""
        asked = self.asked
        if asked is not None and event.round == asked.terms.plan.round and event.phase is not Phase.ENDED:
            yield Tell(asked.reply_to, event, within_s=asked.terms.step_s)


class Trained(Struct, frozen=True):
    """What a trainer gives back."""

    update: Values
    """The trained weights minus those that it was given."""
    weight: int
    """The number of rows."""


class Trainer(Protocol):
    """Trains on the rows of one learner. Raises if it has none, or wants no part in it."""

    def __call__(self, learner: str, model: Values, seed: int) -> Trained:
        """The same for the same arguments and rows: it may be called twice after a crash."""


class Participant:
    """Answers for the learners of one device. It blocks while it trains: call it in a thread.

    `members_min` and `limits` are the device's own: it takes no part in a sum of fewer, or under looser limits.
    """

    def __init__(
        self, trainer: Trainer, vault: Vault, *, members_min: int = 3, limits: UpdateLimits | None = None
    ) -> None:
        self._trainer, self._vault = trainer, vault
        self._members_min, self._limits = members_min, limits

    def take_part(self, work: TakePart) -> RoundAnswered:
        """The answer to what was asked. Raises SumRefused for what would show too much."""
        ask, me = work.ask, work.learner
        terms, plan = ask.terms, ask.terms.plan
        kept = Secrets(self._vault, terms.training, me, terms.number)
        answer = RoundAnswered(round=plan.round, learner=me, phase=ask.phase)
        if ask.phase is Phase.ENDED:
            kept.forget()
            return answer
        self._check(me, ask)
        if ask.phase is Phase.KEYS:
            return msgspec.structs.replace(answer, keys=keys_of(kept.begin(), me))
        seed = kept.use("agree on", msgspec.msgpack.encode((terms, ask.roster)))
        check_roster(seed, plan, me, ask.roster)
        if ask.phase is Phase.SHARES:
            return msgspec.structs.replace(answer, boxes=seal_shares(seed, plan, me, ask.roster))
        if ask.phase is Phase.UPDATES:
            sharers, numbers = [box.giver for box in ask.boxes], self._trained(me, ask)
            # Two vectors under the same masks would show their difference, so it is this one or none.
            kept.use("mask", msgspec.msgpack.encode((sharers, numbers.tobytes())))
            masked = mask(seed, plan, me, ask.roster, sharers, numbers)
            return msgspec.structs.replace(answer, numbers=masked.astype("<u8").tobytes())
        # And both kinds of shares would show a vector.
        kept.use("open", msgspec.msgpack.encode((ask.boxes, ask.masked)))
        return msgspec.structs.replace(answer, opened=open_shares(seed, plan, me, ask.roster, ask.boxes, ask.masked))

    def _check(self, me: str, ask: RoundAsked) -> None:
        """What the device itself insists on."""
        plan, limits, own = ask.terms.plan, ask.terms.limits, self._limits
        plan.check()
        if plan.threshold < self._members_min:
            few = f"{plan.threshold} members may be enough, and {me} wants at least {self._members_min}"
            raise SumRefused(f"{plan.round}: {few}")
        if own is not None and (limits.clip_norm > own.clip_norm or limits.weight_max > own.weight_max):
            raise SumRefused(f"{plan.round}: {limits}; {me} takes at most {own}")

    def _trained(self, me: str, ask: RoundAsked) -> Numbers:
        model, plan = np.frombuffer(ask.model, "<f8"), ask.terms.plan
        if len(model) != plan.values_count - 1:
            raise SumRefused(f"{plan.round}: a model of {len(model)} weights, {plan.values_count - 1} were agreed")
        trained = self._trainer(me, model, training_seed(plan.round, me))
        if len(trained.update) != len(model):
            raise SumRefused(f"{plan.round}: an update of {len(trained.update)} weights, the model has {len(model)}")
        return encoded(trained.update, trained.weight, ask.terms.limits)


def training_seed(round: str, member: str) -> int:
    """What a trainer draws its order of rows from: the same at a second try."""
    return int.from_bytes(blake3(f"{round}/{member}".encode()).digest(length=8), "little")
