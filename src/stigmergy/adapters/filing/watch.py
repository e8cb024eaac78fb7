"""Watches the files of an open journal: whether each name still leads to the file that is open.

A file that is removed, renamed or replaced under a program goes on taking writes, and nobody finds them again. The
device and the number of the file behind a name tell. They are compared after each sync, before the acknowledgement,
and about once a second while nothing is written (CHECK_EVERY_S of ports.journal).
"""

from __future__ import annotations

from collections.abc import Iterable

from stigmergy.adapters.filing.files import Files
from stigmergy.core.errors import JournalUnknown


class Watch:
    """The files of one journal, as they were when it opened them."""

    def __init__(self, files: Files, place: str, paths: Iterable[str]) -> None:
        self._files = files
        self._place = place
        self._seen = {path: files.inode(path) for path in paths}

    def exchange(self, old: str | None, new: str) -> None:
        """From now on this file is watched, in place of another one."""
        if old is not None:
            self._seen.pop(old, None)
        self._seen[new] = self._files.inode(new)

    def check(self) -> None:
        """Raises JournalUnknown if a name leads nowhere, or to another file. Raises OSError."""
        for path, seen in self._seen.items():
            found = self._files.inode(path)
            if found is None or found != seen:
                raise gone_error(self._place, path, replaced=found is not None)


def gone_error(place: str, path: str, *, replaced: bool) -> JournalUnknown:
    """A file of the journal is not where it was."""
    what = "another file is in the place of" if replaced else "somebody removed or renamed"
    return JournalUnknown(
        f"{place}: {what} {path} while the journal was open, and nobody would find what is written now; the node "
        "acknowledges nothing more: put the file back, or restore the journal from a copy, and start again"
    )
