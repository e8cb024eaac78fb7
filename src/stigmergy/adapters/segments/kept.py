"""What is kept of segments that have gone: the few commits in them that somebody may still ask for, in one file.

The newest commit of a shard is never dropped. Without this, one shard that has fallen silent would hold its segment,
and every one behind it, for good. So when nearly all of the oldest segment may go, the rest of it is copied here, and
then it goes. The file is one frame, replaced as a whole; it is read when the journal is opened and is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stigmergy.adapters.segments.errors import RESTORE
from stigmergy.adapters.segments.folder import Folder
from stigmergy.adapters.segments.frames import Kind, decode_kept, encode_frame, encode_kept, read_frame
from stigmergy.core.errors import JournalCorrupt
from stigmergy.ports.journal import StoredCommit

KEPT = "kept"
KEPT_COMMITS_MAX = 4_096
KEPT_SHARE_MAX = 8
"""At most this part of a segment's size is kept in the file: it is written anew each time a segment goes."""

Kept = Mapping[int, Sequence[StoredCommit]]
"""By shard, in order, without a gap."""


def read_kept(folder: Folder, key: bytes) -> Kept:
    """What was kept; nothing if there is no such file. Raises JournalCorrupt where it is not as it was."""
    if folder.size(KEPT) is None:
        return {}
    file = folder.open(KEPT)
    try:
        frame = read_frame(key, file.read_at(0, file.size()))
    finally:
        file.close()
    where = f"{folder.path}/{KEPT}"
    if frame is None or frame.kind is not Kind.KEPT:
        raise JournalCorrupt(f"{where}: damaged, and commits are in it that are nowhere else; {RESTORE}")
    return by_shard(decode_kept(frame, where))


def write_kept(folder: Folder, key: bytes, kept: Kept) -> None:
    """Replaces what was kept, durably."""
    fresh = f"{KEPT}.new"
    folder.remove(fresh)
    file = folder.open(fresh, create=True)
    try:
        commits = [stored for shard in sorted(kept) for stored in kept[shard]]
        file.write_at(0, encode_frame(key, Kind.KEPT, 1, encode_kept(commits)))
    finally:
        file.close()
    folder.replace(fresh, KEPT)


def by_shard(commits: Iterable[StoredCommit]) -> dict[int, list[StoredCommit]]:
    """The same commits, each with its shard's."""
    found: dict[int, list[StoredCommit]] = {}
    for stored in commits:
        found.setdefault(stored.sealed.shard, []).append(stored)
    return found


def check_beginning(folder: Folder, kept: Kept, reached: Mapping[int, int], firsts: Mapping[int, int]) -> None:
    """Whatever the oldest segment does not have any more was dropped or is kept. Raises JournalCorrupt."""
    for shard, position in sorted(reached.items()):
        first = firsts.get(shard, 1)
        found = [one.sealed.position for one in kept.get(shard, ()) if first <= one.sealed.position <= position]
        if len(found) != max(0, position - first + 1) or found != list(range(first, first + len(found))):
            raise JournalCorrupt(
                f"{folder.path}: shard {shard}: what was before position {position + 1} is missing; {RESTORE}"
            )
