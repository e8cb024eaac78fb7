"""The streams behind buckets: their settings, and what a mirror of one can do."""

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
"""How long it is remembered in a bucket that a key is gone. Who watches hears of it at once or begins anew."""
OBJECTS = "$OBJ"
"""The first word of all subjects of objects. NATS's own object store has `$O`, which passes from a hub to its leaves
and back: buckets of one name on both would take each other's pieces. This one stays in its domain, as `$KV` does, and
is reached from outside by the domain's name."""
NS = 1_000_000_000
MEGABYTE = 1024 * 1024
_EXTERNAL_API = re.compile(r"\$JS\.[A-Za-z0-9_-]+\.API")


class BucketPlace(Struct, frozen=True):
    """Where the messages of a bucket are."""

    bucket: str
    stream: str
    write_prefix: str = ""
    """What comes before a subject that is written to: something where the stream is another domain's."""
    is_mirror: bool = False


async def ensure_keys(link: NatsLink, bucket: str, replicas: int, max_mb: int) -> BucketPlace:
    """The stream of a bucket of keys: one message for each key, and a mark for a while where one has gone."""
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
        # The server itself says when the time of a key is over, so that nobody need look again and again.
        "subject_delete_marker_ttl": MARKER_S * NS,
    }
    return await _ensure(link, bucket, f"KV_{bucket}", settings)


async def ensure_objects(link: NatsLink, bucket: str, replicas: int, max_mb: int) -> BucketPlace:
    """The stream of a bucket of objects: messages with pieces, and one for each version that says which they are."""
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
            # More copies than were asked for are no reason to refuse, and a bound that somebody has set is theirs.
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
    """How the origin of a mirror is written to from here."""
    api = str((mirror.get("external") or {}).get("api", ""))
    if api and not _EXTERNAL_API.fullmatch(api):
        raise StoreForeign(f"bucket {bucket} mirrors one behind {api!r}, and only $JS.<domain>.API is known here")
    return f"{api}." if api else ""


# Messages of a bucket of keys: their meaning, and how to read the last one of a key.

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
OPERATION = "KV-Operation"
MARKER = "Nats-Marker-Reason"
HOLDER = "Stig-Holder"
"""Who wrote a lease: after an answer got lost, its holder finds its own write by it."""


class Last(Struct, frozen=True):
    """The last message of a subject."""

    sequence: int
    data: bytes
    is_gone: bool
    """It says that there is nothing any more."""
    holder: str = ""


def says_gone(headers: Headers | None) -> bool:
    """Whether a message marks a key that was deleted or whose time is over."""
    return bool(headers) and headers is not None and (OPERATION in headers or MARKER in headers)


async def read_last(link: NatsLink, place: BucketPlace, subject: str, within_s: float) -> Last | None:
    """What the stream's leader has for this subject; None for nothing. Raises JetStreamRefused or LinkDown."""
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
    """Headers as the API of JetStream gives them."""
    if not encoded:
        return {}
    _, _, lines = base64.b64decode(encoded).partition(b"\r\n")
    return {name: str(value) for name, value in BytesParser().parsebytes(lines).items()}
