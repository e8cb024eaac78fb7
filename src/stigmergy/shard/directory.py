"""The directory of a shard's log: the layouts, templates and names that are needed to read column runs.

It is folded from `ColumnsDeclared` and `AgentsEnrolled`, as far as the log is known. A reader that starts in the middle
takes it from a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import ColumnRun, Layout, Templates, read_layout, read_templates
from stigmergy.base.errors import JournalCorrupt


class Directory:
    """Layouts and templates by digest, and the names of agents by kind."""

    def __init__(self) -> None:
        self.layouts: dict[bytes, Layout] = {}
        self.templates: dict[bytes, Templates] = {}
        self.names: dict[str, list[str]] = {}
        """Of kinds that no table here knows the names of."""
        self.unlisted: dict[str, list[str]] = {}
        """Per compiled kind the names that have numbers, and that no `AgentsEnrolled` lists yet: of agents whose first
        event is of a time when their kind was interpreted. The shard lists them before it takes anything else."""

    def declare(self, layout: bytes, templates: bytes) -> None:
        """Takes in what `ColumnsDeclared` says. Raises JournalCorrupt for what does not decode."""
        known, made = read_layout(layout), read_templates(templates)
        self.layouts[known.digest()] = known
        self.templates[made.digest()] = made

    def declared(self) -> list[tuple[bytes, bytes]]:
        """All layouts and templates, for a snapshot; pairs of unequal length are filled up with nothing."""
        layouts = [encode(layout) for layout in self.layouts.values()]
        templates = [encode(made) for made in self.templates.values()]
        longest = max(len(layouts), len(templates))
        layouts += [b""] * (longest - len(layouts))
        templates += [b""] * (longest - len(templates))
        return list(zip(layouts, templates, strict=True))

    def restore(self, declared: Sequence[tuple[bytes, bytes]]) -> None:
        """Takes over what a snapshot says."""
        for layout, templates in declared:
            if layout:
                known = read_layout(layout)
                self.layouts[known.digest()] = known
            if templates:
                made = read_templates(templates)
                self.templates[made.digest()] = made

    def templates_of(self, digest: bytes) -> Templates:
        """The templates with this digest."""
        templates = self.templates.get(digest)
        if templates is None:
            raise JournalCorrupt("actions of templates that the log does not declare; restore from a copy")
        return templates

    def layout_of(self, run: ColumnRun) -> Layout:
        """The layout of a run's records."""
        layout = self.layouts.get(run.layout)
        if layout is None:
            raise JournalCorrupt(
                f"events of {run.kind} in a layout that the log does not declare; restore from a copy, or read the log "
                "from its beginning"
            )
        return layout

    def name(self, kind: str, number: int) -> str:
        """The id of an agent, as far as it is known here. Raises JournalCorrupt for one that was never enrolled."""
        names = self.names.get(kind, ())
        if not 0 <= number < len(names) or not names[number]:
            raise JournalCorrupt(
                f"agent {number} of {kind} was never enrolled; restore from a copy, or read the log from its beginning"
            )
        return names[number]

    def find(self, kind: str, name: str) -> int:
        """The number of an agent, as far as it is known here; -1 if it is not."""
        names = self.names.get(kind, [])
        return names.index(name) if name in names else -1

    def enroll(self, kind: str, first: int, names: Sequence[str]) -> None:
        """Learns from `AgentsEnrolled`, for readers of a log without tables. Known names must be the same; an empty
        name is unknown here. Raises JournalCorrupt."""
        known = self.names.setdefault(kind, [])
        before = known[first : first + len(names)]
        if first > len(known) or any(one and one != other for one, other in zip(before, names, strict=False)):
            raise JournalCorrupt(
                f"{kind} has {len(known)} agents, and others are enrolled from {first} on; restore from a copy"
            )
        known[first : first + len(names)] = names

    def list_names(self, kind: str, names: Sequence[str]) -> int:
        """Names of a compiled kind are enrolled; returns how many of them had a number before, unlisted.

        Raises JournalCorrupt if those are not the ones that had it.
        """
        unlisted = self.unlisted.get(kind, [])
        count = min(len(unlisted), len(names))
        if unlisted[:count] != list(names[:count]):
            raise JournalCorrupt(f"agents of {kind} are enrolled with the numbers of others; restore from a copy")
        del unlisted[:count]
        if not unlisted:
            self.unlisted.pop(kind, None)
        return count
