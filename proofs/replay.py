"""Row 8: replay from zero, and snapshot + tail, end in the very state that was lived, whatever happened.

Random histories over the agents of the menagerie: commands, refusals, crashes in every handler, tells within and across
shards, timers, windows, letters retried, agents stopped and resumed, duplicates, gaps, noise, restarts, clocks that go
back, full and incremental snapshots taken in portions while steps go on. After each seal the commit's bytes are applied
to a second state, and the digests of the two are compared; at the end, so is every snapshot with its tail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random

from msgspec import Struct, msgpack

from proofs.menagerie import (
    BIG,
    MENAGERIE,
    NAMES,
    Counted,
    Do,
    Filtered,
    Glimpsed,
    Placed,
    Sampled,
    SampledV1,
    SampledV2,
    Soon,
    unknown_fields,
)
from stigmergy import ActionDone, ActionFailed, Woken
from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.messages import SECOND_NS, Message, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import AgentStopped, InputFailed
from stigmergy.shard.commit import digest_commit, open_commit
from stigmergy.shard.draft import DRAFT_BYTES_MAX, Ready
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import (
    ELSEWHERE,
    Ask,
    Delivery,
    EffectSettled,
    EffectsSettled,
    EnrollSigner,
    Input,
    LetterDropped,
    LetterRetried,
    ResumeAgent,
    RevokeSigner,
    SafeActionOut,
    SequencesSkipped,
    SnapshotStored,
    TimerDue,
)
from stigmergy.shard.outbox import Pending
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import (
    SnapshotWriter,
    digest_of_parts,
    digest_of_state,
    load_agents,
    load_tables,
    read_header,
    tables_of,
)
from stigmergy.shard.state import Limits, ShardState, plan_agents

STEPS_PER_HISTORY = 24
FAILED = spec_of(InputFailed).tag
PLANS = plan_agents(MENAGERIE)
LIMITS = Limits(agents_count_max=14, events_per_decision_max=50)


class HistoriesChecked(Struct, frozen=True):
    """What was checked, for the record."""

    histories: int
    commits: int
    events: int
    failures: int
    snapshots: int
    seconds: float

    def __str__(self) -> str:
        rate = self.histories / self.seconds
        return (
            f"{self.histories} histories with {self.commits} commits, {self.events} events, {self.failures} failed "
            f"inputs and {self.snapshots} snapshots: all replays alike ({rate:.0f} histories/s)"
        )


def check_histories(count: int, seed: int) -> HistoriesChecked:
    """Checks so many histories. Raises AssertionError with the number that repeats the first that goes wrong."""
    began = time.perf_counter()
    commits = events = failures = snapshots = 0
    for number in range(seed, seed + count):
        try:
            history = History(number)
            history.run()
        except Exception as error:
            raise AssertionError(f"history {number}: {error}; repeat it with check_histories(1, {number})") from error
        for lived in history.shards:
            commits += len(lived.log)
            events += lived.shard.state.events_count
            failures += lived.failures
            snapshots += len(lived.stored)
    return HistoriesChecked(count, commits, events, failures, snapshots, time.perf_counter() - began)


class Stored(Struct):
    """A finished snapshot: where it stands, which it adds to, and its parts."""

    position: int
    base: int
    parts: list[bytes]
    digest: bytes


class LivedShard:
    """A shard that lives, a second state that only ever replays its commits, and what a journal would hold."""

    def __init__(
        self, number: int, shards: int, plans: Mapping[str, AgentPlan] = PLANS, limits: Limits = LIMITS
    ) -> None:
        self._plans = plans
        self._limits = limits
        self.shard = Shard(self.new_state(number), Homes(shards))
        self.replica = self.new_state(number)
        self.log: list[bytes] = []
        self.digests = [digest_of_state(self.replica)]
        self.stored: list[Stored] = []
        self.taking: SnapshotWriter | None = None
        self.parts: list[bytes] = []
        self.changed: dict[str, None] = {}
        self.waiting: list[Input] = []
        self.failures = 0

    def new_state(self, number: int) -> ShardState:
        """A state without anything in it."""
        return ShardState(number, self._plans, self._limits)

    def seal(self) -> Ready | None:
        """Seals, and compares a replay of the commit's bytes with what was lived."""
        ready = self.shard.seal()
        if ready is None:
            return None
        body = ready.sealed.body
        self.log.append(body)
        self.failures += sum(tag_of(event) == FAILED for _, event in ready.commit.events)
        apply(self.replica, open_commit(body), digest_commit(body))
        lived, replayed = digest_of_state(self.shard.state), digest_of_state(self.replica)
        if lived != replayed:
            raise AssertionError(f"position {ready.sealed.position}: {difference(self.shard.state, self.replica)}")
        self.digests.append(lived)
        self.changed.update(dict.fromkeys(ready.touched))
        if self.taking is not None:
            self.taking.keep_images(ready.touched)
        return ready

    def restart(self, shards: int) -> None:
        """Goes on from a replay of the log, under a new epoch. A snapshot under way is lost."""
        state = self.from_zero()
        self.shard = Shard(state, Homes(shards))
        self.shard.begin_epoch()
        if self.taking is not None:
            self.taking = None
            self.changed = dict.fromkeys(state.agents)

    def from_zero(self) -> ShardState:
        """The state that a replay of the whole log ends in."""
        state = self.new_state(self.shard.state.shard)
        for body in self.log:
            apply(state, open_commit(body), digest_commit(body))
        return state

    def begin_snapshot(self, *, incremental: bool) -> None:
        """Begins a snapshot right after a seal."""
        base = self.stored[-1].position if incremental and self.stored else 0
        self.taking = SnapshotWriter(self.shard.state, base=base, changed=self.changed if base else None)
        self.parts, self.changed = [], {}

    def take_part(self) -> SnapshotStored | None:
        """Takes one more portion; when there is none, the snapshot is stored and its note is an input."""
        taking = self.taking
        if taking is None:
            return None
        part = taking.next_part(self.shard.open_images)
        if part is not None:
            self.parts.append(part)
            return None
        self.taking = None
        note = taking.note()
        if note.digest != digest_of_parts(self.parts) or note.chain != digest_commit(self.log[note.position - 1]):
            raise AssertionError(f"the note of the snapshot at {note.position} is not about its parts")
        self.stored.append(Stored(taking.position, taking.base, self.parts, note.digest))
        return SnapshotStored(note=note)

    def check_snapshot(self, stored: Stored) -> None:
        """Loads a snapshot with its bases, then the tail of the log."""
        state = self.new_state(self.shard.state.shard)
        by_position = {one.position: one for one in self.stored}
        chain = [stored]
        while chain[-1].base:
            chain.append(by_position[chain[-1].base])
        for one in reversed(chain):
            header = read_header(one.parts[0])
            for part in one.parts[1:]:
                load_agents(state, header, part)
        load_tables(state, read_header(stored.parts[0]).tables)
        if digest_of_state(state) != self.digests[stored.position]:
            raise AssertionError(f"the snapshot at {stored.position} is not the state that was lived")
        for body in self.log[stored.position :]:
            apply(state, open_commit(body), digest_commit(body))
        if digest_of_state(state) != self.digests[-1]:
            raise AssertionError(f"snapshot at {stored.position} + tail: {difference(self.shard.state, state)}")


class History:
    """One random history over one or four shards."""

    draft_bytes_min = DRAFT_BYTES_MAX // 2
    """Of a draft that leaves an input to the next one."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self.shards = [LivedShard(shard, 4) for shard in range(4)] if number % 4 == 0 else [LivedShard(0, 1)]
        self.now_ns = 1_000 * SECOND_NS
        self.sequences: dict[str, int] = {}
        self.owed: list[tuple[int, Pending]] = []
        self.command_ids = 0
        self.pad = "x" * (BIG if self.random.random() < 0.1 else 0)
        self.names = NAMES[: self.random.choice((1, 2, 3, 8))]

    def run(self) -> None:
        """Lives the history, then compares the ways to get back to its end."""
        for _ in range(STEPS_PER_HISTORY):
            for lived in self.shards:
                self._turn(lived)
        for lived in self.shards:
            self._seal(lived)
            while lived.taking is not None:
                lived.take_part()
            for stored in lived.stored[-2:]:
                lived.check_snapshot(stored)
            if digest_of_state(lived.from_zero()) != lived.digests[-1]:
                raise AssertionError(f"replay from zero: {difference(lived.shard.state, lived.from_zero())}")

    def _turn(self, lived: LivedShard) -> None:
        chance = self.random.random
        self.now_ns += int((chance() * 2 - 0.3) * SECOND_NS)
        inputs = [*lived.waiting, *self._due(lived), *(self._input(lived) for _ in range(self.random.randrange(4)))]
        stepped = lived.shard.step(inputs, self.now_ns)
        lived.waiting = stepped.left
        if stepped.left and lived.shard.draft_size_bytes < self.draft_bytes_min:
            raise AssertionError(f"{len(stepped.left)} inputs left though the draft has room")
        if chance() < 0.6 or stepped.left:
            self._seal(lived)
            if chance() < 0.2 and lived.taking is None and lived.log:
                lived.begin_snapshot(incremental=chance() < 0.6)
            elif chance() < 0.05:
                lived.restart(len(self.shards))
        if chance() < 0.7:
            noted = lived.take_part()
            if noted is not None:
                lived.waiting.append(noted)

    def _seal(self, lived: LivedShard) -> None:
        ready = lived.seal()
        if ready is not None:
            self.owed += [(ready.sealed.shard, pending) for pending in ready.owed]
            self._release()

    def _release(self) -> None:
        """Tells become deliveries of the shard they go to; the rest waits for its sink."""
        others: list[tuple[int, Pending]] = []
        for shard, pending in self.owed:
            if not pending.sink.startswith("shard/"):
                others.append((shard, pending))
                continue
            target = self.shards[int(pending.sink.removeprefix("shard/"))]
            to, message = msgpack.decode(pending.body, type=tuple[str, bytes])
            target.waiting.append(Delivery(f"shard/{shard}", [(to, message)], sequence=pending.sequence))
            if target is not self.shards[shard]:
                self.shards[shard].waiting.append(EffectSettled(pending.sink, pending.sequence))
        self.owed = others

    def _due(self, lived: LivedShard) -> list[Input]:
        due = [timer for timer in lived.shard.state.timers.all() if timer.due_ns <= self.now_ns]
        return [TimerDue(timer.agent, timer.name, timer.due_ns) for timer in due[: self.random.randrange(4)]]

    def _input(self, lived: LivedShard) -> Input:
        make = self.random.choices([made for made, _ in _INPUTS], _WEIGHTS)[0]
        return make(self, lived)

    def delivery(self, lived: LivedShard) -> Input:
        """Items of a source, in sequence; now and then repeated, too early, or from an owner who was replaced."""
        source = self.random.choice(("s1", "s2", "s3"))
        key = f"{lived.shard.state.shard} {source}"
        items = [self.item() for _ in range(self.random.randrange(1, 9))]
        first = self.sequences.get(key, 0) + 1
        match self.random.randrange(12):
            case 0:
                first = max(1, first - self.random.randrange(5))
            case 1:
                first += 3
            case 2:
                return Delivery(source, items)
            case 3:
                return Delivery(source, items, sequence=first, epoch=self.random.randrange(2))
            case _:
                pass
        self.sequences[key] = max(self.sequences.get(key, 0), first + len(items) - 1)
        return Delivery(source, items, sequence=first)

    def item(self) -> tuple[str, bytes]:
        """An address and a message for it, or something that is none."""
        noise = self.random.random()
        if noise < 0.02:
            return self.address(), self.random.randbytes(self.random.randrange(12))
        if noise < 0.03:
            return self.random.choice(("", "Nobody/x", "Worker", "Worker/ü", "x" * 300)), self.body("Worker")
        if noise < 0.05:
            return "", ELSEWHERE
        address = self.address()
        return address, self.body(address if noise < 0.95 else "Worker")

    def address(self) -> str:
        """Some agent."""
        kind = self.random.choice(("Worker", "Worker", "Simple", "Simple", "Quiet"))
        return f"{kind}/{self.random.choice(self.names)}"

    def body(self, address: str) -> bytes:
        """The bytes of a message; some as a newer sender writes them, some that only the framework may say."""
        draw = self.random.random()
        if draw < 0.05:
            return unknown_fields(Counted(n=self.number()), colour="red", deep=[[{"a": 1}]])
        if draw < 0.07:
            forged = (AgentStopped(reason="forged"), InputFailed(letter="1", to="", source="", error="", input=b""))
            return encode(self.random.choice(forged))
        return encode(self.message(address))

    def message(self, address: str) -> Message:
        """Some message that an agent of this kind knows."""
        number = self.number()
        if address.startswith("Quiet"):
            return Do(n=number)
        choices = (0, 7, 9) if address.startswith("Simple") else range(13)
        match self.random.choice(choices):
            case 0 | 1:
                return Counted(n=number, pad=self.pad)
            case 2:
                return Do(n=number, to=self.address())
            case 3 | 4:
                return Sampled(metres=float(number), at_s=self.now_ns / SECOND_NS + self.random.randrange(-6, 3))
            case 5:
                return SampledV1(value=number)
            case 6:
                return SampledV2(value=number)
            case 7 | 8:
                x = self.random.choice((0.0, -0.0, 1.0, float(number), float("nan") if number == 7 else 99.0))
                return Placed(x=x, by_now=self.random.random() < 0.2)
            case 9:
                return Soon(n=number)
            case 10:
                return Glimpsed(n=number)
            case 11:
                return Filtered(n=number)
            case _:
                return Woken(name="outside")

    def number(self) -> int:
        """A number that chooses a branch of some handler."""
        return self.random.randrange(24)

    def ask(self, lived: LivedShard) -> Input:
        """A command with an id, sometimes one that was sent before."""
        if self.random.random() < 0.8:
            self.command_ids += 1
        address = f"{self.random.choice(('Worker', 'Worker', 'Quiet'))}/{self.random.choice(self.names)}"
        body = encode(Do(n=self.number(), to=self.address()))
        return Ask(address, f"c{self.command_ids}", body if self.random.random() < 0.9 else self.body(address))

    def settled(self, lived: LivedShard) -> Input:
        """An effect that was carried out or given up; also one that nobody owes."""
        mine = [pending for shard, pending in self.owed if shard == lived.shard.state.shard]
        if not mine or self.random.random() < 0.1:
            return EffectSettled("actuators", self.random.randrange(1, 9))
        if self.random.random() < 0.2:
            return EffectsSettled(mine[0].sink, [pending.sequence for pending in mine[:3]])
        pending = self.random.choice(mine)
        key = f"{pending.position}.{pending.index}"
        results = (
            None,
            encode(ActionDone(action="Move", key=key)),
            encode(ActionFailed(action="Move", key=key, reason="jammed")),
            self.body(pending.agent),
        )
        return EffectSettled(pending.sink, pending.sequence, self.random.choice(results))

    def letter(self, lived: LivedShard) -> Input:
        """A dead letter, retried or dropped; sometimes one that is not there."""
        letters = lived.shard.state.letters.all()
        name = self.random.choice(letters).letter if letters else "0.0.0"
        return LetterRetried(name) if self.random.random() < 0.7 else LetterDropped(name)

    def resume(self, lived: LivedShard) -> Input:
        """A stopped agent goes on."""
        stopped = sorted(lived.shard.state.stopped)
        return ResumeAgent(self.random.choice(stopped) if stopped else "Worker/a", by="operator")

    def skip(self, lived: LivedShard) -> Input:
        """A gap is given up."""
        source = self.random.choice(("s1", "s2", "s3"))
        last = self.sequences.get(f"{lived.shard.state.shard} {source}", 0) + self.random.randrange(4)
        self.sequences[f"{lived.shard.state.shard} {source}"] = last
        return SequencesSkipped(source, 0, self.random.randrange(2), last, because="late")

    def rare(self, lived: LivedShard) -> Input:
        """What happens seldom."""
        key = bytes([self.random.randrange(3)]) * 32
        timer = TimerDue(self.address(), "soon", self.now_ns)
        rare: tuple[Input, ...] = (
            SafeActionOut(self.address(), "Move", because="silent"),
            EnrollSigner(1, key),
            RevokeSigner(1, key, last_position=3),
            timer,
        )
        return self.random.choice(rare)


_INPUTS: tuple[tuple[Callable[[History, LivedShard], Input], int], ...] = (
    (History.delivery, 10),
    (History.ask, 4),
    (History.settled, 3),
    (History.letter, 2),
    (History.resume, 2),
    (History.skip, 1),
    (History.rare, 1),
)
_WEIGHTS = [weight for _, weight in _INPUTS]


def difference(lived: ShardState, other: ShardState) -> str:
    """The first thing in which two states differ, in words."""
    for address in sorted(lived.agents.keys() | other.agents.keys()):
        mine, theirs = lived.agents.get(address), other.agents.get(address)
        if repr(mine) != repr(theirs):
            return f"{address} was {mine!r} and became {theirs!r}"
    ours, tables = tables_of(lived), tables_of(other)
    for name in ours.__struct_fields__:
        if getattr(ours, name) != getattr(tables, name):
            return f"{name} was {getattr(ours, name)!r} and became {getattr(tables, name)!r}"
    return "equal to the eye, but not to the byte"
