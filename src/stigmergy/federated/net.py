"""A small net in numpy: logistic regression, or one hidden layer. Pure: the same seed and rows give the same weights.

Its weights are one flat vector of floats, so that a federation can add them up. It needs numpy and nothing of
stigmergy: another program may load this file alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""Of Adam, as its authors recommend."""


@dataclass(frozen=True)
class Net:
    """The shape of a net with one output, a probability. `hidden=0` is logistic regression."""

    inputs: int
    hidden: int = 0

    @property
    def weights_count(self) -> int:
        """How many numbers its weights are."""
        return self.hidden * (self.inputs + 2) + 1 if self.hidden else self.inputs + 1

    def begin(self, seed: int) -> Floats:
        """Weights to start from. Clients must start from the same ones, or their average means nothing."""
        weights = np.random.default_rng(seed).normal(0.0, self.inputs**-0.5, self.weights_count)
        weights[-1] = 0.0
        return weights

    def parts(self, weights: Floats) -> tuple[Floats, Floats, Floats, float]:
        """First layer, its offsets, last layer, its offset, as views; the first two may be empty."""
        if not self.hidden:
            return np.empty((self.inputs, 0)), np.empty(0), weights[:-1], float(weights[-1])
        first = self.inputs * self.hidden
        matrix = weights[:first].reshape(self.inputs, self.hidden)
        return matrix, weights[first : first + self.hidden], weights[first + self.hidden : -1], float(weights[-1])

    def predict(self, weights: Floats, rows: Floats) -> Floats:
        """The probability for each row."""
        matrix, offsets, last, offset = self.parts(weights)
        seen = np.tanh(rows @ matrix + offsets) if self.hidden else rows
        return _sigmoid(seen @ last + offset)

    def gradient(self, weights: Floats, rows: Floats, labels: Floats) -> Floats:
        """How the mean cross-entropy over these rows changes with each weight."""
        matrix, offsets, last, offset = self.parts(weights)
        seen = np.tanh(rows @ matrix + offsets) if self.hidden else rows
        error = (_sigmoid(seen @ last + offset) - labels) / len(rows)
        end = np.concatenate([seen.T @ error, [error.sum()]])
        if not self.hidden:
            return end
        back = np.outer(error, last) * (1.0 - seen**2)
        return np.concatenate([(rows.T @ back).ravel(), back.sum(axis=0), end])

    def train(
        self,
        weights: Floats,
        rows: Floats,
        labels: Floats,
        *,
        seed: int,
        epochs: int = 5,
        batch: int = 64,
        rate: float = 0.01,
    ) -> Floats:
        """Weights after so many passes of Adam over the rows, in an order that the seed decides."""
        order, weights = np.random.default_rng(seed), weights.copy()
        mean, square, step = np.zeros_like(weights), np.zeros_like(weights), 0
        for _ in range(epochs):
            shuffled = order.permutation(len(rows))
            for start in range(0, len(rows), batch):
                chosen, step = shuffled[start : start + batch], step + 1
                slope = self.gradient(weights, rows[chosen], labels[chosen])
                mean = BETA_1 * mean + (1 - BETA_1) * slope
                square = BETA_2 * square + (1 - BETA_2) * slope**2
                stride = rate * (1 - BETA_2**step) ** 0.5 / (1 - BETA_1**step)
                weights -= stride * mean / (np.sqrt(square) + EPSILON)
        return weights


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -60.0, 60.0))))


def area_under_curve(labels: Floats, scores: Floats) -> float:
    """The chance that a row with the label 1 scores higher than one with 0 (AUC); ties count half."""
    values, where, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    ones = int(labels.sum())
    zeros = len(labels) - ones
    if not ones or not zeros or not len(values):
        raise ValueError("an AUC needs rows of both labels")
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))
