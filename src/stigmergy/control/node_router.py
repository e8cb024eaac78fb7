"""Answers requests to one node about the whole fleet: what other nodes on the bus have is asked of them.

A question about an agent goes to the node that runs it; one about all agents goes to all nodes, and those that are away
or silent are `missing` in the answer. Events, views and the map are those of one log, of this node or of the one that
is named, or whose position a view is to have seen; all other nodes are `missing`. Nodes answer each other with what
they have themselves, so no question goes in circles, and only reading requests: nobody changes anything this way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import structs

from stigmergy.agents.assignment import UNKNOWN_NODES, shown
from stigmergy.base.errors import ConfigError, NotAssigned, NotRunning, Overloaded, StigmergyError, TooLarge
from stigmergy.bus.presence import Member
from stigmergy.control import protocol
from stigmergy.control.location import locate_agent
from stigmergy.control.protocol import (
    REPLY_BYTES_MAX,
    REQUEST_S_MAX,
    Answer,
    ControlHandler,
    Reply,
    Request,
    answers_to,
    read_reply,
    read_request,
    refusal,
    single,
    write_reply,
    write_request,
)
from stigmergy.control.replies import AgentsReply, ListedAgent, MissingPart
from stigmergy.control.router import joined_agents
from stigmergy.control.withheld import WithheldAnswers, Withholding
from stigmergy.network.bus_link import BusLink
from stigmergy.network.questions import Questions
from stigmergy.node.host import Host
from stigmergy.traces.spans import Span
from stigmergy.views.query import read_position

R = TypeVar("R")
AnsweredT = TypeVar("AnsweredT")
ASK_S = 10.0
"""So long another node has to answer."""
ASKED_MAX = 256
"""So many nodes are asked for one answer; those of a larger fleet are missing in it."""
SILENT_S = 30.0
"""A node that did not answer is not asked again for so long, in questions to all."""
ANSWERED = (
    protocol.StateRequest,
    protocol.ExplainRequest,
    protocol.LogRequest,
    protocol.TraceRequest,
    protocol.LettersRequest,
    protocol.AgentsRequest,
    protocol.EventsRequest,
    protocol.PositionsRequest,
    protocol.ViewRequest,
    protocol.ViewsRequest,
    protocol.LedgerRequest,
)
"""What other nodes may ask."""
OF_ONE_LOG = protocol.EventsRequest | protocol.PositionsRequest | protocol.ViewRequest | protocol.ViewsRequest
OF_LOG = re.compile(r"\d@([0-9a-f]{1,8}):\d+$", re.ASCII)
"""A position that names its log."""
NAMED_MAX = 100
"""So many nodes are named as missing in an answer, and it says how many more there are."""
OURS_READABLE = "there; `log`, and the state with `at`, show what this node has"
LOOK_S = 1.0
"""How long it is remembered which nodes there are: events are asked for often."""


class NodeAnswers:
    """Answers the questions of other nodes with what this node has."""

    def __init__(self, own: ControlHandler, host: Host) -> None:
        self._own = WithheldAnswers(own, Withholding(host.declaration.plans, host.raw))
        self._host = host

    async def answer(self, line: bytes) -> bytes:
        """The lines of the answer. Raises nothing."""
        try:
            request = read_request(line)
            if not isinstance(request, ANSWERED):
                raise ConfigError(f"{type(request).__name__} is not answered to other nodes; ask this node itself")
            if not self._host.settings.bus.queries:
                raise NotAssigned("its node answers no queries over the bus (queries = false); ask it itself")
            async with asyncio.timeout(REQUEST_S_MAX):
                return await self._lines(request)
        except (StigmergyError, TimeoutError) as error:
            said = error if isinstance(error, StigmergyError) else Overloaded("it took too long; ask this node itself")
            return write_reply(refusal(said))

    async def _lines(self, request: protocol.AnyRequest) -> bytes:
        found = bytearray()
        for answer in await self._own.answer(request):
            if not answer:
                await asyncio.sleep(0)
                continue
            found += answer if isinstance(answer, bytes) else write_reply(answer)
            if len(found) > REPLY_BYTES_MAX:
                raise TooLarge(f"an answer of more than {REPLY_BYTES_MAX} bytes; ask for less")
        return bytes(found)


class NodeRouter:
    """Answers for the fleet, at the control endpoint of one node."""

    def __init__(self, own: ControlHandler, host: Host, link: BusLink, questions: Questions) -> None:
        self._own = own
        self._host = host
        self._link = link
        self._questions = questions
        self._silent: dict[tuple[str, str], float] = {}
        """Nodes in their runs that did not answer, and until when they are not asked."""
        self._nodes: tuple[float, list[str]] = (0.0, [])
        """The nodes that have logs, and until when that counts."""
        self._collects = link.relay.collects_all
        """A gateway has the events of its devices in its own log: it answers with that, and lacks nothing."""

    async def answer(self, request: protocol.AnyRequest) -> Iterator[Answer]:
        """The answers to this request. Raises nothing: a refusal is a reply."""
        try:
            node = None
            request = protocol.within(request, self._host.declaration.name)
            match request:
                case protocol.StateRequest() | protocol.ExplainRequest():
                    self._check_ours(request)
                    node = self._node_of(request.agent)
                case protocol.LogRequest() if request.agent is not None:
                    node = self._node_of(request.agent)
                case protocol.TraceRequest() if not request.here:
                    return await self._trace(request)
                case protocol.LettersRequest() if request.everywhere:
                    return await self._letters()
                case protocol.RetryRequest() | protocol.DropRequest():
                    request = structs.replace(request, letter=self._own_letter(request.letter))
                case protocol.AgentsRequest() if not request.here:
                    return iter((single(await self._agents(request)),))
                case (
                    protocol.EventsRequest()
                    | protocol.PositionsRequest()
                    | protocol.ViewRequest()
                    | protocol.ViewsRequest()
                ):
                    return iter((single(await self._of_one_log(request)),))
                case _:
                    pass
            return await self._own.answer(request) if node is None else iter(await self._ask(node, request))
        except StigmergyError as error:
            return iter((refusal(error),))

    def _check_ours(self, request: protocol.StateRequest | protocol.ExplainRequest) -> None:
        """Raises NotAssigned for the present state of an agent that a rival has. What is in the log stays readable."""
        at = request.at if isinstance(request, protocol.StateRequest) else request.position
        if at is None and (holder := self._link.holder(request.agent, f"ask {OURS_READABLE}")):
            raise NotAssigned(holder)

    def _node_of(self, agent: str) -> str | None:
        """Which other node has an agent; None if it is to be looked for here. Raises NotRunning if that one is away."""
        host = self._host
        if host.assignment.is_everything:
            # Copies of a gateway's devices are here; an agent that another node names, and is not here, is there.
            named = [] if host.durable_image(agent) is not None else self._link.presence.claimants(agent)
            node = next((one.node for one in named if self._link.presence.is_here(one.node)), None)
            node = node or next((one.node for one in named), None)
        elif host.assignment.runs(agent):
            return None
        else:
            try:
                where = locate_agent(host, self._link, agent)
            except StigmergyError:
                return None  # The service refuses it, and says why.
            node = None if where.here else where.node
        if node is None:
            return None
        if not (self._link.is_up and self._link.presence.is_here(node)):
            raise NotRunning(f"{agent}: node {node!r} runs it, and {self._absence(node)}")
        return node

    def _absence(self, node: str) -> str:
        """Why a node cannot be asked, and what to do."""
        back = "it is back" if self._link.is_up else "the link is back"
        return f"{self._link.presence.absence(node)}; ask again when {back}"

    async def _of_one_log(self, request: OF_ONE_LOG) -> Any:
        """The answer of this node, or of the one that is named, with those that are not in it."""
        node = request.node or self._decider(request) or self._link.node
        if node == self._link.node:
            (found,) = answers_to(_checked(await self._own.answer(structs.replace(request, node=""))))
        else:
            self._check_here(node)
            for after in request.after if isinstance(request, protocol.ViewRequest) else ():
                if OF_LOG.search(after) is None:
                    read_position(after)
                    raise ConfigError(f"after {after!r}: give the `after` that node {node!r} itself has answered with")
            within_s = 0.0 if isinstance(request, protocol.ViewsRequest) else request.within_s
            found = answers_to(await self._ask(node, structs.replace(request, node=""), within_s))[0]
        unheard = self._unheard()
        others = [] if self._collects else [one for one in self._nodes_known() if one != node]
        missing = [_not_in(one, node) for one in others[:NAMED_MAX] if one not in unheard]
        missing = [*_parts(unheard), *missing]
        if (more := len(others) - NAMED_MAX) > 0:
            missing.append(MissingPart(node=UNKNOWN_NODES, why=f"{more} more nodes are not in it either"))
        return structs.replace(found, missing=missing) if missing else found

    def _decider(self, request: OF_ONE_LOG) -> str:
        """The other node whose log has all that a view is to have seen: only its rows can have it. Empty if none has.

        So a command that was sent on is seen in the view that is asked for at the node that took it."""
        found = map(OF_LOG.search, request.after) if isinstance(request, protocol.ViewRequest) else ()
        logs = {one[1]: None for one in found if one is not None}
        if self._collects or len(logs) != 1 or self._host.feed.log in logs:
            return ""
        presence = self._link.presence
        others = (*presence.others(), *presence.away())
        # A log is named by the end of the number that its journal has.
        return next((one.node for one in others if one.journal[-8:].lstrip("0") in logs), "")

    def _unheard(self) -> dict[str, str]:
        return {} if self._collects else self._link.unheard()

    def _check_here(self, node: str) -> None:
        if not self._link.presence.is_here(node):
            known = self._nodes_known()
            if node not in known and (unheard := self._link.unheard()):
                raise NotRunning(f"node {node[:100]!r} cannot be asked: {next(reversed(unheard.values()))}")
            if node not in known:
                raise ConfigError(f"there is no node {node[:100]!r} here; there are {', '.join(known[:NAMED_MAX])}")
        if not (self._link.is_up and self._link.presence.is_here(node)):
            cannot = "" if self._link.is_up else "cannot be asked: "
            raise NotRunning(f"node {node!r} {cannot}{self._absence(node)}")

    def _nodes_known(self) -> list[str]:
        """All nodes that are here or known to be away, this one included."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._nodes[0]:
            presence = self._link.presence
            names = {one.node: None for one in (*presence.members(), *presence.away())}
            self._nodes = (0.0 if self._link.unheard() else now_s + LOOK_S, sorted(names))
        return self._nodes[1]

    async def _ask(self, node: str, request: Request[R], within_s: float = 0.0) -> list[Reply[R]]:
        """The replies of another node, which may wait so long itself. Raises what it refuses with, and NotRunning."""
        data = await self._questions.ask(node, write_request(request), ASK_S + within_s)
        return [read_reply(line, request) for line in data.splitlines(keepends=True)]

    # ------------------------------------------------------------------ all nodes

    async def _agents(self, request: protocol.AgentsRequest) -> AgentsReply:
        """A page of the agents of all nodes; each is asked for a whole page, because all may be of one of them."""
        (own,) = answers_to(_checked(await self._own.answer(request)))
        here, missing = self._askable(request.kind)
        pages = await asyncio.gather(*(self._page(member, request) for member in here))
        found = [page for page in pages if isinstance(page, AgentsReply)]
        missing += [page for page in pages if isinstance(page, MissingPart)]
        return joined_agents(self._each_once([own, *found]), request.limit, missing)

    def _askable(self, kind: str | None) -> tuple[list[Member], list[MissingPart]]:
        """Which other nodes to ask, and which cannot be asked."""
        if self._collects:
            return [], []
        unheard, absence = self._unheard(), self._link.presence.absence
        has_kind = [one for one in self._link.presence.others() if kind is None or not one.kinds or kind in one.kinds]
        now_s = asyncio.get_running_loop().time()
        self._silent = {run: until_s for run, until_s in self._silent.items() if until_s > now_s}
        missing = [
            MissingPart(node=one.node, why=f"node {one.node!r} runs {shown(one.agents)}, and {absence(one.node)}")
            for one in self._link.presence.away()
            if one.node not in unheard
        ]
        missing = [*_parts(unheard), *missing]
        here: list[Member] = []
        for member in has_kind:
            if member.node in unheard:
                continue
            if not self._link.is_up:
                why = f"node {member.node!r} cannot be asked: {absence(member.node)}"
            elif (member.node, member.run) in self._silent:
                why = f"node {member.node!r} has not answered lately"
            elif len(here) >= ASKED_MAX:
                why = f"node {member.node!r} was not asked: {ASKED_MAX} nodes at most"
            else:
                here.append(member)
                continue
            missing.append(MissingPart(node=member.node, why=why))
        return here, missing

    async def _trace(self, request: protocol.TraceRequest) -> Iterator[Answer]:
        """The spans in the logs of all nodes that answer: one trace goes through several."""
        own, others, missing = await self._items_of_all(structs.replace(request, here=True))
        found: list[Span] = [*own, *(span for spans in others.values() for span in spans)]
        return iter((*map(protocol.item, found), protocol.end(len(found), missing)))

    async def _letters(self) -> Iterator[Answer]:
        """The dead letters of all nodes that answer. Nodes number theirs alike, so those of others have their name."""
        found, others, missing = await self._items_of_all(protocol.LettersRequest())
        for node, letters in others.items():
            found += [structs.replace(one, letter=f"{one.letter}@{node}") for one in letters]
        return iter((*map(protocol.item, found), protocol.end(len(found), missing)))

    def _own_letter(self, letter: str) -> str:
        """The id of a dead letter of this node. Raises NotAssigned for one of another: nobody changes anything there
        from here."""
        here, _, node = letter.partition("@")
        if node and node != self._link.node:
            raise NotAssigned(f"dead letter {here} is of node {node[:100]!r}; retry or drop it there, as {here}")
        return here

    async def _items_of_all(self, request: Request[R]) -> tuple[list[R], dict[str, list[R]], list[MissingPart]]:
        """The items that this node answers a request with, those of each other one, and who does not answer."""
        here, missing = self._askable(None)
        own: list[R] = []
        for answer in await self._own.answer(request):  # type: ignore[arg-type]
            if isinstance(answer, Reply) and answer.item is not None:
                own.append(answer.item)
            elif isinstance(answer, Reply):
                protocol.checked(answer)
            else:
                await asyncio.sleep(0)
        told = await asyncio.gather(*(self._told(member, request, answers_to) for member in here))
        missing += [one for one in told if isinstance(one, MissingPart)]
        others = zip(here, told, strict=True)
        return own, {member.node: one for member, one in others if not isinstance(one, MissingPart)}, missing

    async def _page(self, member: Member, request: protocol.AgentsRequest) -> AgentsReply | MissingPart:
        return await self._told(member, request, lambda replies: answers_to(replies)[0])

    async def _told(
        self, member: Member, request: Request[R], read: Callable[[list[Reply[R]]], AnsweredT]
    ) -> AnsweredT | MissingPart:
        """What another node answers, or why it is missing."""
        try:
            return read(await self._ask(member.node, request))
        except NotRunning as error:
            self._silent[member.node, member.run] = asyncio.get_running_loop().time() + SILENT_S
            return MissingPart(node=member.node, why=str(error))
        except (StigmergyError, IndexError) as error:
            return MissingPart(node=member.node, why=f"node {member.node!r}: {error}")

    def _each_once(self, pages: Sequence[AgentsReply]) -> list[AgentsReply]:
        """An agent that has moved may be known to two nodes: that of the node counts that runs it."""
        counts: dict[str, ListedAgent] = {}
        for number, page in enumerate(pages):
            for one in page.agents:
                if one.agent not in counts or (number == 0 and self._host.assignment.runs(one.agent)):
                    counts[one.agent] = one
        return [
            structs.replace(page, agents=[one for one in page.agents if counts[one.agent] is one]) for page in pages
        ]


def _checked(answers: Iterator[Answer]) -> Iterator[Reply[Any]]:
    return (protocol.checked(one) for one in answers if not isinstance(one, bytes))


def _parts(unheard: Mapping[str, str]) -> list[MissingPart]:
    return [MissingPart(node=node, why=why) for node, why in unheard.items()]


def _not_in(node: str, asked: str) -> MissingPart:
    why = f"node {node!r} has a log of its own, and this is from the log of {asked!r}; ask for the part of {node!r} too"
    return MissingPart(node=node, why=why)
