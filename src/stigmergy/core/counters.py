"""Counts what became of inputs: for metrics, not part of the state. No input is passed over without being counted."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.core.errors import Malformed, SequenceGap, StaleEpoch, StaleMapping, StigmergyError


class Counters(Struct):
    """What became of inputs since the start; for metrics, not part of the state."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    duplicates: int = 0
    gaps: int = 0
    stale_epochs: int = 0
    stale_mappings: int = 0
    malformed: int = 0
    overloads: int = 0
    skipped: int = 0

    def count_untaken(self, error: StigmergyError) -> None:
        """Counts a delivery that was not taken."""
        match error:
            case SequenceGap():
                self.gaps += 1
            case StaleEpoch():
                self.stale_epochs += 1
            case StaleMapping():
                self.stale_mappings += 1
            case Malformed():
                self.malformed += 1
            case _:
                self.overloads += 1
