"""The time of the current step: set by the code that steps or replays a shard, read by `Agent.now`."""

from __future__ import annotations

from contextvars import ContextVar

step_time_ns: ContextVar[int] = ContextVar("step_time_ns", default=0)
