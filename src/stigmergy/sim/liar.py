"""A replica that lies: its node tells some peers one thing and the others another, both signed under one number."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from stigmergy.base.trust import Signer
from stigmergy.crdt.anti_entropy.authorship import delta_statement
from stigmergy.crdt.anti_entropy.messages import BadMessage, Change, read_frame, write_frame
from stigmergy.crdt.delta import Delta, read_delta
from stigmergy.crdt.errors import BadDelta
from stigmergy.network.replicator import Replicator


class Lies:
    """What was said to whom, of all changes that were told in two ways."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, bytes, int], dict[bytes, None]] = {}
        self.objects: dict[str, None] = {}
        """Names of objects about which a lie was told to anybody."""

    def note(self, name: str, delta: Delta, said: bytes) -> None:
        """A change of a liar has gone out, true or not."""
        self._told.setdefault((name, delta.replica, delta.first), {})[said] = None

    @property
    def count(self) -> int:
        """How many changes were told in two ways, so that it can be proven."""
        return sum(len(said) > 1 for said in self._told.values())


class LyingMesh:
    """Stands before a node's mesh and changes what its own replicas say to half of the others."""

    def __init__(self, replicas: Replicator, fleet: str, signer: Signer, lies: Lies) -> None:
        self._lies = lies
        self._mesh = replicas._mesh
        self._replicas = replicas
        self._fleet = fleet
        self._signer = signer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mesh, name)

    def send_nowait(self, to: str, body: bytes) -> None:
        """Sends it, or something else."""
        self._mesh.send_nowait(to, self._said(body, lie=not sum(to.encode()) % 2))

    def _said(self, body: bytes, *, lie: bool) -> bytes:
        """The same change without its last addition, signed as well; whatever is no own change is left as it is."""
        try:
            frame = read_frame(body)
            if not isinstance(frame, Change) or frame.key != self._signer.public_key:
                return body
            delta = read_delta(frame.delta)
            other = structs.replace(delta, added=delta.added[:-1]) if lie else delta
            said = other.to_bytes()
            read_delta(said)
        except (BadMessage, BadDelta):
            return body
        name = next((held.name for held in self._replicas.machine.objects if held.id == frame.object), None)
        if name is None:
            return body
        self._lies.note(name, delta, said)
        if said == frame.delta:
            return body
        self._lies.objects[name] = None
        statement = delta_statement(self._fleet, name, frame.address, frame.incarnation, other, said)
        return write_frame(structs.replace(frame, delta=said, signature=self._signer.sign(statement)))


def begin_to_lie(replicas: Replicator, fleet: str, signer: Signer, lies: Lies) -> None:
    """From now on this node lies."""
    if not isinstance(replicas._mesh, LyingMesh):
        replicas._mesh = LyingMesh(replicas, fleet, signer, lies)


def tell_the_truth(replicas: Replicator) -> None:
    """From now on it does not; what it has said stays said."""
    if isinstance(replicas._mesh, LyingMesh):
        replicas._mesh = replicas._mesh._mesh
