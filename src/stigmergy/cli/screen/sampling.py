"""Looks at a running node again and again, through one connection, and works out what changes each second.

A node that is not there, or not any more, is not an error here: a look says so, and the next one tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from msgspec import Struct, structs

from stigmergy.cli.places import ClusterPlace, Place
from stigmergy.core.errors import NotRunning, StigmergyError
from stigmergy.doors import ClusterClient
from stigmergy.runtime.protocol import AnyRequest, Letters, Log, Status, read_reply, write_request
from stigmergy.wiring import ControlClient

ANSWER_S_MAX = 10.0
"""A node that takes longer counts as one that does not answer."""


class Seen(Struct, frozen=True):
    """One look at a node. Without a status it does not run or does not answer, and `why` says more."""

    at_s: float
    status: dict[str, Any] | None = None
    why: str = ""
    events_per_s: float | None = None
    """None where it is not known yet: rates need two looks at the same process."""
    commits_per_s: float | None = None
    cpu_percent: float | None = None
    counters_per_s: dict[str, float] = {}
    last: list[dict[str, Any]] = []
    """The last entries of the log, oldest first."""
    letters: list[dict[str, Any]] = []


class Sampler:
    """Looks at the node that `find` finds; it raises NotRunning where there is none."""

    def __init__(
        self,
        find: Callable[[], Place],
        *,
        answer_s_max: float = ANSWER_S_MAX,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._answer_s_max = answer_s_max
        self._now_s = now_s
        self._client: ControlClient | ClusterClient | None = None
        self._before: Seen | None = None

    def look(self, *, last: int = 0, letters: bool = False) -> Seen:
        """Looks once; if asked, with the last entries of the log, and with the dead letters."""
        try:
            seen = self._look(last, letters)
        except StigmergyError as error:
            self.close()
            self._before = None
            return Seen(self._now_s(), why=str(error))
        self._before = seen
        return seen

    def close(self) -> None:
        """Ends the connection; the next look makes another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _look(self, last: int, letters: bool) -> Seen:
        client = self._client
        if client is None:
            client = self._client = _connect(self._find(), self._answer_s_max)
        (status,) = _asked(client, Status())
        if _is_on_workers(status) and all(one["pid"] is None for one in status["processes"]):
            raise NotRunning(f"no worker of the fleet {status['fleet']!r} answers at {status['journal']}")
        seen = _compared(Seen(self._now_s(), status), self._before)
        return structs.replace(
            seen,
            last=_asked(client, Log(limit=last)) if last else [],
            letters=_asked(client, Letters()) if letters else [],
        )


def _connect(place: Place, answer_s_max: float) -> ControlClient | ClusterClient:
    if isinstance(place, ClusterPlace):
        return ClusterClient(place.url, place.fleet, timeout_s=answer_s_max)
    return ControlClient(place, timeout_s=answer_s_max)


def _is_on_workers(status: dict[str, Any]) -> bool:
    """Whether it is that of a fleet on several workers: those have no process, and no time, in common."""
    return status["pid"] is None


def _asked(client: ControlClient | ClusterClient, request: AnyRequest) -> list[Any]:
    """The answer to a request, or all the items of one."""
    items: list[Any] = []
    # Closed by us, not by being forgotten: a Ctrl-C while Python tidies up a generator goes unheard.
    with closing(client.ask(write_request(request))) as lines:
        for line in lines:
            reply = read_reply(line)
            if reply.ok is not None:
                return [reply.ok]
            if reply.end is not None:
                break
            items.append(reply.item)
    return items


def _compared(seen: Seen, before: Seen | None) -> Seen:
    """What changed each second since the look before, if that was at the same process."""
    now, then = seen.status, None if before is None else before.status
    if now is None or then is None or before is None or now["pid"] != then["pid"]:
        return seen
    # By the node's own clock: it may have been busy between our asking and its answering.
    took_s = seen.at_s - before.at_s if _is_on_workers(now) else now["up_s"] - then["up_s"]
    counters = then["counters"]
    if took_s <= 0 or now["cpu_s"] < then["cpu_s"] or now["events"] < then["events"]:
        return seen  # another process; or a shard has moved to one, and counts from its start
    return structs.replace(
        seen,
        events_per_s=(now["events"] - then["events"]) / took_s,
        commits_per_s=(now["commits"] - then["commits"]) / took_s,
        cpu_percent=100 * (now["cpu_s"] - then["cpu_s"]) / took_s,
        counters_per_s={name: (count - counters.get(name, 0)) / took_s for name, count in now["counters"].items()},
    )
