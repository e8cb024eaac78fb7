"""Test tools for users of stigmergy: contract suites for their own adapters, and the builders that those need.

They need pytest and the public API, nothing else.
"""

from stigmergy.testing.scenario import Scenario, given

__all__ = ["Scenario", "given"]
