"""Journals on a disk: where they are, and the parts of one that an earlier version wrote with `run --processes N`.

    fleet.db/1-of-2.db          the part of the first of two processes; in segments: fleet/1-of-2/

Such a journal is read, never run or written: each part has a fixed range of the shards, and a node has all of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from stigmergy.base.errors import ConfigError

SQLITE = "sqlite:"
SEGMENTS = "segments:"
_ENDINGS = {SQLITE: ".db", SEGMENTS: ""}
_PART = re.compile(r"([1-9]\d{0,2})-of-([1-9]\d{0,2})(\.db)?(?:-mark)?")
"""A part, or its mark: also where a part was taken away, the folder says for how many processes it was made."""


def journal_path(url: str) -> Path | None:
    """The file or folder of a journal; None for one that is neither."""
    for scheme in _ENDINGS:
        if url.startswith(scheme):
            return Path(url.removeprefix(scheme))
    return None


def is_there(url: str) -> bool:
    """Whether there is anything of a journal on a disk: a file that is not empty, or a folder with an identity."""
    path = journal_path(url)
    if path is None:
        return False
    try:
        return (path / "identity").exists() if url.startswith(SEGMENTS) else path.stat().st_size > 0
    except OSError:
        return False


def whole_url(url: str) -> str:
    """The URL of a journal on a disk with its whole path, so that it means the same from everywhere."""
    scheme, path = _split(url)
    return f"{scheme}{path.resolve()}"


def left_beside(url: str) -> list[Path]:
    """What is left beside a journal that says that it was there."""
    _, path = _split(url)
    return [beside for ending in ("-wal", "-mark") if (beside := path.with_name(f"{path.name}{ending}")).exists()]


def shown_url(url: str) -> str:
    """A journal's URL for people: what it says before an @ may be a password."""
    scheme, separator, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return f"{scheme}{separator}{hosts.rpartition('@')[2]}{slash}{path}" if separator else url


def processes_of(url: str) -> int:
    """For how many processes a journal was made; 0 if it is not there, or not in parts."""
    path = journal_path(url)
    if path is None or not path.is_dir():
        return 0
    found = sorted({int(match[2]) for one in path.iterdir() if (match := _PART.fullmatch(one.name))})
    if len(found) > 1:
        raise ConfigError(
            f"{path}: has parts for {found[0]} and for {found[1]} processes; only one of these sets "
            "belongs here: move the other away"
        )
    return found[0] if found else 0


def part_urls(url: str) -> list[str]:
    """The parts of a journal, in order; none of one that is not in parts. Raises ConfigError if one is missing."""
    processes = processes_of(url)
    if not processes:
        return []
    scheme, folder = _split(url)
    paths = [folder / f"{process}-of-{processes}{_ENDINGS[scheme]}" for process in range(1, processes + 1)]
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: this part of the journal is not there; restore a copy of the whole folder")
    return [f"{scheme}{path}" for path in paths]


def is_in_parts(path: Path) -> str | None:
    """The scheme of a journal in parts at this path; None if there is no such."""
    for one in path.iterdir() if path.is_dir() else ():
        if _PART.fullmatch(one.name):
            return SQLITE if any(path.glob("*-of-*.db")) else SEGMENTS
    return None


def check_whole(url: str) -> None:
    """Refuses to run a journal in parts."""
    if processes := processes_of(url):
        raise ConfigError(
            f"{journal_path(url)}: an earlier version wrote it with run --processes {processes}; this version reads it "
            "with log, state, replay and doctor, and does not run it: name another --journal, or share the shards "
            f"between workers with stigmergy up FLEET --workers {processes}"
        )


def check_one_process(processes: int, named: str, fleet: str) -> None:
    """Refuses `run --processes N`, which earlier versions had."""
    if processes != 1:
        raise ConfigError(
            f"{named}: a node is one process; to use more cores, share the fleet's shards between workers: "
            f"stigmergy up {fleet} --workers {processes}"
        )


def check_single(url: str) -> None:
    """Refuses a journal in parts where only one of them can be looked at."""
    if processes := processes_of(url):
        raise ConfigError(
            f"{journal_path(url)}: the journal of {processes} processes, and this looks at one part at a time; name "
            f"each of them, beginning with --journal {_first_part(url, processes)}"
        )


def _first_part(url: str, processes: int) -> str:
    scheme, folder = _split(url)
    return f"{scheme}{folder / f'1-of-{processes}'}{_ENDINGS[scheme]}"


def _split(url: str) -> tuple[str, Path]:
    path = journal_path(url)
    if path is None:
        raise ConfigError(f"journal {url!r}: no journal on a disk; give one like sqlite:fleet.db or segments:fleet")
    return url.partition(":")[0] + ":", path
