"""A fleet that trains something whose right answer is plain: the update of learner i is 1 at i, its weight i + 1."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

import stigmergy as st
from stigmergy.federated import (
    Learner,
    MemoryVault,
    Participant,
    RoundSummed,
    StartTraining,
    SumOpened,
    SumRound,
    TakePart,
    Trained,
    Training,
    Unmask,
    UpdateLimits,
    unmask,
)
from stigmergy.federated.messages import RoundAnswered
from stigmergy.federated.update import Values

LEARNERS = ("a0", "a1", "b0", "b1", "b2", "c0")
LIMITS = UpdateLimits(clip_norm=1.0, weight_max=100)


def train(learner: str, model: Values, seed: int) -> Trained:
    update = np.zeros(len(LEARNERS))
    update[LEARNERS.index(learner)] = 1.0
    return Trained(update, 1 + LEARNERS.index(learner))


def start(**changed: Any) -> StartTraining:
    told: dict[str, Any] = {
        "learners": LEARNERS,
        "model": bytes(8 * len(LEARNERS)),
        "rounds": 2,
        "limits": LIMITS,
        "step_s": 20.0,
    }
    return StartTraining(**{**told, **changed})


def is_exact(summed: RoundSummed) -> bool:
    """Whether a sum is that of its members, each once."""
    mean = np.frombuffer(summed.mean, "<f8") * summed.weight
    wanted = [float(at + 1) if name in summed.members else 0.0 for at, name in enumerate(LEARNERS)]
    return bool(np.allclose(mean, wanted, atol=1e-6, rtol=0)) and summed.weight == sum(wanted)


class Device:
    """What answers for the learners. A simulation begins anew with each of its seeds."""

    def __init__(self) -> None:
        self.begin(secrets.token_bytes)

    def begin(self, draw: Callable[[int], bytes]) -> None:
        self.vault = MemoryVault(draw)
        self.participant = Participant(train, self.vault, limits=LIMITS)
        self.answers: list[RoundAnswered] = []

    def make_fleet(self) -> st.Fleet:
        fleet = st.Fleet("learn", agents=[Training, SumRound, Learner])

        @fleet.worker(TakePart)
        async def take_part(order: st.Order[TakePart]) -> RoundAnswered:
            answer = self.participant.take_part(order.effect)
            self.answers.append(answer)
            return answer

        @fleet.worker(Unmask)
        async def open_sum(order: st.Order[Unmask]) -> SumOpened:
            return unmask(order.effect)

        return fleet
