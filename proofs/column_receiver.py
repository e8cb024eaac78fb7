"""The receiver of batched actions in the proofs: keeps marks by their sequences, and drops what it had."""

from __future__ import annotations

from proofs.column_agents import Model
from proofs.column_node import Release


class Receiver:
    """What was carried out, by shard and sequence."""

    def __init__(self) -> None:
        self._done: dict[tuple[int, int], tuple[str, int, int]] = {}
        self._marks: dict[tuple[int, str], int] = {}
        """The highest sequence of each shard and type: all that a receiver has to remember."""
        self.repeated = 0

    @property
    def count(self) -> int:
        """How many actions were carried out."""
        return len(self._done)

    def receive(self, release: Release) -> list[str]:
        """Carries out what is new; says what is wrong with the rest."""
        found: list[str] = []
        mark = self._marks.get((release.shard, release.what), 0)
        for sequence, number, count in zip(release.sequences, release.numbers, release.counts, strict=True):
            action = (release.what, number, count)
            if sequence <= mark:
                self.repeated += 1
                known = self._done.get((release.shard, sequence))
                if known != action:
                    found.append(f"shard {release.shard}: action {sequence} was {known}, and came again as {action}")
                continue
            mark = sequence
            self._done[release.shard, sequence] = action
        self._marks[release.shard, release.what] = mark
        return found[:3]

    def differences(self, model: Model) -> list[str]:
        """What was done and should not have been, and the other way round."""
        found: list[str] = []
        acts = sorted(number for what, number, _ in self._done.values() if what == "act")
        if acts != sorted(model.acts):
            found.append(
                f"{len(model.acts)} acts are due, {len(acts)} were carried out, {len(set(acts))} different ones"
            )
        warned = sorted((number, count) for what, number, count in self._done.values() if what == "warn")
        if warned != sorted(model.warned.items()):
            found.append(f"{len(model.warned)} warnings are due, {len(warned)} were carried out, or others")
        for shard in sorted({shard for shard, _ in self._done}):
            sequences = [sequence for one, sequence in self._done if one == shard]
            if sorted(sequences) != list(range(1, len(sequences) + 1)):
                found.append(f"shard {shard}: the sequences of actions have a gap")
        return found
