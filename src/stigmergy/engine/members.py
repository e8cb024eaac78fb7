"""A lost server replaced, for the command line."""

from stigmergy.adapters.nats.members import forget_server, replace_member

__all__ = ["forget_server", "replace_member"]
