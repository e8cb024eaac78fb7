"""What the system says of this process, for a profile: processor time, bytes written, stacks as py-spy sees them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from stigmergy.base.errors import ConfigError
from stigmergy.base.system import written_by_thread
from stigmergy.node.profiling import ProcessReadings

STACKS_BYTES_MAX = 512 * 1024
"""Of an answer; beyond that the rare ones are added up."""
HOW = ("--format", "raw", "--output", "/dev/stdout", "--nonblocking", "--nolineno", "--threads", "--rate", "100")


def profiled_process(name: str = "") -> ProcessReadings:
    """This process, on Linux."""

    def cpu_ns() -> tuple[int, int]:
        return time.process_time_ns(), time.thread_time_ns()

    name = name or f"process {os.getpid()}"
    return ProcessReadings(name, time.perf_counter_ns, cpu_ns, written_by_thread, sample_stacks)


async def sample_stacks(seconds: float) -> dict[str, int]:
    """Has py-spy look at us, if the system lets it. It reads our memory, and does not stop us for that."""
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise ConfigError('py-spy is not installed here: pip install "stigmergy[profile]"')
    whom = ("--pid", str(os.getpid()), "--duration", str(max(1, round(seconds))))
    spy = await asyncio.create_subprocess_exec(program, "record", *whom, *HOW, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        found, said = await spy.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            spy.kill()
        await spy.wait()  # or it stays as a zombie
        raise
    if spy.returncode != 0:
        reason = " ".join(said.decode(errors="replace").split())
        raise ConfigError(f"py-spy may not look at this process ({reason[:100]})")
    return stacks_in(found.decode(errors="replace"))


def stacks_in(text: str) -> dict[str, int]:
    """The stacks that py-spy has written, most frequent first, as many as an answer takes."""
    said = [line for line in text.splitlines() if line[-1:].isdigit() and not line.startswith("py-spy> ")]
    lines = [line.rpartition(" ") for line in said]
    found: dict[str, int] = {}
    room_bytes = STACKS_BYTES_MAX
    for stack, _, count in sorted(lines, key=lambda one: -int(one[2])):
        room_bytes -= len(stack.encode())
        name = stack if room_bytes > 0 else "(rare stacks)"
        found[name] = found.get(name, 0) + int(count)
    return found
