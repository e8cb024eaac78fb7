"""What comes down: a bucket of the hub's, keys and objects, mirrored to the leaf, where it is read also while cut off.

Nothing is kept in step here: the leaf's server does that. A mirror is made once the hub has the bucket.
"""

from __future__ import annotations

from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats.streams import find_stream
from stigmergy.core.errors import ConfigError

KINDS = ("KV", "OBJ")
"""The streams of a bucket of keys and of one of objects begin so, as everywhere on NATS."""


async def mirror_bucket(leaf: NatsLink, above: NatsLink, bucket: str) -> bool:
    """Makes the mirrors that are not there. Whether all are; False while the hub lacks one of the two.

    Raises ConfigError if the leaf has a bucket of its own by this name.
    """
    api = f"$JS.{above.address.domain}.API"
    complete = True
    for kind in KINDS:
        stream = f"{kind}_{bucket}"
        found = await find_stream(leaf, stream)
        if found is not None:
            origin = found.config.get("mirror") or {}
            if not origin:
                raise ConfigError(
                    f"bucket {bucket} at {leaf.address.shown} is one of its own, and cannot be the hub's too; write "
                    "its keys at the hub, and delete it here"
                )
            if (origin.get("external") or {}).get("api") == api:
                continue
            # The gateway has got another hub. What that one says counts from now on.
            await leaf.api(f"STREAM.DELETE.{stream}")
        if await find_stream(above, stream) is None:
            complete = False
            continue
        settings = {"name": stream, "storage": "file", "allow_direct": True}
        await leaf.api(f"STREAM.CREATE.{stream}", {**settings, "mirror": {"name": stream, "external": {"api": api}}})
    return complete
