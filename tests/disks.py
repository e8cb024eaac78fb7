"""Disks that are soon full."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A file system in memory that takes so much and no more."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def grow(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """Mounts one here. The test is skipped where that is not allowed."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        why = done.stderr.strip()
    except OSError as error:
        done, why = None, str(error)
    if done is None or done.returncode:
        pytest.skip(f"NOT TESTED ON A FULL DISK: a tmpfs cannot be mounted here ({why}); run as root")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)
