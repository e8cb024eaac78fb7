"""Whose keys a node believes on a bus, and what each may publish there. No I/O: the caller keeps what is to be kept.

A name belongs to the key that was first heard under it. That is remembered for good, by the caller, or for a key that
ends with its process (a node without a key file) until its node has left. With trusted keys only these count, and a key
that is trusted no more gives its name free. A name is `fleet/site/node`, as in topics.

What only one node publishes, nobody else may: a topic that has a node's name belongs to that node, and the topics of an
agent to the nodes that say in their signed presence that they run it. From the moment that such a node is known, nobody
publishes there unsigned. Everybody may send commands, inputs and queries, unless signatures are required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import assert_never

from msgspec import Struct, structs

from stigmergy.base.errors import Malformed, PeerError
from stigmergy.base.trust import Verifier
from stigmergy.bus.port import BusMessage
from stigmergy.bus.presence import Member, goes_before, is_other_journal, names, read_presence
from stigmergy.bus.signatures import BusProof, CheckedRoots
from stigmergy.bus.tells import read_acknowledgement, read_frame
from stigmergy.bus.topics import AGENTS, NODES, Channel, Topics, escape, unescape
from stigmergy.membership.bus_mesh import MESH
from stigmergy.uplink.names import MARKS, ROUTED, ROUTED_DOWN, UPLINK

NAMES_COUNT_MAX = 10_000
"""Names whose keys are known, and nodes whose agents are; of more nothing is believed."""
ROOTS_COUNT_MAX = 4_096
TOPICS_COUNT_MAX = 10_000
"""Topics and pairs of signer and topic of which is remembered what may be published there; then it is found anew."""
CLIENTS = "clients"
"""The first level of a client's name. A client has two levels, a node has three."""


class Rule(Enum):
    """Who may publish on a topic."""

    ANYBODY = 0
    """Commands, inputs, queries, requests for history."""
    NODE = 1
    """The node in the topic."""
    RUNNER = 2
    """A node that runs the agent in the topic."""
    SENDER = 3
    """The node that the frame names as its sender."""
    COLLECTOR = 4
    """The node that was first heard on it: a topic between levels."""


class Owned(Struct, frozen=True):
    """What is known of a topic by its text alone."""

    rule: Rule
    root: str
    """Fleet and site."""
    name: str = ""
    """The node, as it signs; or the agent's address."""
    channel: str = ""


_CHANNELS = {
    Channel.EVENTS.value: Rule.RUNNER,
    Channel.ANSWERS.value: Rule.RUNNER,
    Channel.STATES.value: Rule.RUNNER,
    Channel.TELLS.value: Rule.SENDER,
    Channel.PRESENCE.value: Rule.NODE,
    Channel.REFUSALS.value: Rule.NODE,
    Channel.PUBLISHED.value: Rule.NODE,
    Channel.ACKNOWLEDGEMENTS.value: Rule.SENDER,
}


def owned(topic: str) -> Owned | None:
    """Whose a topic is; None for one outside the topics of fleets, such as that of a device, which nobody signs on."""
    levels = topic.split("/")
    if len(levels) < 4:
        return None
    root, group = "/".join(levels[:2]), levels[2]
    if group == AGENTS and len(levels) >= 6:
        try:
            address = f"{unescape(levels[3])}/{unescape(levels[4])}"
        except Malformed:
            return None
        return Owned(_CHANNELS.get(levels[5], Rule.ANYBODY), root, address, levels[5])
    if group == NODES and len(levels) >= 5:
        return Owned(_CHANNELS.get(levels[4], Rule.ANYBODY), root, f"{root}/{levels[3]}", levels[4])
    if group == MESH and len(levels) == 5:
        return Owned(Rule.NODE, root, f"{root}/{levels[4]}", MESH)
    if group == UPLINK and len(levels) == 4:
        return Owned(Rule.NODE, root, f"{root}/{levels[3]}", UPLINK)
    if group == UPLINK and len(levels) == 5 and levels[4] in (MARKS, ROUTED, ROUTED_DOWN):
        rule = Rule.NODE if levels[4] == ROUTED else Rule.COLLECTOR
        return Owned(rule, root, f"{root}/{levels[3]}", levels[4])
    return None


def signer_of(fleet: str, site: str, node: str) -> str:
    """A node's name, as it signs."""
    return f"{Topics(fleet, site).root}/{escape(node)}"


class _Known(Struct):
    key: bytes
    is_passing: bool
    heard_s: float
    has_left: bool = False


class KeptNode(Struct, frozen=True, omit_defaults=True):
    """What is remembered of a node for good."""

    name: str
    key: str
    """As hex digits."""
    member: Member | None = None
    """What it said last of its agents; None if it has said nothing."""


class _Claim(Struct):
    """What a node's presence says of its agents."""

    member: Member
    payload: bytes
    order: int
    key: bytes
    is_heard: bool = True
    """False for what an earlier run has heard."""


class BusKeys:
    """Of one node or client: all its buses share one."""

    def __init__(
        self,
        me: str,
        key: bytes,
        verifier: Verifier,
        now_s: Callable[[], float],
        *,
        trusted: Iterable[bytes] = (),
        clients: Iterable[bytes] = (),
        requires: bool = False,
        gone_s: float = 90.0,
        kept: Iterable[KeptNode] = (),
        keep: Callable[[KeptNode], None] = lambda _: None,
    ) -> None:
        """`trusted` are keys of nodes; none: every key, on first use. `clients` are keys that may sign what anybody
        may send, where signatures are required. `keep` is told what is to be remembered; `kept` is that of before."""
        self.me = me
        self._key = key
        self._verifier = verifier
        self._now_s = now_s
        believed = frozenset(trusted)
        self._trusted = believed | {key} if believed else believed
        self._clients = frozenset(clients)
        self.requires = requires
        self._gone_s = gone_s
        self._keep = keep
        self._names: dict[str, _Known] = {}
        self._claims: dict[str, _Claim] = {}
        """By the names of the nodes."""
        self._exact: dict[tuple[str, str], dict[str, None]] = {}
        """By root and address: the nodes that name this agent."""
        self._patterns: dict[str, dict[str, None]] = {}
        """By root: the nodes that name agents by patterns."""
        self._everything: dict[str, dict[str, None]] = {}
        """By root: the nodes that name none, and run every agent of their kinds."""
        self._order = 0
        self._collectors: dict[str, str] = {}
        self._roots = CheckedRoots(verifier.verify, ROOTS_COUNT_MAX)
        self._topics: dict[str, Owned | None] = {}
        self._verdicts: dict[tuple[str, str], str] = {}
        self._settles_s: float | None = now_s() + gone_s
        """Until then a node that an earlier run has heard counts as here."""
        for one in kept:
            self._recall(one)
        if key:
            self._names[me] = _Known(key, False, 0.0)

    def _recall(self, kept: KeptNode) -> None:
        key = bytes.fromhex(kept.key)
        if kept.name == self.me or not self._may_sign(key):
            return
        self._names[kept.name] = _Known(key, False, 0.0)
        if kept.member is not None:
            self._order += 1
            what = Owned(Rule.NODE, kept.name.rpartition("/")[0], kept.name)
            self._claims[kept.name] = _Claim(kept.member, b"", self._order, key, is_heard=False)
            self._index(what, kept.member)

    def check(self, message: BusMessage, proof: BusProof | None) -> str:
        """Why a message, which is here without its proof, is refused; empty if it is taken. Remembers what it says of
        its node."""
        topic = message.topic
        if self._settles_s is not None and self._now_s() > self._settles_s:
            self._settles_s = None
            self._verdicts.clear()
        if topic not in self._topics:
            if len(self._topics) >= TOPICS_COUNT_MAX:
                self._topics.clear()
            self._topics[topic] = owned(topic)
        what = self._topics[topic]
        if what is None or not message.payload:
            # An empty payload removes what a broker keeps, and cannot be more than empty.
            self._note_cleared(what)
            return "" if what is None or what.channel == Channel.PRESENCE.value else self._unsigned(what, message)
        if proof is None:
            return self._unsigned(what, message)
        if why := self._signed(what, message, proof):
            return why
        if what.channel == Channel.PRESENCE.value and what.rule is Rule.NODE:
            return self._hear_presence(what, message, proof)
        return ""

    # ------------------------------------------------------------------ signed messages

    def _signed(self, what: Owned, message: BusMessage, proof: BusProof) -> str:
        is_client = proof.signer.count("/") == 1
        # What costs little goes first: a flood of forged messages must not cost a check of a signature each.
        why = "" if is_client else self._why_not_its_key(proof.signer, proof)
        if why and not (what.name == self.me and proof.signer == self.me and self._is_twin(what, proof)):
            return why
        if why := self._why_not_its_topic(what, message, proof, is_client=is_client):
            return why
        if objection := self._acceptable(proof):
            return objection
        if not self._roots.is_signed(message, proof):
            return "the signature is not one of this message: it was changed, or belongs to another topic"
        if not is_client and proof.signer != self.me:
            self._note_key(proof)
        if what.rule is Rule.COLLECTOR:
            if len(self._collectors) >= NAMES_COUNT_MAX:
                self._collectors.clear()
            self._collectors.setdefault(message.topic, proof.signer)
        return ""

    def _why_not_its_key(self, name: str, proof: BusProof) -> str:
        """Why this key may not sign under this name."""
        known = self._names.get(name)
        if known is not None and known.key == proof.key:
            return ""
        if not self._may_sign(proof.key):
            return f"its key is not among the peers of this node, and {name} signs with it"
        if known is not None and not self._is_free(known):
            return f"{name} is known here with another key, {known.key.hex()[:16]}…"
        if known is None and len(self._names) >= NAMES_COUNT_MAX:
            return f"{NAMES_COUNT_MAX} nodes are known here already, and {name} is a further one"
        return ""

    def _may_sign(self, key: bytes) -> bool:
        return not self._trusted or key in self._trusted

    def _is_free(self, known: _Known) -> bool:
        """Whether another key may take this name."""
        if not known.is_passing:
            return False
        return known.has_left or self._now_s() - known.heard_s > self._gone_s

    def _is_twin(self, what: Owned, proof: BusProof) -> bool:
        """Whether another node announces itself under our name: presence has to hear that, to find twins."""
        return what.channel == Channel.PRESENCE.value and self._may_sign(proof.key)

    def _acceptable(self, proof: BusProof) -> str:
        known = self._names.get(proof.signer)
        if known is not None and known.key == proof.key:
            return ""
        objection = self._verifier.acceptable(proof.algorithm, proof.key)
        return "" if objection is None else f"its key is refused: {objection}"

    def _note_key(self, proof: BusProof) -> None:
        known = self._names.get(proof.signer)
        if known is not None and known.key == proof.key:
            known.heard_s, known.has_left = self._now_s(), False
            return
        self._names[proof.signer] = _Known(proof.key, proof.is_passing, self._now_s())
        self._verdicts.clear()
        if not proof.is_passing:
            self._keep(KeptNode(proof.signer, proof.key.hex()))

    def _why_not_its_topic(self, what: Owned, message: BusMessage, proof: BusProof, *, is_client: bool) -> str:
        """Why this signer may not publish on this topic."""
        signer = proof.signer
        if is_client:
            if what.rule is not Rule.ANYBODY:
                return f"{signer} is a client, and only nodes publish there"
            listed = proof.key in self._clients or proof.key in self._trusted
            return "" if listed or not self.requires else f"the key of {signer} is not among the clients of this node"
        match what.rule:
            case Rule.ANYBODY:
                return ""
            case Rule.NODE:
                return "" if signer == what.name else f"{signer} publishes on a topic of {what.name}"
            case Rule.SENDER:
                named = _sender(what, message.payload)
                return "" if named in ("", signer) else f"{signer} signs a frame of {named}"
            case Rule.COLLECTOR:
                first = self._collectors.get(message.topic, signer)
                return "" if signer == first else f"{signer} publishes what {first} did so far"
            case Rule.RUNNER:
                pair = (message.topic, signer)
                if pair not in self._verdicts:
                    if len(self._verdicts) >= TOPICS_COUNT_MAX:
                        self._verdicts.clear()
                    self._verdicts[pair] = self._why_not_its_agent(what, signer, proof.key)
                return self._verdicts[pair]
            case _:
                assert_never(what.rule)

    def _why_not_its_agent(self, what: Owned, signer: str, key: bytes) -> str:
        claim = self._claims.get(signer)
        others = [one for one in self._claimants(what) if self._claims[one].key != key]
        if claim is not None and names(claim.member, what.name):
            # Two that name it: the first one keeps it while it is there.
            before = [one for one in others if self._claims[one].order < claim.order and self._is_here(one)]
            return f"{before[0]} runs {what.name}, and was here before {signer}" if before else ""
        if others:
            return f"{others[0]} runs {what.name}, and {signer} publishes as that agent"
        if claim is None or not (claim.member.agents or claim.member.shards_run):
            return ""  # It runs everything, or has not said yet what it runs.
        if claim.member.routes and what.channel == Channel.ANSWERS.value:
            return ""  # It answers for agents of other levels.
        return f"{signer} does not run {what.name}, by its own words, and publishes as that agent"

    def _claimants(self, what: Owned) -> list[str]:
        """Which nodes name an agent."""
        found = list(self._exact.get((what.root, what.name), ()))
        return found + [
            one
            for one in self._patterns.get(what.root, ())
            if one not in found and names(self._claims[one].member, what.name)
        ]

    def _is_here(self, name: str) -> bool:
        claim = self._claims[name]
        return claim.member.online and (claim.is_heard or self._settles_s is not None)

    # ------------------------------------------------------------------ unsigned ones

    def _unsigned(self, what: Owned, message: BusMessage) -> str:
        if self.requires:
            return "it is not signed, and this node requires signatures"
        match what.rule:
            case Rule.ANYBODY:
                known = ""
            case Rule.NODE:
                if what.name == self.me and what.channel == Channel.PRESENCE.value:
                    # An earlier version left it at its end, or runs under our name: presence answers and tells of it.
                    return self._why_no_twin(message)
                known = what.name
            case Rule.SENDER:
                known = _sender(what, message.payload)
            case Rule.COLLECTOR:
                known = self._collectors.get(message.topic, "")
            case Rule.RUNNER:
                return self._unsigned_as_agent(what)
            case _:
                assert_never(what.rule)
        return f"it is not signed, and {known} signs what it publishes" if known in self._names else ""

    def _why_no_twin(self, message: BusMessage) -> str:
        """Nothing unsigned may make this node leave the bus."""
        try:
            member = read_presence(message)
        except PeerError:
            return ""  # Presence refuses it, and counts it.
        ours = self._claims.get(self.me)
        if not member.journal or not member.online:
            return ""
        if ours is not None and not (
            is_other_journal(member.journal, ours.member.journal) and goes_before(member, ours.member)
        ):
            return ""
        return f"it is not signed, and would make {self.me} leave the bus"

    def _unsigned_as_agent(self, what: Owned) -> str:
        kind = what.name.partition("/")[0]
        found = self._claimants(what)
        for one in () if found else self._everything.get(what.root, ()):
            # Our own claim to everything is one to what nobody else runs: a gateway has copies of its drones' agents.
            if one != self.me and (not (kinds := self._claims[one].member.kinds) or kind in kinds):
                found.append(one)
                break
        return f"it is not signed, and {found[0]} runs {what.name} and signs what it publishes" if found else ""

    # ------------------------------------------------------------------ which agents a node runs

    def _hear_presence(self, what: Owned, message: BusMessage, proof: BusProof) -> str:
        """Keeps what a node says in its own name."""
        before = self._claims.get(what.name)
        if what.name == self.me and proof.key != self._key:
            return ""  # A twin: presence tells of it.
        if before is not None and before.payload == message.payload and before.key == proof.key:
            return ""
        try:
            member = read_presence(message)
        except PeerError:
            return ""  # Presence refuses it, and counts it.
        if known := self._names.get(what.name):
            known.has_left = not member.online
        if before is None and len(self._claims) >= NAMES_COUNT_MAX:
            return f"{NAMES_COUNT_MAX} nodes are known here already"
        keeps = before is not None and before.key == proof.key and before.member.agents == member.agents
        self._order += 1
        order = before.order if before is not None and keeps else self._order
        self._forget_claim(what)
        self._claims[what.name] = _Claim(member, message.payload, order, proof.key)
        self._index(what, member)
        self._verdicts.clear()
        said = _agents_of(member)
        is_new = before is None or _agents_of(before.member) != said or before.key != proof.key
        if is_new and not member.off and not proof.is_passing and what.name != self.me:
            self._keep(KeptNode(what.name, proof.key.hex(), said))
        return ""

    def _index(self, what: Owned, member: Member) -> None:
        if member.off:
            return  # It takes and says nothing: another node has these agents, or its name.
        named = member.agents or member.shards_run
        for address in named:
            if "*" not in address:
                self._exact.setdefault((what.root, address), {})[what.name] = None
        if any("*" in address for address in named):
            self._patterns.setdefault(what.root, {})[what.name] = None
        if not named and member.everything:
            self._everything.setdefault(what.root, {})[what.name] = None

    def _forget_claim(self, what: Owned) -> None:
        claim = self._claims.pop(what.name, None)
        for address in () if claim is None else (*claim.member.agents, *claim.member.shards_run):
            if holders := self._exact.get((what.root, address)):
                holders.pop(what.name, None)
                if not holders:
                    del self._exact[what.root, address]
        for nodes in (self._patterns, self._everything):
            nodes.get(what.root, {}).pop(what.name, None)

    def _note_cleared(self, what: Owned | None) -> None:
        """A node's announcement was removed: its agents are free for those that name them, as at its end."""
        if what is not None and what.channel == Channel.PRESENCE.value and (claim := self._claims.get(what.name)):
            self._forget_claim(what)
            self._index(what, claim.member)
            claim.member, claim.payload = structs.replace(claim.member, online=False), b""
            self._claims[what.name] = claim
            self._verdicts.clear()


def _agents_of(member: Member) -> Member:
    """What decides for which agents a node may speak."""
    return Member(
        member.node,
        "",
        kinds=member.kinds,
        agents=member.agents,
        everything=member.everything,
        routes=member.routes,
        shards_run=member.shards_run,
    )


def _sender(what: Owned, payload: bytes) -> str:
    """The node in whose name a frame of tells, or an acknowledgement, is; empty for bytes that are neither: whoever
    reads them refuses them."""
    try:
        said = read_frame(payload) if what.channel == Channel.TELLS.value else read_acknowledgement(payload)
    except PeerError:
        return ""
    return signer_of(said.fleet, said.site, said.node)
