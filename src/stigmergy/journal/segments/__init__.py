"""The journal in segments: append-only, preallocated files, one frame and one sync for each group.

For nodes that write much. It writes no whole pages, and no checkpoint delays a commit. But no other tool reads it, it
takes its space in advance, and where groups are small it fills that with zeros, so it writes it twice.
"""

from stigmergy.journal.segments.frames import KEY_BYTES
from stigmergy.journal.segments.journal import SegmentJournal
from stigmergy.journal.segments.opener import inspect_journal, open_journal, renew_incarnation

__all__ = ["KEY_BYTES", "SegmentJournal", "inspect_journal", "open_journal", "renew_incarnation"]
