"""What a proof reports: how much it tried, what it found wrong, and the figures that show that it had teeth."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Proof(Struct):
    """The outcome of one proof. No violations means that it holds for everything that was tried."""

    name: str
    promise: str
    cases: int
    violations: list[str] = []
    figures: dict[str, Any] = {}
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether nothing was found, and something was tried."""
        return self.cases > 0 and not self.violations
