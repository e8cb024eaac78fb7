"""The streams of buckets: their settings, and what a mirror of one can do."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from email.parser import BytesParser
from typing import Any

from msgspec import Struct

from stigmergy.base.errors import ConfigError, LinkDown, StoreForeign
from stigmergy.nats.errors import NO_MESSAGE, JetStreamRefused
from stigmergy.nats.link import Headers, NatsLink
from stigmergy.nats.store.connection import asking
from stigmergy.nats.streams import ensure_stream, find_stream
from stigmergy.store.port import check_bucket

MARKER_S = 60
"""How long a bucket keeps the marker of a removed key. Watchers hear of it at once, or start again."""
OBJECTS = "$OBJ"
"""The first token of all subjects of objects. NATS's own object store uses `$O`, which passes from a hub to its leaves
and back: buckets of one name on both would receive each other's pieces. This one stays in its domain, like `$KV`, and
is reached from outside by the domain's name."""
NS = 1_000_000_000
MEGABYTE = 1024 * 1024
_EXTERNAL_API = re.compile(r"\$JS\.[A-Za-z0-9_-]+\.API")


class BucketPlace(Struct, frozen=True):
    """The stream of a bucket, and the subjects of its messages."""

    bucket: str
    stream: str
    write_prefix: str = ""
    """Prefix for subjects that are written to, if the stream is in another domain."""
    is_mirror: bool = False


async def ensure_keys(link: NatsLink, bucket: str, replicas: int, max_mb: int) -> BucketPlace:
    """The stream of a bucket of keys: one message for each key, and for a while a marker for a removed one."""
    settings = {
        "subjects": [f"$KV.{check_bucket(bucket)}.>"],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "discard": "new",
        "max_bytes": max_mb * MEGABYTE if max_mb else -1,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "deny_delete": True,
        "allow_msg_ttl": True,
        # The server itself publishes when a key expires, so that nobody has to poll.
        "subject_delete_marker_ttl": MARKER_S * NS,
    }
    return await _ensure(link, bucket, f"KV_{bucket}", settings)


async def ensure_objects(link: NatsLink, bucket: str, replicas: int, max_mb: int) -> BucketPlace:
    """The stream of a bucket of objects: messages with pieces, and one for each version that lists them."""
    settings = {
        "subjects": [f"{OBJECTS}.{check_bucket(bucket)}.C.>", f"{OBJECTS}.{bucket}.M.>"],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": -1,
        "discard": "new",
        "max_bytes": max_mb * MEGABYTE if max_mb else -1,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }
    return await _ensure(link, bucket, objects_stream(bucket), settings)


def objects_stream(bucket: str) -> str:
    """The stream of a bucket of objects."""
    return f"OBJ_{bucket}"


async def _ensure(link: NatsLink, bucket: str, stream: str, settings: dict[str, Any]) -> BucketPlace:
    with asking(f"bucket {bucket}", writes=False):
        found = await find_stream(link, stream)
        if found is not None:
            if found.config.get("mirror"):
                return BucketPlace(bucket, stream, _origin_prefix(bucket, found.config["mirror"]), is_mirror=True)
            # More copies than requested are fine, and a size limit that somebody has set stays.
            settings["num_replicas"] = max(settings["num_replicas"], int(found.config.get("num_replicas", 1)))
            settings["max_bytes"] = found.config.get("max_bytes", -1)
        try:
            await ensure_stream(link, stream, settings)
        except ConfigError as error:
            if await _is_there(link, stream):
                raise StoreForeign(str(error)) from None
            raise
    return BucketPlace(bucket, stream, f"$JS.{link.address.domain}.API." if link.address.domain else "")


async def _is_there(link: NatsLink, stream: str) -> bool:
    try:
        return await find_stream(link, stream) is not None
    except (JetStreamRefused, LinkDown):
        return False


def _origin_prefix(bucket: str, mirror: Mapping[str, Any]) -> str:
    """The prefix for writes from here to the origin of a mirror."""
    api = str((mirror.get("external") or {}).get("api", ""))
    if api and not _EXTERNAL_API.fullmatch(api):
        raise StoreForeign(f"bucket {bucket} mirrors one behind {api!r}; only $JS.<domain>.API is supported")
    return f"{api}." if api else ""


# Messages of a bucket of keys: their meaning, and how to read the last one of a key.

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
OPERATION = "KV-Operation"
MARKER = "Nats-Marker-Reason"
HOLDER = "Stig-Holder"
"""Who wrote a lease: after a lost answer its holder recognises its own write by it."""


class Last(Struct, frozen=True):
    """The last message of a subject."""

    sequence: int
    data: bytes
    is_gone: bool
    """Whether the key was removed."""
    holder: str = ""


def says_gone(headers: Headers | None) -> bool:
    """Whether a message is the marker of a deleted or expired key."""
    return bool(headers) and headers is not None and (OPERATION in headers or MARKER in headers)


async def read_last(link: NatsLink, place: BucketPlace, subject: str, within_s: float) -> Last | None:
    """The last message of this subject, from the stream's leader; None if none. Raises JetStreamRefused or LinkDown."""
    try:
        answer = await link.api(f"STREAM.MSG.GET.{place.stream}", {"last_by_subj": subject}, within_s)
    except JetStreamRefused as refused:
        if refused.code == NO_MESSAGE:
            return None
        raise
    message = answer["message"]
    headers = read_headers(message.get("hdrs", ""))
    data = base64.b64decode(message.get("data") or "")
    return Last(int(message["seq"]), data, says_gone(headers), headers.get(HOLDER, ""))


def read_headers(encoded: str) -> dict[str, str]:
    """Headers as JetStream's API encodes them."""
    if not encoded:
        return {}
    _, _, lines = base64.b64decode(encoded).partition(b"\r\n")
    return {name: str(value) for name, value in BytesParser().parsebytes(lines).items()}
