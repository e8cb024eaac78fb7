"""Moves blobs between nodes on a bus whose stores are their own: who lacks an object asks the others for it.

    Blobs.elsewhere = BlobExchange(link.make_mesh("blobs"), blobs, members, away)

Only manifests and pieces are given out, to whoever knows their digest and may publish on the bus. Blobs verify what
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stigmergy.membership.mesh import Mesh
from stigmergy.network.exchange import AGAIN_S, Exchange
from stigmergy.store.blobs import MANIFESTS, PIECE_BYTES, PIECES, Blobs

OBJECT_BYTES_MAX = 2 * PIECE_BYTES


class BlobExchange:
    """The exchange of one node; the `Elsewhere` of its blobs."""

    def __init__(
        self, mesh: Mesh, blobs: Blobs, members: Callable[[], Sequence[str]], away: Callable[[], Sequence[str]]
    ) -> None:
        """`members` names the nodes that are there, and this one perhaps; `away` those that are known and not there."""
        self._node = mesh.node
        self._blobs = blobs
        self._members = members
        self.away = away
        self._exchange = Exchange(mesh, self._find, OBJECT_BYTES_MAX)

    async def start(self) -> None:
        """Answers from now on, and is asked for what the store lacks."""
        await self._exchange.start()
        self._blobs.elsewhere = self

    async def stop(self) -> None:
        """Answers nobody any more."""
        self._blobs.elsewhere = None
        await self._exchange.stop()

    async def get(self, name: str) -> bytes | None:
        """The bytes of an object that another node has; None if all that are there say that they lack it.

        Raises StoreUnavailable if one has not answered, or the holder has gone in the middle: what was fetched of a
        blob by then is kept.
        """
        nodes = sorted(node for node in self._members() if node != self._node)
        return await self._exchange.get(name, nodes, max(1, int(self._blobs.settings.patience_s / AGAIN_S)))

    async def _find(self, name: str) -> bytes | None:
        """An object; for the name of a manifest without its size, what a blob with this digest is: size and type."""
        objects = await self._blobs.find_objects() if name.startswith((MANIFESTS, PIECES)) else None
        if objects is None:
            return None
        if name.endswith("/"):
            kept = await self._blobs.kept(name.removeprefix(MANIFESTS))
            return f"{kept[-1].blob.size_bytes} {kept[-1].blob.media_type}".encode() if kept else None
        return await objects.get(name)
