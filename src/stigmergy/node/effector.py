"""The effector: has actuators and workers carry out effects, once the commit behind them is durable.

The caller releases only durable effects; a safe action is the one exception and has its own method. Effects of one
agent for one sink run in order; different agents, and actions and work of the same agent, run side by side, with a
bound for each sink: no action waits for slow work. Each effect is tried a bounded number of times with the same key;
then it is settled as failed. Settling is an input: the shard records it, and after a restart only unsettled effects are
released again.

A safe action waits for nothing, is tried as often, and gets a new key each time it goes out: a device that remembers
keys must not take the next silence for a repetition of the last.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from stigmergy.agents.codec import MESSAGE_BYTES_MAX, UNDECODABLE, encode, printable, tag_of
from stigmergy.agents.effects import (
    ENTRIES,
    LAPSED,
    PUBLISH,
    ActionDone,
    ActionFailed,
    Order,
    OrderClaim,
    WorkFailed,
)
from stigmergy.agents.ledgers import NO_LEDGER, outcome_of, read_proposal
from stigmergy.agents.messages import SECOND_NS, Action, Claimed, Event, Work, spec_of
from stigmergy.agents.plans import AgentPlan, confirmation
from stigmergy.agents.steps import heard_of
from stigmergy.base.clock import Clock
from stigmergy.base.errors import ClaimLapsed, DeviceRefused
from stigmergy.devices.actuators import PAUSE_S_MAX, RetryPolicy
from stigmergy.devices.equipment import ActuatorFunction, Actuators
from stigmergy.devices.staleness import safe_actions_of
from stigmergy.node.failures import FailureReport
from stigmergy.node.measures import HostMeasures
from stigmergy.node.settings import Settings
from stigmergy.shard.inputs import EffectSettled, EffectsSettled, Input, SafeActionOut
from stigmergy.shard.outbox import INDEX_BITS, Pending
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import addresses_of
from stigmergy.store.blobs import Blobs, as_current

Lane = tuple[str, str]
"""Sink and agent: what is in one lane is carried out in order. Slow work does not hold up an action."""
Settle = Callable[[int, EffectSettled | EffectsSettled], None]
_REASON_CHARS_MAX = 300
SENT_SAFE_MAX = 1_000
"""Safe actions that are remembered for whoever watches; the oldest are forgotten."""
SAFE_SLICE_S = 0.01
"""So long plain functions may make agents safe one after the other before everybody else has a turn."""


class EffectorCounters(Struct):
    """What became of effects."""

    released: int = 0
    done: int = 0
    failed: int = 0
    retries: int = 0
    safe: int = 0
    safe_failed: int = 0
    unheard: int = 0
    lapsed: int = 0
    """Orders that were dropped because the claim that they are bound to was not held any more; they count as failed."""


Begun = Awaitable[Any] | BaseException | None
"""How far a try has come that was begun: to be awaited, or over."""


class _Actuator(Struct):
    """A registered actuator or worker with its decoder."""

    effect: type[Action] | type[Work]
    call: ActuatorFunction
    decode: Callable[[bytes], Any]
    tries: int
    within_s: float
    """How often it is tried, and how long each try may take."""


class Effector:
    """Carries out effects. `settle` is told, for each, when it is over."""

    def __init__(
        self,
        actuators: Actuators,
        plans: Mapping[str, AgentPlan],
        settings: Settings,
        incarnation: int,
        settle: Settle,
        held_claim: Callable[[str, Claimed], OrderClaim | None],
        publish: Callable[[int, Pending], None] | None,
        blobs: Blobs | None = None,
        enter: Callable[[int, Pending], None] | None = None,
    ) -> None:
        """`held_claim` gives the claim that an effect is bound to, if the agent holds it right now. Without `publish`,
        what is published is unheard; without `enter`, what is proposed to ledgers is refused."""
        self._actuators = {
            tag: _fitted(effect, call, actuators.retry_policy.get(tag, RetryPolicy()), settings)
            for tag, (effect, call) in actuators.by_tag.items()
        }
        self._plans = plans
        self._settings = settings
        self._incarnation = incarnation
        self._settle = settle
        self._lanes: dict[Lane, deque[tuple[int, Pending]]] = {}
        """Per lane what is still to be done, the first of it under way; only lanes that have something."""
        self._waiting: dict[str, deque[Lane]] = {}
        """Per sink the lanes whose first effect waits for a free place. Each sink has places of its own."""
        self._settled: dict[tuple[int, str], list[int]] = {}
        """Effects that are over and whose results nobody waits for, by shard and sink, until the next turn."""
        self._tasks: dict[str, dict[Lane, asyncio.Task[None]]] = {}
        self._safe_tasks: dict[int, asyncio.Task[None]] = {}
        self._safe_count = 0
        self._safe_waiting: deque[tuple[_Actuator, Order[Any]]] = deque()
        """Safe actions that plain functions carry out, while others have their turn."""
        self._slice_end_s: float | None = None
        self._halted = False
        self._publish = publish
        self._enter = enter
        self._held_claim = held_claim
        self._blobs = blobs
        self.measures: HostMeasures | None = None
        self.failures: FailureReport | None = None
        self.trace_of: Callable[[int, Pending], str] = lambda *_: ""
        """The id of an effect's trace in hex digits; empty: it belongs to none."""
        self.traced_ns: Callable[[int, Pending], int] = lambda *_: 0
        """The time by the wall clock for an effect that belongs to a trace, 0 for any other."""
        self._begun_ns: dict[tuple[int, str, int], int] = {}
        """When actuators were first called for those of a trace."""
        self.counters = EffectorCounters()

    def release(self, shard: int, pending: Pending) -> None:
        """Has a durable effect carried out, after what the same agent asked of the same sink before it."""
        if self._halted:
            return
        self.counters.released += 1
        if pending.sink == PUBLISH and self._publish is not None:
            self._publish(shard, pending)
            return
        if pending.sink == ENTRIES:
            if self._enter is None:
                refused = outcome_of(read_proposal(pending.body), reason=NO_LEDGER)
                self._settle(shard, EffectSettled(pending.sink, pending.sequence, refused, failed=NO_LEDGER))
            else:
                self._enter(shard, pending)
            return
        name = (pending.sink, pending.agent)
        lane = self._lanes.get(name)
        if lane is not None:
            lane.append((shard, pending))
            return
        begun: Begun = None
        if self._has_room(pending.sink):
            settled, begun = self._try_at_once(shard, pending)
            if settled:
                return
        self._lanes[name] = deque([(shard, pending)])
        self._start(name, begun)

    def release_safe(self, shard: int, position: int, agent: str, action: Action, moment_ns: int) -> None:
        """Sends a safe action out now: no disk, no waiting for what is under way. A plain function holds up everybody
        while it runs, so such ones run in slices: those of other agents that only have to be begun come in between.

        Its token is behind everything up to this position, which is sealed, and before whatever is decided next.
        """
        self.counters.safe += 1
        tag = spec_of(type(action)).tag
        actuator = self._actuators.get(tag)
        if actuator is None:
            self.counters.safe_failed += 1
            return
        order: Order[Any] = Order(
            agent=agent,
            effect=action,
            key=f"{self._incarnation}.{shard}.{position}.safe.{moment_ns}.{agent}.{tag}",
            token=((position + 1) << INDEX_BITS) - 1,
            sequence=0,
        )
        if inspect.iscoroutinefunction(actuator.call):
            self._begin_safe(actuator, order)
            return
        self._safe_waiting.append((actuator, order))
        if self._slice_end_s is None:
            self._next_slice()
        else:
            self._use_slice(self._slice_end_s)

    def _next_slice(self) -> None:
        """Begins a slice of time for plain functions that make agents safe; the next comes when others had a turn."""
        self._slice_end_s = None
        if self._safe_waiting:
            loop = asyncio.get_running_loop()
            self._slice_end_s = loop.time() + SAFE_SLICE_S
            loop.call_soon(self._next_slice)
            self._use_slice(self._slice_end_s)

    def _use_slice(self, end_s: float) -> None:
        while self._safe_waiting and asyncio.get_running_loop().time() < end_s:
            self._begin_safe(*self._safe_waiting.popleft())

    def _begin_safe(self, actuator: _Actuator, order: Order[Any]) -> None:
        begun = _call(actuator, order)
        if begun is None:
            return
        self._safe_count += 1
        number = self._safe_count
        with as_current(self._blobs):
            self._safe_tasks[number] = asyncio.ensure_future(self._finish_safe(actuator, order, begun))
        self._safe_tasks[number].add_done_callback(lambda _: self._safe_tasks.pop(number, None))

    @property
    def busy(self) -> int:
        """How many lanes have effects under way or waiting, or results that the host has not heard of yet."""
        return len(self._lanes) + len(self._settled)

    def halt(self) -> None:
        """Begins nothing more but safe actions, and tries nothing again. What is under way goes on."""
        self._halted = True

    async def wait_safe(self, timeout_s: float) -> bool:
        """Waits until all safe actions are carried out or given up, at most so long."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._safe_tasks or self._safe_waiting:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(min(0.01, timeout_s))
        return True

    async def close(self) -> None:
        """Ends what is under way. What was not settled is released again after the next start."""
        self._halted = True
        self.counters.safe_failed += len(self._safe_waiting)
        self._safe_waiting.clear()
        tasks = [*(task for running in self._tasks.values() for task in running.values()), *self._safe_tasks.values()]
        for task in tasks:
            task.cancel()
        deadline = asyncio.get_running_loop().time() + self._settings.drain_s
        # An actuator that ignores its cancellation is abandoned.
        while not all(task.done() for task in tasks) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0)
            if not all(task.done() for task in tasks):
                await asyncio.sleep(0.001)
        self._lanes.clear()
        self._waiting.clear()

    def _try_at_once(self, shard: int, pending: Pending) -> tuple[bool, Begun]:
        """Settles at once what needs no waiting: nobody to do it, or a plain function that succeeds.

        Otherwise it returns how far the first try has come, if it was begun.
        """
        if pending.sink == PUBLISH:
            self.counters.unheard += 1
            self._settle(shard, EffectSettled(pending.sink, pending.sequence))
            return True, None
        tag = tag_of(pending.body)
        actuator = self._actuators.get(tag)
        if actuator is None:
            self._failed(shard, pending, tag, f"nobody is registered to carry out {tag}")
            return True, None
        if inspect.iscoroutinefunction(actuator.call):
            return False, None
        try:
            result = actuator.call(self._order(actuator, shard, pending, attempt=1))
        except BaseException as error:
            return False, _of_the_actuator(error)
        if inspect.isawaitable(result):
            return False, result
        self._done(shard, pending, actuator, result)
        return True, None

    def _has_room(self, sink: str) -> bool:
        return len(self._tasks.get(sink, ())) < self._settings.effects_in_flight_max

    def _start(self, name: Lane, begun: Begun = None) -> None:
        sink = name[0]
        if self._has_room(sink):
            with as_current(self._blobs):
                self._tasks.setdefault(sink, {})[name] = asyncio.ensure_future(self._work_off(name, begun))
        else:
            self._waiting.setdefault(sink, deque()).append(name)

    async def _work_off(self, name: Lane, begun: Begun) -> None:
        """Carries out a lane's effects until there are none, or others wait for the place."""
        lane = self._lanes[name]
        waiting = self._waiting.setdefault(name[0], deque())
        try:
            while lane and not self._halted:
                shard, pending = lane[0]
                begun_s = asyncio.get_running_loop().time()
                await self._carry_out(shard, pending, begun)
                if self.measures is not None and pending.sink in self.measures.effects:
                    took_s = asyncio.get_running_loop().time() - begun_s
                    self.measures.effects[pending.sink].observe(int(took_s * SECOND_NS))
                begun = None
                lane.popleft()
                if waiting:
                    break
        finally:
            self._tasks[name[0]].pop(name, None)
            if not lane:
                self._lanes.pop(name, None)
            elif not self._halted:
                waiting.append(name)
            if waiting and not self._halted:
                self._start(waiting.popleft())

    async def _carry_out(self, shard: int, pending: Pending, begun: Begun) -> None:
        """Tries an effect so many times. Halted, it tries no more: it stays owed, and is released after the restart."""
        if pending.sink == PUBLISH:
            self.counters.unheard += 1
            self._settle(shard, EffectSettled(pending.sink, pending.sequence))
            return
        tag = tag_of(pending.body)
        actuator = self._actuators.get(tag)
        if actuator is None:
            self._failed(shard, pending, tag, f"nobody is registered to carry out {tag}")
            return
        reason = ""
        raised: BaseException | None = None
        pause_s = self._settings.effect_pause_s
        for attempt in range(1, actuator.tries + 1):
            if attempt > 1:
                await asyncio.sleep(pause_s)
                pause_s = max(pause_s, min(pause_s * 2, PAUSE_S_MAX))
                if self._halted:
                    return
                self.counters.retries += 1
            try:
                trying: Any = actuator.call(self._order(actuator, shard, pending, attempt)) if begun is None else begun
                result = await self._finish(trying, actuator.within_s)
            except DeviceRefused as error:
                self.counters.lapsed += isinstance(error, ClaimLapsed)
                self._failed(shard, pending, tag, printable(error, _REASON_CHARS_MAX))
                return
            except BaseException as error:
                reason, raised = _reason(error), None if isinstance(error, TimeoutError) else error
                if self.failures is not None and attempt < actuator.tries:
                    about = (shard, pending.agent, tag.removesuffix("@1"), self._key(shard, pending))
                    self.failures.effect_retried(*about, attempt, reason, self.trace_of(shard, pending))
            else:
                self._done(shard, pending, actuator, result)
                return
            begun = None
        tries = f"{actuator.tries} {'try' if actuator.tries == 1 else 'tries'}"
        self._failed(shard, pending, tag, f"{reason}, after {tries}", raised)

    async def _finish(self, begun: Any, within_s: float) -> Any:
        """Waits for a try that was begun, within its time; raises what it has raised."""
        if isinstance(begun, BaseException):
            raise begun
        if not inspect.isawaitable(begun):
            return begun
        within = asyncio.timeout(within_s)
        try:
            async with within:
                return await begun
        except TimeoutError:
            if within.expired():
                raise TimeoutError(f"no answer within {within_s:g} s") from None
            raise

    def _order(self, actuator: _Actuator, shard: int, pending: Pending, attempt: int) -> Order[Any]:
        """The order, made just before the actuator is called: raises ClaimLapsed if it is bound to a claim that is no
        longer held."""
        if attempt == 1 and (begun_ns := self.traced_ns(shard, pending)):
            self._begun_ns[shard, pending.sink, pending.sequence] = begun_ns
        effect = actuator.decode(pending.body)
        claim: OrderClaim | None = None
        if effect.valid_while is not UNSET:
            claim = self._held_claim(pending.agent, effect.valid_while)
            if claim is None:
                named = effect.valid_while.resource or effect.valid_while.field
                raise ClaimLapsed(f"the claim on {named} under fencing token {effect.valid_while.token} {LAPSED}")
        return Order(
            agent=pending.agent,
            effect=effect,
            key=_key(shard, pending),
            token=(pending.position << INDEX_BITS) + pending.index,
            sequence=pending.sequence,
            attempt=attempt,
            claim=claim,
        )

    def _done(self, shard: int, pending: Pending, actuator: _Actuator, result: Any) -> None:
        name = spec_of(actuator.effect).name
        body: bytes | None
        if issubclass(actuator.effect, Work):
            if not isinstance(result, Event):
                returned = type(result).__name__
                self._failed(
                    shard, pending, spec_of(actuator.effect).tag, f"the worker returned {returned}, not an event"
                )
                return
            try:
                body = encode(result)
            except Exception as error:
                self._failed(shard, pending, spec_of(actuator.effect).tag, f"the result has no bytes: {_reason(error)}")
                return
            if unreadable := self._unreadable(pending, body):
                self._failed(shard, pending, spec_of(actuator.effect).tag, unreadable)
                return
        else:
            said = ActionDone(action=name, key=self._key(shard, pending))
            body = confirmation(self._plan_of(pending.agent), pending.body, said)
        self.counters.done += 1
        if body is None and (shard, pending.sink, pending.sequence) not in self._begun_ns:
            self._settle_quietly(shard, pending)
        else:
            self._settle(shard, self._settled_as(shard, pending, body))

    def _unreadable(self, pending: Pending, body: bytes) -> str:
        """Why the agent could make nothing of a result, which it would otherwise wait for in vain; empty if it can."""
        if (size_bytes := len(heard_of(pending.body, body))) > MESSAGE_BYTES_MAX:
            return f"the result has {size_bytes} bytes, {MESSAGE_BYTES_MAX} at most; store it and return a Blob"
        plan = self._plan_of(pending.agent)
        try:
            plan.decode(body)
        except UNDECODABLE as error:
            return printable(plan.explain(body, error), _REASON_CHARS_MAX)
        return ""

    def _settle_quietly(self, shard: int, pending: Pending) -> None:
        """Settles together what comes together: a busy fleet confirms thousands of actions a second."""
        key = (shard, pending.sink)
        if key in self._settled:
            self._settled[key].append(pending.sequence)
        else:
            self._settled[key] = [pending.sequence]
            asyncio.get_running_loop().call_soon(self._tell_settled, shard, pending.sink)

    def _tell_settled(self, shard: int, sink: str) -> None:
        self._settle(shard, EffectsSettled(sink, self._settled.pop((shard, sink))))

    def _failed(self, shard: int, pending: Pending, tag: str, reason: str, error: BaseException | None = None) -> None:
        self.counters.failed += 1
        name = tag.partition("@")[0]
        if self.failures is not None:
            about = (shard, pending.agent, tag.removesuffix("@1"), self._key(shard, pending))
            self.failures.effect_failed(*about, reason, error, self.trace_of(shard, pending))
        actuator = self._actuators.get(tag)
        failure: ActionFailed | WorkFailed
        if (actuator is not None and issubclass(actuator.effect, Work)) or pending.sink == "work":
            failure = WorkFailed(work=name, key=self._key(shard, pending), reason=reason)
        else:
            failure = ActionFailed(action=name, key=self._key(shard, pending), reason=reason)
        body = confirmation(self._plan_of(pending.agent), pending.body, failure)
        self._settle(shard, self._settled_as(shard, pending, body, reason))

    def _settled_as(self, shard: int, pending: Pending, body: bytes | None, failed: str = "") -> EffectSettled:
        begun_ns = self._begun_ns.pop((shard, pending.sink, pending.sequence), 0) if self._begun_ns else 0
        times_ns = (begun_ns, self.traced_ns(shard, pending)) if begun_ns else (0, 0)
        return EffectSettled(pending.sink, pending.sequence, body, times_ns, failed)

    def _plan_of(self, agent: str) -> AgentPlan:
        return self._plans[agent.partition("/")[0]]

    def _key(self, shard: int, pending: Pending) -> str:
        return _key(shard, pending)

    async def _finish_safe(self, actuator: _Actuator, order: Order[Any], begun: Begun) -> None:
        pause_s, reason = self._settings.effect_pause_s, ""
        for attempt in range(2, actuator.tries + 2):
            try:
                await self._finish(begun, actuator.within_s)
            except BaseException as error:
                reason = f"{_reason(error)}, after {attempt - 1} {'try' if attempt == 2 else 'tries'}"
            else:
                return
            if attempt <= actuator.tries:
                await asyncio.sleep(pause_s)
                pause_s = max(pause_s, min(pause_s * 2, PAUSE_S_MAX))
                begun = _call(actuator, structs.replace(order, attempt=attempt))
        self.counters.safe_failed += 1
        if self.failures is not None:
            name = f"safe action {spec_of(actuator.effect).tag.removesuffix('@1')}"
            self.failures.effect_failed(None, order.agent, name, order.key, reason)


def _fitted(
    effect: type[Action] | type[Work], call: ActuatorFunction, retry_policy: RetryPolicy, settings: Settings
) -> _Actuator:
    """An actuator with its decoder, and with the time limits of the settings if it has none of its own."""
    decode = msgspec.msgpack.Decoder(effect).decode
    tries = settings.effect_tries if retry_policy.tries is None else retry_policy.tries
    return _Actuator(effect, call, decode, tries, retry_policy.within_s or settings.effect_within_s)


def _call(actuator: _Actuator, order: Order[Any]) -> Begun:
    """Begins a try: what is to be awaited, the error that it has raised, or None if it is done."""
    try:
        result = actuator.call(order)
    except BaseException as error:
        return _of_the_actuator(error)
    return result if inspect.isawaitable(result) else None


def _of_the_actuator(error: BaseException) -> BaseException:
    """What a plain function has raised, whatever it is, as a try that failed; raises it again if programs end by it."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    return error


def _reason(error: BaseException) -> str:
    """What an actuator has raised, for people. Raises it again if it was not the actuator's: we are being stopped."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
        return "it was cancelled"
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    if isinstance(error, TimeoutError) and error.args:
        return printable(error, _REASON_CHARS_MAX)
    return printable(f"{type(error).__name__}: {error}", _REASON_CHARS_MAX)


def _key(shard: int, pending: Pending) -> str:
    """The same at every repetition, also after a restart or a restore from a copy."""
    return f"{pending.incarnation}.{shard}.{pending.position}.{pending.index}"


# Makes agents safe: sends their safe actions without waiting for the disk, and records them if the disk works.


class SentSafeAction(Struct, frozen=True):
    """A safe action that went out."""

    agent: str
    action: str
    because: str


class Safety:
    """The safe actions of a host's agents."""

    def __init__(
        self, shards: Iterable[Shard], effector: Effector, clock: Clock, put_inside: Callable[[int, Input], None]
    ) -> None:
        self._shards = shards
        self._effector = effector
        self._clock = clock
        self._put_inside = put_inside
        self.sent: deque[SentSafeAction] = deque(maxlen=SENT_SAFE_MAX)
        """The last ones, for people who watch; whoever tells them takes them out."""

    def make_safe(self, shard: Shard, address: str, because: str, *, journal: bool) -> None:
        """Sends out an agent's safe actions; they are written down afterwards if the journal lives."""
        if address in shard.state.at_rest:
            return
        plan = shard.state.plans[address.partition("/")[0]]
        for action in safe_actions_of(plan):
            self.send(shard, address, action, because, journal=journal)

    def make_all_safe(self) -> None:
        """Sends out everybody's. The journal has failed, or we ourselves."""
        for shard in self._shards:
            for address in addresses_of(shard.state, safe_actions_of):
                self.make_safe(shard, address, "", journal=False)

    def send(self, shard: Shard, address: str, action: Action, because: str, *, journal: bool) -> None:
        """Sends out one safe action of an agent."""
        state = shard.state
        self._effector.release_safe(state.shard, state.position, address, action, self._clock.monotonic_ns())
        self.sent.append(SentSafeAction(address, type(action).__name__, because))
        if journal:
            self._put_inside(state.shard, SafeActionOut(address, type(action).__name__, because))
