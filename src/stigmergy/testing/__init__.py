"""What users of stigmergy test with: contract suites for adapters of their own, and builders for what those need.

It needs pytest and the public API, nothing else.
"""

from stigmergy.testing.scenario import Scenario, given

__all__ = ["Scenario", "given"]
