"""`stigmergy blob`: puts large payloads into a fleet's store, and gets, lists and collects them.

It speaks to the store itself: no node needs to run. It needs only the fleet's name, no classes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from stigmergy.agents.messages import Blob
from stigmergy.app.blobs import BlobsAt, blobs_url
from stigmergy.app.fleet import Fleet, NodeConfig, find_node_config, read_key, read_private_key
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import BlobMissing, ConfigError
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, NAME, Cell, Output, counted, shown_bytes
from stigmergy.cli.display.places import config_of, folder_of, load_fleet, url_of
from stigmergy.store.blobs import Blobs, BlobSettings, KeptBlob
from stigmergy.store.garbage import collect, forget_owner, read_references
from stigmergy.store.sealed import Opener, is_sealed

EXAMPLES = """examples:
  stigmergy blob put map.bin --type application/octet-stream     prints the reference to send
  stigmergy blob get 3f0a9c12 --to map.bin                       the beginning of a digest is enough
  stigmergy blob list --store nats://hub:4222 --name delivery
  stigmergy blob gc                                              delete what no log refers to
"""
Act = Callable[[Blobs, argparse.Namespace, Output], Awaitable[int]]


def add_commands(commands: Any) -> None:
    """Adds `blob` and what it can do."""
    blob = commands.add_parser("blob", help="put, get, list and collect large payloads", epilog=EXAMPLES)
    blob.set_defaults(run=lambda *_: _nothing_named())
    actions = blob.add_subparsers(metavar="ACTION", title="actions")
    putting = _add(actions, "put", "store a file, and print the reference to it", _put)
    putting.add_argument("file", metavar="FILE", type=Path)
    putting.add_argument("--type", metavar="TYPE", default="application/octet-stream", help="such as image/jpeg")
    putting.add_argument("--again", action="store_true", help="replace what is there, which was found damaged")
    putting.add_argument("--reader", metavar="KEY", help="seal it, so that only the holder of this key can open it")
    getting = _add(actions, "get", "fetch a blob into a file; goes on where it was interrupted", _get)
    getting.add_argument("digest", metavar="DIGEST", help="in hexadecimal; its beginning is enough")
    getting.add_argument("--to", metavar="FILE", type=Path, required=True, help="replaced when all of it is there")
    getting.add_argument("--with", dest="key", metavar="FILE", type=Path, help="open it with this private key")
    _add(actions, "list", "what there is", _list)
    collecting = _add(actions, "gc", "delete what no log refers to any more", _gc)
    collecting.add_argument("--dry-run", action="store_true", help="only say what there is")
    collecting.add_argument(
        "--forget",
        metavar="OWNER",
        action="append",
        default=[],
        help="a node that never comes back, as SITE/NODE/INCARNATION: what it referred to stays no longer; repeatable",
    )


def _add(actions: Any, name: str, about: str, act: Act) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=about, description=about)
    parser.add_argument("--store", metavar="URL", help="such as nats://hub:4222; else that of stigmergy.toml")
    parser.add_argument("--journal", metavar="URL", help="the journal that the blobs lie beside, if no store is named")
    parser.add_argument("--fleet", metavar="MODULE:FLEET", help="whose; only its name and settings are needed")
    parser.add_argument("--name", metavar="FLEET", help="the fleet's name, if its module is not available")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")
    parser.set_defaults(run=lambda arguments, output: _run(act, arguments, output))
    return parser


def _nothing_named() -> int:
    raise ConfigError("blob: say what to do: put, get, list or gc; stigmergy blob --help")


def _run(act: Act, arguments: argparse.Namespace, output: Output) -> int:
    return asyncio.run(_act(act, arguments, output))


async def _act(act: Act, arguments: argparse.Namespace, output: Output) -> int:
    place = _place(arguments)
    try:
        return await act(place.blobs, arguments, output)
    finally:
        await place.stop()


def _place(arguments: argparse.Namespace) -> BlobsAt:
    """The store that is meant, with the quota that the fleet has."""
    config = config_of(arguments)
    spec = arguments.fleet or config.fleet.module
    if not arguments.name and spec is None:
        raise ConfigError("blobs of which fleet? Give --fleet MODULE:FLEET, or its name with --name")
    fleet: Fleet | None = None if arguments.name else load_fleet(str(spec), folder_of(arguments))
    name = str(arguments.name) if fleet is None else fleet.name
    settings = config.settings or (None if fleet is None else fleet.settings)
    named = arguments.store or find_node_config(NodeConfig(), config).blobs
    journal = config.fleet.journal or f"sqlite:{name}.db"
    journal = journal if arguments.journal is None else url_of(arguments.journal)
    bounds = BlobSettings() if settings is None else settings.blobs
    url = blobs_url(named, journal)
    return BlobsAt(url, name, SystemClock(), SystemThreads(), bounds, make_folder=named is None)


async def _put(blobs: Blobs, arguments: argparse.Namespace, output: Output) -> int:
    reader = None if arguments.reader is None else read_key(arguments.reader).key
    blob = await blobs.put(arguments.file, media_type=arguments.type, again=arguments.again, reader=reader)
    output.document({"blob": blob, "digest": blob.hex, "store": blobs.place})
    output.line(("put", GOOD), f"  {shown_bytes(blob.size_bytes)}, {blob.media_type}  ", (blob.hex, NAME))
    return exits.OK


async def _get(blobs: Blobs, arguments: argparse.Namespace, output: Output) -> int:
    found = await blobs.kept(_checked(arguments.digest))
    if not found:
        raise BlobMissing(f"{blobs.place} has no blob {arguments.digest}; `stigmergy blob list` says what there is")
    if len(found) > 1:
        raise ConfigError(f"{arguments.digest}: {len(found)} blobs begin so; give more of the digest")
    blob = found[0].blob
    opened = arguments.key is not None
    path = await (_open_to(blobs, blob, arguments) if opened else blobs.fetch_to(blob, arguments.to))
    output.document({"blob": blob, "digest": blob.hex, "file": str(path)})
    how = "verified and opened" if opened else "verified"
    if not opened and is_sealed(blob.media_type):
        how = "verified, and still sealed: its reader opens it, with --with KEY"
    output.line(("got", GOOD), f"  {shown_bytes(blob.size_bytes)}, {how}  ", (str(path), NAME))
    return exits.OK


async def _open_to(blobs: Blobs, blob: Blob, arguments: argparse.Namespace) -> Path:
    """Opens a sealed blob of any size into a file, which appears when all of it was found right."""
    path: Path = arguments.to
    opener, part = Opener(read_private_key(arguments.key).seed, f"blob {blob.hex}"), path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            async for piece in blobs.stream(blob):
                file.writelines(opener.open(piece))
            file.write(opener.end())
        return part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); make room, or name another") from None
    finally:
        part.unlink(missing_ok=True)


def _checked(digest: str) -> str:
    if not digest or any(sign not in "0123456789abcdef" for sign in digest):
        raise ConfigError(f"{digest!r} is no beginning of a digest; give hexadecimal digits, such as 3f0a9c12")
    return digest


async def _list(blobs: Blobs, _: argparse.Namespace, output: Output) -> int:
    found = await blobs.kept()
    used = sum(one.blob.size_bytes for one in found)
    output.document(
        {"store": blobs.place, "bytes": used, "bytes_max": blobs.settings.bytes_max, "blobs": list(map(_told, found))}
    )
    if found:
        rows: list[list[Cell]] = [
            [(one.blob.hex, NAME), shown_bytes(one.blob.size_bytes), one.blob.media_type, _made(one)] for one in found
        ]
        output.table(("DIGEST", "SIZE", "TYPE", "PUT"), rows)
    output.note(
        f"{counted(len(found), 'blob')}, {shown_bytes(used)} of {shown_bytes(blobs.settings.bytes_max)}, {blobs.place}"
    )
    return exits.OK


async def _gc(blobs: Blobs, arguments: argparse.Namespace, output: Output) -> int:
    objects = await blobs.find_objects()
    for owner in arguments.forget:
        if objects is None or not await forget_owner(objects, owner):
            known = [] if objects is None else [one.owner for one in await read_references(objects)]
            raise ConfigError(f"{owner} has told nothing here; there are: {', '.join(known) or 'none'}")
    found = await collect(blobs, dry_run=arguments.dry_run)
    output.document({"store": blobs.place, **structs.asdict(found)})
    output.line(
        ("collected", GOOD),
        f"  {counted(found.deleted, 'blob')}, {shown_bytes(found.deleted_bytes)}; of {found.blobs} {found.referenced} "
        f"are referred to, {found.marked} wait for their grace period",
    )
    if found.blobs and not found.owners:
        output.note("no node has told what it refers to, so nothing is deleted; run one with this store", "yellow")
    if found.waits_for:
        output.note(
            f"nothing newer is deleted before these have told again: {', '.join(found.waits_for)}; if one never comes "
            "back, give --forget OWNER",
            "yellow",
        )
    return exits.OK


def _told(one: KeptBlob) -> dict[str, Any]:
    return {"digest": one.blob.hex, "bytes": one.blob.size_bytes, "type": one.blob.media_type, "put": _made(one)}


def _made(one: KeptBlob) -> str:
    return readable_time(one.made_ns)[:19]
