"""The journal in segments: append-only files, made ready beforehand, one frame and one sync for each group.

For nodes that write much. It has no pages to write whole and no checkpoints that hold up a commit; but no other tool
reads it, it takes its room in advance, and where groups are small it fills that with zeros, and so writes it twice.
"""

from stigmergy.journal.segments.frames import KEY_BYTES
from stigmergy.journal.segments.journal import SegmentJournal
from stigmergy.journal.segments.opener import inspect_journal, open_journal, renew_incarnation

__all__ = ["KEY_BYTES", "SegmentJournal", "inspect_journal", "open_journal", "renew_incarnation"]
