"""Asks the owner of a shard again while the shard moves, within a bound, and only where asking twice is harmless.

A shard that was handed over or taken over answers elsewhere a moment later. Commands have an id, so a repetition gets
the same answer; queries change nothing. An observation has no id: it is sent again only if nobody received it the first
time, or the receiver says that it took nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from stigmergy.base.errors import JournalConflict, JournalUnknown, LinkDown, NotOwned, NotRunning, StigmergyError
from stigmergy.control import protocol
from stigmergy.control.protocol import read_refusal, write_request

MOVED_S_MAX = 15.0
"""A shard that moves answers again within this, also where a server that led its log was killed."""
LOOK_S_MAX = 1.0
"""Who looks at a fleet is told that a shard does not answer, rather than made to wait."""
NOBODY_S_MAX = 3.0
"""If nobody answers for any shard, probably no worker runs, and the caller is told sooner."""
PAUSE_S = 0.05
PAUSE_S_MAX = 0.5
"""Between two attempts; it doubles up to the larger."""
MOVED = (NotOwned, NotRunning, JournalConflict, JournalUnknown, LinkDown)
"""What a former owner says."""
UNTAKEN = (NotOwned, NotRunning)
"""Of these, what an owner says before it has taken an observation, and never after: it may be said again."""
RETRYABLE = (
    protocol.SendRequest,
    protocol.ObserveRequest,
    protocol.StateRequest,
    protocol.ResumeRequest,
    protocol.EnrollAgentsRequest,
    protocol.EnrolRequest,
)
"""Requests for which somebody waits until the shard has arrived."""


class LineClient(Protocol):
    """A transport to the owner of a shard."""

    def ask(self, request: bytes) -> AsyncIterator[bytes]:
        """The lines that answer a line, as they come. Raises NotRunning where nobody answers."""
        ...


class RetryingClient:
    """A branch that is asked again while nobody, or only an owner of the past, answers there."""

    def __init__(
        self,
        branch: LineClient,
        is_anybody_there: Callable[[], Awaitable[bool]],
        *,
        moved_s_max: float = MOVED_S_MAX,
        look_s_max: float = LOOK_S_MAX,
    ) -> None:
        """`is_anybody_there` says whether somebody answers for any shard at all."""
        self._branch = branch
        self._is_anybody_there = is_anybody_there
        self._moved_s_max = moved_s_max
        self._look_s_max = look_s_max

    def ask(self, request: protocol.Request[Any]) -> AsyncIterator[bytes]:
        """The lines that answer a request, as they come. Raises NotRunning once the time is over."""
        within_s = self._moved_s_max if isinstance(request, RETRYABLE) else self._look_s_max
        moved = MOVED if _is_repeatable(request) else UNTAKEN if isinstance(request, protocol.ObserveRequest) else ()
        return _RetriedRequest(self._branch, self._is_anybody_there, write_request(request), within_s, moved)


def _is_repeatable(request: protocol.Request[Any]) -> bool:
    """Whether asking twice is as good as asking once."""
    match request:
        case protocol.SendRequest():
            return request.command_id is not None
        case (
            protocol.ObserveRequest()
            | protocol.RetryRequest()
            | protocol.DropRequest()
            | protocol.EnrolRequest()
            | protocol.RevokeRequest()
        ):
            return False
        case _:
            return True


class _RetriedRequest:
    """One request: its first line may take several attempts, the others come as they come."""

    def __init__(
        self,
        branch: LineClient,
        is_anybody_there: Callable[[], Awaitable[bool]],
        request: bytes,
        within_s: float,
        moved: tuple[type[StigmergyError], ...],
    ) -> None:
        """`moved` are the answers upon which it is asked again."""
        self._branch = branch
        self._is_anybody_there = is_anybody_there
        self._request = request
        self._began_s = asyncio.get_running_loop().time()
        self._within_s = within_s
        self._moved = moved
        self._lines: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> _RetriedRequest:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await (self._first() if self._lines is None else anext(self._lines))
        except LinkDown as error:
            raise NotRunning(f"the connection broke while the answer came ({error}); ask again") from None

    async def aclose(self) -> None:
        """Wants no more lines."""
        close = getattr(self._lines, "aclose", None)
        if close is not None:
            await close()

    async def _first(self) -> bytes:
        pause_s = PAUSE_S
        while True:
            lines = self._branch.ask(self._request)
            self._lines = lines
            try:
                line = await anext(lines)
                error = _refusal(line, self._moved)
                if error is None:
                    return line
            except NotRunning as nobody:
                error = nobody
            except LinkDown as broke:
                if LinkDown not in self._moved:
                    raise NotRunning(f"{broke}; whether it was taken is unknown, and it is not said twice") from None
                error = broke
            await self.aclose()
            passed_s = asyncio.get_running_loop().time() + pause_s - self._began_s
            if passed_s > self._within_s or (passed_s > NOBODY_S_MAX and not await self._is_anybody_there()):
                raise NotRunning(str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)


def _refusal(line: bytes, moved: tuple[type[StigmergyError], ...]) -> StigmergyError | None:
    """What the line refuses with, if that is one of these: it only says that the shard is elsewhere by now."""
    error = read_refusal(line)
    return error if isinstance(error, moved) else None
