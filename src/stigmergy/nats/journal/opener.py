"""Opens logs on JetStream: makes or finds their streams, asks for their owner, reads their positions, and claims them.

The lock is a request: the owner of a log answers it while it runs and is connected. An owner that does not answer in
time has lost the log; its later writes are refused, because our claim is a message that it does not know. So two that
open a log at the same moment may both believe for a moment that they own it; only the later claim counts.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import structs
from nats.aio.msg import Msg

from stigmergy.base.errors import ConfigError, JournalConflict, JournalForeign, JournalLocked
from stigmergy.journal.port import JournalIdentity, check_shard_by, shown_shards
from stigmergy.nats import naming
from stigmergy.nats.address import NatsAddress, parse_address
from stigmergy.nats.errors import NoResponders, Unanswered
from stigmergy.nats.journal.journal import LogOwnership, NatsJournal, OpenedLog, SharedReader
from stigmergy.nats.journal.messages import (
    CLAIMED,
    NOTE,
    PAYLOAD_BYTES_MIN,
    LogState,
    describe,
    encode_note,
    read_identity,
)
from stigmergy.nats.journal.snapshots import SnapshotStore
from stigmergy.nats.journal.stream import LogPlace, LogStream
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import StreamFound, ensure_stream
from stigmergy.nats.threaded import BlockingLink

OPTIONS = ("replicas", "max_bytes", "part")
OPEN_WITHIN_S = 60.0
"""Reading a log's state takes milliseconds, a cluster's leader election takes seconds; this covers both."""
ENSURE_S = 15.0
OWNER_ANSWERS_S = 2.0
"""An owner that has not answered after this time counts as dead; if it lives, it is fenced."""
CLAIMS_MAX = 20
"""How often others may write while we claim."""
REPLICAS_MIN = 3
NAMES_MAX = 1_024
"""Stream names that a server lists at once."""
NONCE_BYTES = 16


def open_journal(url: str, identity: JournalIdentity, *, owner: str = "") -> NatsJournal:
    """Opens the log of a fleet's shards for writing; makes it if there is none: 'nats://hub-1,hub-2?replicas=3'.

    `owner` names us to others; by default our process and machine. Raises JournalLocked while another owner runs,
    JournalForeign if it is another fleet's, ConfigError, LinkDown.
    """
    address = replicated(parse_address(url, OPTIONS))
    name = f"journal of {identity.fleet}"
    reader = BlockingLink(address, name=name)
    try:
        opened = reader.run(lambda link: _open(link, identity, owner or _ourselves()), OPEN_WITHIN_S)
        let_go = opened.let_go
        if let_go is not None:
            opened.let_go = lambda: _elsewhere(reader, let_go)
        return NatsJournal(opened, reader=reader)
    except BaseException:
        reader.close()
        raise


def inspect_journals(url: str) -> list[NatsJournal]:
    """Opens for reading only the logs of the fleet that the URL names, or of the only fleet there: one log, or one for
    each part of its shards."""
    address = parse_address(url, OPTIONS)
    reader = SharedReader(BlockingLink(address, name="inspection"))
    try:
        places = _chosen(address, reader.run(_places, OPEN_WITHIN_S))
        logs = [reader.run(partial(_look, place=place), OPEN_WITHIN_S) for place in places]
    except BaseException:
        reader.close()
        raise
    reader.users = len(logs)
    return [NatsJournal(opened, reader=reader) for opened in logs]


def part_urls(url: str) -> list[str]:
    """The URLs of a fleet's logs, each with its first shard; empty if there is one log, or the URL picks one."""
    address = parse_address(url, OPTIONS)
    reader = BlockingLink(address, name="inspection")
    try:
        places = _chosen(address, reader.run(_places, OPEN_WITHIN_S))
    finally:
        reader.close()
    joint = "&" if "?" in url else "?"
    return [f"{url}{joint}part={place.first}" for place in places] if len(places) > 1 else []


# ---------------------------------------------------------------------- parts, on a link


def replicated(address: NatsAddress) -> NatsAddress:
    """With three replicas if three or more servers are named and `replicas` is not given."""
    if address.option("replicas") or len(address.servers) < REPLICAS_MIN:
        return address
    return structs.replace(address, options=(*address.options, ("replicas", str(REPLICAS_MIN))))


def place_of(address: NatsAddress, identity: JournalIdentity) -> LogPlace:
    """The log of these shards."""
    return LogPlace(address.path or identity.fleet, identity.owned[0], identity.owned[-1])


async def prepare(link: NatsLink, identity: JournalIdentity) -> tuple[LogPlace, JournalIdentity]:
    """Makes the streams of a log, or checks existing ones; returns the log's identity."""
    address = link.address
    place = place_of(address, identity)
    if link.max_payload_bytes < PAYLOAD_BYTES_MIN:
        raise ConfigError(
            f"{address.shown} accepts messages of {link.max_payload_bytes} bytes at most; raise max_payload in its "
            f"configuration to {PAYLOAD_BYTES_MIN} or more, best to 1 MB"
        )
    log = LogStream(link, place)
    found = await log.find()
    if found is None:
        await _check_others(link, place, identity)
        await _check_lost(link, place, identity)
    settings = _settings(address, place)
    if found is None:
        try:
            found = await ensure_stream(link, place.stream, {**settings, "metadata": describe(identity)}, ENSURE_S)
        except ConfigError:
            # Another opener may have made it a moment before us, with another incarnation.
            found = await log.find()
            if found is None:
                raise
    known = read_identity(found.metadata, f"stream {place.stream} at {address.shown}")
    check_identity(known, identity, f"stream {place.stream} at {address.shown}")
    await ensure_stream(link, place.stream, settings, ENSURE_S)
    await SnapshotStore(link, place.name).ensure(address.replicas, ENSURE_S)
    return place, known


def _settings(address: NatsAddress, place: LogPlace) -> dict[str, Any]:
    text = address.option("max_bytes", "0")
    if not text.isdecimal():
        raise ConfigError(f"max_bytes={text}: give the bytes that the log may use on each server, or leave it out")
    return {
        "subjects": [f"{place.subject}.*"],
        "storage": "file",
        "num_replicas": address.replicas,
        "retention": "limits",
        "discard": "new",
        "max_bytes": int(text) or -1,
        "max_msgs": -1,
        "max_age": 0,
        "deny_delete": True,
        "allow_direct": True,
    }


async def _check_others(link: NatsLink, place: LogPlace, identity: JournalIdentity) -> None:
    """Refuses to make a log if the fleet has one with other shards."""
    for other in await _places(link, place.name):
        if other.first <= place.last and place.first <= other.last:
            found = await LogStream(link, other).find()
            if found is not None:
                known = read_identity(found.metadata, f"stream {other.stream} at {link.address.shown}")
                check_identity(known, identity, f"stream {other.stream} at {link.address.shown}")


async def _check_lost(link: NatsLink, place: LogPlace, identity: JournalIdentity) -> None:
    """Refuses to make a log if there are snapshots of it: it existed and was lost."""
    if await SnapshotStore(link, place.name).catalogue(identity.owned):
        raise JournalForeign(
            f"{link.address.shown} has no stream {place.stream}, but snapshots of {shown_shards(identity)}: the log "
            f"was deleted or lost; restore it, or delete {naming.snapshots_bucket(place.name)} as well to start empty"
        )


def check_identity(found: JournalIdentity, wanted: JournalIdentity, where: str) -> None:
    """Refuses the log of another fleet or of other shards."""
    if found.fleet != wanted.fleet:
        raise JournalForeign(
            f"{where} belongs to fleet {found.fleet!r}, not to {wanted.fleet!r}; name another in the URL"
        )
    if found.shards != wanted.shards:
        raise JournalForeign(
            f"{where} was made for {found.shards} shards, not for {wanted.shards}; their number is fixed"
        )
    check_shard_by(found.shard_by, wanted.shard_by, where)
    if found.part != wanted.part:
        raise JournalForeign(f"{where} keeps {shown_shards(found)}, not {shown_shards(wanted)}; {_remedy(found)}")


def _remedy(found: JournalIdentity) -> str:
    if found.part is None:
        return "it was made by stigmergy run: continue with that, or name another place in the URL"
    return "each part of it is run separately, as stigmergy worker does: continue with that"


async def read_state(log: LogStream) -> tuple[LogState, StreamFound]:
    """The state of a log: read from its newest note to its end."""
    info, note = await asyncio.gather(log.info(), log.last_note())
    state = LogState()
    if note is not None:
        state.begin_from(note)
    else:
        state.begin_at(max(1, info.first_sequence))
    await read_on(log, state, info.last_sequence)
    await _correct(log, state, info.first_sequence)
    return state, info


async def read_further(log: LogStream, state: LogState) -> None:
    """Brings a state up to the log's end."""
    info = await log.info()
    await read_on(log, state, info.last_sequence)
    await _correct(log, state, info.first_sequence)


async def read_on(log: LogStream, state: LogState, upto: int) -> None:
    """Folds the next messages, at least up to this one."""
    while state.sequence < upto:
        for entry in await log.fetch_some(state.sequence + 1, upto):
            state.take(entry)
        await asyncio.sleep(0)


async def _correct(log: LogStream, state: LogState, first_sequence: int) -> None:
    """A drop stopped between deleting and noting it: finds where the shards begin."""
    missing = {shard: None for shard, sequence in state.first_sequences.items() if sequence < first_sequence}
    found = LogState()
    found.begin_at(first_sequence)
    while missing and found.sequence < state.sequence:
        for entry in await log.fetch_some(found.sequence + 1, state.sequence):
            if entry.kind == NOTE:
                # The note is about dropped messages too; only existing ones count here.
                found.begin_at(entry.sequence + 1)
                continue
            for stored in found.take(entry):
                shard = stored.sealed.shard
                if shard in missing:
                    del missing[shard]
                    first = max(stored.sealed.position, state.firsts[shard])
                    state.dropped(shard, first, found.first_sequences[shard])


async def claim_log(
    link: NatsLink, place: LogPlace, identity: JournalIdentity, state: LogState, owner: str
) -> OpenedLog:
    """Writes a claim after the state's last message. Raises JournalConflict if that is not the end."""
    log = LogStream(link, place)
    note = encode_note(state.note(CLAIMED, owner, os.urandom(NONCE_BYTES)))
    await log.write(NOTE, note, state.sequence)
    state.wrote(1, len(note))
    state.since_note_count = state.since_note_bytes = 0
    state.epoch, state.owner = state.sequence, owner
    ownership = LogOwnership()
    # Concurrently: until all of it is known the shard has no owner.
    info, catalogue = await asyncio.gather(log.info(), SnapshotStore(link, place.name).catalogue(identity.owned))
    bytes_max, let_go = await asyncio.gather(_limit(log, info), be_owner(link, place, owner, ownership))
    return OpenedLog(
        place=place,
        address=link.address,
        identity=identity,
        state=state,
        catalogue=catalogue,
        bytes_used=int(info.state["bytes"]),
        bytes_max=bytes_max,
        epoch=state.sequence,
        let_go=let_go,
        ownership=ownership,
    )


async def be_owner(
    link: NatsLink, place: LogPlace, owner: str, ownership: LogOwnership
) -> Callable[[], Awaitable[None]]:
    """Answers that we own the log, while we do; returns a function that stops it."""

    async def answer(message: Msg) -> None:
        if message.reply and not ownership.is_over:
            await link.tell(message.reply, owner.encode())

    end = await link.subscribe(place.owner_subject, answer)
    await link.flush()
    return end


async def _limit(log: LogStream, info: StreamFound) -> int:
    limits = [int(info.config.get("max_bytes") or 0)]
    account = await log.retried(lambda: log.link.api("INFO"))
    limits.append(int((account.get("limits") or {}).get("max_storage") or 0))
    return min((limit for limit in limits if limit > 0), default=0)


async def _check_free(link: NatsLink, place: LogPlace) -> None:
    """Raises JournalLocked if an owner of the log answers."""
    try:
        said = await link.request(place.owner_subject, b"", within_s=OWNER_ANSWERS_S)
    except (NoResponders, Unanswered):
        return
    raise JournalLocked(
        f"{place.stream} at {link.address.shown} belongs to {said.data.decode(errors='replace')}, which runs; stop "
        "that one first, or name another place in the URL"
    )


async def _open(link: NatsLink, identity: JournalIdentity, owner: str) -> OpenedLog:
    place, known = await prepare(link, identity)
    await _check_free(link, place)
    log = LogStream(link, place)
    state, _ = await read_state(log)
    for _ in range(CLAIMS_MAX):
        try:
            return await claim_log(link, place, known, state, owner)
        except JournalConflict:
            await _check_free(link, place)
            await read_on(log, state, (await log.info()).last_sequence)
    raise JournalLocked(f"{place.stream}: another owner keeps writing to it; stop that one first")


def _ourselves() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


async def _elsewhere(reader: BlockingLink, let_go: Callable[[], Awaitable[None]]) -> None:
    async def run(link: NatsLink) -> None:
        await let_go()
        await link.flush()

    await asyncio.to_thread(reader.run, run, OWNER_ANSWERS_S)  # do not block the event loop


# ---------------------------------------------------------------------- inspection


async def _places(link: NatsLink, name: str = "") -> list[LogPlace]:
    """The logs at the server: all, or those of one name."""
    found: list[LogPlace] = []
    log = LogStream(link, LogPlace(name, 0, 0))
    subject = f"{naming.ROOT}.{naming.token(name) if name else '*'}.log.>"
    while True:
        asked = {"subject": subject, "offset": len(found)}
        answer = await log.retried(partial(link.api, "STREAM.NAMES", asked))
        listed = answer.get("streams") or []
        found += [_read_place(stream) for stream in listed]
        if len(listed) < NAMES_MAX:
            return sorted(found, key=lambda place: (place.name, place.first))


def _read_place(stream: str) -> LogPlace:
    start, first, last = stream.rsplit("_", 2)
    name = start.removeprefix(naming.log_stream("", 0, 0).removesuffix("_0_0"))
    return LogPlace(naming.text_of(name), int(first), int(last))


def _chosen(address: NatsAddress, places: list[LogPlace]) -> list[LogPlace]:
    names = list({place.name: None for place in places})
    if address.path:
        chosen = [place for place in places if place.name == address.path]
        if not chosen:
            known = f"there are {', '.join(names)}" if names else "there is none at all"
            raise ConfigError(f"{address.shown} keeps no log of {address.path!r}; {known}")
        return _parts(address, chosen)
    if len(names) != 1:
        known = (
            f"the logs of {', '.join(names)}: name one, like" if names else "no log; once a fleet has run there, like"
        )
        raise ConfigError(f"{address.shown} keeps {known} {address.servers[0]}/{names[0] if names else 'fleet'}")
    return _parts(address, places)


def _parts(address: NatsAddress, places: list[LogPlace]) -> list[LogPlace]:
    """The logs of a fleet that the URL picks: all, or the one with a shard."""
    part = address.option("part")
    if not part:
        return places
    chosen = [place for place in places if part.isdecimal() and place.first <= int(part) <= place.last]
    if not chosen:
        raise ConfigError(f"part={part}: no log has such a shard; they count from 0")
    return chosen


async def _look(link: NatsLink, place: LogPlace) -> OpenedLog:
    log = LogStream(link, place)
    state, info = await read_state(log)
    known = read_identity(info.metadata, f"stream {place.stream} at {link.address.shown}")
    return OpenedLog(
        place=place,
        address=link.address,
        identity=known,
        state=state,
        catalogue=await SnapshotStore(link, place.name).catalogue(known.owned),
        bytes_used=int(info.state["bytes"]),
        bytes_max=await _limit(log, info),
        epoch=0,
    )
