"""`stigmergy restore`: lists the copies of a fleet's journals in stores, and restores a journal from one.

Everything is verified before the new journal gets its name, and nothing is ever overwritten. It needs only the fleet's
name, no classes.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from msgspec import Struct

from stigmergy.app.config import Config
from stigmergy.app.copies import CopiesAt, Restored, restore
from stigmergy.app.fleet import (
    NodeConfig,
    PublicKey,
    default_key_path,
    find_node_config,
    fingerprint,
    read_key,
    verifier,
)
from stigmergy.app.node_config import shown
from stigmergy.audit.listing import readable_time
from stigmergy.audit.restore import CopyFound, choose_copy, find_copies
from stigmergy.base.errors import ConfigError, JournalCorrupt, StoreError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, Cell, Output, counted, shown_bytes
from stigmergy.cli.display.places import config_of, fleet_name, url_of

EXAMPLES = """examples:
  stigmergy restore drone:fleet --copies nats://hub:4222                     what there is
  stigmergy restore drone:fleet --copies nats://hub:4222 --to sqlite:fleet.db     the newest, as a new journal
  stigmergy restore --name delivery --copies folder:/mnt/peer --node north/gateway --version 812 --to fleet.db
"""


class Listed(Struct, frozen=True):
    """A copy, and where it is."""

    url: str
    found: CopyFound


def add_commands(commands: Any) -> None:
    """Adds `restore`."""
    parser = commands.add_parser(
        "restore",
        run=run,
        help="list copies of a journal, or restore one from a copy",
        description="Lists the copies that nodes have made of their journals. With --to, builds a journal from one.",
        epilog=EXAMPLES,
    )
    parser.add_argument("fleet", metavar="MODULE:FLEET", nargs="?", help="whose; only its name is needed")
    parser.add_argument("--name", metavar="FLEET", help="the fleet's name, if its module is not available")
    parser.add_argument(
        "--copies",
        metavar="URL",
        action="append",
        default=[],
        help="the store, such as nats://hub:4222 or folder:/mnt/peer; else those of stigmergy.toml; repeatable",
    )
    parser.add_argument("--node", metavar="SITE/NAME", help="whose journal; else this node's, or the only one there")
    parser.add_argument("--version", metavar="N", type=int, help="which; else the newest")
    parser.add_argument(
        "--to", metavar="URL", help="build the journal here, such as sqlite:fleet.db; never overwritten"
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="refuse it unless this key signed the start or end of the log: its file, line or hex digits",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Lists, or restores."""
    config = config_of(arguments)
    urls = tuple(arguments.copies) or find_node_config(NodeConfig(), config).copies
    if not urls:
        raise ConfigError(
            'where are the copies? Give --copies URL, such as nats://hub:4222, or write copies = ["nats://hub:4222"] '
            "under [fleet] in stigmergy.toml"
        )
    fleet = fleet_name(arguments, config, "copies of which fleet? Give MODULE:FLEET, or its name with --name")
    trusted = None if arguments.key is None else read_key(arguments.key)
    return asyncio.run(_Restoring(arguments, config, fleet, urls, trusted, output).run())


class _Restoring:
    """One run of the command."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        config: Config,
        fleet: str,
        urls: tuple[str, ...],
        trusted: PublicKey | None,
        output: Output,
    ) -> None:
        self._arguments = arguments
        self._config = config
        self._fleet = fleet
        self._urls = urls
        self._trusted = trusted
        self._output = output

    async def run(self) -> int:
        node = self._arguments.node or ""
        listed = await self._list(node)
        if node and not listed:
            others = ", ".join(sorted({one.found.node for one in await self._list("")}))
            if others:
                raise ConfigError(f"there is no copy of {node} here, but of {others}; say one of them with --node")
        if self._arguments.to is None:
            return self._show(listed)
        return await self._restore(self._choose(listed))

    async def _list(self, node: str) -> list[Listed]:
        """What all stores have; one that cannot be reached is noted, unless it is the only one."""
        listed: list[Listed] = []
        failed: list[StoreError] = []
        for url in self._urls:
            try:
                async with CopiesAt(url, self._fleet) as objects:
                    found = await find_copies(objects, node)
            except StoreError as error:
                failed.append(error)
                self._output.note(f"{shown(url)}: {error}", "yellow")
                continue
            listed += [Listed(url, one) for one in found]
        if failed and len(failed) == len(self._urls):
            raise failed[0]
        return listed

    def _choose(self, listed: list[Listed]) -> Listed:
        """The version that is meant; of several stores the one whose copy is newest."""
        if self._arguments.node is None:
            node_config = find_node_config(NodeConfig(), self._config)
            own = [one for one in listed if one.found.node == f"{node_config.site}/{node_config.node}"]
            listed = own or listed
        if self._arguments.version is not None and len(self._urls) > 1:
            raise ConfigError("every store counts its own versions; name one with --copies, beside --version")
        chosen = choose_copy([one.found for one in by_age(listed)], self._arguments.version)
        return next(one for one in listed if one.found is chosen)

    def _show(self, listed: list[Listed]) -> int:
        self._output.document({"fleet": self._fleet, "copies": [_described(one) for one in listed]})
        rows: list[list[Cell]] = []
        for one in listed:
            found, manifest = one.found, one.found.manifest
            said: Cell = (found.trouble, BAD) if manifest is None else f"{manifest.commits:,} commits"
            rows.append(
                [(found.node, NAME), str(found.version), readable_time(found.made_ns)[:19], shown(one.url), said]
            )
        if rows:
            self._output.table(("NODE", "VERSION", "MADE", "STORE", "HOLDS"), rows)
        else:
            self._output.note(f"there are no copies of {self._fleet}; nodes make them that run with --copies URL")
        return exits.OK

    async def _restore(self, chosen: Listed) -> int:
        found = chosen.found
        if found.manifest is None:
            raise JournalCorrupt(f"{found.node}, version {found.version}: {found.trouble}")
        key = None if self._trusted is None else (self._trusted.algorithm, self._trusted.key)
        async with CopiesAt(chosen.url, self._fleet) as objects:
            restored = await restore(objects, found.manifest, url_of(self._arguments.to), verifier(), key)
        document = {**_described(chosen), **_described_restored(restored)}
        self._output.document(document)
        self._output.line(
            ("restored", GOOD),
            f"  {counted(found.manifest.commits, 'commit')}, as of {document['made'][:19]}, from "
            f"{shown_bytes(restored.fetched_bytes)}  ",
            (restored.url, NAME),
        )
        if self._trusted is None:
            signers = ", ".join(document["signers"])
            self._output.note(
                f"its log is signed by {signers}: compare that with a key of yours, or give --key", "yellow"
            )
        self._output.note("what was acknowledged after that is not in it")
        self._tell_key(restored)
        return exits.OK

    def _tell_key(self, restored: Restored) -> None:
        """Which private key the journal needs to run; the copy has none."""
        signers = [one for one in restored.verified.signers if one.revoked_after is None]
        named = self._config.fleet.key
        path = Path(named) if named else default_key_path(self._fleet, restored.url)
        if path is not None and path.exists():
            own = read_key(str(path))
            if (own.algorithm, own.key) in [(one.algorithm, one.public_key) for one in signers]:
                self._output.note("run the node as before; on a bus once with --take-over")
                return
        needed = " or ".join(fingerprint(PublicKey(one.algorithm, one.public_key)) for one in signers)
        self._output.note(
            f"to run the node, give the private key {needed} with --key: no other key can continue this log, and the "
            "copy has none; without it the log can be read, verified and exported (stigmergy log)",
            "yellow",
        )


def by_age(listed: list[Listed]) -> list[Listed]:
    """The newest last. Within a store its versions say it, between stores how long the log is; and the times, which a
    node whose clock was wrong has written, only between different lives of a node."""
    newest = {one.url: one for one in listed}
    lives = dict.fromkeys(one.found.manifest.incarnation for one in newest.values() if one.found.manifest is not None)

    def age(one: Listed) -> int:
        manifest = one.found.manifest
        return 0 if manifest is None else manifest.commits if len(lives) == 1 else one.found.made_ns

    older = [one for one in listed if newest[one.url] is not one]
    return older + sorted(newest.values(), key=age)


def _described(listed: Listed) -> dict[str, Any]:
    found, manifest = listed.found, listed.found.manifest
    return {
        "store": shown(listed.url),
        "node": found.node,
        "version": found.version,
        "made": readable_time(found.made_ns),
        "incarnation": 0 if manifest is None else manifest.incarnation,
        "commits": 0 if manifest is None else manifest.commits,
        "trouble": found.trouble,
    }


def _described_restored(restored: Restored) -> dict[str, Any]:
    verified = restored.verified
    return {
        "journal": restored.url,
        "incarnation": restored.incarnation,
        "events": verified.events,
        "signatures": verified.signatures,
        "snapshots": verified.snapshots,
        "signers": [fingerprint(PublicKey(one.algorithm, one.public_key)) for one in verified.signers],
        "fetched_bytes": restored.fetched_bytes,
    }
