"""Takes out of answers what is raw: other nodes, and programs over HTTP and gRPC, get the rest.

Who asks at the node's own socket is on the device, and gets everything.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, structs

from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.raw import CLIENTS, WITHHELD, RawGuard, inner_tag
from stigmergy.audit.listing import LogEntry, Owing
from stigmergy.base.errors import ConfigError
from stigmergy.control import protocol, replies
from stigmergy.control.protocol import Answer, ControlHandler

CARRIED = ("input", "body")
"""Fields of the framework's events with the bytes of another message."""
ASKED_OF_MODELS = "models"
"""The sink of questions to models: their inputs are raw data, whatever it was made from."""


class Withholding:
    """What others may see of answers about one fleet."""

    def __init__(self, plans: Mapping[str, AgentPlan], guard: RawGuard) -> None:
        self._guard = guard
        self._staying = {kind: guard.fields_that_stay(plan.cls, CLIENTS) for kind, plan in plans.items()}

    def check(self, request: Any) -> None:
        """Refuses conditions on what stays: who may ask whether it is above 7 can find out what it is."""
        conditions = request.where if isinstance(request, protocol.AgentsRequest) else ()
        for condition in conditions:
            for kind, names in self._staying.items():
                for name in names:
                    if condition.startswith(name):
                        raise ConfigError(f"{condition!r}: {kind}.{name} holds raw events, which stay on their device")

    def of(self, found: Any) -> Any:
        """The same without what stays."""
        match found:
            case replies.EventsReply():
                return structs.replace(found, events=[self.of(one) for one in found.events])
            case replies.EventReply():
                stays = self._stays(found.type, found.fields)
                return structs.replace(found, fields=WITHHELD, place=UNSET) if stays else found
            case replies.AgentsReply():
                return structs.replace(found, agents=[self.of(one) for one in found.agents])
            case replies.StateReply() | replies.ListedAgent():
                return structs.replace(found, state=self._state(found.agent, found.state))
            case replies.ExplainReply():
                state, entries = self._state(found.agent, found.state), [self.of(one) for one in found.entries]
                return structs.replace(found, state=state, entries=entries)
            case LogEntry() | replies.ExplainedEntry():
                fields = WITHHELD if self._stays(found.type, found.fields) else found.fields
                return structs.replace(found, fields=fields, effects=[self.of(one) for one in found.effects])
            case Owing():
                stays = found.sink == ASKED_OF_MODELS or self._stays(found.type, found.fields)
                return structs.replace(found, fields=WITHHELD) if stays else found
            case replies.LetterReply():
                stays = self._stays(found.type, found.fields)
                # What a handler says of an input may quote it.
                return structs.replace(found, fields=WITHHELD, error=found.error.partition(":")[0]) if stays else found
            case _:
                return found

    def _state(self, agent: str, state: dict[str, Any]) -> dict[str, Any]:
        staying = self._staying.get(agent.partition("/")[0], ())
        return {name: WITHHELD if name in staying else value for name, value in state.items()} if staying else state

    def _stays(self, tag: str, fields: Any) -> bool:
        """Whether a message stays, or carries one that does."""
        if self._guard.stays(tag, CLIENTS):
            return True
        if not tag.startswith("stigmergy.") or not isinstance(fields, dict):
            return False
        inside = [fields["event"]] if isinstance(fields.get("event"), str) else []
        for name in CARRIED:
            if isinstance(text := fields.get(name), str):
                try:
                    inside.append(inner_tag(base64.b64decode(text, validate=True)))
                except (binascii.Error, ValueError):
                    continue
        return any(self._guard.stays(one, CLIENTS) for one in inside)


class WithheldAnswers:
    """The answers of a handler, for others than the device's own people (the ControlHandler port)."""

    def __init__(self, own: ControlHandler, withholding: Withholding) -> None:
        self._own = own
        self._withholding = withholding

    async def answer(self, request: protocol.AnyRequest) -> Iterator[Answer]:
        """The answers, without what stays."""
        try:
            self._withholding.check(request)
        except ConfigError as error:
            return iter((protocol.refusal(error),))
        return map(self._of, await self._own.answer(request))

    def _of(self, answer: Answer) -> Answer:
        if isinstance(answer, bytes):
            return answer
        of = self._withholding.of
        return structs.replace(answer, ok=of(answer.ok), item=of(answer.item))
