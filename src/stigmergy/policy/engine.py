"""The port of policy engines, and a thread that asks one, with a deadline.

    engine = PolicyThread(load(), load, within_s=0.05)      # load = lambda: RegoPolicy(modules, data)
    answer = engine.ask(document)       # waits so long at most; raises PolicyFailed

A caller stands in the middle of a step, so it waits here, for a bounded time, and no longer. A question that is late is
denied. While its answer is out, later questions are denied at once and nobody waits again: an engine that hangs costs
one deadline, and no agent is stopped by it. A thread that is out for HUNG_S is left behind, three times at most, and
another one gets an engine of its own: the old one may still be in it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from stigmergy.base.errors import PolicyFailed

HUNG_S = 2.0
"""A thread that is out for so long is left behind."""
HANGS_MAX = 3
CLOSE_S = 2.0
"""So long a stop waits for the thread: an interpreter that ends while one is in C++ code is aborted."""
REASON_CHARS_MAX = 200


class PolicyAnswer(Struct, frozen=True):
    """What a policy says."""

    allowed: bool
    reason: str = ""


class LoadedPolicy(Protocol):
    """A policy in an engine. One thread at a time may ask it. The same document gets the same answer, as far as the
    policy asks for no clock and no randomness. Only a plain `true` allows; what is undefined, of another type, or in
    conflict with itself denies."""

    def ask(self, document: bytes) -> PolicyAnswer:
        """Rules on a JSON document. Raises PolicyFailed if the engine cannot. It may be slow."""
        ...


class PolicyEngine(Protocol):
    """What a node asks."""

    def ask(self, document: bytes) -> PolicyAnswer:
        """Rules on a JSON document, in bounded time. Raises PolicyFailed."""
        ...

    def close(self) -> None:
        """Asks no more."""
        ...


Load = Callable[[], LoadedPolicy]
OpenEngine = Callable[[LoadedPolicy, Load, float], PolicyEngine]
"""Makes the engine of a node: of a policy, of what loads it once more, and of the deadline in seconds."""


class PolicyThread:
    """The PolicyEngine of a real node."""

    def __init__(self, loaded: LoadedPolicy, load: Load, within_s: float) -> None:
        self._load = load
        self._within_s = within_s
        self._thread = _Thread(lambda: loaded)
        self._out_since_s: float | None = None
        """Since when the thread has a question that nobody waits for any more."""
        self._left = 0

    def ask(self, document: bytes) -> PolicyAnswer:
        """Rules on a JSON document, in bounded time. Raises PolicyFailed."""
        if self._out_since_s is not None and not self._is_back(self._out_since_s):
            raise PolicyFailed("the engine has not answered an earlier question yet")
        thread = self._thread
        thread.questions.put(document)
        try:
            found = thread.answers.get(timeout=self._within_s)
        except queue.Empty:
            self._out_since_s = time.monotonic()
            raise PolicyFailed(f"the engine gave no ruling within {self._within_s * 1000:g} ms") from None
        if isinstance(found, PolicyAnswer):
            return found
        raise PolicyFailed(found)

    def _is_back(self, since_s: float) -> bool:
        try:
            self._thread.answers.get_nowait()
        except queue.Empty:
            if time.monotonic() - since_s < HUNG_S or self._left >= HANGS_MAX:
                return False
            self._left += 1
            self._thread.questions.put(None)
            self._thread = _Thread(self._load)
        self._out_since_s = None
        return True

    def close(self) -> None:
        """Asks no more."""
        self._thread.questions.put(None)
        self._thread.ended.wait(CLOSE_S)


class _Thread:
    """A daemon thread: the interpreter does not wait for one that hangs."""

    def __init__(self, load: Load) -> None:
        self.questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[PolicyAnswer | str] = queue.SimpleQueue()
        self.ended = threading.Event()
        threading.Thread(target=self._work, args=(load,), name="stigmergy-policy", daemon=True).start()

    def _work(self, load: Load) -> None:
        loaded: LoadedPolicy | None = None
        while (document := self.questions.get()) is not None:
            try:
                if loaded is None:
                    loaded = load()
                self.answers.put(loaded.ask(document))
            except BaseException as error:  # an engine's fault denies, and must not end the thread
                self.answers.put(f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX])
        del loaded  # what it holds must go before the thread counts as ended
        self.ended.set()
