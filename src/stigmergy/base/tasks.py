"""Ends tasks reliably: cancels them until they have ended, and names the one that does not.

A task can lose its cancellation. `asyncio.wait_for` of Python 3.11, which client libraries use, drops one that comes at
the moment its awaitable finishes, and some libraries catch CancelledError. So whoever cancels a task and awaits it must
come through here: awaiting a task that was cancelled once can take forever.
"""

from __future__ import annotations

import asyncio
from types import CodeType, FrameType
from typing import Any

from stigmergy.base.errors import Bug

AGAIN_S = 1.5
"""A task is cancelled again after this time. Longer than a task's own cleanup, which a second cancellation would
interrupt: a connection to NATS closes within 1 s."""
TRIES_MAX = 7
"""Counted and not timed: a process that was stopped for a while must not think that its tasks hang."""
FRAMES_MAX = 20


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels these tasks, again if that was lost, and returns when all have ended. Ignores what they raised.

    Raises Bug with the name and the stack of a task that has not ended after TRIES_MAX cancellations. If the caller is
    cancelled meanwhile, this still waits for the tasks, and raises CancelledError afterwards.
    """
    # Also those that have ended: the caller waits for a turn of the loop either way, whatever its tasks did before.
    left = [task for task in tasks if task is not None]
    cancelled: asyncio.CancelledError | None = None
    for _ in range(TRIES_MAX):
        for task in left:
            task.cancel()
        cancelled = await _wait(left) or cancelled
        left = [task for task in left if not task.done()]
        if not left:
            break
    for ended in tasks:
        if ended is not None and ended.done() and not ended.cancelled():
            ended.exception()  # seen, so that asyncio does not report it
    if left:
        raise Bug(
            f"{'; '.join(where(task) for task in left)}: cancelled {TRIES_MAX} times in {TRIES_MAX * AGAIN_S:g} s and "
            "still running; restart this process"
        )
    if cancelled is not None:
        raise cancelled


async def _wait(tasks: list[asyncio.Task[Any]]) -> asyncio.CancelledError | None:
    """Waits until all have ended or AGAIN_S is over. Returns the cancellation of the caller, if one came."""
    if not tasks:
        return None
    loop = asyncio.get_running_loop()
    is_over = False
    waiting = loop.create_future()
    cancelled: asyncio.CancelledError | None = None

    def release(task: asyncio.Task[Any] | None = None) -> None:
        nonlocal is_over
        is_over = is_over or task is None or all(one.done() for one in tasks)
        if is_over and not waiting.done():
            waiting.set_result(None)

    timer = loop.call_later(AGAIN_S, release)
    for task in tasks:
        task.add_done_callback(release)
    while not is_over:
        try:
            await waiting
        except asyncio.CancelledError as error:
            cancelled = error
            waiting = loop.create_future()
    timer.cancel()
    for task in tasks:
        task.remove_done_callback(release)
    return cancelled


def where(task: asyncio.Task[Any]) -> str:
    """The task's name and its stack, outermost first, on one line."""
    frames: list[str] = []
    waits: Any = task.get_coro()
    while waits is not None and len(frames) < FRAMES_MAX:
        code: CodeType | None = getattr(waits, "cr_code", None) or getattr(waits, "gi_code", None)
        frame: FrameType | None = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None)
        if code is None or frame is None:
            break
        file = "/".join(code.co_filename.split("/")[-2:])
        frames.append(f"{file}:{frame.f_lineno} {code.co_name}")
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)
    return f"task {task.get_name()!r} at {' > '.join(frames) or 'its start'}"
