"""Which inputs begin a trace, by rule, and when they came. It decides at the entrance: the step knows nothing of it.

The decision is no dice: a command's follows from its id, so its repetition gets the same one on any node; of observed
events every n-th is taken. A sender that says whether it records its trace is believed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import structs

from stigmergy.agents.codec import tag_of
from stigmergy.agents.messages import Command, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.base.errors import ConfigError
from stigmergy.diagnostics.codes import Trouble
from stigmergy.node.settings import TraceSettings
from stigmergy.shard.commit import Commit
from stigmergy.shard.tracing import TraceContext, Traces, new_trace

_ALL = 1 << 64


class SpanSink(Protocol):
    """Who is told of durable commits with notes of traces, and sends their spans on. Never waits."""

    def durable(self, commit: Commit) -> None:
        """Takes such a commit."""
        ...

    def viewed(self, view: str, tags: Container[str], commits: Sequence[Commit], written_ns: int) -> None:
        """Takes commits that are in the rows of a view since then, which folds events with these tags."""
        ...

    def counters(self) -> dict[str, int]:
        """What became of spans, by name."""
        ...

    def troubles(self) -> list[Trouble]:
        """Why spans are not sent at present."""
        ...


class Tracer:
    """Samples the inputs of one host."""

    def __init__(self, settings: TraceSettings, plans: Mapping[str, AgentPlan], wall_ns: Callable[[], int]) -> None:
        self._rules, self._rate, self._believes = settings.rules, settings.sample, settings.parent
        self._wall_ns = wall_ns
        commands = {spec_of(one).name for plan in plans.values() for one in messages_of(plan, Command)}
        _check_rules(settings.rules, plans, commands)
        self._event_rate = max(
            [settings.sample, *(rate for name, rate in settings.rules.items() if name not in commands)]
        )
        self.traces_failures = settings.failed and (self._rate > 0 or any(self._rules.values()))
        """Whether a refused or failed input begins a trace, whatever the rules say."""
        self._stride = round(1 / self._event_rate) if self._event_rate else 0
        self._left = self._stride // 2
        self._count = 0

    def of_command(self, given: TraceContext | None, address: str, body: bytes, command_id: str) -> TraceContext | None:
        """The trace of a command: the one that its sender `given` says, or a new one if it is sampled."""
        if given is not None and self._believes:
            return self.came(given)
        if not self._rules and not self._rate:
            return None
        rate = self._rate_of(address, body)
        return self._begin(rate, (address, command_id), self._wall_ns()) if rate else None

    def of_items(
        self, given: TraceContext | None, source: str, sequence: int, items: Sequence[tuple[str, bytes]]
    ) -> Traces:
        """The traces of observed events, by their places; `given` is that of the first."""
        if given is not None and self._believes:
            context = self.came(given)
            return () if context is None else ((0, context),)
        if not self._stride:
            return ()
        self._left -= len(items)
        return () if self._left >= 0 else tuple(self._picked(source, sequence, items))

    def came(self, given: TraceContext) -> TraceContext | None:
        """A context that came with an input just now; None if its sender does not record the trace."""
        return structs.replace(given, came_ns=self._wall_ns()) if given.trace_id else None

    def _picked(
        self, source: str, sequence: int, items: Sequence[tuple[str, bytes]]
    ) -> Iterable[tuple[int, TraceContext]]:
        now_ns = self._wall_ns()
        while self._left < 0:
            place = len(items) + self._left
            self._left += self._stride
            self._count += 1
            names = (source, sequence and sequence + place, now_ns, self._count)
            share = self._rate_of(*items[place]) / self._event_rate if self._rules else 1.0
            context = self._begin(share, names, now_ns)
            if context is not None:
                yield place, context

    def _rate_of(self, address: str, body: bytes) -> float:
        if not self._rules:
            return self._rate
        by_name = self._rules.get(tag_of(body).partition("@")[0])
        return self._rules.get(address.partition("/")[0], self._rate) if by_name is None else by_name

    def _begin(self, rate: float, names: tuple[object, ...], now_ns: int) -> TraceContext | None:
        context = new_trace(*names)
        if rate < 1.0 and int.from_bytes(context.trace_id[:8], "big") >= rate * _ALL:
            return None
        return structs.replace(context, came_ns=now_ns)


def active_context() -> tuple[str, str]:
    """`traceparent` and `tracestate` of the program's current span, if it uses OpenTelemetry; else empty. The library
    is not needed, and not loaded for this."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return "", ""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return "", ""
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}", str(context.trace_state.to_header())


def _check_rules(rules: Mapping[str, float], plans: Mapping[str, AgentPlan], commands: Iterable[str]) -> None:
    known = {*commands, *plans, *(spec_of(one).name for plan in plans.values() for one in plan.plans)}
    for name in rules:
        if name not in known:
            raise ConfigError(
                f"settings: traces.rules names {name!r}, which is no agent kind, command or event of this fleet"
            )


UNTRACED = Tracer(TraceSettings(), {}, lambda: 0)
"""Begins no trace."""
