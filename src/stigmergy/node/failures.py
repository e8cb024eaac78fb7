"""Says in the log which inputs and effects have failed, and why, without saying it a thousand times.

What fails is in the journal, too: an input is a dead letter, an effect has `ActionFailed` or `WorkFailed`. The journal
has no traceback, and nobody looks there before he knows that something failed.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.supervision import InputFailed
from stigmergy.diagnostics.logger import Log

REPORT_EVERY_S = 60.0
"""The same input or effect of the same agent is reported at most so often, and then with its count."""
REPORTED_MAX = 1_000
"""So many of them are told apart; beyond that, all others of a code count as one."""
log = Log("agents")


class _Reported(Struct):
    until_ns: int
    unsaid: int = 0


class FailureReport:
    """What failed in the shards of a host."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._reported: dict[tuple[str, str, str], _Reported] = {}

    def input_failed(
        self, shard: int, failed: InputFailed, name: str, error: Exception | None, trace_id: bytes = b""
    ) -> None:
        """An input named `name` has become a dead letter. `error` is what a handler raised."""
        text = f"{failed.to} failed on {name}" if error else f"{name or 'an input'} for {failed.to} is of no use"
        fields = {"input": name, "source": failed.source, "letter": failed.letter}
        self._say("input-failed", failed.to, name, f"{text}: {failed.error}", shard, error, fields, trace_id.hex())

    def effect_failed(
        self,
        shard: int | None,
        agent: str,
        name: str,
        key: str,
        reason: str,
        error: BaseException | None = None,
        trace: str = "",
    ) -> None:
        """An action or work was given up. `error` is what the actuator raised, if that says where."""
        fields = {"effect": name, "key": key}
        self._say("effect-failed", agent, name, f"{name} of {agent} failed: {reason}", shard, error, fields, trace)

    def effect_retried(
        self, shard: int, agent: str, name: str, key: str, attempt: int, reason: str, trace: str
    ) -> None:
        """A try has failed, and there will be another."""
        fields = {"effect": name, "key": key, "attempt": attempt}
        text = f"{name} of {agent}, try {attempt}: {reason}; trying again"
        log.say("effect-retried", text, agent=agent, shard=shard, trace=trace, fields=fields)

    def _say(
        self,
        code: str,
        agent: str,
        name: str,
        text: str,
        shard: int | None,
        error: BaseException | None,
        fields: dict[str, str],
        trace: str,
    ) -> None:
        now_ns = self._now_ns()
        key = (code, agent, name)
        if key not in self._reported and len(self._reported) >= REPORTED_MAX:
            self._reported = {one: told for one, told in self._reported.items() if told.until_ns > now_ns}
            key = key if len(self._reported) < REPORTED_MAX else (code, "", "")
        told = self._reported.get(key)
        if told is not None and now_ns < told.until_ns:
            told.unsaid += 1
            return
        more = f" ({told.unsaid} more since the last report)" if told is not None and told.unsaid else ""
        self._reported[key] = _Reported(now_ns + int(REPORT_EVERY_S * SECOND_NS))
        log.say(code, f"{text}{more}", agent=agent, shard=shard, trace=trace, error=error, fields=fields)
