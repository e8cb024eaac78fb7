"""What figures are to reach."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Target(Struct, frozen=True):
    """What a figure is to reach."""

    figure: str
    what: str
    bound: float
    at_least: bool = False

    def met(self, figures: dict[str, Any]) -> bool:
        """Whether it does. A figure that could not be measured does not."""
        if figures[self.figure] is None:
            return False
        value = float(figures[self.figure])
        return value >= self.bound if self.at_least else value <= self.bound
