"""What a shard remembers besides its agents: answers, failed inputs, agents that fail too often.

Each table is bounded and changes only with a commit, so a replay produces the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.supervision import FAILURES_COUNT_MAX
from stigmergy.base.command_ids import MILLISECOND_NS, time_ms_of

ANSWERS_COUNT_MAX = 10_000
ANSWERS_AGE_NS_MAX = 24 * 3600 * SECOND_NS
ANSWERS_COUNT_MIN = 1_000
"""So many answers are kept whatever their age: a clock that jumps from 1970 to today must not make us forget them."""
SHARE_COUNT_MAX = 1_000
"""Timed ids of one client to one agent: with one more, the oldest is forgotten and leaves a floor."""
OPAQUE_COUNT_MAX = 5_000
"""Opaque ids in all: with one more that has not expired, the new command is refused. Timed ids have the other half."""
OPAQUE_PER_CLIENT_MAX = 2_500
FLOORS_COUNT_MAX = 10_000
"""Floors per agent and client: with one more, the one raised longest ago becomes the floor of all that have none."""
AHEAD_NS_MAX = 300 * SECOND_NS
"""An id whose time is further ahead of ours counts as opaque: it would lift a floor over all that is to come."""
LETTERS_COUNT_MAX = 1_000
LETTERS_BYTES_MAX = 8 * 1024 * 1024
PASTS_COUNT_MAX = 8
"""Commits that changed a table and may not be on disk yet: one that is stepped, one on its way, and some to spare."""
_T = TypeVar("_T")


class Remembered(Struct, array_like=True, frozen=True):
    """The answer to a command, so that the same command sent again gets the same answer and does nothing.

    An id belongs to the agent that was asked: the same id for another agent is another command.
    """

    agent: str
    command_id: str
    time_ns: int
    position: int
    refused: str | None


class DeadLetter(Struct, array_like=True, frozen=True):
    """An input that failed, kept where it can be looked at, retried or dropped."""

    letter: str
    agent: str
    source: str
    error: str
    input: bytes


Kept = tuple[Remembered, str, bytes]
"""An answer, the client that got it, and the digest of the command; empty if that is not known."""


class _Queue:
    """Answers, oldest first. One that is forgotten elsewhere stays until it is met, or until half of them are such."""

    __slots__ = ("_entries", "_gone", "count")

    def __init__(self) -> None:
        self._entries: list[Kept] = []  # there may be one for each client: a deque alone takes 600 bytes
        self._gone = 0
        self.count = 0

    def add(self, entry: Kept) -> None:
        self._entries.append(entry)
        self.count += 1

    def oldest(self, is_kept: Callable[[Kept], bool]) -> Kept:
        """The oldest that is still kept; there must be one."""
        while not is_kept(self._entries[self._gone]):
            self._gone += 1
        return self._entries[self._gone]

    def drop(self, is_kept: Callable[[Kept], bool]) -> None:
        """One of them was forgotten."""
        self.count -= 1
        if len(self._entries) > 2 * self.count + 16:
            self._entries = [entry for entry in self._entries if is_kept(entry)]
            self._gone = 0


class Answers:
    """The answers of the last 24 hours, so that a repeated command is not done twice. Bounded, with a share for each.

    An id is *timed* (it carries its time, see `command_ids.py`) or *opaque*.

    - Of the timed ids of one client to one agent the newest 1,000 are kept. In all there are 10,000; beyond that the
      client with the most loses its oldest. What is forgotten leaves a *floor* for its agent and client: an unknown id
      that is not newer than the floor is refused, because nobody knows any more whether it was done.
    - An opaque id is never forgotten within 24 hours. Where there are too many of them, it is the new command of that
      client that is refused.

    So no client can make another one's command be done twice. Everything here follows from the answers in the log.
    """

    def __init__(
        self,
        count_max: int = ANSWERS_COUNT_MAX,
        age_ns_max: int = ANSWERS_AGE_NS_MAX,
        count_min: int = ANSWERS_COUNT_MIN,
        share_count_max: int = SHARE_COUNT_MAX,
        opaque_count_max: int = OPAQUE_COUNT_MAX,
        opaque_per_client_max: int = OPAQUE_PER_CLIENT_MAX,
        floors_count_max: int = FLOORS_COUNT_MAX,
    ) -> None:
        self._count_max = count_max
        self._count_min = count_min
        self._age_ns_max = age_ns_max
        self._share_count_max = share_count_max
        self._opaque_count_max = opaque_count_max
        self._opaque_per_client_max = opaque_per_client_max
        self._floors_count_max = floors_count_max
        self._clear()

    def _clear(self) -> None:
        self._answers: dict[tuple[str, str], Kept] = {}
        self._all = _Queue()
        self._opaque = _Queue()
        self._opaque_of: dict[str, _Queue] = {}
        self._timed_of: dict[str, _Queue] = {}
        self._shares: dict[tuple[str, str], _Queue] = {}
        """Timed ids by agent and client."""
        self._largest: list[tuple[int, str]] = []
        """A heap of (-count, client): for each client of timed ids one entry that is not below its count."""
        self._floors: dict[tuple[str, str], int] = {}
        """Per agent and client the newest time of a forgotten id, in ms; the one raised last comes last."""
        self._floor_ms = 0
        """The floor of all agents and clients that are not in the table."""

    def get(self, agent: str, command_id: str) -> Remembered | None:
        """The answer that this agent gave to this command, if it is still remembered."""
        kept = self._answers.get((agent, command_id))
        return None if kept is None else kept[0]

    def is_other(self, agent: str, command_id: str, digest: bytes) -> bool:
        """Whether the command with this id that was answered is known to be another than the one with this digest."""
        kept = self._answers.get((agent, command_id))
        return kept is not None and kept[2] not in (b"", digest)

    def refusal(self, agent: str, client: str, command_id: str, now_ns: int) -> str | None:
        """Why a command whose id is not remembered may not be done; None if it may."""
        time_ms = time_ms_of(command_id)
        if time_ms is not None and not _is_ahead(time_ms, now_ns):
            floor_ms = self._floors.get((agent, client), self._floor_ms)
            if time_ms > floor_ms:
                return None
            return (
                f"too old to know: this id was made at {_shown(time_ms)}, and ids up to {_shown(floor_ms)} are "
                f"forgotten here; nothing was done now. Look whether {agent} did it before, else send it with a new id"
            )
        of_client = self._opaque_of.get(client)
        if of_client is not None and of_client.count >= self._opaque_per_client_max:
            full = of_client
        elif self._opaque.count >= self._opaque_count_max:
            full = self._opaque
        else:
            return None
        if now_ns - full.oldest(self._is_kept)[0].time_ns > self._age_ns_max:
            return None
        whose = "this client" if full is of_client else "clients"
        because = (
            "carry no time" if time_ms is None else f"carry a time that is ahead of this node's, {_shown(time_ms)}"
        )
        remedy = "use ids that carry their time (UUIDv7)" if time_ms is None else "set the sender's clock"
        return (
            f"overloaded: too many unexpired ids: {full.count:,} of {whose} within 24 hours {because}, and none of "
            f"them may be forgotten yet; nothing was done, {remedy}"
        )

    def put(self, answer: Remembered, client: str = "", digest: bytes = b"") -> None:
        """Remembers an answer, and forgets what there is no room for then."""
        key = (answer.agent, answer.command_id)
        if key in self._answers:
            self._forget(self._answers[key], answer.time_ns)
        self._enter((answer, client, digest))
        share = self._shares.get((answer.agent, client))
        if share is not None and share.count > self._share_count_max:
            self._forget(share.oldest(self._is_kept), answer.time_ns)
        self._forget_expired(self._opaque_of.get(client), self._opaque_per_client_max, answer.time_ns)
        self._forget_expired(self._opaque, self._opaque_count_max, answer.time_ns)
        while len(self._answers) > self._count_max:
            # Opaque ids beyond their limit are those of a log that was written before there was one.
            if self._opaque.count > self._opaque_count_max or not self._timed_of:
                self._forget(self._opaque.oldest(self._is_kept), answer.time_ns)
            else:
                self._forget(self._timed_of[self._largest_client()].oldest(self._is_kept), answer.time_ns)

    def prune(self, now_ns: int) -> None:
        """Forgets what is too old, oldest first."""
        while len(self._answers) > self._count_min:
            oldest = self._all.oldest(self._is_kept)
            if now_ns - oldest[0].time_ns <= self._age_ns_max:
                break
            self._forget(oldest, now_ns)

    def all(self) -> list[Remembered]:
        """Every answer, oldest first."""
        return [answer for answer, _, _ in self._answers.values()]

    def clients(self) -> list[str]:
        """Who got each of them; empty if it was always the client without a name."""
        clients = [client for _, client, _ in self._answers.values()]
        return clients if any(clients) else []

    def digests(self) -> list[bytes]:
        """The digest of the command behind each of them; empty if none is known."""
        digests = [digest for _, _, digest in self._answers.values()]
        return digests if any(digests) else []

    def floors(self) -> list[tuple[str, str, int]]:
        """Agent, client and floor, in the order in which they were raised; first, without names, that of all others."""
        others = [("", "", self._floor_ms)] if self._floor_ms else []
        return [*others, *((agent, client, time_ms) for (agent, client), time_ms in self._floors.items())]

    def restore(
        self,
        answers: list[Remembered],
        clients: Sequence[str] = (),
        floors: Sequence[tuple[str, str, int]] = (),
        digests: Sequence[bytes] = (),
    ) -> None:
        """Takes over what a snapshot says."""
        self._clear()
        for number, answer in enumerate(answers):
            self._enter((answer, clients[number] if clients else "", digests[number] if digests else b""))
        for agent, client, time_ms in floors:
            if agent:
                self._floors[agent, client] = time_ms
            else:
                self._floor_ms = time_ms

    def _is_kept(self, entry: Kept) -> bool:
        return self._answers.get((entry[0].agent, entry[0].command_id)) is entry

    def _queues(self, entry: Kept) -> Iterator[tuple[dict[Any, _Queue], Any]]:
        """The tables of queues in which an entry is, with its key in each."""
        answer, client, _ = entry
        time_ms = time_ms_of(answer.command_id)
        if time_ms is None or _is_ahead(time_ms, answer.time_ns):
            yield self._opaque_of, client
        else:
            yield self._timed_of, client
            yield self._shares, (answer.agent, client)

    def _enter(self, entry: Kept) -> None:
        answer, client, _ = entry
        self._answers[answer.agent, answer.command_id] = entry
        self._all.add(entry)
        for queues, key in self._queues(entry):
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = _Queue()
            queue.add(entry)
            if queues is self._opaque_of:
                self._opaque.add(entry)
            elif queues is self._timed_of:
                heappush(self._largest, (-queue.count, client))
        if len(self._largest) > 2 * len(self._timed_of) + 64:
            self._largest = [(-queue.count, client) for client, queue in self._timed_of.items()]
            heapify(self._largest)

    def _forget(self, entry: Kept, now_ns: int) -> None:
        answer, client, _ = entry
        del self._answers[answer.agent, answer.command_id]
        self._all.drop(self._is_kept)
        for queues, key in self._queues(entry):
            queues[key].drop(self._is_kept)
            if not queues[key].count:
                del queues[key]
            if queues is self._opaque_of:
                self._opaque.drop(self._is_kept)
        time_ms = time_ms_of(answer.command_id)
        if time_ms is not None and not _is_ahead(time_ms, now_ns):
            self._raise_floor((answer.agent, client), time_ms)

    def _forget_expired(self, queue: _Queue | None, count_max: int, now_ns: int) -> None:
        while queue is not None and queue.count > count_max:
            oldest = queue.oldest(self._is_kept)
            if now_ns - oldest[0].time_ns <= self._age_ns_max:
                break
            self._forget(oldest, now_ns)

    def _raise_floor(self, key: tuple[str, str], time_ms: int) -> None:
        self._floors[key] = max(self._floors.pop(key, self._floor_ms), time_ms)
        if len(self._floors) > self._floors_count_max:
            self._floor_ms = max(self._floor_ms, self._floors.pop(next(iter(self._floors))))

    def _largest_client(self) -> str:
        """The client with the most timed ids, of several the first by name: so it follows from what is kept alone."""
        while True:
            negated, client = self._largest[0]
            queue = self._timed_of.get(client)
            count = 0 if queue is None else queue.count
            if count == -negated:
                return client
            if count:
                heapreplace(self._largest, (-count, client))
            else:
                heappop(self._largest)


def _is_ahead(time_ms: int, now_ns: int) -> bool:
    """Whether the time of an id says nothing, because the clock of its maker, or ours, is wrong."""
    return time_ms * MILLISECOND_NS > now_ns + AHEAD_NS_MAX


def _shown(time_ms: int) -> str:
    """A time for people; one beyond the year 9999 as a number."""
    try:
        return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


class DeadLetters:
    """The dead letters, oldest first; past the limits the oldest leave the table (the log still has them)."""

    def __init__(self, count_max: int = LETTERS_COUNT_MAX, bytes_max: int = LETTERS_BYTES_MAX) -> None:
        self._letters: dict[str, DeadLetter] = {}
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def put(self, letter: DeadLetter) -> None:
        """Adds a dead letter."""
        self._letters[letter.letter] = letter
        self._bytes += len(letter.input)
        while len(self._letters) > self._count_max or self._bytes > self._bytes_max:
            self.take(next(iter(self._letters)))

    def get(self, letter: str) -> DeadLetter | None:
        """The dead letter, if it is there."""
        return self._letters.get(letter)

    def take(self, letter: str) -> None:
        """Removes a dead letter that was retried or dropped."""
        taken = self._letters.pop(letter, None)
        if taken is not None:
            self._bytes -= len(taken.input)

    def all(self) -> list[DeadLetter]:
        """Every dead letter, oldest first."""
        return list(self._letters.values())

    def restore(self, letters: list[DeadLetter]) -> None:
        """Takes over what a snapshot says."""
        self._letters = {letter.letter: letter for letter in letters}
        self._bytes = sum(len(letter.input) for letter in letters)


class Pasts(Generic[_T]):
    """A table as it was before each of the last commits that changed it: as long as those are not on disk, that is
    what is, and what people are shown."""

    def __init__(self) -> None:
        self._pasts: dict[int, _T] = {}

    def keep(self, position: int, copy: Callable[[], _T]) -> None:
        """The table is about to be changed by the commit at this position; later changes by it find it kept."""
        if position not in self._pasts:
            self._pasts[position] = copy()
            if len(self._pasts) > PASTS_COUNT_MAX:
                del self._pasts[next(iter(self._pasts))]

    def at(self, position: int, now: Callable[[], _T]) -> _T:
        """The table as the commit at this position left it: as it was before the first change after it, or is now."""
        for changed_at, past in self._pasts.items():
            if changed_at > position:
                return past
        return now()


class Failures:
    """When inputs of an agent failed lately, for its supervision."""

    def __init__(self) -> None:
        self._times: dict[str, list[int]] = {}

    def add(self, agent: str, now_ns: int, within_s: float) -> None:
        """Notes one more failure; those before the time are forgotten."""
        since_ns = now_ns - int(within_s * SECOND_NS)
        times = [time_ns for time_ns in self._times.get(agent, []) if time_ns > since_ns]
        self._times[agent] = [*times, now_ns][-FAILURES_COUNT_MAX:]

    def lately(self, agent: str, now_ns: int, within_s: float) -> int:
        """How many failures there were within the time."""
        since_ns = now_ns - int(within_s * SECOND_NS)
        return sum(1 for time_ns in self._times.get(agent, []) if time_ns > since_ns)

    def forget(self, agent: str) -> None:
        """Starts counting anew."""
        self._times.pop(agent, None)

    def all(self) -> list[tuple[str, list[int]]]:
        """Every agent with failures, in a fixed order."""
        return sorted(self._times.items())

    def restore(self, times: list[tuple[str, list[int]]]) -> None:
        """Takes over what a snapshot says."""
        self._times = dict(times)
