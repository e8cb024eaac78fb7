"""Machines of membership that talk to each other in a test, packet by packet, by hand."""

from __future__ import annotations

import random

from stigmergy.membership.packets import (
    PACKET_FORMAT,
    PacketKind,
    SwimPacket,
    SwimUpdate,
    fleet_key,
    read_packet,
    write_packet,
)
from stigmergy.membership.settings import SwimSettings
from stigmergy.membership.swim import Appeared, OwnRecord, Swim, Vanished

KEY = fleet_key("fleet")
SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000


def run_of(name: str, life: int = 1) -> bytes:
    return f"{name[:6]}{life:02}".ljust(8, "-").encode()


class Scene:
    """Nodes by name; packets wait until they are carried. Time moves only when told."""

    def __init__(self, *names: str, settings: SwimSettings | None = None, seeds: tuple[str, ...] = ()) -> None:
        self.now_ns = 0
        self.settings = settings or SwimSettings()
        self.seeds = seeds
        self.nodes: dict[str, Swim] = {}
        self.under_way: list[tuple[str, str, bytes]] = []
        self.events: list[tuple[str, str, str]] = []
        for name in names:
            self.start(name)

    def start(self, name: str, *, life: int = 1, incarnation: int = 10, about: bytes = b"") -> Swim:
        identity = OwnRecord(name, run_of(name, life), incarnation, f"{name}:1", about)
        chance = random.Random(f"{name}/{life}")
        self.nodes[name] = Swim(
            identity,
            fleet="fleet",
            bytes_max=1024,
            choose=chance.randrange,
            now_ns=self.now_ns,
            seeds=self.seeds,
            settings=self.settings,
        )
        return self.nodes[name]

    def acquaint(self) -> None:
        """All know all from now on, as if they had been together for long."""
        records = [node.identity.record for node in self.nodes.values()]
        for node in self.nodes.values():
            for record in records:
                node._learn(record, self.now_ns)
            node._quick_syncs_left = 0
            node._next_sync_ns = self.now_ns + 10**18
            node._rumours = type(node._rumours)()
        self.collect()
        self.under_way.clear()
        self.events.clear()

    def collect(self) -> None:
        for name, node in self.nodes.items():
            ready = node.ready()
            self.under_way += [(name, to, body) for to, body in ready.sends]
            for event in ready.events:
                what = {Appeared: "appeared", Vanished: "vanished"}[type(event)]
                self.events.append((name, what, event.record.node))

    def carry(self, *, lose: tuple[str, ...] = (), rounds: int = 20) -> None:
        """Carries packets until there are none, but for those from or to whom is named."""
        for _ in range(rounds):
            self.collect()
            packets, self.under_way = self.under_way, []
            for sender, to, body in packets:
                if sender not in lose and to not in lose and to in self.nodes:
                    self.nodes[to].step(sender, body, self.now_ns)

    def let_pass(self, seconds: float, *, lose: tuple[str, ...] = ()) -> None:
        """Lets time pass in steps of 50 ms; all but those who are named do what is due and hear each other."""
        until_ns = self.now_ns + int(seconds * SECOND_NS)
        while self.now_ns < until_ns:
            self.now_ns += 50 * MILLISECOND_NS
            for name, node in self.nodes.items():
                if name not in lose:
                    node.tick(self.now_ns)
            self.carry(lose=lose, rounds=6)

    def tell(
        self,
        to: str,
        sender: str,
        kind: PacketKind,
        *updates: SwimUpdate,
        sequence: int = 1,
        subject: str = "",
        digests: bytes = b"",
        incarnation: int = 10,
        life: int = 1,
    ) -> list[tuple[str, SwimPacket]]:
        """A packet made by hand; what the node then sends."""
        packet = SwimPacket(PACKET_FORMAT, kind, incarnation, run_of(sender, life), sequence, subject, digests, updates)
        self.nodes[to].step(sender, write_packet(packet, KEY), self.now_ns)
        return self.sent(to)

    def sent(self, name: str) -> list[tuple[str, SwimPacket]]:
        """What a node wants to send now; it is taken away."""
        before = len(self.under_way)
        self.collect()
        mine = [(to, read_packet(body, KEY)) for sender, to, body in self.under_way[before:] if sender == name]
        del self.under_way[before:]
        return mine

    def status(self, of: str, at: str) -> str:
        record = self.nodes[at].table.get(of)
        return "unknown" if record is None else ["alive", "suspect", "dead", "left"][record.status]
