"""Says which node runs an agent, and why: it is declared, claimed on the bus, or computed from the agent's shard."""

from __future__ import annotations

from stigmergy.agents.assignment import is_foreign, shown
from stigmergy.base.errors import UnknownKind
from stigmergy.bus.presence import Member, names
from stigmergy.control.replies import WhereReply
from stigmergy.network.bus_link import BusLink
from stigmergy.node.host import Host
from stigmergy.shard.homes import is_remote_address

DECLARED = "declared"
EVERYTHING = "everything"
COMPUTED = "computed"
FOREIGN = "foreign"
ROUTED = "routed"
NOBODY = "nobody"


def locate_agent(host: Host, link: BusLink | None, address: str, owner: str = "") -> WhereReply:
    """Where an agent runs, as far as this node knows. `owner` is the worker that owns its shards; empty on a node of
    its own. Raises UnknownKind for an address that no agent of this fleet can have."""
    to = host.assignment.within_fleet(address)
    if not is_remote_address(to):
        host.shards.first.state.plan_at(to)
    if is_foreign(to):
        fleet = to.partition("/")[0]
        why = f"it is an agent of the fleet {fleet!r}: tells reach it over the bus, and a node of that fleet says where"
        return WhereReply(address, None, FOREIGN, why, False)
    others, off = _claimants(link, to), _staying_off(link, to)
    if host.assignment.runs(to) and host.assignment.knows_kind(to):
        return _here(host, link, to, owner, [*others, *off])
    if others:
        node = others[0].node
        why = f"agents of node {node!r} name it: {shown(others[0].agents)}; {_state(link, node)}"
        if link is not None and not _is_here(link, others[0]) and (settling := link.presence.settling()):
            why += f", as far as is known: {settling}"
        why += _too([*others[1:], *off])
        return WhereReply(to, node, DECLARED, why, False, _is_here(link, others[0]), None, others[0].epoch or None)
    kind = to.partition("/")[0]
    for member in [] if link is None else link.members():
        if member.everything and kind in member.kinds and member.node != link_name(link):
            why = f"node {member.node!r} runs every agent of its fleet that no other node names"
            return WhereReply(to, member.node, EVERYTHING, why, False, True, None, member.epoch or None)
    if link is not None and (way := link.forwarder.way_to(to))[0] is not None:
        return WhereReply(to, None, ROUTED, f"it is reachable through {way[1]}", False, True)
    if not host.assignment.knows_kind(to):
        raise UnknownKind(host.assignment.refusal(to))
    heard = "this node has no bus to ask others"
    if link is not None:
        heard = link.unreachable(to) or "no node on the bus says that it runs it"
    return WhereReply(to, None, NOBODY, f"{heard}, and this one runs {shown(host.assignment.agents)}", False)


def link_name(link: BusLink | None) -> str | None:
    """What this node is called on its bus; None without one."""
    return None if link is None else link.node


def _here(host: Host, link: BusLink | None, to: str, owner: str, others: list[Member]) -> WhereReply:
    shard = host.intake.shard_of(to)
    node, epoch = link_name(link), host.shards[shard].epoch
    if len(host.journal.identity.owned) < host.shards.total:
        why = f"it lives in shard {shard} of {host.shards.total}, which worker {owner} owns, in epoch {epoch}"
        return WhereReply(to, node, COMPUTED, why, True, True, shard, epoch, owner or None)
    how = EVERYTHING if host.assignment.is_everything else DECLARED
    why = "this node runs every agent of its fleet"
    if how == DECLARED:
        why = f"agents of this node name it: {shown(host.assignment.agents)}"
    why += _too(others)
    if link is not None and (holder := link.holder(to, "send it there")):
        why = holder
    return WhereReply(to, node, how, why, True, True, shard, epoch)


def _too(others: list[Member]) -> str:
    """What to say of further nodes that name an agent."""
    off = "".join(f", which stays off the bus ({one.off})" for one in others[:1] if one.off)
    return f"; agents of node {others[0].node!r} name it too{off}: take it out of one of them" if others else ""


def _staying_off(link: BusLink | None, to: str) -> list[Member]:
    return [] if link is None else [one for one in link.presence.staying_off() if names(one, to)]


def _claimants(link: BusLink | None, to: str) -> list[Member]:
    """Nodes that name an agent, those that are here first."""
    found = [] if link is None else link.presence.claimants(to)
    return sorted(found, key=lambda member: (not _is_here(link, member), member.node))


def _state(link: BusLink | None, node: str) -> str:
    if link is None or not link.is_up:
        return "" if link is None else link.presence.absence(node)
    return f"that node {'is here' if link.presence.is_here(node) else link.presence.absence(node)}"


def _is_here(link: BusLink | None, member: Member) -> bool:
    return link is not None and link.presence.is_here(member.node)
