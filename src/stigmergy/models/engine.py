"""Runs models on a thread of its own, one batch at a time; a thread that hangs is left behind, and replaced.

    engine = ThreadEngine(abandoned_max=3)
    engine.run(loaded, rows, done)      # on the event loop; `done` is called there, with an outcome for each row
    engine.abandon()                    # that takes too long: what it returns some day is dropped
    engine.close()
    await engine.ended(drain_s)         # no thread is in a runtime any more, or that many hang

The caller has one batch under way, and knows for how long. An interpreter that ends while a thread of it is in C++ code
is aborted: so whoever closes an engine waits for its threads, and calls `outlive_threads` if some do not end.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stigmergy.base.errors import ModelFailed
from stigmergy.models.runtime import LoadedModel

REASON_CHARS_MAX = 200
OVER = "the node stops"
EXPLAINED_ROWS_MAX = 16
"""So many answers of a batch are explained: each takes some runs of the model, and the others wait."""


class RowResult(Struct, frozen=True):
    """What became of a row."""

    outputs: tuple[float, ...] = ()
    failed: str = ""
    """Why there are none."""
    explanation: tuple[tuple[str, float], ...] = ()


Done = Callable[[list[RowResult]], None]
Explain = Callable[[LoadedModel, bytes], tuple[tuple[str, float], ...]]
"""Says which inputs of a row mattered most. Runs the model several times."""


class ModelEngine(Protocol):
    """Where models run. In a simulation: in virtual time."""

    @property
    def abandoned(self) -> int:
        """Threads that were left behind and have not come back."""
        ...

    def run(self, loaded: Any, rows: Sequence[bytes], done: Done, explain: Explain | None = None) -> None:
        """Begins a batch; only when none is under way."""
        ...

    def abandon(self, freed: Callable[[], None]) -> bool:
        """Leaves the batch under way behind. Whether another may begin; if not, `freed` is called once it may."""
        ...

    def close_model(self, loaded: Any) -> None:
        """Closes a model, after what is under way."""
        ...

    def close(self) -> None:
        """Ends. Nothing is called back from then on."""
        ...


class ThreadEngine:
    """The ModelEngine of a real node."""

    def __init__(self, abandoned_max: int) -> None:
        self._abandoned_max = abandoned_max
        self._thread: _Thread | None = None
        self._freed: Callable[[], None] | None = None
        self._closed = False
        self._stopping = threading.Event()
        self._left: list[_Thread] = []

    @property
    def abandoned(self) -> int:
        """Threads that were left behind and have not come back."""
        return len(self._left)

    def run(self, loaded: Any, rows: Sequence[bytes], done: Done, explain: Explain | None = None) -> None:
        """Begins a batch; only when none is under way."""
        self._put(lambda: run_rows(loaded, rows, explain, self._stopping.is_set), done)

    def abandon(self, freed: Callable[[], None]) -> bool:
        """Leaves the batch under way behind. Whether another may begin; if not, `freed` is called once it may."""
        if self._thread is not None:
            self._left.append(self._thread)
        self._thread, self._freed = None, freed
        return self.abandoned < self._abandoned_max

    def close_model(self, loaded: Any) -> None:
        """Closes a model, after what is under way. What a hanging one holds is lost with its thread."""
        self._put(loaded.close, lambda _: None)

    def close(self) -> None:
        """Ends. Nothing is called back from then on. What is under way goes no further than its next run."""
        self._closed = True
        self._stopping.set()
        for thread in self._threads:
            thread.jobs.put(None)

    async def ended(self, within_s: float) -> int:
        """Waits, so long at most, until the threads have ended, after `close`; how many have not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for thread in self._threads:
                    await thread.ended.wait()
        return sum(not thread.ended.is_set() for thread in self._threads)

    @property
    def _threads(self) -> list[_Thread]:
        return self._left if self._thread is None else [*self._left, self._thread]

    def _put(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._thread is None:
            self._thread = _Thread(asyncio.get_running_loop(), self._tell)
        self._thread.jobs.put((call, done))

    def _tell(self, thread: _Thread, done: Callable[[Any], None], result: Any) -> None:
        if self._closed:
            return
        if thread is self._thread:
            done(result)
            return
        if thread not in self._left:
            return  # what it had to do besides
        thread.jobs.put(None)  # it hung, and has come back
        self._left.remove(thread)
        freed, self._freed = self._freed, None
        if freed is not None:
            freed()


class _Thread:
    """A daemon thread: the interpreter does not wait for one that hangs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[_Thread, Callable[[Any], None], Any], None]):
        self.ended = asyncio.Event()
        """It has left the last runtime."""
        self.jobs: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._loop = loop
        self._tell = tell
        threading.Thread(target=self._work, name="stigmergy-models", daemon=True).start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            call, done = job
            result: Any = None
            # A runtime's fault must not end the thread; `run_rows` has said it already.
            with contextlib.suppress(BaseException):
                result = call()
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._tell, self, done, result)
            # The last references to a model may be here: what they hold must go before the thread counts as ended.
            del job, call, done, result
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.ended.set)


def run_rows(
    loaded: LoadedModel, rows: Sequence[bytes], explain: Explain | None = None, is_over: Callable[[], bool] = bool
) -> list[RowResult]:
    """Runs a batch. One that fails is run row by row: an agent's inputs must not spoil the answers of others. Once it
    is over, nobody needs the answers, and no further run begins."""
    if is_over():
        return [RowResult(failed=OVER)] * len(rows)
    try:
        found = [RowResult(tuple(outputs)) for outputs in loaded.run(rows)]
        if len(found) != len(rows):
            found = [RowResult(failed=f"{len(found)} answers to {len(rows)} rows")] * len(rows)
    except BaseException as error:
        if len(rows) > 1:
            return [result for row in rows for result in run_rows(loaded, [row], explain, is_over)]
        return [RowResult(failed=f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX])]
    if explain is not None:
        endable = _Endable(loaded, is_over)
        for place in range(min(len(rows), EXPLAINED_ROWS_MAX)):
            found[place] = _explained(endable, rows[place], found[place], explain)
    return found


class _Endable:
    """A model that begins no further run once it is over."""

    def __init__(self, loaded: LoadedModel, is_over: Callable[[], bool]) -> None:
        self._loaded, self._is_over = loaded, is_over
        self.close = loaded.close

    @property
    def memory_bytes(self) -> int:
        return self._loaded.memory_bytes

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        if self._is_over():
            raise ModelFailed(OVER)
        return self._loaded.run(rows)


def _explained(loaded: LoadedModel, row: bytes, result: RowResult, explain: Explain) -> RowResult:
    """Without an explanation an answer is an answer all the same."""
    with contextlib.suppress(Exception):
        return RowResult(result.outputs, result.failed, explain(loaded, row))
    return result


SET_TERMINATE = "_ZSt13set_terminatePFvvE"


def outlive_threads() -> None:
    """Has this process end as its program says although a thread hangs in C++.

    When such a thread comes back, an interpreter that is ending unwinds it through C++ code that must not be unwound,
    which would end the process with SIGABRT: it waits instead. And what the thread uses is not taken down: once the
    interpreter has ended, and all is written, the process is gone at once, with the status that it has by then.
    """
    atexit.register(_end_at_once)


def _end_at_once() -> None:
    with contextlib.suppress(OSError, AttributeError):  # where there are other libraries, it is as it was
        c = ctypes.CDLL(None)
        c.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        c.on_exit(ctypes.cast(c._exit, ctypes.c_void_p), None)
        set_terminate = getattr(ctypes.CDLL("libstdc++.so.6"), SET_TERMINATE)
        set_terminate.argtypes = [ctypes.c_void_p]
        set_terminate(ctypes.cast(c.pause, ctypes.c_void_p))
