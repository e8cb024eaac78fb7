"""What the system says of this process, and what py-spy sees of it; and what is said where it may not look."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest

from stigmergy.app import profiled_process as process
from stigmergy.app.profiled_process import STACKS_BYTES_MAX, sample_stacks, stacks_in
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import written_by_thread

WAIT_S_MAX = 240.0


def is_there(pid: int) -> bool:
    """Whether there is such a process, also one that has ended and that nobody has waited for."""
    return Path(f"/proc/{pid}").exists()


def spin(until: threading.Event) -> None:
    while not until.is_set():
        sum(range(1000))


async def test_py_spy_sees_what_threads_do() -> None:
    over = threading.Event()
    thread = threading.Thread(target=spin, args=(over,), name="spinner")
    thread.start()
    try:
        found = await sample_stacks(1.0)
    finally:
        over.set()
        thread.join()
    assert any("spin (" in stack and "spinner" in stack for stack in found), found
    assert all(count > 0 for count in found.values())


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, 'py-spy is not installed here: pip install "stigmergy[profile]"'),
        (
            "echo 'Permission Denied: try sudo' >&2; exit 1",
            "may not look at this process (Permission Denied: try sudo)",
        ),
    ],
)
async def test_it_is_said_why_there_are_no_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, said: str
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}")
    if program is not None:
        (tmp_path / "py-spy").write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
        (tmp_path / "py-spy").chmod(0o755)
    with pytest.raises(ConfigError) as refused:
        await sample_stacks(1.0)
    assert said in str(refused.value)


async def test_py_spy_ends_with_the_profile_that_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "py-spy").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n", encoding="utf-8")
    (tmp_path / "py-spy").chmod(0o755)
    sampling = asyncio.ensure_future(sample_stacks(50.0))
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    sampling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sampling
    assert not is_there(int((tmp_path / "pid").read_text())), "py-spy goes on, or is a corpse"


def test_rare_stacks_are_added_up_where_an_answer_is_full() -> None:
    long = "x" * (STACKS_BYTES_MAX // 2)
    text = f"py-spy> Sampling\n\n{long};a 5\n{long};b 4\nrare 1\nrarer 1\npy-spy> Wrote it. Samples: 9 Errors: 0\n"
    assert stacks_in(text) == {f"{long};a": 5, "(rare stacks)": 6}
    assert sum(stacks_in("a;b 1\na 2\n").values()) == 3


def test_bytes_for_the_disk_are_counted_by_thread(tmp_path: Path) -> None:
    told: list[dict[str, int]] = []
    written = threading.Event()

    def write() -> None:
        with (tmp_path / "file").open("wb") as file:
            for _ in range(10):
                file.write(b"x" * 8192)
        told.append(written_by_thread("journal "))
        written.set()

    before = written_by_thread()
    thread = threading.Thread(target=write, name="journal test")
    thread.start()
    assert written.wait(WAIT_S_MAX)
    thread.join()
    assert set(told[0]) == {"journal test"}
    if told[0]["journal test"]:  # a file system in memory writes nothing
        assert told[0]["journal test"] >= 10 * 8192
        after = written_by_thread()
        assert sum(after.values()) - sum(before.values()) >= 10 * 8192, (
            "what a thread wrote that has ended stays in the sum"
        )
    assert process.profiled_process().name.startswith("process ")
