"""The senders' side of a host: puts envelopes, observations and commands into the mailbox; a sender can wait for each.

Nothing is taken before there is room for it, and nothing is reported as durable before it is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from stigmergy.agents.assignment import Assignment, within_fleet
from stigmergy.agents.codec import Envelope, encode, open_envelope, printable
from stigmergy.agents.effects import remote_sink
from stigmergy.agents.messages import SECOND_NS, Command, Event
from stigmergy.base.errors import Malformed, NotRunning, UnknownKind
from stigmergy.node.declaration import Declaration
from stigmergy.node.ingress import Ingress
from stigmergy.node.mailbox import BLOCK, Mailbox, Queued, Ticket
from stigmergy.node.tracer import UNTRACED
from stigmergy.shard.draft import OVERHEAD_BYTES
from stigmergy.shard.gaps import Accept
from stigmergy.shard.homes import Ownership
from stigmergy.shard.inputs import (
    ELSEWHERE,
    HERE,
    LOCAL,
    UNSAID,
    Accepted,
    Ask,
    Asked,
    Delivery,
    EffectSettled,
    Input,
    ResultsCame,
    SequencesSkipped,
    Travel,
    Verdict,
)
from stigmergy.shard.judging import OUTSIDE, Sender
from stigmergy.shard.tracing import TraceContext, Traces

SHOWN_CHARS_MAX = 200
MISSING = "missing: they did not come in time"
DECLARED = "lost: their sender says so"
DECIDED_MAX = 10_000
"""So many commands that other nodes have decided are remembered with the position that they said; of more, the oldest
are forgotten, and who sends one of those again learns that it was accepted, and not where."""
_AFTER = re.compile(r"\d{1,4}@[0-9a-f]{1,8}:\d{1,18}", re.ASCII)


class Stream(Struct, frozen=True):
    """Who numbers messages: a source, its incarnation, and the epoch in which it speaks."""

    source: str
    incarnation: int = 0
    epoch: int = 0


class AwaitedTicket:
    """A ticket that a sender awaits: resolved when all its inputs are durable, failed when one of them is not."""

    __slots__ = ("_future", "_left", "eager")

    def __init__(self, future: asyncio.Future[None], *, eager: bool = False) -> None:
        self._future = future
        self._left = 1
        self.eager = eager
        """Satisfied with having been taken, where the event's promise lets the disk come later."""

    def expect(self, queued_inputs: int) -> None:
        """How many queued inputs carry this ticket."""
        self._left = queued_inputs

    def resolve(self) -> None:
        self._left -= 1
        if self._left <= 0 and not self._future.done():
            self._future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class Intake:
    """Takes what is sent into the mailbox."""

    def __init__(
        self,
        declaration: Declaration,
        assignment: Assignment,
        shards: Ownership,
        mailbox: Mailbox,
        ingress: Ingress[Envelope],
        monotonic_ns: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.tracer = UNTRACED
        """Says which inputs belong to traces."""
        self._declaration = declaration
        self._assignment = assignment
        self._shards = shards
        self._mailbox = mailbox
        self._ingress = ingress
        self._monotonic_ns = monotonic_ns
        self._wake = wake
        self._asks: dict[Asked, list[asyncio.Future[Verdict]]] = {}
        self.shard_of = declaration.homes.of
        """Where an agent lives."""
        self._has_key = bool(declaration.homes.key_name)
        self._closed: str | None = None
        self._forwards: Callable[[str], bool] | None = None
        self._is_known: Callable[[int, str, str], bool] = lambda *_: False
        self._keep_ns = 0
        self.name_position: Callable[[int, int], str] = lambda *_: ""
        """How a position of a shard of this log is named."""
        self._decided: dict[tuple[str, str], str] = {}
        """By agent and id, the positions of commands that other nodes have decided; oldest first."""

    def forward_to(
        self, forwards: Callable[[str], bool] | None, is_known: Callable[[int, str, str], bool], keep_s: float
    ) -> None:
        """Has commands for agents that do not run here sent on, if `forwards` says that they can be. They may be on
        their way for so long, unless their class says otherwise. `is_known`: whether a shard has sent one on."""
        self._forwards, self._is_known, self._keep_ns = forwards, is_known, int(keep_s * SECOND_NS)

    def close(self, why: str) -> None:
        """Takes nothing more."""
        self._closed = why

    def deliver(self, data: bytes) -> asyncio.Future[None]:
        """Takes an envelope. The future is done when all of it is durable, and fails when it was not taken."""
        self.check_open()
        if not isinstance(data, bytes):
            raise Malformed(f"{_shown(data)} is no envelope; give the bytes that pack_envelope makes")
        envelope = self._ingress.open(data, open_envelope)
        if not self._assignment.is_everything:
            for address, _ in envelope.items:
                self._assignment.check(address)
        if self._has_key or len(self._shards) < self._shards.total:
            self._check_homes(envelope.items)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = AwaitedTicket(future)
        accepted = self._ingress.admit(envelope, len(data), (waiter,), self._monotonic_ns())
        self.post(accepted)
        # Also where it came early: the clock must be set to when it will have waited long enough.
        self._wake()
        return future

    def take_numbered(
        self,
        stream: Stream,
        sequence: int,
        address: str,
        body: bytes,
        *,
        missing: bool,
        trace: TraceContext | None = None,
    ) -> asyncio.Future[None]:
        """Takes a message of a stream that is for one agent only, and whose order the caller has kept.

        Numbers before it were never for us; with `missing`, something was and did not come, which the log says. The
        number 0 means none. Raises Overloaded, with nothing taken; the future is done when the message is durable.
        """
        self.check_open()
        check_address(address)
        shard, policy = self.home_of(address), self._declaration.policy_of(stream.source)
        source, incarnation, epoch = stream.source, stream.incarnation, stream.epoch
        if sequence > 1:
            skipped = SequencesSkipped(source, incarnation, epoch, sequence - 1, MISSING if missing else "")
            self._mailbox.put_note(Queued(shard=shard, input=skipped, items=0), policy)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        items = [(address, body)]
        traces = self.tracer.of_items(trace, source, sequence, items)
        sender = Sender(how="bus", source=source)
        delivery = Delivery(source, items, sequence, incarnation, epoch, traces=traces, sender=sender)
        size_bytes = len(body) + 4 * len(address) + OVERHEAD_BYTES
        self._mailbox.put_telemetry(Queued(shard, delivery, (AwaitedTicket(future),), 1, size_bytes), policy)
        self._wake()
        return future

    def take_told(
        self,
        stream: Stream,
        sequence: int,
        address: str,
        bodies: Sequence[bytes],
        ticket: Ticket,
        *,
        passes: bool,
        passed_on: bool = False,
        traces: Traces = (),
        sender: Sender | None = None,
    ) -> None:
        """Takes tells of a shard of another node, whose order the caller has kept. With `passes`, their sender gave up
        what lies between them and those before. With `passed_on`, they are for an agent of a third node, and the bodies
        are those of `PassedTell`. A `sender` is of another fleet. Raises Overloaded, with nothing of them taken."""
        self.check_open()
        shard = self.home_of(address, anywhere=passed_on)
        address = remote_sink(address) if passed_on else address
        source, incarnation, epoch = stream.source, stream.incarnation, stream.epoch
        if passes:
            passed = SequencesSkipped(source, incarnation, epoch, sequence - 1, "")
            self._mailbox.put_note(Queued(shard=shard, input=passed, items=0), BLOCK)
        items = [("" if body is ELSEWHERE else address, body) for body in bodies]
        delivery = Delivery(source, items, sequence, incarnation, epoch, traces=traces, sender=sender)
        size_bytes = sum(map(len, bodies)) + len(bodies) * (4 * len(address) + OVERHEAD_BYTES)
        self._mailbox.put_telemetry(Queued(shard, delivery, (ticket,), len(bodies), size_bytes), BLOCK)
        self._wake()

    def post(self, accepted: list[Accept[Envelope, Ticket]]) -> None:
        """Puts what the ingress let through into the mailbox. If there is no room, the waiting sender is told."""
        self._ingress.post(accepted, self._post)
        if accepted:
            self._wake()

    def observe(
        self, address: str, event: Event, source: str = LOCAL, trace: TraceContext | None = None
    ) -> asyncio.Future[None]:
        """Takes one event from the embedding program or a sensor. Done when it is kept as its type promises."""
        self.check_open()
        check_address(address)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        body = written(event, Event)
        items = [(address, body)]
        delivery = Delivery(source, items, traces=self.tracer.of_items(trace, source, 0, items))
        queued = Queued(
            shard=self.home_of(address),
            input=delivery,
            tickets=(AwaitedTicket(future, eager=True),),
            size_bytes=len(body) + 64,
        )
        self._mailbox.put_telemetry(queued, BLOCK)
        self._wake()
        return future

    def ask(
        self,
        address: str,
        command: Command | bytes,
        command_id: str,
        source: str = LOCAL,
        client: str = "",
        travel: Travel = HERE,
        taken: Ticket | None = None,
        trace: TraceContext | None = None,
        sender: Sender = OUTSIDE,
    ) -> asyncio.Future[Verdict]:
        """Takes a command of a client. The future holds the answer, once it is durable.

        For an agent that another node runs that may take long: `taken` is told when the command itself is durable.
        """
        self.check_open()
        check_address(address)
        if not isinstance(command_id, str):
            raise Malformed(f"{_shown(command_id)} is no command id; give a text, or leave it out")
        body = command if isinstance(command, bytes) else written(command, Command)
        if self.is_elsewhere(address, command_id) or travel.refused:
            travel = structs.replace(travel, elsewhere=True, keep_ns=self._keep_ns)
        trace = self.tracer.of_command(trace, address, body, command_id)
        ask = Ask(address, command_id, body, source, client, travel, trace, sender)
        shard = self.home_of(address, anywhere=travel.elsewhere)
        self._mailbox.put_command(Queued(shard=shard, input=ask, tickets=() if taken is None else (taken,)))
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        waiting = self._asks.setdefault((address, command_id, body), [])
        # Those who have stopped waiting for a command that is on its way ask again, perhaps often.
        waiting[:] = [*(one for one in waiting if not one.done()), future]
        self._wake()
        return future

    def is_elsewhere(self, address: str, command_id: str = "") -> bool:
        """Whether a command for this agent is sent on to another node. One that was is known by its id, also while
        nobody here knows a way any more."""
        if self._forwards is None or self._assignment.runs(address):
            return False
        return self.is_held(address, command_id) or self._forwards(address)

    def is_held(self, address: str, command_id: str) -> bool:
        """Whether the log has this command already: it was answered, or sent on."""
        shard = self.shard_of(address)
        return shard in self._shards and self._is_known(shard, address, command_id)

    def wake(self) -> None:
        """Something was put into the mailbox."""
        self._wake()

    def put_inside(self, shard: int, one: Input) -> None:
        """Takes an input from inside: a timer, a result, a note."""
        self._mailbox.put_inside(Queued(shard=shard, input=one))
        self._wake()

    def put_results(self, shard: int, results: list[EffectSettled]) -> None:
        """Takes results of effects that have come together."""
        self._mailbox.put_inside(Queued(shard=shard, input=ResultsCame(results), items=len(results)))
        self._wake()

    def put_queued(self, queued: Queued) -> None:
        """Takes a queued input of another process, whose sender waits on its ticket."""
        self.check_open()
        self._mailbox.put_inside(queued)
        self._wake()

    def take(self, shard: int, one: Input) -> asyncio.Future[None]:
        """Takes an input of an operator: a retry, an enrolment. Done when what followed from it is durable."""
        self.check_open()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._mailbox.put_inside(Queued(shard=shard, input=one, tickets=(AwaitedTicket(future),)))
        self._wake()
        return future

    def decided(self, address: str, command_id: str, after: object) -> None:
        """Another node has accepted a command that was sent on to it, and says at which position of its log. Call this
        before the answer is taken. What is no position is as if nothing had been said."""
        if isinstance(after, str) and _AFTER.fullmatch(after):
            self._decided[address, command_id] = after
            if len(self._decided) > DECIDED_MAX:
                del self._decided[next(iter(self._decided))]

    def answer(self, asked: Asked, verdict: Verdict) -> None:
        """Answers the senders of this command. A different command with the same id gets its own answer."""
        futures = self._asks.pop(asked, ())
        if futures and isinstance(verdict, Accepted):
            address, command_id, _ = asked
            if self._assignment.runs(address):
                after = self.name_position(self.shard_of(address), verdict.position)
            else:
                # The position of the answer in our log is of no use: what the command has changed is in another one.
                after = self._decided.get((address, command_id), f"{address}:{UNSAID}")
            verdict = Accepted(verdict.position, after)
        for future in futures:
            if not future.done():
                future.set_result(verdict)

    def fail_all(self, error: Exception) -> None:
        """Tells everybody who waits that it is over."""
        for queued in self._mailbox.clear():
            for ticket in queued.tickets:
                ticket.fail(error)
        for waiting in self._ingress.clear():
            waiting.fail(error)
        for futures in self._asks.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._asks.clear()

    def home_of(self, address: str, *, anywhere: bool = False) -> int:
        """The shard of ours where an agent lives. Raises NotAssigned or NotOwned, with who has it, for one that runs
        elsewhere, and UnknownKind for one that no node can run. With `anywhere`, the shard that sends on what is for an
        agent of another node."""
        if not anywhere:
            self._assignment.check(address)
        shard = self.shard_of(address)
        if shard not in self._shards:
            self._shards.check_home(address, shard)
        return shard

    def _check_homes(self, items: list[tuple[str, bytes]]) -> None:
        """Raises as `home_of` does for the first that does not live here; most envelopes are for one shard or two."""
        homes = self._declaration.homes.of_all([address for address, _ in items])
        if any(home not in self._shards for home in dict.fromkeys(homes)):
            for address, _ in items:
                self.home_of(address)

    def _post(self, accepted: Accept[Envelope, Ticket]) -> None:
        envelope = accepted.envelope
        policy = self._declaration.policy_of(envelope.source)
        shards = len(self._shards)
        parts = [envelope.items] if shards == 1 else self._split(envelope.items)
        traces = self.tracer.of_items(None, envelope.source, envelope.sequence, envelope.items)
        for ticket in accepted.tickets:
            if isinstance(ticket, AwaitedTicket):
                ticket.expect(shards)
        for shard, part in zip(self._shards.numbers, parts, strict=True):
            if accepted.skip_to:
                skipped = SequencesSkipped(
                    source=envelope.source,
                    incarnation=envelope.incarnation,
                    epoch=envelope.epoch,
                    last=accepted.skip_to - 1,
                    because=DECLARED if accepted.declared else MISSING,
                )
                self._mailbox.put_note(Queued(shard=shard, input=skipped, items=0), policy)
            delivery = Delivery(
                source=envelope.source,
                items=part,
                sequence=envelope.sequence,
                incarnation=envelope.incarnation,
                epoch=envelope.epoch,
                # How much of it is for this shard is not known; all of it may be.
                size_bytes=accepted.size_bytes if shards == 1 else 0,
                traces=traces,
                sender=Sender(how="envelope", source=envelope.source),
            )
            queued = Queued(shard, delivery, accepted.tickets, len(part), accepted.size_bytes // shards)
            self._mailbox.put_telemetry(queued, policy)

    def _split(self, items: list[tuple[str, bytes]]) -> list[list[tuple[str, bytes]]]:
        """One list for each shard, of full length: the numbers of a source run through all of them."""
        parts = {shard: [("", ELSEWHERE)] * len(items) for shard in self._shards.numbers}
        for number, item in enumerate(items):
            parts[self.shard_of(item[0])][number] = item
        return list(parts.values())

    def check_open(self) -> None:
        """Raises NotRunning once nothing is taken any more."""
        if self._closed is not None:
            raise NotRunning(f"{self._closed}; nothing was taken")


def checked_address(address: str, fleet: str) -> str:
    """An address that a program gives, as nodes of its fleet write it. Raises as `check_address`."""
    check_address(address)
    return within_fleet(address, fleet)


def check_address(address: object) -> None:
    """A program that gives anything but a text as an address is told at once; it must not stop the node."""
    if not isinstance(address, str) or address != address.encode(errors="replace").decode():
        raise UnknownKind(f"{_shown(address)} is no address; give a text such as 'Drone/D-17'")


def written(message: object, wanted: type[Command] | type[Event]) -> bytes:
    """The bytes of what a program says to an agent. Raises Malformed for what is no such message or has no bytes."""
    what = "a command" if wanted is Command else "an event"
    if not isinstance(message, wanted):
        if isinstance(message, type) and issubclass(message, wanted):
            remedy = f"make one: {message.__name__}(…)"
        elif isinstance(message, Command | Event):
            remedy = "observe events, send commands"
        else:
            remedy = f"give {what}, an instance of a class that subclasses {wanted.__name__}"
        raise Malformed(f"{_shown(message)} is not {what}; {remedy}")
    try:
        return encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(
            f"{type(message).__name__} cannot be written ({error}); give each field a value of its type, whole numbers "
            "of at most 64 bits, and texts without halves of surrogate pairs"
        ) from None


def _shown(value: object) -> str:
    return printable(repr(value), SHOWN_CHARS_MAX)


# Repeated commands: they get the first answer, once that is durable.


class Repeats:
    """Answers to repetitions, by the position that must be durable before they are given."""

    def __init__(self, durable: Callable[[int], int], answer: Callable[[Asked, Verdict], None]) -> None:
        self._durable = durable
        self._answer = answer
        self._waiting: list[tuple[int, int, Asked, Verdict]] = []

    def add(self, shard: int, position: int, command: Asked, verdict: Verdict) -> None:
        """This command of a shard was answered at this position already."""
        self._waiting.append((shard, position, command, verdict))

    def give(self) -> None:
        """Gives the answers that are durable by now."""
        waiting, self._waiting = self._waiting, []
        for shard, position, command, verdict in waiting:
            if position <= self._durable(shard):
                self._answer(command, verdict)
            else:
                self._waiting.append((shard, position, command, verdict))
