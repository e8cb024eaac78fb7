"""SWIM without its network: packets and times go in, packets to send and joins and leaves come out. Pure.

    swim = Swim(Identity(…), fleet="delivery", bytes_max=1024, seeds=("gateway",), choose=…, settings=SwimSettings())
    swim.step(sender, body, now_ns)      # a datagram came
    swim.tick(now_ns)                    # it is time: at `ready.wake_ns`, or whenever you like
    ready = swim.ready()                 # send `ready.sends`, tell `ready.events`, call tick again at `ready.wake_ns`

Every `probe_s` a node probes one other, in a shuffled round. Without an answer it asks again, and through helpers; then
it suspects the node. Suspicions travel with packets that are sent anyway, and the suspect is probed further. A node
that learns that it is suspected refutes it with a higher incarnation; one that does not, in time, is declared dead. A
node that others call dead is only a suspect here: every node waits for itself. Every `sync_s` two nodes compare digests
of the members they know and repair differences; a lost node, or a seed, is contacted too, so that partitions heal. Load
per node does not grow with the fleet.

`now_ns` is monotonic. `choose(n)` draws from 0 to n - 1. Impossible statements are rejected, but a node that lies
about others is believed until those refute it: this is no defence against a hostile member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import assert_never

from msgspec import Struct, structs

from stigmergy.base.errors import Bug, Malformed
from stigmergy.membership.packets import (
    INCARNATION_MAX,
    PACKET_FORMAT,
    SEQUENCE_MAX,
    MemberStatus,
    MemberTable,
    PacketKind,
    SwimPacket,
    SwimUpdate,
    fitting,
    fleet_key,
    read_packet,
    write_packet,
)
from stigmergy.membership.settings import SECOND_NS, SwimSettings

# Our own identity: our incarnation, which only we raise, and whether another node uses our name. Pure.
#
# Others may believe that we are gone, or still know an earlier run of ours. We answer either with a higher incarnation
# than theirs. An earlier run is outdone once; a twin, another running node with our name, outdoes us again: so it is
# detected. Which of the two the others then see changes from second to second: one must be renamed.

TWINS_COUNT_MAX = 16
OUTDONE_TIMES = 2
"""A run that outdoes our answer this often is a twin: an earlier run's last packets can be late once."""


class _Other:
    """Another run with our name."""

    def __init__(self) -> None:
        self.answered = 0
        """The incarnation of our last answer to it."""
        self.outdone = 0
        self.heard_ns = 0


class OwnRecord:
    """Our own record, and the runs that contest it."""

    def __init__(self, node: str, run: bytes, incarnation: int, contact: str, about: bytes) -> None:
        self.node = node
        self.run = run
        self.incarnation = incarnation
        self.contact = contact
        self.about = about
        self.status = MemberStatus.ALIVE
        self._others: dict[bytes, _Other] = {}
        self._answered_ns: int | None = None

    @property
    def record(self) -> SwimUpdate:
        """Our record for others."""
        return SwimUpdate(self.node, self.incarnation, self.status, self.run, self.contact, self.about)

    def hear(self, update: SwimUpdate, now_ns: int, pause_ns: int) -> bool:
        """Handles an update about us; True if we must refute it with a new incarnation.

        Twins are answered at most once in each pause: they would raise each other at the speed of the network.
        """
        if update.run == self.run:
            if update.rank <= self.record.rank:
                return False
        elif not self._contests(update, now_ns, pause_ns):
            return False
        self.incarnation = min(update.incarnation + 1, INCARNATION_MAX)
        other = self._others.get(update.run)
        if other is not None:
            other.answered = self.incarnation
        return True

    def twin(self, now_ns: int, gone_ns: int) -> bytes | None:
        """The run of another node with our name, if one was heard lately."""
        for run, other in self._others.items():
            if other.outdone >= OUTDONE_TIMES and now_ns - other.heard_ns <= gone_ns:
                return run
        return None

    def _contests(self, update: SwimUpdate, now_ns: int, pause_ns: int) -> bool:
        if update.rank <= self.record.rank:
            return False
        if update.status == MemberStatus.ALIVE:
            other = self._others.pop(update.run, None) or _Other()
            self._others[update.run] = other
            if len(self._others) > TWINS_COUNT_MAX:
                del self._others[next(iter(self._others))]
            other.heard_ns = now_ns
            if other.answered and update.incarnation > other.answered:
                other.outdone += 1
                other.answered = update.incarnation  # so that one packet of it counts once
        if self._answered_ns is not None and now_ns - self._answered_ns < pause_ns:
            return False
        self._answered_ns = now_ns
        return True


# The next node to probe, and one probe in progress. Pure.

NAMES_COUNT_MAX = 8_192
"""Names in a round, including those gone since it began. Beyond it the round restarts without those."""


class Probe:
    """A probe of one member: by us, then by us again and through helpers, until the time is up."""

    def __init__(self, target: str, sequence: int, ack_ns: int, until_ns: int) -> None:
        self.target = target
        self.sequence = sequence
        self.is_answered = False
        self.is_repeated = False
        self._ack_ns = ack_ns
        self._until_ns = until_ns

    @property
    def due_ns(self) -> int:
        """When it needs attention."""
        return self._until_ns if self.is_repeated or self.is_answered else self._ack_ns

    def hear(self, subject: str) -> None:
        """An answer says that this member is alive."""
        if subject == self.target:
            self.is_answered = True

    def repeat(self) -> None:
        """It was probed again."""
        self.is_repeated = True


class Round:
    """All members in a shuffled order, again and again: nobody waits for more than two rounds."""

    def __init__(self, choose: Callable[[int], int], is_wanted: Callable[[str], bool]) -> None:
        self._choose = choose
        self._is_wanted = is_wanted
        self._order: list[str] = []
        self._at = 0

    def add(self, node: str) -> None:
        """Inserts a new member at a random place in the rest of this round."""
        if len(self._order) >= NAMES_COUNT_MAX:
            self._begin()
        if node not in self._order:
            self._order.insert(self._at + self._choose(len(self._order) - self._at + 1), node)

    def next(self) -> str | None:
        """The next wanted member; None if there is none."""
        for _ in range(2):
            while self._at < len(self._order):
                node = self._order[self._at]
                self._at += 1
                if self._is_wanted(node):
                    return node
            self._begin()
        return None

    def _begin(self) -> None:
        """Shuffles the members that are still wanted."""
        self._order = [node for node in self._order if self._is_wanted(node)]
        self._at = 0
        for last in range(len(self._order) - 1, 0, -1):
            other = self._choose(last + 1)
            self._order[last], self._order[other] = self._order[other], self._order[last]


# Updates to pass on: the latest one about each member, as often as needed to reach everybody. Pure.
#
# An update travels on packets that are sent anyway. The least sent go first; each is sent a number of times that grows
# with the logarithm of the fleet and is then dropped: a node that missed it learns it by comparing digests.

RUMOURS_COUNT_MAX = 1_024
"""Waiting updates. Beyond it one that was sent most often is dropped."""
TIMES_PER_DOUBLING = 3
"""How many more times an update is passed on each time the fleet doubles."""
CHOSEN_COUNT_MAX = 64
"""Updates that one packet chooses from."""


class Rumours:
    """Updates to pass on."""

    def __init__(self, count_max: int = RUMOURS_COUNT_MAX) -> None:
        self._count_max = count_max
        self._times: dict[str, int] = {}
        """How often the update about a node was sent."""
        self._waiting: list[dict[str, SwimUpdate]] = [{}]
        """By how often they were sent."""

    def __len__(self) -> int:
        return len(self._times)

    def add(self, update: SwimUpdate) -> None:
        """Passes this on from now on, instead of an earlier update about the node."""
        self._drop(update.node)
        if len(self._times) >= self._count_max:
            self._drop(next(node for waiting in reversed(self._waiting) for node in waiting))
        self._put(update, 0)

    def choose(self) -> list[SwimUpdate]:
        """The updates for the next packet, most urgent first."""
        return list(islice(chain.from_iterable(map(dict.values, self._waiting)), CHOSEN_COUNT_MAX))

    def went(self, updates: Sequence[SwimUpdate], members_count: int) -> None:
        """Notes that these were sent; those sent often enough are dropped."""
        times_max = TIMES_PER_DOUBLING * max(1, members_count.bit_length())
        for update in updates:
            times = self._times.get(update.node)
            if times is not None and self._waiting[times][update.node] is update:
                self._drop(update.node)
                if times + 1 < times_max:
                    self._put(update, times + 1)

    def _put(self, update: SwimUpdate, times: int) -> None:
        if times == len(self._waiting):
            self._waiting.append({})
        self._waiting[times][update.node] = update
        self._times[update.node] = times

    def _drop(self, node: str) -> None:
        times = self._times.pop(node, None)
        if times is not None:
            del self._waiting[times][node]


BYTES_MIN = 900
"""A mesh must carry this much, so that the largest record fits beside a digest."""
PAGES_COUNT_MAX = 8
"""Packets that one comparison may cost each side; the rest comes with the next one."""
RELAYS_COUNT_MAX = 256
"""Probes for others in progress; further ones are not made."""
QUICK_SYNCS_COUNT = 10
"""Comparisons in quick succession after a start: in a fleet that starts together all have much to exchange."""
GREETED_COUNT_MAX = 3
"""Seeds that a node without known members tries at once."""
AGAIN_COUNT_MAX = 8
"""Suspects that are probed again with every probe."""
AGAIN_TIMES_MAX = 6
"""How often one suspect is probed again."""
ASKED_COUNT_MAX = 32
"""While this many are suspected, a report of a death starts no new suspicion: it will be repeated."""
FAREWELLS_PER_DOUBLING = 3
PAUSED_PROBES = 2
"""A tick that is this many probes late means that this process was paused: it cannot judge others' silence."""

Choose = Callable[[int], int]


class Appeared(Struct, frozen=True):
    """A member is present: new, back again, or in a new run."""

    record: SwimUpdate


class Vanished(Struct, frozen=True):
    """A member is gone: `record.status` is DEAD, or LEFT if it announced it."""

    record: SwimUpdate


class SwimCounters(Struct):
    """Counters of membership; for monitoring."""

    probes_count: int = 0
    suspected_count: int = 0
    """Members that we suspected ourselves."""
    declared_dead_count: int = 0
    refuted_count: int = 0
    """How often we had to refute a suspicion."""
    appeared_count: int = 0
    vanished_count: int = 0
    refused_count: int = 0
    """Packets that were malformed, damaged, or of another fleet."""
    paused_count: int = 0


class SwimReady(Struct, frozen=True):
    """What to do now."""

    sends: tuple[tuple[str, bytes], ...]
    events: tuple[Appeared | Vanished, ...]
    wake_ns: int


class _Suspect(Struct):
    """A member that may refute the suspicion until its time is up."""

    until_ns: int
    asked: int = 0
    """How often we have told it."""


class Swim:
    """One node's membership."""

    def __init__(
        self,
        identity: OwnRecord,
        *,
        fleet: str,
        bytes_max: int,
        choose: Choose,
        now_ns: int,
        seeds: Sequence[str] = (),
        settings: SwimSettings | None = None,
    ) -> None:
        if bytes_max < BYTES_MIN:
            raise Bug(f"membership needs datagrams of {BYTES_MIN} bytes, not {bytes_max}")
        self.identity = identity
        self.settings = settings or SwimSettings()
        self.table = MemberTable()
        self.counters = SwimCounters()
        self._key = fleet_key(fleet)
        self._bytes_max = bytes_max
        self._choose = choose
        self._seeds = tuple(dict.fromkeys(seed for seed in seeds if seed != identity.node))
        self._probe_ns = int(self.settings.probe_s * SECOND_NS)
        self._rumours = Rumours()
        self._round = Round(choose, self._is_other)
        self._probe: Probe | None = None
        # Nodes that start together must not send together.
        self._next_probe_ns = now_ns + choose(self._probe_ns)
        self._next_sync_ns = now_ns
        self._quick_syncs_left = QUICK_SYNCS_COUNT
        self._suspects: dict[str, _Suspect] = {}
        self._relays: dict[int, tuple[str, int, str, int]] = {}
        """By the sequence of our own PING: who asked, its sequence, the target, and until when."""
        self._sequence = choose(SEQUENCE_MAX)
        self._sends: list[tuple[str, bytes]] = []
        self._events: list[Appeared | Vanished] = []
        self._wake_ns = now_ns
        self._has_left = False
        self.table.take(identity.record, now_ns)
        self._rumours.add(identity.record)

    # In.

    def step(self, sender: str, body: bytes, now_ns: int) -> None:
        """Handles a datagram."""
        if self._has_left:
            return
        try:
            packet = read_packet(body, self._key)
        except Malformed:
            self.counters.refused_count += 1
            return
        if packet.run == self.identity.run or sender == self.identity.node:
            self.counters.refused_count += 1
            return
        for update in packet.updates:
            self._learn(update, now_ns)
        correction = self._hear_of_sender(sender, packet, now_ns)
        match kind := PacketKind(packet.kind):
            case PacketKind.PING:
                self._send(sender, PacketKind.ACK, packet.sequence, first=correction)
            case PacketKind.PING_REQ:
                self._help(sender, packet, correction, now_ns)
            case PacketKind.ACK:
                self._acknowledged(sender, packet)
            case PacketKind.SYNC:
                self._send_pages(sender, self.table.differing(packet.digests), correction)
                self._send_sync(sender, PacketKind.SYNC_BACK)
            case PacketKind.SYNC_BACK:
                self._send_pages(sender, self.table.differing(packet.digests), correction)
            case PacketKind.STATE:
                pass
            case _:
                assert_never(kind)

    def tick(self, now_ns: int) -> None:
        """Does what is due."""
        if self._has_left:
            return
        late_ns = now_ns - self._wake_ns
        if late_ns > PAUSED_PROBES * self._probe_ns:
            self._stood_still(late_ns)
        self.table.forget(now_ns - int(self.settings.forget_s * SECOND_NS))
        for node, suspect in list(self._suspects.items()):
            if suspect.until_ns <= now_ns:
                self._declare(node, MemberStatus.DEAD, now_ns)
                self.counters.declared_dead_count += 1
        self._relays = {number: relay for number, relay in self._relays.items() if relay[3] > now_ns}
        self._probe_on(now_ns)
        if self._next_sync_ns <= now_ns:
            self._sync(now_ns)

    def leave(self, now_ns: int) -> None:
        """Announces that we leave; from now on nothing is answered."""
        if self._has_left:
            return
        self.identity.status = MemberStatus.LEFT
        self.table.take(self.identity.record, now_ns)
        for node in self._some(self._others(), FAREWELLS_PER_DOUBLING * self.table.present_count.bit_length()):
            self._send(node, PacketKind.STATE, first=(self.identity.record,))
        self._has_left = True

    # Out.

    def ready(self) -> SwimReady:
        """What to do now; returned once."""
        wakes = [self._next_sync_ns, *(suspect.until_ns for suspect in self._suspects.values())]
        wakes.append(self._next_probe_ns if self._probe is None else self._probe.due_ns)
        self._wake_ns = min(wakes)
        ready = SwimReady(tuple(self._sends), tuple(self._events), self._wake_ns)
        self._sends, self._events = [], []
        return ready

    def members(self) -> list[SwimUpdate]:
        """All known members by name, ourselves and suspects included."""
        return [self.table[node] for node in self.table.present()]

    def twin(self, now_ns: int) -> bytes | None:
        """The run of another node with our name, if one was heard within the time of a suspicion."""
        gone_s = 2 * self.settings.suspicion_s(self.table.present_count)
        return self.identity.twin(now_ns, int(gone_s * SECOND_NS))

    # Updates of others.

    def _learn(self, update: SwimUpdate, now_ns: int) -> None:
        node = update.node
        if node == self.identity.node:
            if self.identity.hear(update, now_ns, self._probe_ns):
                self.counters.refuted_count += 1
                self.table.take(self.identity.record, now_ns)
                self._rumours.add(self.identity.record)
            return
        known = self.table.get(node)
        if known is not None and update.rank <= known.rank:
            return  # old news, as most are
        if update.status == MemberStatus.DEAD and self.table.is_present(node):
            self._probe_reported_dead(update, now_ns)
        else:
            self._take(update, now_ns)

    def _take(self, update: SwimUpdate, now_ns: int, *, is_rumour: bool = True) -> None:
        """Applies an update if it is new, passes it on, and acts on it."""
        node = update.node
        before = self.table.get(node)
        was_present = self.table.is_present(node)
        if not self.table.take(update, now_ns):
            return
        record = self.table[node]
        if is_rumour:
            self._rumours.add(record)
        self._suspects.pop(node, None)
        if record.status == MemberStatus.SUSPECT:
            suspicion_s = self.settings.suspicion_s(self.table.present_count)
            self._suspects[node] = _Suspect(now_ns + int(suspicion_s * SECOND_NS))
        if not self.table.is_present(node):
            if was_present:
                self.counters.vanished_count += 1
                self._events.append(Vanished(record))
        elif before is None or not was_present or before.run != record.run:
            self._round.add(node)
            self.counters.appeared_count += 1
            self._events.append(Appeared(record))

    def _probe_reported_dead(self, update: SwimUpdate, now_ns: int) -> None:
        """Others report a death, perhaps from the other side of a partition. The node has the time of a suspicion here,
        and we probe it: we only remove a member that was silent towards us."""
        if update.node not in self._suspects and len(self._suspects) < ASKED_COUNT_MAX:
            self._take(structs.replace(update, status=MemberStatus.SUSPECT), now_ns, is_rumour=False)
            self._ping(update.node, self._next_sequence())

    def _hear_of_sender(self, sender: str, packet: SwimPacket, now_ns: int) -> tuple[SwimUpdate, ...]:
        """A packet proves that its sender's run is alive. Returns corrections for it if we thought otherwise."""
        known = self.table.get(sender)
        spoken = SwimUpdate(sender, packet.incarnation, MemberStatus.ALIVE, packet.run)
        if known is not None and known.rank > spoken.rank:
            return (known,)
        if known is not None and known.run == packet.run:
            self._take(structs.replace(spoken, contact=known.contact, about=known.about), now_ns)
        elif packet.kind < PacketKind.SYNC:
            self._send_sync(sender, PacketKind.SYNC)  # an unknown node, or a new run: its answer describes it
        return ()

    def _declare(self, node: str, status: MemberStatus, now_ns: int) -> None:
        record = self.table[node]
        self._take(SwimUpdate(node, record.incarnation, status, record.run), now_ns)

    def _help(self, sender: str, packet: SwimPacket, correction: tuple[SwimUpdate, ...], now_ns: int) -> None:
        if packet.subject == self.identity.node:
            self._send(sender, PacketKind.ACK, packet.sequence, first=correction)
        elif len(self._relays) < RELAYS_COUNT_MAX:
            number = self._next_sequence()
            self._relays[number] = (sender, packet.sequence, packet.subject, now_ns + self._probe_ns)
            self._ping(packet.subject, number)

    def _acknowledged(self, sender: str, packet: SwimPacket) -> None:
        relay = self._relays.get(packet.sequence)
        if relay is not None and relay[2] == sender:
            del self._relays[packet.sequence]
            self._send(relay[0], PacketKind.ACK, relay[1], subject=sender)
        elif self._probe is not None and packet.sequence == self._probe.sequence:
            self._probe.hear(packet.subject or sender)

    # Probing.

    def _probe_on(self, now_ns: int) -> None:
        probe = self._probe
        if probe is not None and probe.due_ns <= now_ns:
            if not probe.is_answered and not probe.is_repeated:
                self._repeat(probe)
                return
            self._probe = None
            if not probe.is_answered and self.table.is_present(probe.target):
                self._suspect(probe.target, now_ns)
        if self._probe is None and self._next_probe_ns <= now_ns:
            self._begin_probe(now_ns)

    def _begin_probe(self, now_ns: int) -> None:
        self._next_probe_ns = now_ns + self._probe_ns
        self._ask_suspects()
        target = self._round.next()
        if target is not None:
            self.counters.probes_count += 1
            ack_ns = int(self.settings.ack_s * SECOND_NS)
            self._probe = Probe(target, self._next_sequence(), now_ns + ack_ns, self._next_probe_ns)
            self._ping(target, self._probe.sequence)

    def _ask_suspects(self) -> None:
        """Tells suspects that they are suspected, the most urgent first: rumours may not reach them."""
        asked = sorted((suspect.asked, suspect.until_ns, node) for node, suspect in self._suspects.items())
        for times, _, node in asked[:AGAIN_COUNT_MAX]:
            if times < AGAIN_TIMES_MAX:
                self._suspects[node].asked += 1
                self._ping(node, self._next_sequence())

    def _repeat(self, probe: Probe) -> None:
        probe.repeat()
        self._ping(probe.target, probe.sequence)
        others = [node for node in self._others() if node != probe.target]
        for helper in self._some(others, self.settings.helpers_count):
            self._send(helper, PacketKind.PING_REQ, probe.sequence, subject=probe.target)

    def _suspect(self, node: str, now_ns: int) -> None:
        self.counters.suspected_count += 1
        self._declare(node, MemberStatus.SUSPECT, now_ns)

    def _ping(self, node: str, sequence: int) -> None:
        """Tells a suspect in the same packet that it is suspected."""
        record = self.table.get(node)
        is_contested = record is not None and record.status != MemberStatus.ALIVE
        self._send(node, PacketKind.PING, sequence, first=(record,) if record is not None and is_contested else ())

    def _stood_still(self, late_ns: int) -> None:
        self.counters.paused_count += 1
        self._probe = None
        for suspect in self._suspects.values():
            suspect.until_ns += late_ns

    # Comparing.

    def _sync(self, now_ns: int) -> None:
        others = self._others()
        quick = self._quick_syncs_left > 0 or not others
        self._quick_syncs_left = max(0, self._quick_syncs_left - 1)
        # Jitter, so that not all compare at once.
        wait_ns = self._probe_ns if quick else int(self.settings.sync_s * SECOND_NS)
        self._next_sync_ns = now_ns + wait_ns // 2 + self._choose(max(1, wait_ns))
        missing = [*self.table.lost(), *(seed for seed in self._seeds if not self.table.is_present(seed))]
        greeted = self._some(list(dict.fromkeys(missing)), 1 if others else GREETED_COUNT_MAX)
        for node in [*self._some(others, 1), *greeted]:
            self._send_sync(node, PacketKind.SYNC)

    def _send_sync(self, node: str, kind: PacketKind) -> None:
        self._send(node, kind, digests=self.table.digests(), first=(self.identity.record,))

    def _send_pages(self, node: str, buckets: list[int], correction: tuple[SwimUpdate, ...]) -> None:
        """Our updates of these buckets, from a random one on, as many as PAGES_COUNT_MAX packets hold."""
        begin = self._choose(len(buckets)) if buckets else 0
        records = list(correction)
        for bucket in [*buckets[begin:], *buckets[:begin]]:
            records += self.table.in_bucket(bucket)
        for _ in range(PAGES_COUNT_MAX):
            if not records:
                return
            packet = fitting(self._packet(PacketKind.STATE), records, self._bytes_max)
            went = {update.node for update in packet.updates}
            records = [record for record in records if record.node not in went]
            self._sends.append((node, write_packet(packet, self._key)))

    # Packets.

    def _send(
        self,
        to: str,
        kind: PacketKind,
        sequence: int = 0,
        *,
        subject: str = "",
        digests: bytes = b"",
        first: Iterable[SwimUpdate] = (),
    ) -> None:
        """Sends a packet, filled up with rumours."""
        updates = {update.node: update for update in first}
        for update in self._rumours.choose():
            updates.setdefault(update.node, update)
        packet = self._packet(kind, sequence, subject, digests)
        packet = fitting(packet, list(updates.values()), self._bytes_max)
        self._rumours.went(packet.updates, self.table.present_count)
        self._sends.append((to, write_packet(packet, self._key)))

    def _packet(self, kind: PacketKind, sequence: int = 0, subject: str = "", digests: bytes = b"") -> SwimPacket:
        me = self.identity
        return SwimPacket(PACKET_FORMAT, kind, me.incarnation, me.run, sequence, subject, digests, ())

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) % SEQUENCE_MAX
        return self._sequence

    def _is_other(self, node: str) -> bool:
        return node != self.identity.node and self.table.is_present(node)

    def _others(self) -> list[str]:
        return [node for node in self.table.present() if node != self.identity.node]

    def _some(self, nodes: list[str], count: int) -> list[str]:
        """Draws `count` of them, without repetition."""
        chosen: list[str] = []
        for _ in range(min(count, len(nodes))):
            at = self._choose(len(nodes))
            chosen.append(nodes[at])
            nodes = nodes[:at] + nodes[at + 1 :]
        return chosen
