"""Ends tasks for sure.

On Python 3.11 a cancellation is lost in `asyncio.wait_for`, which client libraries use, if what was waited for has come
at the same moment. A task that was told once may go on for ever; so it is told until it has ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 0.05


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancels a task, and again if that was lost; returns when it has ended. What it raised is not ours to tell."""
    while task is not None and not task.done():
        task.cancel()
        ending = asyncio.get_running_loop().time() + AGAIN_S
        await asyncio.sleep(0)
        while not task.done() and asyncio.get_running_loop().time() < ending:  # noqa: ASYNC110 - it may not heed us
            await asyncio.sleep(0.001)
    if task is not None and not task.cancelled():
        task.exception()
