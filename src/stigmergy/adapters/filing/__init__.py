"""What journals on files share: files and claims on them, the thread that writes, the mark of what was acknowledged.

No adapter by itself, and the one exception to the rule that adapters know nothing of each other.
"""
