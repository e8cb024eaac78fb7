"""What journals on files share: files and claims on them, the thread that writes, identity and mark.

No adapter by itself, and the one exception to the rule that adapters know nothing of each other.
"""
