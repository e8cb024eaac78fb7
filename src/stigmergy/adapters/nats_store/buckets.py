"""The streams behind buckets: how ours are set up, and what a mirror of one can do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from stigmergy.adapters.nats.errors import JetStreamRefused
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats.streams import ensure_stream, find_stream
from stigmergy.adapters.nats_store.asking import asking
from stigmergy.core.errors import ConfigError, LinkDown, StoreForeign
from stigmergy.ports.store import check_bucket

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
