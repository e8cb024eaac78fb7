"""Remembers the last signatures that were verified: entries that were written together share one."""

from __future__ import annotations

from collections import OrderedDict

from stigmergy.core.claims.entries import Verify

REMEMBERED_COUNT = 64


class Remembering:
    """A Verify that asks another one, and not twice for the same while it remembers."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._known: OrderedDict[tuple[int, bytes, bytes, bytes], bool] = OrderedDict()

    def __call__(self, algorithm: int, key: bytes, statement: bytes, signature: bytes) -> bool:
        asked = (algorithm, key, statement, signature)
        known = self._known.get(asked)
        if known is None:
            known = self._verify(*asked)
            self._known[asked] = known
            if len(self._known) > REMEMBERED_COUNT:
                self._known.popitem(last=False)
        return known
