"""Blobs over HTTP: `POST /v1/blobs`, `PUT` and `GET /v1/blobs/{digest}`, streamed in both directions.

They speak to the store, not to a node. A download resumes with `Range: bytes=N-`; an upload that was cut is sent again,
and the store takes only the pieces that it lacks.
"""

from __future__ import annotations

import asyncio
import re
from typing import Self

from msgspec import Struct

from stigmergy.agents.messages import Blob
from stigmergy.base.errors import ConfigError, NotRunning, Overloaded, StigmergyError, StoreUnavailable
from stigmergy.control.protocol import BlobRequest
from stigmergy.serve.access import DeniedRequest
from stigmergy.serve.asker import Asker
from stigmergy.serve.http import BODY_S_MAX, HttpAnswer, HttpCall, HttpRoute, json_answer
from stigmergy.store.blobs import BLOB_BYTES_MAX, PIECE_BYTES, Blobs

SEND_S_MAX = 30.0
"""A client that takes nothing for so long is cut off."""
_DIGEST = re.compile("[0-9a-f]{64}")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
_MEDIA_TYPE = re.compile(r"[!-~ ]{1,200}")
ANY = "application/octet-stream"


class PutBlob(Struct, frozen=True):
    """A blob that is in the store. `blob` is what commands and events refer to it by; `digest` is in hexadecimal."""

    digest: str
    blob: Blob


class BlobRoutes:
    """The routes of one store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def routes(self) -> list[HttpRoute]:
        """Where they are."""
        return [
            HttpRoute("POST", "/v1/blobs", self._put, "observe", "Store a blob"),
            HttpRoute("PUT", "/v1/blobs/{digest}", self._put, "observe", "Store this blob"),
            HttpRoute("GET", "/v1/blobs/{digest}", self._get, "read", "The bytes of a blob"),
        ]

    async def _put(self, call: HttpCall) -> HttpAnswer:
        call.query(())
        wanted = call.parameters.get("digest")
        if wanted is not None:
            _checked(wanted)
        declared = call.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > BLOB_BYTES_MAX:
            raise DeniedRequest(
                413, f"a body of {declared.decode()} bytes, {BLOB_BYTES_MAX} at most; put several blobs"
            )
        media_type = call.header(b"content-type") or ANY
        if _MEDIA_TYPE.fullmatch(media_type) is None:
            raise DeniedRequest(400, "Content-Type: give a media type such as image/jpeg")
        blob = await self._blobs.put(_Body(call), media_type=media_type)
        if wanted not in (None, blob.hex):
            raise DeniedRequest(
                409, f"the body has the BLAKE3 digest {blob.hex}, and not the one in the path; send the right bytes"
            )
        return json_answer(PutBlob(blob.hex, blob))

    async def _get(self, call: HttpCall) -> HttpAnswer | None:
        call.query(())
        blob = await self._blobs.locate(_checked(call.parameters["digest"]))
        first, end = _range(call.header(b"range"), blob.size_bytes)
        media_type = blob.media_type if _MEDIA_TYPE.fullmatch(blob.media_type) else ANY
        headers = [
            (b"content-type", media_type.encode("latin-1")),
            (b"content-length", str(end - first).encode()),
            (b"accept-ranges", b"bytes"),
            (b"etag", f'"{blob.hex}"'.encode()),
            (b"cache-control", b"private, immutable, max-age=31536000"),
            # What somebody has put is no page of ours.
            (b"content-disposition", b"attachment"),
            (b"x-content-type-options", b"nosniff"),
            *call.extra_headers,
        ]
        is_part = end - first < blob.size_bytes
        if is_part:
            headers.append((b"content-range", f"bytes {first}-{end - 1}/{blob.size_bytes}".encode()))
        manifest = await self._blobs.find_manifest(blob)
        await call.send({"type": "http.response.start", "status": 206 if is_part else 200, "headers": headers})
        try:
            if call.method != "HEAD":
                for number in range(first // PIECE_BYTES, -(-end // PIECE_BYTES)):
                    piece = await self._blobs.get_piece(blob, manifest.pieces[number])
                    start = number * PIECE_BYTES
                    part = piece[max(first - start, 0) : end - start]
                    async with asyncio.timeout(SEND_S_MAX):
                        await call.send({"type": "http.response.body", "body": part, "more_body": True})
            await call.send({"type": "http.response.body", "body": b""})
        except (StigmergyError, TimeoutError):
            call.abort()  # fewer bytes than were promised: the client sees that they are not all
        return None


class BlobsOfNodes:
    """The `Elsewhere` of a server beside a node: that node asks the others for what the store lacks."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._away: list[str] = []

    async def get(self, name: str) -> bytes | None:
        """The bytes of an object of another node's store. Raises StoreUnavailable, also where no node runs beside."""
        try:
            reply = await self._asker.ask(BlobRequest(name=name))
        except (NotRunning, Overloaded) as error:
            raise StoreUnavailable(f"other nodes cannot be asked for it: {error}") from None
        self._away = reply.away
        return reply.data

    def away(self) -> list[str]:
        """As the node said last."""
        return self._away


class _Body:
    """The chunks of a request's body. Raises DeniedRequest if they stop coming."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout(BODY_S_MAX):
                message = await self._call.receive()
        except TimeoutError:
            raise DeniedRequest(408, f"nothing of the body came for {BODY_S_MAX:g} s") from None
        if message["type"] != "http.request":
            raise DeniedRequest(400, "the body ended before it was whole")
        self._ended = not message.get("more_body")
        return bytes(message.get("body", b""))


def _checked(digest: str) -> str:
    if _DIGEST.fullmatch(digest) is None:
        raise ConfigError(f"{digest[:100]!r} is no digest; give the 64 hexadecimal digits of the BLAKE3 hash")
    return digest


def _range(given: str | None, size_bytes: int) -> tuple[int, int]:
    """The first byte and the one behind the last. A form of Range that we do not know is ignored, as RFC 9110 says."""
    found = None if given is None else _RANGE.fullmatch(given)
    if found is None:
        return 0, size_bytes
    first, last = int(found[1]), int(found[2]) if found[2] else size_bytes - 1
    if first >= size_bytes or last < first:
        raise DeniedRequest(416, f"the blob has {size_bytes} bytes, and the range begins or ends elsewhere")
    return first, min(last + 1, size_bytes)
