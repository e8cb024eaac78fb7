"""Steps a shard: inputs in, one commit out. Pure. Persist the commit before answering anybody or releasing an effect.

    stepped = shard.step(inputs, now_ns)   decide, evolve, react; adds to the open draft
    ready = shard.seal()                   closes the draft: 1. persist  2. then answer  3. then release

The rules, in the order in which they bite:

- The events of one `decide` are collected against the unchanged state, then evolved and reacted to one by one.
- A refusal or an exception keeps none of that input's events, and the agent is as it was before. Refusals are kept, so
  that a command sent again gets the same answer. An exception keeps `InputFailed`, moves the mark, and puts the input
  into the dead letters; supervision may stop the agent.
- A tell arrives in a later step, also when an agent tells itself.
- What a source repeats is passed over (marks), a command asked again gets the old answer (answers), effects settled
  twice and timers that no longer exist are passed over.
- Time never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from msgspec import Raw, Struct

from stigmergy.core.agent import step_time_ns
from stigmergy.core.codec import encode
from stigmergy.core.commit import Commit, MarkMoved, Sealed, Settled, seal
from stigmergy.core.draft import DRAFT_BYTES_MAX, NEVER_NS, Draft
from stigmergy.core.effects import Woken, shard_sink
from stigmergy.core.errors import PeerError
from stigmergy.core.handling import Handling
from stigmergy.core.inputs import (
    Accepted,
    Ask,
    Delivery,
    EffectSettled,
    EnrollSigner,
    Input,
    LetterDropped,
    LetterRetried,
    Refused,
    ResumeAgent,
    RevokeSigner,
    SafeActionOut,
    SequencesSkipped,
    SnapshotStored,
    TimerDue,
    Verdict,
)
from stigmergy.core.messages import SECOND_NS, Message
from stigmergy.core.outbox import Pending
from stigmergy.core.state import ShardState
from stigmergy.core.supervision import (
    SHARD_ADDRESS,
    AgentResumed,
    InputsSkipped,
    LetterTaken,
    SafeActionTaken,
    SignerEnrolled,
    SignerRevoked,
)
from stigmergy.core.timers import WINDOW_PREFIX, Timer

MARKS_WAIT_NS = SECOND_NS
"""Marks and settlements alone may wait this long for the disk: a crash before it means that they are repeated."""


class Stepped(Struct, frozen=True):
    """What a step asks of the host: how long the draft may stay open, and what to step again after sealing."""

    wait_ns: int | None
    left: list[Input]
    repeats: list[tuple[str, Verdict, int]]
    """Commands that were answered before: id, the same answer, and the position that must be durable to give it."""
    fresh: list[tuple[str, type[Message] | None]]
    """Agents with staleness rules that are new (None) or got an event that a rule waits for."""


class Ready(Struct, frozen=True):
    """A sealed commit. First persist `sealed`; only then tell `verdicts`, release `owed`, schedule `timers`."""

    sealed: Sealed
    commit: Commit
    verdicts: list[tuple[str, Verdict]]
    owed: list[Pending]
    timers: list[tuple[Timer, int]]
    """Timers that were set, each with the time of the step that set it."""
    stopped: list[str]
    """Agents that supervision has stopped: their safe actions are due."""
    touched: dict[str, Any]
    """Agents as they were before this commit; what a query sees until it is durable."""


class Shard:
    """The agents that one owner steps, in order."""

    def __init__(self, state: ShardState, shards: int = 1) -> None:
        self.state = state
        self._own_sink = shard_sink(state.shard)
        self._draft = Draft(state.position + 1)
        self._handling = Handling(state, shards)
        self._now_ns = state.time_ns
        self._repeats: list[tuple[str, Verdict, int]] = []

    @property
    def counters(self) -> Any:
        """What was taken, refused, failed and passed over since the start."""
        return self._handling.counters

    def step(self, inputs: Sequence[Input], now_ns: int) -> Stepped:
        """Takes inputs in order. Returns how long the draft may wait for the disk (None: there is nothing to write)."""
        draft = self._draft
        self._now_ns = now_ns = max(now_ns, self._now_ns)
        token = step_time_ns.set(now_ns)
        try:
            for number, one in enumerate(inputs):
                left: Delivery | None = None
                if type(one) is Delivery:
                    left = self._deliver(one, now_ns)
                else:
                    self._take(one, now_ns)
                if left is not None or draft.size_bytes > DRAFT_BYTES_MAX:
                    rest = list(inputs[number + 1 :])
                    draft.hurry(0)
                    return self._stepped(rest if left is None else [left, *rest])
        finally:
            step_time_ns.reset(token)
        return self._stepped([])

    def _stepped(self, left: list[Input]) -> Stepped:
        repeats, self._repeats = self._repeats, []
        fresh, self._draft.fresh = self._draft.fresh, []
        wait_ns = self._draft.wait_ns
        return Stepped(wait_ns=None if wait_ns == NEVER_NS else wait_ns, left=left, repeats=repeats, fresh=fresh)

    def seal(self) -> Ready | None:
        """Closes the draft; None if there is nothing to write. The host persists the result before anything else."""
        draft, state = self._draft, self.state
        if draft.empty:
            return None
        commit = draft.close(state.shard, state.epoch, state.digest, self._now_ns)
        sealed = seal(commit)
        state.position = sealed.position
        state.time_ns = sealed.time_ns
        state.digest = sealed.digest
        state.events_count += sealed.events
        state.answers.prune(state.time_ns)
        self._draft = Draft(state.position + 1)
        return Ready(
            sealed=sealed,
            commit=commit,
            verdicts=draft.verdicts,
            owed=draft.pending,
            timers=draft.timers,
            stopped=draft.stopped,
            touched=draft.touched,
        )

    @property
    def open_images(self) -> dict[str, Any]:
        """Agents that the open draft has changed, as they were before it."""
        return self._draft.touched

    @property
    def draft_size_bytes(self) -> int:
        """About how large the open draft has become."""
        return self._draft.size_bytes

    def _deliver(self, delivery: Delivery, now_ns: int) -> Delivery | None:
        """Takes a delivery; returns the part of it that has to wait for the next commit."""
        state, draft, handling = self.state, self._draft, self._handling
        items = delivery.items
        first = delivery.sequence
        if first:
            try:
                seen = state.marks.admit(delivery.source, delivery.incarnation, delivery.epoch, first)
            except PeerError as error:
                handling.counters.count_untaken(error)
                return None
            if seen:
                handling.counters.duplicates += min(seen, len(items))
                items = items[seen:]
                first += seen
                if not items:
                    return None
        draft.begin_run(now_ns, delivery.source)
        draft.size_bytes += delivery.size_bytes
        taken = handling.take_items(draft, items, delivery.source, now_ns)
        if first:
            self._move_mark(delivery.source, delivery.incarnation, delivery.epoch, first + taken - 1)
            if delivery.source == self._own_sink:
                self._settle(self._own_sink, range(first, first + taken))
        if taken == len(items):
            return None
        return Delivery(
            source=delivery.source,
            items=items[taken:],
            sequence=first and first + taken,
            incarnation=delivery.incarnation,
            epoch=delivery.epoch,
        )

    def _take(self, one: Input, now_ns: int) -> None:
        """Takes any other input."""
        state, draft, handling = self.state, self._draft, self._handling
        match one:
            case Ask():
                self._ask(one, now_ns)
            case TimerDue():
                self._timer_due(one, now_ns)
            case EffectSettled():
                self._effect_settled(one, now_ns)
            case SequencesSkipped():
                self._skip(one, now_ns)
            case LetterRetried() | LetterDropped():
                self._take_letter(one, now_ns)
            case ResumeAgent():
                if one.agent in state.stopped:
                    draft.begin_run(now_ns, one.by)
                    handling.keep(draft, one.agent, AgentResumed(by=one.by), now_ns)
            case SafeActionOut():
                draft.begin_run(now_ns, SHARD_ADDRESS)
                taken = SafeActionTaken(action=one.action, because=one.because)
                handling.keep(draft, one.agent, taken, now_ns)
            case SnapshotStored():
                draft.snapshots.append(one.note)
                draft.hurry(MARKS_WAIT_NS)
            case EnrollSigner():
                draft.begin_run(now_ns, SHARD_ADDRESS)
                enrolled = SignerEnrolled(algorithm=one.algorithm, public_key=one.public_key, cites=state.digest)
                handling.keep(draft, SHARD_ADDRESS, enrolled, now_ns)
            case RevokeSigner():
                draft.begin_run(now_ns, SHARD_ADDRESS)
                revoked = SignerRevoked(
                    algorithm=one.algorithm, public_key=one.public_key, last_position=one.last_position
                )
                handling.keep(draft, SHARD_ADDRESS, revoked, now_ns)
            case Delivery():
                self._deliver(one, now_ns)
            case _:
                assert_never(one)

    def _ask(self, ask: Ask, now_ns: int) -> None:
        known = self.state.answers.get(ask.command_id)
        if known is not None:
            self._handling.counters.duplicates += 1
            verdict: Verdict = Accepted(known.position) if known.refused is None else Refused(known.refused)
            self._repeats.append((ask.command_id, verdict, known.position))
            return
        self._draft.begin_run(now_ns, ask.source)
        self._handling.take_command(self._draft, ask.agent, ask.command, ask.command_id, now_ns)

    def _timer_due(self, due: TimerDue, now_ns: int) -> None:
        state, draft, handling = self.state, self._draft, self._handling
        timer = state.timers.get(due.agent, due.name)
        if timer is None or timer.due_ns != due.due_ns:
            handling.counters.duplicates += 1
            return
        draft.begin_run(now_ns, shard_sink(state.shard))
        draft.fired.append((due.agent, due.name, len(draft.owed)))
        draft.hurry(0)
        state.timers.fire(due.agent, due.name)
        if due.name.startswith(WINDOW_PREFIX):
            handling.close_windows(draft, due.agent, max(now_ns, due.due_ns), now_ns)
        else:
            handling.take(draft, due.agent, Raw(encode(Woken(name=due.name))), "timer", now_ns)

    def _effect_settled(self, settled: EffectSettled, now_ns: int) -> None:
        pending = self.state.outbox.get(settled.sink, settled.sequence)
        if pending is None:
            self._handling.counters.duplicates += 1
            return
        self._settle(settled.sink, (settled.sequence,))
        if settled.result is not None and self._handling.understands(pending.agent, settled.result):
            self._draft.begin_run(now_ns, settled.sink)
            self._handling.take(self._draft, pending.agent, settled.result, settled.sink, now_ns)

    def _settle(self, sink: str, sequences: Sequence[int]) -> None:
        self.state.outbox.settle(Settled(sink, list(sequences)))
        self._draft.settled.setdefault(sink, []).extend(sequences)
        self._draft.hurry(MARKS_WAIT_NS)

    def _skip(self, skipped: SequencesSkipped, now_ns: int) -> None:
        first = self.state.marks.consumed(skipped.source, skipped.incarnation) + 1
        if skipped.last < first:
            return
        self._draft.begin_run(now_ns, skipped.source)
        self._handling.counters.skipped += skipped.last - first + 1
        event = InputsSkipped(source=skipped.source, first=first, last=skipped.last, because=skipped.because)
        self._handling.keep(self._draft, SHARD_ADDRESS, event, now_ns)
        self._move_mark(skipped.source, skipped.incarnation, skipped.epoch, skipped.last)

    def _take_letter(self, taken: LetterRetried | LetterDropped, now_ns: int) -> None:
        letter = self.state.letters.get(taken.letter)
        if letter is None:
            return
        retried = isinstance(taken, LetterRetried)
        self._draft.begin_run(now_ns, letter.source)
        event = LetterTaken(letter=letter.letter, retried=retried)
        self._handling.keep(self._draft, letter.agent, event, now_ns)
        if retried:
            self._handling.take_items(self._draft, [(letter.agent, letter.input)], letter.source, now_ns)

    def _move_mark(self, source: str, incarnation: int, epoch: int, sequence: int) -> None:
        moved = MarkMoved(source=source, incarnation=incarnation, epoch=epoch, sequence=sequence)
        self.state.marks.move(moved)
        self._draft.marks[source, incarnation] = moved
        self._draft.hurry(MARKS_WAIT_NS)
