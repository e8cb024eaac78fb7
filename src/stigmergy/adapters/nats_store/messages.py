"""Messages of a bucket of keys: what they say, and how the last one of a key is read."""

from __future__ import annotations

import base64
from email.parser import BytesParser

from msgspec import Struct

from stigmergy.adapters.nats.errors import NO_MESSAGE, JetStreamRefused
from stigmergy.adapters.nats.link import Headers, NatsLink
from stigmergy.adapters.nats_store.buckets import BucketPlace

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
