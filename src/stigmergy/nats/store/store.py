"""One connection to a store on NATS."""

from __future__ import annotations

from stigmergy.base.clock import Clock
from stigmergy.base.errors import ConfigError, LinkDown, StoreUnavailable
from stigmergy.nats.address import NatsAddress, parse_address
from stigmergy.nats.link import OPEN_S, NatsLink
from stigmergy.nats.store.buckets import ensure_keys, ensure_objects, objects_stream
from stigmergy.nats.store.connection import StoreConnection, asking
from stigmergy.nats.store.keys import NatsKeyValue
from stigmergy.nats.store.objects import NatsObjects
from stigmergy.nats.streams import find_stream
from stigmergy.store.port import KeyValue, Objects, check_bucket

OPTIONS = ("replicas", "max_mb")
MAX_MB = 1_000_000


class NatsStore:
    """The Store port. It closes the link only if it owns it."""

    def __init__(self, link: NatsLink, clock: Clock, *, owns_link: bool = False) -> None:
        self._line = StoreConnection(link, clock)
        self._owns_link = owns_link
        self._replicas = link.address.replicas
        self._max_mb = _max_mb(link.address)

    @classmethod
    async def open(cls, url: str, clock: Clock, within_s: float = OPEN_S) -> NatsStore:
        """Connects. Raises ConfigError or StoreUnavailable."""
        address = parse_address(url, OPTIONS)
        _ = address.replicas, _max_mb(address)
        try:
            link = await NatsLink.open(address, name="store", within_s=within_s)
        except LinkDown as error:
            raise StoreUnavailable(str(error)) from None
        return cls(link, clock, owns_link=True)

    async def key_value(self, bucket: str) -> KeyValue:
        self._line.check_open()
        check_bucket(bucket)
        return NatsKeyValue(self._line, await ensure_keys(self._line.link, bucket, self._replicas, self._max_mb))

    async def objects(self, bucket: str) -> Objects:
        self._line.check_open()
        check_bucket(bucket)
        return NatsObjects(self._line, await ensure_objects(self._line.link, bucket, self._replicas, self._max_mb))

    async def find_objects(self, bucket: str) -> Objects | None:
        self._line.check_open()
        with asking(f"bucket {check_bucket(bucket)}", writes=False):
            found = await find_stream(self._line.link, objects_stream(bucket))
        return None if found is None else await self.objects(bucket)

    async def close(self) -> None:
        self._line.close()
        if self._owns_link:
            await self._line.link.close()


def _max_mb(address: NatsAddress) -> int:
    text = address.option("max_mb", "0")
    if not text.isdecimal() or int(text) > MAX_MB:
        raise ConfigError(f"max_mb={text}: give the MiB that a bucket may use, 0 for no limit, {MAX_MB} at most")
    return int(text)
