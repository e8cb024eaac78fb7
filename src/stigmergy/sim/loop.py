"""An asyncio event loop in virtual time: a day passes in the time its callbacks take, and one seed gives one order.

    result = run(main(), seed=7)                  # inside: asyncio.sleep(3600) returns at once, an hour later
    result = run(main(), seed=7, shuffle=True)    # other legal orders, one for each seed

When nothing is ready, time jumps to the next timer. The loop never waits, opens no socket, starts no thread or process:
such calls raise NotSimulated. It always ends: a deadlock, a virtual deadline, a number of steps in all or at one moment
end the run with an error that names the tasks and the lines they wait at. Nothing fails silently: an exception that
nobody retrieved fails the run. Tasks are held until they are done, so that garbage collection does not affect them.

Order: ready callbacks run first in, first out, as asyncio promises; timers by due time, then as set. `shuffle` permutes
only what asyncio leaves open: timers due at the same instant, and adjacent wake-ups of tasks within one tick. A plain
callback (call_soon, a future's done callback) is a fence that no wake-up crosses in either direction, because programs
may rely on the order of callbacks.

An *actor* is a part of the run that can be paused alone, a machine for instance: everything started in a context with
`ACTOR` set belongs to it. While an actor is held, nothing of it runs; time and everything else go on.

The caller must avoid other sources of disorder: iteration over sets, id() and hash(), and what in asyncio holds tasks
in sets: wait, as_completed, TaskGroup, all_tasks.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from threading import get_ident
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from stigmergy.sim.errors import (
    DeadlineExceeded,
    Deadlock,
    FailureIgnored,
    NotSimulated,
    SimulationError,
    StepsExceeded,
)

# The timers of a virtual loop, by (due time, order of scheduling), and the permutations that asyncio leaves open.
#
# Never moves time and never runs a callback: the loop does. Times are integer nanoseconds of virtual time.

NS = 1_000_000_000
NEVER_NS = 2**63 - 1
"""Later than every deadline: 292 years."""
CANCELLED_COUNT_MAX = 1_000
"""So many cancellations, and more than half of the heap, before cancelled timers are swept out."""


def nanoseconds(seconds: float) -> int:
    """The first nanosecond that reads as at least these seconds.

    A timer must not fire before its time even by a rounding error: a program that sleeps the tiny rest again would not
    get on in virtual time.
    """
    if math.isnan(seconds):
        raise ValueError("a time that is not a number (nan) never comes")
    if seconds >= NEVER_NS / NS:
        return NEVER_NS
    instant = math.ceil(seconds * NS)
    while instant / NS < seconds:
        instant += 1
    return instant


class LoopTimers:
    """The timers that are set. Cancelled ones are skipped; they never hold time up."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._cancelled_count = 0

    def add(self, due_ns: int, handle: asyncio.TimerHandle) -> None:
        """Sets a timer. The running number breaks ties, so that no two handles are ever compared."""
        self._count += 1
        heapq.heappush(self._heap, (due_ns, self._count, handle))

    def note_cancelled(self) -> None:
        """Asyncio says that a timer was cancelled, perhaps one that has fired. A flood of them must not fill memory."""
        self._cancelled_count += 1
        if self._cancelled_count > max(CANCELLED_COUNT_MAX, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
            heapq.heapify(self._heap)
            self._cancelled_count = 0

    def next_ns(self) -> int | None:
        """When the next timer is due; None if none is set."""
        while self._heap and self._heap[0][2].cancelled():
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int, chance: random.Random | None) -> list[asyncio.TimerHandle]:
        """Takes out what is due, in order. With `chance`, timers of the very same instant come in a drawn order."""
        taken: list[asyncio.TimerHandle] = []
        while (instant := self.next_ns()) is not None and instant <= now_ns:
            together = [heapq.heappop(self._heap)[2]]
            while self.next_ns() == instant:
                together.append(heapq.heappop(self._heap)[2])
            if chance is not None:
                chance.shuffle(together)
            taken += together
        return taken

    def clear(self) -> None:
        """Forgets all timers."""
        self._heap.clear()


def permute_wakeups(handles: list[asyncio.Handle], chance: random.Random) -> list[asyncio.Handle]:
    """Permutes each unbroken row of task wake-ups; everything else stays where it is and is crossed by none."""
    permuted: list[asyncio.Handle] = []
    row: list[asyncio.Handle] = []
    for handle in handles:
        if _wakes_a_task(handle):
            row.append(handle)
            continue
        chance.shuffle(row)
        permuted += [*row, handle]
        row = []
    chance.shuffle(row)
    return permuted + row


def _wakes_a_task(handle: asyncio.Handle) -> bool:
    """True for a step of a task. A callback like `task.cancel` is bound to a task too, but it is a plain callback."""
    callback = getattr(handle, "_callback", None)
    name = getattr(callback, "__name__", "__step")  # the C wrapper of a task's step has no name
    return name in {"__step", "__wakeup", "task_wakeup"} and asyncio.isfuture(getattr(callback, "__self__", None))


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WALL_START_NS = 1_767_225_600 * NS
"""2026-01-01 00:00 UTC: what simulated wall clocks start from unless told otherwise."""
ACTOR: ContextVar[str] = ContextVar("stigmergy.sim.actor", default="")
"""The actor of a callback; empty for the world outside."""
DEADLINE_S = 24 * 3600.0
STEPS_MAX = 10_000_000
INSTANT_STEPS_MAX = 1_000_000
"""Callbacks at one virtual moment. Ten thousand agents that are all told something at once take a tenth of it."""
CLEANUP_STEPS_MAX = 100_000
"""How many callbacks cancelled leftovers may take before they are abandoned and reported."""
FAILURES_KEPT_MAX = 100
TASKS_NAMED_MAX = 20
TASKS_SWEPT_MIN = 1_000


def run(
    coroutine: Coroutine[Any, Any, T],
    *,
    seed: int,
    wall_start_ns: int = WALL_START_NS,
    deadline_s: float = DEADLINE_S,
    steps_max: int = STEPS_MAX,
    shuffle: bool = False,
) -> T:
    """Runs a coroutine to its end in a fresh virtual loop and returns its result.

    What is left over is cancelled in the order of its creation. Raises what the coroutine raises, Deadlock,
    DeadlineExceeded, StepsExceeded, or FailureIgnored when a task failed unseen.
    """
    loop = VirtualLoop(
        seed=seed, wall_start_ns=wall_start_ns, deadline_s=deadline_s, steps_max=steps_max, shuffle=shuffle
    )
    return loop.run(coroutine)


class VirtualLoop(asyncio.BaseEventLoop):
    """One run in virtual time. Make it, hand it to the simulated ports, call its `run` once."""

    def __init__(
        self,
        *,
        seed: int,
        wall_start_ns: int = WALL_START_NS,
        deadline_s: float = DEADLINE_S,
        steps_max: int = STEPS_MAX,
        shuffle: bool = False,
    ) -> None:
        self._running = False  # asked for by the constructor of the base
        super().__init__()
        self.seed = seed
        self.wall_start_ns = wall_start_ns
        self.steps = 0
        self._now_ns = 0
        self._deadline_ns = nanoseconds(deadline_s)
        self._steps_max = steps_max
        self._instant = (0, 0)
        """The present moment, and how many callbacks had run when it began."""
        self._failure: SimulationError | None = None
        self._ending = False
        # A string is seeded through SHA-512: the loop's draws have nothing in common with others of the same seed.
        self._chance = random.Random(f"stigmergy.sim.loop/{seed}") if shuffle else None
        self._soon: deque[asyncio.Handle] = deque()
        self._timers = LoopTimers()
        self._task_count = 0
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._tasks_swept_at = TASKS_SWEPT_MIN
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._failures: list[tuple[str, BaseException | None]] = []
        self._failures_dropped = 0
        self._stop_asked = False
        self._held: dict[str, list[asyncio.Handle]] = {}
        """Per actor that is held up, what it would have run meanwhile."""
        self._over = False
        self._owner = threading.get_ident()

    # Time.

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_ns / NS

    def time_ns(self) -> int:
        """Virtual nanoseconds since the loop was made: what clocks count from, free of the rounding of `time`."""
        return self._now_ns

    def pause(self, seconds: float) -> None:
        """Jumps forward, as if the process had been stopped (SIGSTOP, garbage collection, a full host).

        No callback runs in between; timers that became due fire afterwards, in the order of their due times. Everything
        in this loop is paused, so peers that must go on meanwhile need to be modelled by delays of the network.
        """
        if not seconds >= 0:
            raise ValueError(f"pause of {seconds} seconds: time does not go back; jump the wall clock instead")
        self._now_ns += nanoseconds(seconds)

    def hold(self, actor: str) -> None:
        """Holds one actor up until `release`: its callbacks wait, in their order. Its clocks go on."""
        self._held.setdefault(actor, [])

    def release(self, actor: str) -> None:
        """Lets an actor go on: what has waited runs now, before anything that comes later."""
        self._soon.extend(self._held.pop(actor, ()))

    def fail(self, error: SimulationError) -> None:
        """Ends the run with this error before the next callback, whatever the program makes of exceptions."""
        if self._failure is None and not self._ending:
            self._failure = error

    # Scheduling.

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Runs the callback in the next tick, first in, first out."""
        if self._over or get_ident() != self._owner:
            self._check_usable("call_soon")
        handle = _Handle(callback, args, self, copy_context() if context is None else context)
        self._soon.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """The same as call_soon; from another thread it raises NotSimulated."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback when so many virtual seconds have passed."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback at a virtual time; ties run in the order of scheduling."""
        if self._over or get_ident() != self._owner:
            self._check_usable("call_at")
        due_ns = nanoseconds(when)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers.add(due_ns, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers.note_cancelled()

    def create_task(self, coro: Any, *, name: object = None, **options: Any) -> asyncio.Task[Any]:
        """A task whose default name counts from 1 in this loop: asyncio's counter goes on from run to run."""
        self._check_usable("create_task")
        self._task_count += 1
        task: asyncio.Task[Any] = super().create_task(coro, name=name or f"task-{self._task_count}", **options)
        self._tasks[self._task_count] = task
        if len(self._tasks) >= self._tasks_swept_at:
            # A done callback for each task would be simpler, but it would be a fence between wake-ups.
            self._tasks = {number: kept for number, kept in self._tasks.items() if not kept.done() or _unseen(kept)}
            self._tasks_swept_at = max(TASKS_SWEPT_MIN, 2 * len(self._tasks))
        return task

    # Running.

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine to its end, cancels what is left over, closes the loop. See the function `run`."""
        try:
            if asyncio._get_running_loop() is not None:
                coroutine.close()
                raise SimulationError("a loop is running in this thread; start the simulation from synchronous code")
            with _Running(self):
                result = self._run_main(coroutine)
        finally:
            self.close()
        if self._failures:
            raise FailureIgnored(self._failure_text()) from self._failures[0][1]
        return result

    def _run_main(self, coroutine: Coroutine[Any, Any, T]) -> T:
        main: asyncio.Task[T] = self.create_task(coroutine, name="main")
        try:
            while not main.done():
                self._tick()
            result = main.result()
        except BaseException as error:
            self._finish()
            if self._failures:
                error.add_note(self._failure_text())
            raise
        self._finish()
        return result

    def run_forever(self) -> None:
        """Runs until `stop`; for asyncio.Runner and the like. A simulation calls `run`."""
        with _Running(self):
            while not self._stop_asked:
                self._tick()
            self._stop_asked = False

    def stop(self) -> None:
        """Ends run_forever after this tick."""
        self._stop_asked = True

    def is_running(self) -> bool:
        """True between the start and the end of a run."""
        return self._running

    def close(self) -> None:
        """Forgets all callbacks. The loop cannot be used again."""
        super().close()
        self._over = True
        self._soon.clear()
        self._timers.clear()
        self._tasks.clear()
        self._generators.clear()

    def _tick(self) -> None:
        """Runs what is ready; what that makes ready runs in the next tick."""
        if not self._soon:
            self._jump_to_next_timer()
        if self._now_ns > self._deadline_ns:
            limit_s = self._deadline_ns / NS
            raise DeadlineExceeded(self._stuck(f"not done at the deadline of {limit_s:g} virtual seconds"))
        self._check_moment()
        self._soon.extend(self._timers.take_due(self._now_ns, self._chance))
        if self._chance is not None and len(self._soon) > 1:
            self._soon = deque(permute_wakeups(list(self._soon), self._chance))
        soon = self._soon
        for _ in range(len(soon)):
            handle = soon.popleft()
            if handle._cancelled:
                continue
            if self._held:
                waiting = self._held.get(handle._context.get(ACTOR, ""))  # type: ignore[attr-defined]
                if waiting is not None:
                    waiting.append(handle)
                    continue
            if self.steps >= self._steps_max:
                raise StepsExceeded(
                    self._stuck(f"not done after {self.steps} callbacks; find the loop that never waits")
                )
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self.steps += 1
            handle._run()

    def _check_moment(self) -> None:
        """Raises StepsExceeded if time has stood still for too many callbacks, with whose they are."""
        if self._now_ns != self._instant[0]:
            self._instant = (self._now_ns, self.steps)
        elif self.steps - self._instant[1] >= INSTANT_STEPS_MAX:
            last = self._soon[0] if self._soon else None
            actor = "" if last is None else last._context.get(ACTOR, "")  # type: ignore[attr-defined]
            count = f"{actor}: " if actor else ""
            count += f"{INSTANT_STEPS_MAX:,} callbacks at one moment"
            raise StepsExceeded(self._stuck(f"{count}, next {last!r}; find the loop that never waits"))

    def _jump_to_next_timer(self) -> None:
        due_ns = self._timers.next_ns()
        if due_ns is None:
            raise Deadlock(self._stuck("deadlock: nothing is ready and no timer is set"))
        # Not to the timer itself if it is past the deadline, so that the error tells the time at which the run ended;
        # and never back, as a pause may have led past the timer.
        self._now_ns = max(self._now_ns, min(due_ns, self._deadline_ns + 1))

    def _check_usable(self, what: str) -> None:
        if self.is_closed():
            raise RuntimeError(f"{what}: the event loop is closed")
        if threading.get_ident() != self._owner:
            raise NotSimulated(f"{what} from another thread: a simulation has one, or its order is not the seed's")

    # The end of a run.

    def _finish(self) -> None:
        """Cancels leftovers in the order of their creation and lets them end, within CLEANUP_STEPS_MAX callbacks."""
        self._ending = True
        self._failure = None
        self._deadline_ns = NEVER_NS
        self._steps_max = self.steps + CLEANUP_STEPS_MAX
        self._instant = (self._now_ns, self.steps)
        for actor in list(self._held):
            self.release(actor)
        cancelled_upto = 0
        try:
            while pending := self._pending():
                for number, task in pending:
                    if number > cancelled_upto:
                        task.cancel()
                        cancelled_upto = number
                self._tick()
            self._close_generators()
            while self._pending():
                self._tick()
        except (Deadlock, StepsExceeded):
            for _, task in self._pending():
                self._keep_failure(f"{_describe(task)} does not end when it is cancelled", None)
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        for task in self._tasks.values():
            if _unseen(task):
                self._keep_failure(f"{task.get_name()} failed", task.exception())
        self._tasks.clear()

    def _close_generators(self) -> None:
        """Asyncio closes them in the order of a set; here it is the order of their first iteration."""
        for generator in self._generators:
            if _unfinished(generator):
                _ = self.create_task(generator.aclose(), name="close async generator")
        self._generators.clear()

    def _hold_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Held until the end of the run, so that not the garbage collector decides when it is closed."""
        self._generators = [held for held in self._generators if _unfinished(held)]
        self._generators.append(generator)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """What asyncio would only log fails the run: see FailureIgnored."""
        self._keep_failure(str(context.get("message")), context.get("exception"))

    def _keep_failure(self, text: str, error: BaseException | None) -> None:
        if len(self._failures) < FAILURES_KEPT_MAX:
            self._failures.append((text, error))
        else:
            self._failures_dropped += 1

    def _failure_text(self) -> str:
        told = [text if error is None else f"{text}: {error!r}" for text, error in self._failures]
        if self._failures_dropped:
            told.append(f"and {self._failures_dropped} more")
        return f"seed {self.seed}: failures that nobody looked at\n  " + "\n  ".join(told)

    def _pending(self) -> list[tuple[int, asyncio.Task[Any]]]:
        return [(number, task) for number, task in self._tasks.items() if not task.done()]

    def _stuck(self, what: str) -> str:
        tasks = [_describe(task) for _, task in self._pending()]
        if len(tasks) > TASKS_NAMED_MAX:
            tasks[TASKS_NAMED_MAX:] = [f"and {len(tasks) - TASKS_NAMED_MAX} more"]
        listed = "\n  ".join(tasks or ["none"])
        return f"seed {self.seed}, at {self.time():g} virtual seconds: {what}; pending tasks:\n  {listed}"


class _Handle(asyncio.Handle):
    """The same without the questions of the base about debugging: most of what a run does begins here."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: Any, loop: VirtualLoop, context: Context) -> None:
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Running:
    """Tells asyncio which loop runs in this thread while the block lasts."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._hooks = sys.get_asyncgen_hooks()

    def __enter__(self) -> None:
        self._loop._owner = threading.get_ident()
        self._loop._running = True
        sys.set_asyncgen_hooks(firstiter=self._loop._hold_generator, finalizer=None)
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*self._hooks)
        self._loop._running = False


def _unseen(task: asyncio.Task[Any]) -> bool:
    """True if the task failed and nobody has asked for the exception: asyncio tells at collection, too late for us."""
    return task.done() and bool(task._log_traceback)


def _unfinished(generator: AsyncGenerator[Any, Any]) -> bool:
    return getattr(generator, "ag_frame", None) is not None


def _describe(task: asyncio.Task[Any]) -> str:
    """Which task, and at which line of which function it waits."""
    waits: Any = task.get_coro()
    while getattr(getattr(waits, "cr_await", None), "cr_frame", None) is not None:
        waits = waits.cr_await
    frame = getattr(waits, "cr_frame", None)
    if frame is None:
        return task.get_name()
    return f"{task.get_name()} at {waits.__qualname__} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


_REFUSED = """
    run_in_executor set_default_executor getaddrinfo getnameinfo create_connection create_server create_unix_connection
    create_unix_server create_datagram_endpoint connect_accepted_socket start_tls sendfile connect_read_pipe
    connect_write_pipe subprocess_exec subprocess_shell add_reader remove_reader add_writer remove_writer sock_recv
    sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall sock_sendto sock_connect sock_accept
    sock_sendfile add_signal_handler remove_signal_handler
"""


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotSimulated(f"loop.{name}: not in virtual time; reach the world through a port and simulate the port")

    return refuse


for _name in _REFUSED.split():
    setattr(VirtualLoop, _name, _refusal(_name))


# Simulated clocks and randomness: the Clock and Entropy ports over a VirtualLoop and a seed.
#
# A SimClock reads virtual time; it never moves it. Its faults change what one device believes: a wall clock that jumps,
# drifts, stands still or starts in 1970; an oscillator that makes the monotonic clock run fast or slow. The monotonic
# clock never goes back, whatever is done here. Give each simulated device its own clock and its own entropy.

PARTS_PER_MILLION = 1_000_000
DRIFT_PPM_MAX = 500_000
"""Far beyond any oscillator; kept under a million so that the monotonic clock cannot run backwards."""


class _Line:
    """A clock hand: integer nanoseconds that grow from an anchor at a rate close to, or exactly, that of true time."""

    def __init__(self, true_ns: int, value_ns: int) -> None:
        self._true_ns = true_ns
        self._value_ns = value_ns
        self._rate_ppm = PARTS_PER_MILLION

    def read(self, true_ns: int) -> int:
        return self._value_ns + (true_ns - self._true_ns) * self._rate_ppm // PARTS_PER_MILLION

    def set(self, true_ns: int, value_ns: int) -> None:
        self._true_ns, self._value_ns = true_ns, value_ns

    def set_rate(self, true_ns: int, rate_ppm: int) -> None:
        self.set(true_ns, self.read(true_ns))
        self._rate_ppm = rate_ppm


class SimClock:
    """One device's clocks (the Clock port). Without faults: wall = the loop's wall start + virtual time."""

    def __init__(self, loop: VirtualLoop, *, wall_start_ns: int | None = None) -> None:
        self._loop = loop
        now_ns = loop.time_ns()
        start_ns = loop.wall_start_ns + now_ns if wall_start_ns is None else wall_start_ns
        self._wall = _Line(now_ns, start_ns)
        self._monotonic = _Line(now_ns, now_ns)
        self._drift_ppm = 0

    def wall_ns(self) -> int:
        """What the device believes the time to be; never before 1970, as Linux has it."""
        return max(0, self._wall.read(self._loop.time_ns()))

    def monotonic_ns(self) -> int:
        """The loop's virtual time, or what a drifting oscillator makes of it."""
        return self._monotonic.read(self._loop.time_ns())

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward or, with a negative number, back."""
        now_ns = self._loop.time_ns()
        self._wall.set(now_ns, max(0, self._wall.read(now_ns) + round(seconds * NS)))

    def set_wall_ns(self, wall_ns: int) -> None:
        """Sets the wall clock to a time: what NTP or a person with a wrist watch does."""
        self._wall.set(self._loop.time_ns(), wall_ns)

    def boot_in_1970(self) -> None:
        """What a device without a battery for its clock believes after it starts. The monotonic clock goes on."""
        self.set_wall_ns(0)

    def set_drift(self, ppm: int) -> None:
        """From now on the wall clock gains so many microseconds each second; negative: it loses them. Also thaws."""
        self._drift_ppm = _checked_drift(ppm)
        self._wall.set_rate(self._loop.time_ns(), PARTS_PER_MILLION + ppm)

    def set_monotonic_drift(self, ppm: int) -> None:
        """From now on the monotonic clock runs fast or slow against the loop's timers: leases need a margin for it."""
        self._monotonic.set_rate(self._loop.time_ns(), PARTS_PER_MILLION + _checked_drift(ppm))

    def freeze(self) -> None:
        """The wall clock stands still until `thaw`; the monotonic one goes on."""
        self._wall.set_rate(self._loop.time_ns(), 0)

    def thaw(self) -> None:
        """The wall clock goes on from where it stood, at its former drift."""
        self.set_drift(self._drift_ppm)


class SimEntropy:
    """Bytes from a seed (the Entropy port). `stream` tells apart the devices of one seed: "drone/7"."""

    def __init__(self, seed: int, stream: str = "") -> None:
        # A string is seeded through SHA-512, so that neighbouring seeds and streams have nothing in common.
        self._random = random.Random(f"stigmergy.sim.entropy/{seed}/{stream}")

    def token(self, size_bytes: int) -> bytes:
        """So many bytes; the same sequence for the same seed and stream."""
        return self._random.randbytes(size_bytes)


def _checked_drift(ppm: int) -> int:
    if not -DRIFT_PPM_MAX <= ppm <= DRIFT_PPM_MAX:
        raise ValueError(f"drift of {ppm} ppm: at most {DRIFT_PPM_MAX} either way")
    return ppm
