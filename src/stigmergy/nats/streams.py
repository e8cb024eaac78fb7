"""Makes streams, or verifies that existing ones have the required settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.errors import STREAM_NAME_IN_USE, STREAM_NOT_FOUND, JetStreamRefused, no_jetstream
from stigmergy.nats.errors import WITHOUT_JETSTREAM as _WITHOUT

if TYPE_CHECKING:
    from stigmergy.nats.link import NatsLink

ENSURE_S = 10.0
"""A cluster that has just started needs some seconds before it can place a stream."""
PAUSE_S = 0.1
LOOK_S = 2.0
"""While a stream has no leader, some requests for it get no answer: ask again soon."""


class StreamFound(Struct, frozen=True):
    """An existing stream."""

    config: dict[str, Any]
    state: dict[str, Any]
    is_new: bool

    @property
    def last_sequence(self) -> int:
        """Sequence of its newest message, also after that was removed."""
        return int(self.state["last_seq"])

    @property
    def first_sequence(self) -> int:
        """Sequence of its oldest message; one above the last if the stream is empty."""
        return int(self.state["first_seq"])

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.config.get("metadata") or {})


async def ensure_stream(
    link: NatsLink, name: str, settings: Mapping[str, Any], within_s: float = ENSURE_S
) -> StreamFound:
    """Returns the stream, and makes it if it does not exist. `settings` use JetStream's names, only those that matter.

    Raises ConfigError if an existing stream differs in any of them, and changes nothing; LinkDown if too few of its
    servers are there.
    """
    deadline_s = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            found = await find_stream(link, name) or await _make(link, name, settings)
            _compare(link, name, settings, found.config)
            return found
        except JetStreamRefused as refused:
            if refused.code in _WITHOUT:
                raise no_jetstream(link.address.shown) from None
            raced = refused.code == STREAM_NAME_IN_USE
            if not (raced or refused.is_passing) or asyncio.get_running_loop().time() > deadline_s:
                raise _cannot_make(link, name, settings, refused) from None
        except LinkDown:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
        await asyncio.sleep(PAUSE_S)


async def find_stream(link: NatsLink, name: str, within_s: float = LOOK_S) -> StreamFound | None:
    """Returns the stream, or None if it does not exist. Raises LinkDown or JetStreamRefused."""
    try:
        info = await link.api(f"STREAM.INFO.{name}", within_s=within_s)
    except JetStreamRefused as refused:
        if refused.code == STREAM_NOT_FOUND:
            return None
        raise
    return StreamFound(info["config"], info["state"], is_new=False)


async def _make(link: NatsLink, name: str, settings: Mapping[str, Any]) -> StreamFound:
    made = await link.api(f"STREAM.CREATE.{name}", {"name": name, **settings})
    return StreamFound(made["config"], made["state"], is_new=True)


def _compare(link: NatsLink, name: str, wanted: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    differing = [
        f"{key} is {config.get(key)!r}, not {value!r}"
        for key, value in wanted.items()
        if not _same(value, config.get(key))
    ]
    if differing:
        raise ConfigError(
            f"stream {name} at {link.address.shown} has other settings: {'; '.join(differing)}. Nothing was changed: "
            "give the settings it was made with, or name another fleet, or edit the stream yourself"
        )


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_same(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list | tuple) and (wanted or found is not None):
        fits = isinstance(found, list | tuple) and len(found) == len(wanted)
        return bool(fits and all(_same(one, other) for one, other in zip(wanted, found, strict=True)))
    # JetStream leaves out fields with a zero value.
    return bool(wanted == found) or (found is None and not wanted)


def _cannot_make(link: NatsLink, name: str, settings: Mapping[str, Any], refused: JetStreamRefused) -> Exception:
    replicas = settings.get("num_replicas", 1)
    if "peer offline" in refused.description:
        # There are enough servers, and some are away: nothing to configure, and whoever waits for servers waits on.
        return LinkDown(
            f"stream {name} needs {replicas} servers at {link.address.shown}, and not all are there; start the others"
        )
    if refused.is_passing or "peers" in refused.description or "replicas" in refused.description:
        return ConfigError(
            f"stream {name} with {replicas} replicas cannot be placed at {link.address.shown} ({refused.description}); "
            "start that many servers with JetStream, or ask for fewer replicas"
        )
    if refused.is_full:
        return ConfigError(
            f"stream {name}: no room for it at {link.address.shown} ({refused.description}); raise max_file or the "
            "account's limits, or make room"
        )
    return ConfigError(
        f"{link.address.shown} refuses stream {name}: {refused}; look at what else is there, or name another fleet"
    )
