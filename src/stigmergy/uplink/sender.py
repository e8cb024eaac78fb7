"""The uplink of a node: sends its journal by a rule, starting from the receiver's own marks.

It asks the receiver how far it is, sends what follows, and trusts only the marks it gets: that a broker has a batch
proves nothing. When a link, the receiver or this node is back after a break, it asks again. A bounded number of batches
is in flight; while the link is down nothing is read and nothing is sent. Reading and packing take at most a fifth of
the node's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import structs

from stigmergy.agents.codec import describe
from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.raw import UPLINK
from stigmergy.base.errors import DataLost, LinkDown, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.node.host import Host
from stigmergy.node.settings import UplinkSettings
from stigmergy.uplink.lane import Lane
from stigmergy.uplink.messages import Inquiry, Told, Up, UplinkMark, UplinkStatus, read_told, write_message
from stigmergy.uplink.names import UplinkSource
from stigmergy.uplink.rules import SieveCounters, UplinkRule, named_in

REST_FACTOR = 4
"""After reading and packing for a while it rests this many times as long."""
QUIET_TRIES = 20
QUIET_PAUSE_S = 0.001
UNSENT_SHARE = 4
"""A full device drops a quarter of the unsent log at a time."""


class UplinkCounters(SieveCounters):
    """What was sent since the start."""

    uplink_batches: int = 0
    uplink_bytes: int = 0
    uplink_inquiries: int = 0
    uplink_timeouts: int = 0
    uplink_refused: int = 0
    """Times that the receiver refused a batch."""


class Uplink:
    """Sends. `start` before the bus opens, `link` when the link comes or goes, `stop` at the end."""

    def __init__(
        self, bus: Bus, host: Host, sender: UplinkSource, rule: UplinkRule, settings: UplinkSettings, run: str
    ) -> None:
        self._bus = bus
        self._host = host
        self._sender = sender
        self._settings = settings
        self._run = run
        self.rule = rule
        self.counters = UplinkCounters()
        shards, live = host.journal.identity.owned, host.shards.reading
        host.raw.check(UPLINK, named_in(rule))
        stays = partial(host.raw.stays, door=UPLINK)
        self._lanes = [Lane(host.journal, shard, rule, self.counters, live, stays) for shard in shards]
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asked = 0
        self._nonce = ""
        self._answer: Told | None = None
        self._receiver = ""
        self._receiver_run = ""
        self._other_run = False
        """The receiver has restarted since it answered."""
        self._refused = ""
        self._behind = False
        """Whether there is more in the log than was read."""
        self._heard_ns = 0
        self._pause_s = settings.pause_s
        self._trouble = ""

    async def start(self) -> None:
        """Subscribes to the receiver's answers, and begins when the link is up."""
        await self._bus.subscribe(self._sender.marks_topic, self._hear)
        self._task = asyncio.ensure_future(self._live())

    def link(self, up: bool) -> None:
        """The link came up or was lost."""
        if up:
            self._pause_s = self._settings.pause_s
        self._woken.set()

    async def stop(self) -> None:
        """Sends nothing more. The next run sends what is not confirmed."""
        task, self._task = self._task, None
        await end_tasks(task)

    # ------------------------------------------------------------------ status

    def standing(self) -> UplinkStatus:
        """How far behind the receiver is."""
        states = [shard.state for shard in self._host.shards]
        behind = [
            (state.position - lane.confirmed_position, state.time_ns - (lane.confirmed_ns or state.time_ns))
            for state, lane in zip(states, self._lanes, strict=True)
            if state.position > lane.confirmed_position
        ]
        troubles = [self._trouble, self._refused, *(lane.trouble for lane in self._lanes)]
        return UplinkStatus(
            to=self._receiver,
            commits_behind=sum(commits for commits, _ in behind),
            seconds_behind=max((age_ns for _, age_ns in behind), default=0) / SECOND_NS,
            under_way=self._under_way,
            lost_commits=sum(lane.lost_commits for lane in self._lanes),
            trouble=next((trouble for trouble in troubles if trouble), ""),
        )

    def floor(self, shard: int) -> int:
        """The last position of a shard that is no longer needed: none before the receiver has answered."""
        return self._lanes[shard].floor

    def spare(self, shard: int, first: int, upto: int) -> int:
        """How far retention may drop if the device needs room: first what is not needed, then, by rule, the rest."""
        floor = min(upto, self.floor(shard))
        if self.rule.when_full == "hold" or floor >= first:
            return floor
        return min(upto, first + (upto - first) // UNSENT_SHARE)

    # ------------------------------------------------------------------ the task

    async def _live(self) -> None:
        while self._host.failure is None:
            try:
                await self._wait_link()
                await self._begin(await self._ask())
                await self._send()
            except LinkDown:
                pass
            except StigmergyError as error:
                # The journal cannot be read. The node itself reports more; here nothing wrong is sent.
                self._trouble = str(error)
            except Exception as error:
                # Not one of our errors: a failing driver, or a bug. The agents go on, and the status reports it.
                self._trouble = describe(error)
            await self._rest()

    async def _rest(self) -> None:
        """A pause that grows while nothing is confirmed."""
        await self._wait(lambda: False, self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._settings.pause_s_max)

    async def _wait_link(self) -> None:
        while not self._bus.is_up:
            await self._wait(lambda: self._bus.is_up, self._settings.pause_s_max)

    async def _ask(self) -> Told:
        """Asks until there is an answer. Raises LinkDown when the link goes."""
        self._asked += 1
        self._nonce = f"{self._run}.{self._asked}"
        self._answer = None
        pause_s = self._settings.pause_s
        while True:
            self.counters.uplink_inquiries += 1
            await self._say(Inquiry(self._nonce))
            await self._wait(lambda: self._answer is not None or not self._bus.is_up, pause_s)
            answer: Told | None = self._answer
            if answer is not None:
                return answer
            pause_s = min(2 * pause_s, self._settings.pause_s_max)

    async def _begin(self, told: Told) -> None:
        """Resumes at the receiver's marks."""
        self._receiver, self._receiver_run = told.receiver, told.run
        self._other_run = False
        self._refused = self._trouble = ""
        marks: dict[int, dict[int, UplinkMark]] = {}
        for mark in told.marks:
            marks.setdefault(mark.shard, {})[mark.incarnation] = mark
        heads = self._heads()
        for lane in self._lanes:
            lane.trouble = ""
            epoch, now_ns = self._host.shards[lane.shard].epoch, self._now_ns()
            try:
                for _ in lane.resume(marks.get(lane.shard, {}), heads.get(lane.shard, 0), epoch, now_ns):
                    await self._give_way(now_ns)
                    now_ns = self._now_ns()
            except DataLost as error:
                lane.trouble = str(error)
        self._heard_ns = self._now_ns()

    async def _send(self) -> None:
        """Sends until something is wrong; then it has to ask again."""
        while self._host.failure is None:
            if self._other_run or self._refused or self._is_overdue():
                return
            heads = self._heads()
            busy = False
            for lane in self._lanes:
                if not lane.trouble and self._under_way < self._settings.batches_max:
                    busy |= await self._advance(lane, heads.get(lane.shard, 0))
            self._behind = any(not lane.trouble and not lane.at_head(heads.get(lane.shard, 0)) for lane in self._lanes)
            if not busy:
                if not self._bus.is_up:
                    raise LinkDown("the link is down; what is not confirmed is sent again when it is up")
                await self._wait(self._is_news, self._settings.linger_s)

    async def _advance(self, lane: Lane, head: int) -> bool:
        """Reads on and sends a batch if there is enough for one, or nothing more to read."""
        await self._wait_quiet()
        began_ns = self._now_ns()
        full = self._settings.batch_bytes_max
        read = lane.queued_bytes < full and lane.fill(head)
        batch = None
        if lane.queued_bytes >= full or lane.at_head(head) or not read:
            epoch = self._host.shards[lane.shard].epoch
            pass_due_ns = int(self._settings.pass_every_s * SECOND_NS)
            batch = lane.cut(epoch, full, began_ns, pass_due_ns=pass_due_ns)
        if batch is not None:
            self.counters.uplink_batches += 1
            await self._say(batch)
        await self._give_way(began_ns)
        return read or batch is not None

    async def _wait_quiet(self) -> None:
        """Waits a while for a write under way: reading would block on it, and the agents with it."""
        for _ in range(QUIET_TRIES):
            if not self._host.committer.in_doubt:
                return
            await asyncio.sleep(QUIET_PAUSE_S)

    async def _give_way(self, began_ns: int) -> None:
        await asyncio.sleep(REST_FACTOR * (self._now_ns() - began_ns) / SECOND_NS)

    async def _say(self, message: Up) -> None:
        payload = write_message(message)
        self.counters.uplink_bytes += len(payload)
        try:
            async with asyncio.timeout(self._settings.answer_within_s):
                await self._bus.publish(BusMessage(self._sender.topic, payload))
        except TimeoutError:
            raise LinkDown("the broker accepts nothing, although the link is up") from None

    # ------------------------------------------------------------------ answers

    async def _hear(self, message: BusMessage) -> None:
        told = read_told(message.payload)
        if told.nonce:
            if told.nonce == self._nonce and self._answer is None:
                self._answer = told
        elif told.receiver != self._receiver:
            if self._receiver:
                self._trouble = f"{told.receiver} and {self._receiver} both collect this uplink; let one of them do so"
        elif told.run != self._receiver_run:
            self._other_run = True
        else:
            self._heed(told.marks)
            if told.refused:
                self.counters.uplink_refused += 1
                self._refused = f"{told.receiver} refused a batch: {told.refused}"
        self._woken.set()

    def _heed(self, marks: Sequence[UplinkMark]) -> None:
        for mark in marks:
            if mark.shard < len(self._lanes) and self._lanes[mark.shard].confirm(mark.incarnation, mark.number):
                self._heard_ns = self._now_ns()
                self._pause_s = self._settings.pause_s

    # ------------------------------------------------------------------ time

    @property
    def _under_way(self) -> int:
        return sum(len(lane.flights) for lane in self._lanes)

    def _is_news(self) -> bool:
        """Whether there is something to do before the time is over: room for a batch, or something wrong."""
        free = self._under_way < self._settings.batches_max
        waits = self._behind or any(lane.queued_bytes for lane in self._lanes)
        return bool(self._other_run or self._refused or not self._bus.is_up or (free and waits))

    def _is_overdue(self) -> bool:
        """Whether to ask the receiver for its position: it confirms nothing, or there was nothing to confirm."""
        sent_ns = [lane.flights[0].sent_ns for lane in self._lanes if lane.flights]
        if not sent_ns:
            return self._now_ns() - self._heard_ns > int(self._settings.ask_every_s * SECOND_NS)
        since_ns = max(min(sent_ns), self._heard_ns)
        overdue = self._now_ns() - since_ns > int(self._settings.answer_within_s * SECOND_NS)
        self.counters.uplink_timeouts += overdue
        return overdue

    async def _wait(self, over: Callable[[], bool], within_s: float) -> None:
        """Waits until `over` is true, or the time is up."""
        try:
            async with asyncio.timeout(within_s):
                while not over():
                    self._woken.clear()
                    await self._woken.wait()
        except TimeoutError:
            pass

    def _heads(self) -> dict[int, int]:
        return {head.shard: head.position for head in self._host.journal.heads()}

    def _now_ns(self) -> int:
        return self._host.clock.monotonic_ns()

    def counted(self) -> dict[str, int]:
        """Counters and current values, for the node."""
        standing = self.standing()
        gauges = {"uplink_commits_behind": standing.commits_behind, "uplink_lost_commits": standing.lost_commits}
        return {**structs.asdict(self.counters), **gauges}
