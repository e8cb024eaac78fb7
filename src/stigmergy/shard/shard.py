"""Steps a shard: inputs in, one commit out. Pure. Persist the commit before answering anybody or releasing an effect.

    stepped = shard.step(inputs, now_ns)   decide, evolve, react; adds to the open draft
    ready = shard.seal()                   closes the draft: 1. persist  2. then answer  3. then release

The rules, in the order in which they apply:

- The events of one `decide` are collected against the unchanged state, then evolved and reacted to one by one.
- A refusal or an exception keeps none of that input's events and leaves the agent as it was. Refusals are kept, so a
  repeated command gets the same answer. An exception keeps `InputFailed`, moves the mark, and puts the input into the
  dead letters; supervision may stop the agent.
- A tell arrives in a later step, also when an agent tells itself.
- Repetitions of a source are skipped (marks), a repeated command gets the old answer (answers), and a command whose id
  is older than what is remembered is refused. Effects settled twice and timers that no longer exist are skipped.
- Time never goes back.

If a `BaseException` that is not an `Exception` (KeyboardInterrupt, SystemExit) interrupts a handler, its agent stays as
it was, but the input is neither consumed nor given up. The shard is then broken and refuses further steps and seals.
Nothing of the open draft was written; a restart replays the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, assert_never

from msgspec import structs

from stigmergy.agents.codec import REASON_CHARS_MAX, SOURCE_CHARS_MAX, printable, tag_of
from stigmergy.agents.columns import images_of
from stigmergy.agents.confirmations import woken_body
from stigmergy.agents.effects import MODELS, TIMERS, TellFailed, shard_sink
from stigmergy.agents.messages import SECOND_NS, spec_of
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.ordered import LEDGER
from stigmergy.agents.shared import STATE_BYTES_MAX
from stigmergy.agents.steps import heard_of
from stigmergy.agents.supervision import (
    SHARD_ADDRESS,
    AgentResumed,
    InputsSkipped,
    LetterTaken,
    OnFailed,
    SafeActionTaken,
    SignerEnrolled,
    SignerRevoked,
)
from stigmergy.base.errors import Bug, NotOwned, Overloaded, PeerError, PolicyDenied, StigmergyError
from stigmergy.shard.commit import COMMIT_BYTES_MAX, MarkMoved, Settled, seal
from stigmergy.shard.dispatch import InputDispatcher
from stigmergy.shard.draft import (
    ADDRESS_CHARS_MAX,
    COLUMNS_REST_BYTES,
    DRAFT_BYTES_MAX,
    NEVER_NS,
    Draft,
    Ready,
    Stepped,
)
from stigmergy.shard.facts import give_up_tell, retry, take_fact, take_merged, take_verdict
from stigmergy.shard.forwarding import FORWARD, Forwarding, late, named, read_forwarded
from stigmergy.shard.homes import Homes, Ownership
from stigmergy.shard.inputs import (
    Accepted,
    ActionsConfirmed,
    Ask,
    Asked,
    ColumnDelivery,
    CommandAnswered,
    CommitDurable,
    Delivery,
    EffectSettled,
    EffectsSettled,
    EnrollAgents,
    EnrollSigner,
    FactCame,
    Input,
    LetterDropped,
    LetterRetried,
    Refused,
    ResultsCame,
    ResumeAgent,
    RevokeSigner,
    SafeActionOut,
    SequencesSkipped,
    SharedReceived,
    Single,
    SnapshotStored,
    TellGivenUp,
    TimerDue,
    Verdict,
    VerdictCame,
    traces_behind,
)
from stigmergy.shard.judging import Judge, enrolment
from stigmergy.shard.state import ShardReading, ShardState
from stigmergy.shard.timers import WINDOW_PREFIX
from stigmergy.shard.trace_notes import settled_note, trace_input
from stigmergy.shard.tracing import TraceContext

COMMAND_ID_CHARS_MAX = 200
COMMIT_NOTE_BYTES = 96
MARKS_WAIT_NS = SECOND_NS
"""Marks and settlements alone may wait this long for the disk: a crash before it means that they are repeated."""
Parted = Delivery | ColumnDelivery | ResultsCame
_PARTED = (Delivery, ColumnDelivery, ResultsCame)


class Shard:
    """The agents that one owner steps, in order."""

    def __init__(self, state: ShardState, homes: Homes | None = None) -> None:
        """`homes` says in which shard the receivers of tells live; without it, all live here."""
        self.state = state
        self._own_sink = shard_sink(state.shard)
        self._draft = Draft(state.position + 1)
        self.homes = homes or Homes()
        self._dispatcher = InputDispatcher(state, self.homes)
        self._forwarding = Forwarding(state.outbox)
        self._now_ns = state.time_ns
        self.epoch = state.epoch
        """The owner's; that of the state is the last one journaled."""
        self._repeats: list[tuple[Asked, Verdict, int]] = []
        self._untaken: list[tuple[Input, StigmergyError]] = []
        self._broken = False

    def trace_failures(self, is_on: bool) -> None:
        """Says whether refused and failed inputs that belong to no trace begin one."""
        self._dispatcher.traces_failures = is_on

    def report_failures(self, on_failed: OnFailed) -> None:
        """Says who is told of inputs that become dead letters, at once."""
        self._dispatcher.on_failed = on_failed

    def judge_by(self, judge: Judge | None) -> None:
        """Says who is asked before agents decide what somebody else wants."""
        self._dispatcher.gate.judge = judge

    @property
    def counters(self) -> Any:
        """Counts of taken, refused, failed and skipped inputs since the start."""
        return self._dispatcher.counters

    @property
    def effects_count(self) -> int:
        """How many effects the open draft owes, those of compiled agents included."""
        draft = self._draft
        blocks = sum(block.count for block in draft.blocks) if draft.blocks else 0
        return len(draft.pending) + blocks

    def step(self, inputs: Sequence[Input], now_ns: int) -> Stepped:
        """Takes inputs in order. Returns how long the draft may wait for the disk (None: there is nothing to write).

        Inputs that find no room in the draft come back in `left`: seal, then step them.
        """
        self._check_whole()
        self._now_ns = now_ns = max(now_ns, self._now_ns)
        token = step_time_ns.set(now_ns)
        try:
            return self._stepped(self._take_all(inputs, now_ns))
        except BaseException:
            self._broken = True
            raise
        finally:
            step_time_ns.reset(token)

    def _take_all(self, inputs: Sequence[Input], now_ns: int) -> list[Input]:
        """Takes inputs until the draft is full; returns the rest."""
        draft = self._draft
        if self.state.directory.unlisted and not self._dispatcher.columnar.list_names(draft, now_ns):
            draft.hurry(0)
            return list(inputs)
        for number, one in enumerate(inputs):
            # Records are small and their loop stops where the room ends: a draft may take more of them.
            limit = self.state.limits.columns_bytes_max if isinstance(one, ColumnDelivery) else DRAFT_BYTES_MAX
            if draft.size_bytes > limit or draft.full_of_traces:
                draft.hurry(0)
                return list(inputs[number:])
            large = isinstance(one, SharedReceived) and draft.size_bytes + one.size_bytes > DRAFT_BYTES_MAX
            if large and not draft.empty:
                draft.hurry(0)
                return list(inputs[number:])
            if isinstance(one, _PARTED):
                rest = self._take_part(one, now_ns)
                if rest is not None:
                    draft.hurry(0)
                    return [rest, *inputs[number + 1 :]]
            else:
                self._take(one, now_ns)
        return []

    def _take_part(self, one: Parted, now_ns: int) -> Parted | None:
        """Takes several inputs that came as one; returns the part of them that has to wait for the next commit."""
        if isinstance(one, Delivery):
            return self._deliver(one, now_ns)
        if isinstance(one, ColumnDelivery):
            return self._deliver_columns(one, now_ns)
        draft = self._draft
        for number, settled in enumerate(one.results):
            if draft.size_bytes > DRAFT_BYTES_MAX or draft.full_of_traces:
                return one.behind(number)
            self._effect_settled(settled, now_ns)
        return None

    def _check_whole(self) -> None:
        if self._broken:
            raise Bug(
                f"shard {self.state.shard} was interrupted in the middle of an input; restart it from its journal"
            )

    def _stepped(self, left: list[Input]) -> Stepped:
        repeats, self._repeats = self._repeats, []
        untaken, self._untaken = self._untaken, []
        fresh, self._draft.fresh = self._draft.fresh, []
        wait_ns = None if self._draft.wait_ns == NEVER_NS else self._draft.wait_ns
        return Stepped(wait_ns=wait_ns, left=left, repeats=repeats, fresh=fresh, untaken=untaken)

    def seal(self) -> Ready | None:
        """Closes the draft; None if there is nothing to write. The host persists the result before anything else."""
        self._check_whole()
        draft, state = self._draft, self.state
        if draft.empty:
            # Events that are not kept have counted as well: without a fresh draft they would fill it up for good.
            self._draft = Draft(state.position + 1)
            return None
        commit = draft.close(state, self.epoch, self._now_ns)
        sealed = seal(commit)
        columns_bytes_max = state.limits.columns_bytes_max + COLUMNS_REST_BYTES if commit.columns else 0
        bytes_max = max(columns_bytes_max, COMMIT_BYTES_MAX + (STATE_BYTES_MAX if draft.shared else 0))
        if len(sealed.body) > bytes_max:
            raise Bug(f"shard {state.shard}: a commit of {len(sealed.body)} bytes, {bytes_max} at most")
        state.position = sealed.position
        state.time_ns = sealed.time_ns
        state.digest = sealed.digest
        state.epoch = sealed.epoch
        state.events_count += sealed.events
        state.answers.prune(state.time_ns)
        self._draft = Draft(state.position + 1)
        return Ready(
            sealed=sealed,
            commit=commit,
            verdicts=draft.verdicts,
            owed=draft.pending,
            blocks=draft.blocks,
            timers=draft.timers,
            stopped=draft.stopped,
            shared=draft.shared,
            touched=draft.touched,
            images=images_of(state.tables, commit.columns),
            enrolled={kind: len(table) for kind, table in state.tables.items()},
        )

    def begin_epoch(self, claim: int = 0) -> None:
        """A new owner has taken over: what it commits and releases carries a higher epoch than all before.

        Owners that never committed leave no epoch in the log: where they claim it, the claim's number tells them apart.
        """
        self.epoch = max(self.state.epoch + 1, claim)

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
        draft, dispatcher = self._draft, self._dispatcher
        items = delivery.items
        first = delivery.sequence
        if first:
            try:
                seen = self.state.marks.admit(delivery.source, delivery.incarnation, delivery.epoch, first)
            except (PeerError, Overloaded) as error:
                dispatcher.counters.count_untaken(error)
                self._untaken.append((delivery, error))
                return None
            if seen:
                self._pass_over(delivery, min(seen, len(items)))
                items = items[seen:]
                first += seen
        if not items:
            return None
        fitting = draft.fitting(items, delivery.size_bytes)
        if not fitting:
            return delivery if items is delivery.items else delivery.behind(len(delivery.items) - len(items))
        draft.begin_run(now_ns, delivery.source)
        traces = traces_behind(delivery.traces, len(delivery.items) - len(items))
        taken = dispatcher.take_items(draft, fitting, delivery.source, now_ns, traces, delivery.sender)
        if first:
            self._move_mark(delivery.source, delivery.incarnation, delivery.epoch, first + taken - 1)
            if delivery.source == self._own_sink:
                self._settle(self._own_sink, range(first, first + taken), now_ns)
        return None if taken == len(items) else delivery.behind(len(delivery.items) - len(items) + taken)

    def _traced(
        self, context: TraceContext | None, address: str, tag: str, now_ns: int, take: Callable[[], int | None]
    ) -> int:
        """Takes one input, which belongs to a trace unless `context` is None; returns what `take` does."""
        draft = self._draft
        if context is None:
            return take() or 0
        begun = (len(draft.events), len(draft.owed), len(draft.answers))
        draft.trace_id = context.trace_id
        try:
            taken = take() or 0
        finally:
            draft.trace_id = b""
        trace_input(self.state, draft, context, printable(address, ADDRESS_CHARS_MAX), tag, begun, now_ns)
        return taken

    def _deliver_columns(self, delivery: ColumnDelivery, now_ns: int) -> ColumnDelivery | None:
        """Takes records; returns the part of them that has to wait for the next commit."""
        columnar, sequence, start = self._dispatcher.columnar, delivery.sequence, delivery.start
        try:
            known = columnar.check(delivery)
            if sequence:
                seen = self.state.marks.admit(delivery.source, delivery.incarnation, delivery.epoch, sequence)
                seen = min(seen, delivery.count - start)
                if seen:
                    self._pass_over(delivery, seen)
                sequence, start = sequence + seen, start + seen
        except (PeerError, Overloaded) as error:
            self._dispatcher.counters.count_untaken(error)
            self._untaken.append((delivery, error))
            return None
        if start == delivery.count:
            return None
        rest = structs.replace(delivery, sequence=sequence, start=start)
        self._draft.begin_run(now_ns, delivery.source)
        taken = columnar.take(self._draft, rest, known, now_ns)
        if sequence and taken:
            self._move_mark(delivery.source, delivery.incarnation, delivery.epoch, sequence + taken - 1)
        if start + taken == delivery.count:
            return None
        return structs.replace(rest, sequence=sequence and sequence + taken, start=start + taken)

    def _enroll(self, enroll: EnrollAgents, now_ns: int) -> None:
        self._draft.begin_run(now_ns, SHARD_ADDRESS)
        fields = {"kind": enroll.kind, "names": enroll.names}
        question = enrolment("EnrollAgents", fields, enroll.kind, enroll.sender)
        try:
            self._dispatcher.check_enrolment(self._draft, question, now_ns)
            self._dispatcher.columnar.enroll(self._draft, enroll.kind, enroll.names, now_ns)
        except (PeerError, Overloaded) as error:
            self._dispatcher.counters.count_untaken(error)
            self._untaken.append((enroll, error))

    def _enroll_signer(self, enroll: EnrollSigner, now_ns: int) -> None:
        state, draft = self.state, self._draft
        draft.begin_run(now_ns, SHARD_ADDRESS)
        if enroll.sender is not None:
            fields = {"algorithm": enroll.algorithm, "public_key": enroll.public_key.hex()}
            question = enrolment("EnrollSigner", fields, SHARD_ADDRESS, enroll.sender)
            try:
                self._dispatcher.check_enrolment(self._draft, question, now_ns)
            except PolicyDenied as error:
                self._untaken.append((enroll, error))
                return
        enrolled = SignerEnrolled(
            algorithm=enroll.algorithm, public_key=enroll.public_key, cites=state.digest, epoch=state.epoch
        )
        self._dispatcher.keep(draft, SHARD_ADDRESS, enrolled, now_ns)

    def _confirm(self, confirmed: ActionsConfirmed) -> None:
        """Nobody can have carried out what a later commit will owe."""
        blocks = self.state.blocks
        upto = min(confirmed.upto, blocks.sent_before(confirmed.kind, self._draft.position))
        if upto > blocks.cursor(confirmed.kind):
            blocks.confirm(confirmed.kind, upto)
            self._draft.confirm(confirmed.kind, upto)
            self._draft.hurry(MARKS_WAIT_NS)

    def _pass_over(self, delivery: Delivery | ColumnDelivery, count: int) -> None:
        """The first so many items were consumed before. A new owner who repeats them is an owner all the same."""
        self._dispatcher.counters.duplicates += count
        if delivery.epoch > self.state.marks.epoch(delivery.source, delivery.incarnation):
            consumed = self.state.marks.consumed(delivery.source, delivery.incarnation)
            self._move_mark(delivery.source, delivery.incarnation, delivery.epoch, consumed)
        if delivery.source == self._own_sink:
            self._settle(self._own_sink, range(delivery.sequence, delivery.sequence + count), self._now_ns)

    def _take(self, one: Single, now_ns: int) -> None:
        """Takes any other input."""
        state, draft, dispatcher = self.state, self._draft, self._dispatcher
        match one:
            case Ask():
                self._ask(one, now_ns)
            case CommandAnswered():
                self._answered(one, now_ns)
            case TimerDue():
                self._timer_due(one, now_ns)
            case EffectSettled():
                self._effect_settled(one, now_ns)
            case EffectsSettled():
                settled = self._settle(one.sink, one.sequences, now_ns)
                dispatcher.counters.duplicates += len(one.sequences) - settled
            case TellGivenUp():
                self._give_up(one, now_ns)
            case SequencesSkipped():
                self._skip(one, now_ns)
            case LetterRetried() | LetterDropped():
                self._take_letter(one, now_ns)
            case ResumeAgent():
                if one.agent in state.stopped:
                    draft.begin_run(now_ns, one.by)
                    dispatcher.keep(draft, one.agent, AgentResumed(by=one.by), now_ns)
                    dispatcher.close_windows(draft, one.agent, now_ns, now_ns)
            case SafeActionOut():
                draft.begin_run(now_ns, SHARD_ADDRESS)
                taken = SafeActionTaken(action=one.action, because=one.because)
                dispatcher.keep(draft, self._log_of(one.agent), taken, now_ns)
            case SnapshotStored():
                draft.snapshots.append(one.note)
                draft.grow(bodies_bytes=COMMIT_NOTE_BYTES)
                draft.hurry(MARKS_WAIT_NS)
            case EnrollSigner():
                self._enroll_signer(one, now_ns)
            case RevokeSigner():
                draft.begin_run(now_ns, SHARD_ADDRESS)
                revoked = SignerRevoked(
                    algorithm=one.algorithm, public_key=one.public_key, last_position=one.last_position
                )
                dispatcher.keep(draft, SHARD_ADDRESS, revoked, now_ns)
            case EnrollAgents():
                self._enroll(one, now_ns)
            case ActionsConfirmed():
                self._confirm(one)
            case SharedReceived():
                error = take_merged(state, dispatcher, draft, one, now_ns)
                if error is not None:
                    dispatcher.counters.count_untaken(error)
                    self._untaken.append((one, error))
            case CommitDurable():
                for note in one.notes:
                    if not draft.full_of_traces:
                        draft.trace(note)
            case VerdictCame():
                take_verdict(state, dispatcher, draft, one.agent, one.verdict, now_ns)
            case FactCame():
                take_fact(state, dispatcher, draft, one.agent, one.fact, one.source, now_ns)
            case _:
                assert_never(one)

    def _log_of(self, address: str) -> str:
        """Where an event about an agent is kept: with the agent, or with the shard if it is not there or stopped."""
        there = self.state.has_agent(address) and address not in self.state.stopped
        return address if there else SHARD_ADDRESS

    def has_command(self, agent: str, command_id: str) -> bool:
        """Whether a command was sent on to another node, or was answered."""
        is_answered = self.state.answers.get(agent, command_id) is not None
        return is_answered or self._forwarding.get(agent, command_id) is not None

    def _ask(self, ask: Ask, now_ns: int) -> None:
        asked = (ask.agent, ask.command_id, ask.command)
        if not ask.command_id or ask.command_id != printable(ask.command_id, COMMAND_ID_CHARS_MAX):
            reason = f"a command needs an id of 1 to {COMMAND_ID_CHARS_MAX} characters; nothing was done"
            self._repeats.append((asked, Refused(reason), 0))
            return
        agent, client = printable(ask.agent, ADDRESS_CHARS_MAX), printable(ask.client, SOURCE_CHARS_MAX)
        known = self.state.answers.get(agent, ask.command_id)
        if known is not None:
            if self.state.answers.is_other(agent, ask.command_id, self._dispatcher.digest_of(ask.agent, ask.command)):
                self._dispatcher.counters.refused += 1
                reason = f"another command had the id {ask.command_id[:100]!r}; send this one with an id of its own"
                self._repeats.append((asked, Refused(reason), 0))
                return
            self._dispatcher.counters.duplicates += 1
            verdict: Verdict = Accepted(known.position) if known.refused is None else Refused(known.refused)
            self._repeats.append((asked, verdict, known.position))
            return
        if self._forwarding.get(agent, ask.command_id) is not None:
            self._ask_again(ask)
            return
        refusal = self.state.answers.refusal(agent, client, ask.command_id, now_ns)
        if ask.travel.elsewhere and refusal is None:
            refusal = self._forwarding.refusal(agent)
        if refusal is not None:
            self._dispatcher.counters.refused += 1
            self._repeats.append((asked, Refused(refusal), 0))
            return
        self._draft.begin_run(now_ns, ask.source, asked=True)
        if ask.trace is None:
            self._decide_ask(ask, agent, client, now_ns)
        else:
            take = partial(self._decide_ask, ask, agent, client, now_ns)
            self._traced(ask.trace, agent, tag_of(ask.command), now_ns, take)

    def _decide_ask(self, ask: Ask, agent: str, client: str, now_ns: int) -> None:
        """Refuses a command that comes too late, sends it on, or has its agent decide."""
        if (why := late(ask, now_ns)) is not None:
            self._dispatcher.refuse(self._draft, (ask.agent, ask.command_id, ask.command), client, why, now_ns)
        elif ask.travel.elsewhere:
            pending = self._dispatcher.forward(self._draft, ask, client, now_ns)
            if pending is not None:
                self._forwarding.add(agent, ask.command_id, pending.sequence)
        else:
            asked = (ask.agent, ask.command, ask.command_id, now_ns, client, ask.sender)
            self._dispatcher.take_command(self._draft, *asked)

    def _ask_again(self, ask: Ask) -> None:
        """A command that is on its way: it is answered with the first one, if it is the same."""
        sequence = self._forwarding.get(ask.agent, ask.command_id)
        pending = None if sequence is None else self.state.outbox.get(FORWARD, sequence)
        self._dispatcher.counters.duplicates += 1
        if pending is not None and read_forwarded(pending).command != ask.command:
            reason = f"another command has the id {ask.command_id[:100]!r}; send this one with an id of its own"
            self._repeats.append(((ask.agent, ask.command_id, ask.command), Refused(reason), 0))

    def _answered(self, answered: CommandAnswered, now_ns: int) -> None:
        """Keeps the answer to a command that was sent on."""
        pending = self.state.outbox.get(FORWARD, answered.sequence)
        if pending is None or pending.position >= self._draft.position:
            self._dispatcher.counters.duplicates += 1
            return
        one = read_forwarded(pending)
        refused = None if answered.refused is None else printable(answered.refused, REASON_CHARS_MAX)
        self._settle(FORWARD, (answered.sequence,), now_ns, failed=refused or "")
        self._forwarding.drop(pending.agent, one.command_id)
        self._draft.begin_run(now_ns, FORWARD)
        asked = (pending.agent, one.command_id, one.command)
        self._dispatcher.answer_elsewhere(self._draft, asked, one.client, refused, now_ns)

    def _timer_due(self, due: TimerDue, now_ns: int) -> None:
        state, draft, dispatcher = self.state, self._draft, self._dispatcher
        timer = state.timers.get(due.agent, due.name)
        if timer is None or timer.due_ns != due.due_ns:
            dispatcher.counters.duplicates += 1
            return
        draft.begin_run(now_ns, shard_sink(state.shard))
        draft.fire(due.agent, due.name)
        draft.hurry(0)
        state.timers.fire(due.agent, due.name)
        if due.name.startswith(WINDOW_PREFIX):
            dispatcher.close_windows(draft, due.agent, max(now_ns, due.due_ns), now_ns)
        else:
            plan = state.plans.get(due.agent.partition("/")[0])
            body = woken_body(() if plan is None else plan.known_tags, due.name)
            carried = state.traces.fire(due.agent, due.name, due.due_ns) if state.traces else None
            if carried is not None:
                draft.trace(settled_note(carried, due.agent, TIMERS, (due.name, ""), now_ns))
            context = None if carried is None else carried.context(now_ns)
            take = partial(dispatcher.take, draft, due.agent, body, "timer", now_ns)
            self._traced(context, due.agent, tag_of(body), now_ns, take)

    def _effect_settled(self, settled: EffectSettled, now_ns: int) -> None:
        pending = self.state.outbox.get(settled.sink, settled.sequence)
        if pending is None or pending.position >= self._draft.position:
            self._dispatcher.counters.duplicates += 1
            return
        state, dispatcher, draft, address = self.state, self._dispatcher, self._draft, pending.agent
        carried = None
        if state.traces:
            carried = state.traces.of(pending)
            self._settle(settled.sink, (settled.sequence,), now_ns, settled.times_ns, settled.failed)
        else:
            state.outbox.drop(pending)
            draft.settle(settled.sink, [settled.sequence])
            draft.hurry(MARKS_WAIT_NS)
        if settled.result is None:
            return
        if settled.sink == MODELS and carried is None:
            take_fact(state, dispatcher, draft, address, settled.result, MODELS, now_ns)
            return
        take: Callable[[], None] | None = None
        heard = heard_of(pending.body, settled.result)
        if settled.sink == LEDGER:
            take = partial(take_verdict, state, dispatcher, draft, address, settled.result, now_ns)
        elif settled.sink == MODELS:
            take = partial(take_fact, state, dispatcher, draft, address, settled.result, MODELS, now_ns)
        elif dispatcher.understands(address, heard):
            draft.begin_run(now_ns, settled.sink)
            take = partial(dispatcher.take, draft, address, heard, settled.sink, now_ns)
        if take is not None:
            context = None if carried is None else carried.context(settled.times_ns[1])
            self._traced(context, address, tag_of(settled.result), now_ns, take)

    def _give_up(self, given_up: TellGivenUp, now_ns: int) -> None:
        """A tell that was not taken elsewhere: a dead letter, of which its teller hears."""
        pending = self.state.outbox.get(given_up.sink, given_up.sequence)
        if pending is None or pending.position >= self._draft.position:
            self._dispatcher.counters.duplicates += 1
            return
        carried = self.state.traces.of(pending) if self.state.traces else None
        self._settle(given_up.sink, (given_up.sequence,), now_ns, failed=given_up.reason)
        self._draft.begin_run(now_ns, given_up.sink)
        give_up = partial(give_up_tell, self.state, self._dispatcher, self._draft, pending, given_up.reason, now_ns)
        context = None if carried is None else carried.context()
        self._traced(context, pending.agent, spec_of(TellFailed).tag, now_ns, give_up)

    def _settle(
        self,
        sink: str,
        sequences: Sequence[int],
        now_ns: int,
        times_ns: tuple[int, int] = (0, 0),
        failed: str = "",
    ) -> int:
        """Forgets effects that are owed by a commit before this one; nobody can have carried out a later one.

        Returns how many of them were still owed.
        """
        pending = (self.state.outbox.get(sink, sequence) for sequence in sequences)
        owed = [effect.sequence for effect in pending if effect is not None and effect.position < self._draft.position]
        if owed and self.state.traces:
            for sequence in owed:
                carried, effect = self.state.traces.settle(sink, sequence), self.state.outbox.get(sink, sequence)
                if carried is not None and effect is not None and not self._draft.full_of_traces:
                    self._draft.trace(
                        settled_note(carried, effect.agent, sink, named(effect), now_ns, times_ns, failed)
                    )
        if owed:
            self.state.outbox.settle(Settled(sink, owed))
            self._draft.settle(sink, owed)
            self._draft.hurry(MARKS_WAIT_NS)
        return len(owed)

    def _skip(self, skipped: SequencesSkipped, now_ns: int) -> None:
        first = self.state.marks.consumed(skipped.source, skipped.incarnation) + 1
        try:
            self.state.marks.admit(skipped.source, skipped.incarnation, skipped.epoch, first)
        except (PeerError, Overloaded) as error:
            self._dispatcher.counters.count_untaken(error)
            self._untaken.append((skipped, error))
            return
        if skipped.last < first:
            return
        if skipped.because:
            self._draft.begin_run(now_ns, skipped.source)
            self._dispatcher.counters.skipped += skipped.last - first + 1
            event = InputsSkipped(source=skipped.source, first=first, last=skipped.last, because=skipped.because)
            self._dispatcher.keep(self._draft, SHARD_ADDRESS, event, now_ns)
        self._move_mark(skipped.source, skipped.incarnation, skipped.epoch, skipped.last)

    def _take_letter(self, taken: LetterRetried | LetterDropped, now_ns: int) -> None:
        letter = self.state.letters.get(taken.letter)
        if letter is None:
            return
        retried = isinstance(taken, LetterRetried)
        self._draft.begin_run(now_ns, letter.source)
        event = LetterTaken(letter=letter.letter, retried=retried)
        self._dispatcher.keep(self._draft, self._log_of(letter.agent), event, now_ns)
        if retried:
            retry(self.state, self._dispatcher, self._draft, letter, now_ns)

    def _move_mark(self, source: str, incarnation: int, epoch: int, sequence: int) -> None:
        moved = MarkMoved(source=source, incarnation=incarnation, epoch=epoch, sequence=sequence)
        self.state.marks.move(moved)
        self._draft.move_mark(moved)
        self._draft.hurry(MARKS_WAIT_NS)


class Shards(Ownership):
    """The shards of one host, by number. Iterating gives those that it owns, in order."""

    def __init__(self, total: int, signers_shard: int) -> None:
        super().__init__(total)
        self._signers_shard = signers_shard
        self._owned: dict[int, Shard] = {}

    def take(self, shard: Shard) -> None:
        """From now on it is ours. Raises JournalForeign if its agents have come to live elsewhere."""
        shard.homes.check_agents(shard.state.shard, shard.state.addresses())
        self._owned[shard.state.shard] = shard
        self._owned = {number: self._owned[number] for number in sorted(self._owned)}
        self.numbers = self._owned.keys()

    def __getitem__(self, number: int) -> Shard:
        shard = self._owned.get(number)
        if shard is None:
            raise NotOwned(f"{self._owner_of(number)} has shard {number} of this fleet; ask there")
        return shard

    def has_command(self, number: int, agent: str, command_id: str) -> bool:
        """Whether a shard has sent a command on to another node, or answered it."""
        return self[number].has_command(agent, command_id)

    def reading(self, number: int) -> ShardReading:
        """What a shard knows, for those who read its log while it runs."""
        return ShardReading(self[number].state)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._owned.values())

    @property
    def first(self) -> Shard:
        """Any one of them, always the same: for what is alike in all."""
        return next(iter(self._owned.values()))

    @property
    def signers(self) -> Shard:
        """The one in whose log signers are enrolled and revoked."""
        return self[self._signers_shard]
