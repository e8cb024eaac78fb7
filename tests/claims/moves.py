"""Moves of claimants for the tests of claims: signed cheaply, and given to the fold in order."""

from __future__ import annotations

from blake3 import blake3

from stigmergy.claims.entries import ClaimBody, Move, Written, claimant_id, write_record, writer_id
from stigmergy.claims.rules import FoldStep, apply
from stigmergy.claims.state import Claims

LEDGER = "airspace"
CELL = "cell/1"


def sign_with(key: bytes, statement: bytes) -> bytes:
    """Stands in for a signature: nobody here is an adversary with a computer."""
    return blake3(key + statement).digest()


def verify(algorithm: int, key: bytes, statement: bytes, signature: bytes) -> bool:
    return algorithm == 1 and signature == sign_with(key, statement)


class Node:
    """A node that writes: its own key, its own numbers."""

    def __init__(self, name: str, life: int = 1) -> None:
        self.key = name.encode()
        self.life = life
        self.sequence = 0
        self.writer = writer_id(1, self.key, 7)

    def claimant(self, name: str = "a") -> bytes:
        return claimant_id(1, self.key, 7, name)

    def body(self, move: Move, name: str = "a") -> ClaimBody:
        self.sequence += 1
        return ClaimBody(7, self.life, self.sequence, name, move)

    def record(self, move: Move, name: str = "a", ledger: str = LEDGER) -> bytes:
        return write_record(ledger, 1, self.key, self.body(move, name), lambda data: sign_with(self.key, data))

    def written(self, move: Move, name: str = "a") -> Written:
        body = self.body(move, name)
        return Written(self.key, self.writer, self.claimant(name), body.life, body.sequence, move)


class Log:
    """A fold of moves, at consecutive positions."""

    def __init__(self) -> None:
        self.claims = Claims()
        self.position = 0

    def add(self, node: Node, move: Move, name: str = "a") -> FoldStep:
        return self.put(node.written(move, name))

    def put(self, written: Written) -> FoldStep:
        self.position += 1
        step = apply(self.claims, self.position, written)
        self.claims = step.claims
        return step
