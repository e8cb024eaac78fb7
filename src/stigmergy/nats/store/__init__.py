"""The store on NATS JetStream: keys, leases and objects in streams that a majority of servers holds.

    nats://hub-1:4222,hub-2:4222,hub-3:4222?replicas=3        max_mb=… bounds each bucket that is made

A bucket of keys has the layout of NATS's own, so that its tools read it: the stream `KV_<bucket>`. A bucket of objects
is the stream `OBJ_<bucket>`, with messages like NATS's own, on subjects that stay in their domain. A mirror of such a
stream, at a gateway for instance, can be read there even while the gateway is cut off; keys are then written at the
origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stigmergy.base.clock import Clock
from stigmergy.base.errors import ConfigError

if TYPE_CHECKING:
    from stigmergy.nats.store.store import NatsStore


async def open_store(url: str, clock: Clock) -> NatsStore:
    """Connects to a store. Raises ConfigError for what somebody must fix, StoreUnavailable if no server answers."""
    try:
        from stigmergy.nats.store.store import NatsStore
    except ModuleNotFoundError as error:
        raise ConfigError(f'store {url!r} needs {error.name}: pip install "stigmergy[nats]"') from None
    return await NatsStore.open(url, clock)
