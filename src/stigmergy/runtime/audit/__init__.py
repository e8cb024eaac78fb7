"""What can be done with a log: look back, list, verify, export, replay against today's code, archive, hold.

Nothing here steps an agent of a running node. Reading goes in small pieces, so that a node can do it beside its work.
"""
