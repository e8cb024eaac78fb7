"""Names of our streams, buckets and subjects on NATS, one function each. Pure. docs/formats.md has the contents.

In these names a fleet or a ledger has only letters, digits and `-`, and `_XX` for any other byte: so a name is one
token of a subject, and may name a stream, a bucket or a consumer.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from blake3 import blake3

_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
TOKENS_KNOWN_MAX = 1_024
"""Bound of the cache: there are few names, and every message needs one."""
ROOT = "stig"
"""The first token of all our subjects that no device publishes to."""
NAME_CHARS_MAX = 160
BUS_STREAMS = "STIG_BUS_"


@lru_cache(maxsize=TOKENS_KNOWN_MAX)
def token(text: str) -> str:
    """Encodes any text as one token; different texts give different tokens."""
    return _UNSAFE.sub(lambda found: "".join(f"_{byte:02X}" for byte in found.group().encode("utf-8", "replace")), text)


def text_of(name: str) -> str:
    """Decodes a token."""
    return unquote_to_bytes(name.replace("_", "%")).decode("utf-8", "replace")


def bus_stream(fleet: str) -> str:
    """Holds messages on a fleet's topics until every durable subscriber has them."""
    return BUS_STREAMS + token(fleet)


def retained_stream(fleet: str) -> str:
    """Holds the last retained message of each topic."""
    return f"STIG_KEPT_{token(fleet)}"


def parted_stream(fleet: str, shards: int) -> str:
    """Holds commands and inputs of a fleet's agents, partitioned by shard."""
    return f"STIG_PART_{token(fleet)}_{shards}"


def parted_subject(fleet: str, shards: int) -> str:
    """Prefix of the partitioned subjects; the shard and the rest of the topic follow."""
    return f"{ROOT}.{token(fleet)}.part.{shards}"


def bus_session(client_id: str) -> str:
    """The consumer of a client's session. A long id ends in a digest: JetStream allows 255 characters."""
    name = token(client_id)
    return name if len(name) <= NAME_CHARS_MAX else f"{name[:NAME_CHARS_MAX]}-{blake3(name.encode()).hexdigest(16)}"


def bus_subject(fleet: str) -> str:
    """Prefix of a fleet bus's internal subjects."""
    return f"{ROOT}.{token(fleet)}.bus"


def kept_subject(fleet: str) -> str:
    """Prefix of the subjects of retained messages."""
    return f"{ROOT}.{token(fleet)}.kept"


def log_stream(fleet: str, first: int, last: int) -> str:
    """Holds the log of some shards of a fleet, side by side."""
    return f"STIG_LOG_{token(fleet)}_{first}_{last}"


def log_subject(fleet: str, first: int, last: int) -> str:
    """Prefix of the subjects of these shards' commits; one more token is the kind of message."""
    return f"{ROOT}.{token(fleet)}.log.{first}-{last}"


def log_owner_subject(fleet: str, first: int, last: int) -> str:
    """The subject where the owner of these shards' log announces itself."""
    return f"{ROOT}.{token(fleet)}.owner.{first}-{last}"


def log_grown_subject(fleet: str, first: int, last: int) -> str:
    """The subject where the owner of these shards' log announces new commits."""
    return f"{ROOT}.{token(fleet)}.grown.{first}-{last}"


def snapshots_subject(fleet: str) -> str:
    """Prefix of the subjects of snapshots."""
    return f"{ROOT}.{token(fleet)}.snapshots"


def snapshots_bucket(fleet: str) -> str:
    """Holds the snapshots of a fleet's shards."""
    return f"stig-snapshots-{token(fleet)}"


def copies_bucket(fleet: str) -> str:
    """Holds copies of the snapshots of nodes that have a local journal."""
    return f"stig-copies-{token(fleet)}"


def archive_bucket(fleet: str) -> str:
    """Holds the flight logs that nodes archive before they drop their log."""
    return f"stig-archive-{token(fleet)}"


def blobs_bucket(fleet: str) -> str:
    """Holds a fleet's blobs, and what its nodes say of them."""
    return f"stig-blobs-{token(fleet)}"


def models_bucket(fleet: str) -> str:
    """Holds the bundles of a fleet's models, and which versions are wanted."""
    return f"stig-models-{token(fleet)}"


def policy_bucket(fleet: str) -> str:
    """Holds the versions of a fleet's policy."""
    return f"stig-policy-{token(fleet)}"


def cluster_bucket(fleet: str) -> str:
    """Holds a fleet's workers and the owner of each shard."""
    return f"stig-cluster-{token(fleet)}"


def ledger_stream(name: str) -> str:
    """Holds the entries of a ledger."""
    return f"STIG_LEDGER_{token(name)}"


def ledger_checkpoints(name: str) -> str:
    """Holds the checkpoint of a ledger."""
    return f"{ledger_stream(name)}_STATE"


def ledger_subject(name: str) -> str:
    """Prefix of the subjects of a ledger's entries; one more token is the kind of message."""
    return f"{ROOT}.{token(name)}.ledger"


def tells_subject(fleet: str, shard: int) -> str:
    """Where the owner of a shard listens for other owners."""
    return f"{ROOT}.{token(fleet)}.tells.{shard}"


VIEWS = "views"
"""Instead of a shard: the process that projects the views of the fleet."""


def control_subject(fleet: str, shard: int | str) -> str:
    """Where the owner of a shard answers control requests, or for VIEWS the projector of the fleet."""
    return f"{ROOT}.{token(fleet)}.control.{shard}"


def uplink_stream(fleet: str) -> str:
    """At a gateway, holds uplink messages until the hub has them; at the hub, those of all gateways."""
    return f"STIG_UPLINK_{token(fleet)}"
