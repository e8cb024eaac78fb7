"""A node that lies about shared state: it signs two different changes under one number, one for each half of us.

    mesh = LyingMesh(network.mesh("n3"), node.signer, "fleet", names_of_objects)   # given to the node's Replicator
    mesh.lies = True

The lie is a good one: signed with the node's own key, of the right replica, fitting every type. Half of the nodes, by
the last letter of their name, are told that the change added nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from stigmergy.base.trust import Signer
from stigmergy.crdt.anti_entropy.authorship import delta_statement, object_id
from stigmergy.crdt.anti_entropy.messages import CHANGE, Change, read_frame, write_frame
from stigmergy.crdt.delta import read_delta
from stigmergy.membership.mesh import Hear, Mesh, MeshCounters


class LyingMesh:
    """The Mesh port around another one."""

    def __init__(self, mesh: Mesh, signer: Signer, fleet: str, objects: Callable[[], Sequence[str]]) -> None:
        self._mesh = mesh
        self._signer = signer
        self._fleet = fleet
        self._objects = objects
        self.lies = False
        self.told_count = 0
        """How many lies were told."""

    @property
    def node(self) -> str:
        """The name of the liar."""
        return self._mesh.node

    @property
    def bytes_max(self) -> int:
        """As below."""
        return self._mesh.bytes_max

    @property
    def contact(self) -> str:
        """As below."""
        return self._mesh.contact

    @property
    def counters(self) -> MeshCounters:
        """As below."""
        return self._mesh.counters

    async def open(self, hear: Hear) -> None:
        """Begins to listen."""
        await self._mesh.open(hear)

    def send_nowait(self, to: str, body: bytes) -> None:
        """Sends what it was given, or a lie."""
        if self.lies and body[:1] == bytes([CHANGE]) and ord(to[-1]) % 2:
            body = self._lie(body)
        self._mesh.send_nowait(to, body)

    def introduce(self, node: str, contact: str) -> None:
        """As below."""
        self._mesh.introduce(node, contact)

    async def close(self) -> None:
        """Ends it."""
        await self._mesh.close()

    def _lie(self, body: bytes) -> bytes:
        """The same change with nothing in it; what others have written is passed on as it is."""
        change = read_frame(body)
        if not isinstance(change, Change) or change.key != self._signer.public_key:
            return body
        name = next((name for name in self._objects() if object_id(name) == change.object), None)
        told = structs.replace(read_delta(change.delta), added=(), removed=())
        if name is None or told.to_bytes() == change.delta:
            return body
        self.told_count += 1
        statement = delta_statement(self._fleet, name, change.address, change.incarnation, told, told.to_bytes())
        return write_frame(structs.replace(change, delta=told.to_bytes(), signature=self._signer.sign(statement)))
