"""Finds what a command is about: the configuration, the journal, the socket of a running node, the fleet's module.

In order of precedence: the command line, `stigmergy.toml`, the one journal in the current folder.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct

from stigmergy.app.cluster_client import ClusterClient
from stigmergy.app.config import Config, find_config, read_config, with_identity_in
from stigmergy.app.fleet import (
    SEGMENTS,
    SQLITE,
    ControlClient,
    Fleet,
    answers_at,
    control_path,
    journal_path,
    journals_in,
)
from stigmergy.app.parts import is_in_parts, shown_url
from stigmergy.base.errors import ConfigError, JournalForeign, NotRunning, Overloaded, StigmergyError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, Output
from stigmergy.control.protocol import (
    ClaimsRequest,
    LettersRequest,
    QuarantineRequest,
    Request,
    RosterRequest,
    SharedRequest,
    StatusRequest,
)
from stigmergy.control.replies import MissingPart
from stigmergy.journal.port import Journal
from stigmergy.pki.identity import ENCRYPTED, with_identity

R = TypeVar("R")
DEFAULT_FLEET = "fleet"
_URLS = ("nats", "bus", "ledger", "at_hub", "system", "copies", "journal", "models")
"""Options that name a link."""
_NAMES_SHOWN_MAX = 5


class ClusterPlace(Struct, frozen=True):
    """A fleet that runs on several workers: where its NATS servers are, and what it is."""

    url: str
    fleet: Fleet


NodePlace = Path | ClusterPlace
"""Where to send requests: a node's socket, or the workers of a fleet."""


def add_place(parser: argparse.ArgumentParser, *, fleet: bool = True, nats: bool = False) -> None:
    """The options that say which node or journal a command is about."""
    place = parser.add_argument_group("which node")
    place.add_argument("--socket", metavar="PATH", type=Path, help="the control socket of a running node")
    place.add_argument("--journal", metavar="URL", help="the journal, such as sqlite:fleet.db or just fleet.db")
    if nats:
        place.add_argument("--nats", metavar="URL", help="a fleet on several workers, by its NATS servers")
    place.add_argument("--config", metavar="FILE", type=Path, help="a configuration other than ./stigmergy.toml")
    if fleet:
        place.add_argument("--fleet", metavar="MODULE:FLEET", help="where the classes are, such as drone:fleet")


def add_peer_keys(parser: argparse.ArgumentParser) -> None:
    """Adds `--peer`, of commands that run a node or a worker."""
    parser.add_argument(
        "--peer",
        metavar="KEY",
        action="append",
        default=[],
        help="take changes and claims only from this node's key: its file, line or hex digits; repeatable",
    )


def add_models(parser: argparse.ArgumentParser) -> None:
    """Adds `--models`, `--policy` and whose bundles are believed, of commands that run a node or a worker."""
    parser.add_argument(
        "--models", metavar="URL", help="where the bundles of models are, as folder:models; else their rules answer"
    )
    parser.add_argument(
        "--model-key",
        metavar="KEY",
        action="append",
        default=[],
        help="believe the bundles that this key has signed: its file, line or hex digits; repeatable",
    )
    parser.add_argument(
        "--policy", metavar="URL", help="where the policy is, as folder:policy; else commands pass none"
    )
    parser.add_argument(
        "--policy-key", metavar="KEY", action="append", default=[], help="the same for policies; repeatable"
    )


def config_of(arguments: argparse.Namespace) -> Config:
    """The configuration that the command line names, or the one here, or the defaults."""
    given: Path | None = getattr(arguments, "config", None)
    config = find_config(Path.cwd()) if given is None else read_config(given)
    return with_identity_in(config, getattr(arguments, "identity", None))


def show_identity(arguments: argparse.Namespace) -> None:
    """Has every link with TLS that the command line names show our certificate."""
    given = {name: value for name in _URLS if (value := getattr(arguments, name, None))}
    if not any(one.startswith(ENCRYPTED) for value in given.values() for one in _listed_urls(value)):
        return
    folder = config_of(arguments).fleet.identity
    for name, value in given.items():
        shown = [with_identity(url, folder) for url in _listed_urls(value)]
        setattr(arguments, name, shown if isinstance(value, list) else shown[0])


def _listed_urls(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


IN_CONFIG = 'write module = "drone:fleet" under [fleet] in stigmergy.toml'


def fleet_spec(
    arguments: argparse.Namespace,
    config: Config,
    missing: str = f"which fleet? Give MODULE:FLEET, such as drone:fleet, or {IN_CONFIG}",
) -> str:
    """MODULE:FLEET, from the command line or the configuration; `missing` is said if neither has it."""
    spec: str | None = arguments.fleet or config.fleet.module
    if spec is None:
        raise ConfigError(missing)
    return spec


def fleet_name(arguments: argparse.Namespace, config: Config, missing: str) -> str:
    """The name of the fleet: of `--name`, else of its module."""
    if arguments.name:
        return str(arguments.name)
    return load_fleet(fleet_spec(arguments, config, missing), folder_of(arguments)).name


def folder_of(arguments: argparse.Namespace) -> Path:
    """From where the user's module is imported: the configuration's folder, which is mostly this one."""
    given: Path | None = arguments.config
    return Path.cwd() if given is None else given.resolve().parent


def url_of(text: str) -> str:
    """A journal's URL; a bare path means SQLite, and one of a folder a journal in segments."""
    if ":" in text:
        return text
    if scheme := is_in_parts(Path(text)):
        return f"{scheme}{text}"
    return f"{SEGMENTS if Path(text).is_dir() else SQLITE}{text}"


def find_journal(arguments: argparse.Namespace) -> str:
    """The URL of the journal that a command is about."""
    config = config_of(arguments)
    if nats := getattr(arguments, "nats", None):
        _check_one_place(arguments)
        return str(nats)
    if given := arguments.journal or config.fleet.journal:
        return url_of(given)
    if spec := getattr(arguments, "fleet", None):
        return f"{SQLITE}{load_fleet(spec, folder_of(arguments)).name}.db"
    found = journals_in(Path())
    if len(found) != 1:
        paths = [path for url in found if (path := journal_path(url)) is not None]
        raise ConfigError(_which("journal", paths, "--journal URL"))
    return found[0]


@contextmanager
def closing_journal(journal: Journal) -> Iterator[Journal]:
    """Closes it at the end; opening it for reading claims it, so nobody can start a node meanwhile."""
    try:
        yield journal
    finally:
        asyncio.run(journal.close())


def check_fleet(journal: Journal, url: str, fleet: Fleet) -> None:
    """Raises JournalForeign if it is the journal of another fleet."""
    if (name := journal.identity.fleet) != fleet.name:
        raise JournalForeign(f"{shown_url(url)} belongs to the fleet {name!r}, not to {fleet.name!r}")


def find_socket(arguments: argparse.Namespace) -> Path:
    """Where the node that a command is about listens. Raises NotRunning if there is none."""
    path = _named_socket(arguments)
    if path is not None:
        if not answers_at(path):
            raise NotRunning(f"no node answers at {str(path)!a}; {start_hint(arguments)}")
        return path
    # A socket may be there without its journal: a node that only remembers listens too.
    folders = [control_path(url, "") for url in journals_in(Path()) if url.startswith(SEGMENTS)]
    found = [path for path in (*sorted(Path().glob("*.db.sock")), *folders) if answers_at(path)]
    if len(found) > 1:
        raise ConfigError(_which("running node", found, "--socket PATH"))
    if not found:
        raise NotRunning(f"no node is running here; {start_hint(arguments)}")
    return found[0]


def find_place(arguments: argparse.Namespace) -> NodePlace:
    """Where a command sends its requests: the workers at --nats, or the node that listens at a socket here."""
    if arguments.nats is None:
        return find_socket(arguments)
    _check_one_place(arguments)
    missing = "which fleet, and where its agents live, is in its module: give --fleet MODULE:FLEET beside --nats, or "
    spec = fleet_spec(arguments, config_of(arguments), missing + IN_CONFIG)
    return ClusterPlace(arguments.nats, load_fleet(spec, folder_of(arguments)))


def _check_one_place(arguments: argparse.Namespace) -> None:
    if arguments.socket is not None or arguments.journal is not None:
        raise ConfigError("--nats names a fleet on several workers, --socket and --journal a node; give one of them")


def find_running_place(arguments: argparse.Namespace) -> NodePlace | None:
    """The same, or None where no node runs here."""
    return find_running(arguments) if arguments.nats is None else find_place(arguments)


def find_running(arguments: argparse.Namespace) -> Path | None:
    """The socket of a running node; None where nobody runs, and for a fleet on workers, whose logs are on NATS."""
    if getattr(arguments, "nats", None) is not None:
        return None
    try:
        return find_socket(arguments)
    except NotRunning:
        if arguments.socket is not None:
            raise
        return None


def find_fleet(arguments: argparse.Namespace) -> Fleet:
    """The user's fleet: its module is imported."""
    missing = "the classes are needed to read an agent's state from a journal that nobody runs: give --fleet "
    spec = fleet_spec(arguments, config_of(arguments), f"{missing}MODULE:FLEET, or {IN_CONFIG}")
    return load_fleet(spec, folder_of(arguments))


def start_hint(arguments: argparse.Namespace) -> str:
    """How to start the node."""
    module = getattr(arguments, "fleet", None)
    try:
        run = "stigmergy run" if config_of(arguments).fleet.module else f"stigmergy run {module or 'MODULE:FLEET'}"
    except ConfigError:
        run = "stigmergy run MODULE:FLEET"
    return f"start it: {run}"


def load_fleet(spec: str, folder: Path) -> Fleet:
    """Imports MODULE:FLEET from a folder; says which of the two is wrong."""
    name, _, attribute = spec.partition(":")
    attribute = attribute or DEFAULT_FLEET
    if not all(part.isidentifier() for part in (*name.split("."), attribute)):
        raise ConfigError(f"{spec!r} is not MODULE:FLEET; write the module's name, not its file, like drone:fleet")
    module = _import(name, folder)
    fleet = getattr(module, attribute, None)
    if isinstance(fleet, Fleet):
        return fleet
    fleets = [key for key, value in vars(module).items() if isinstance(value, Fleet)]
    there = f"it has {', '.join(fleets[:_NAMES_SHOWN_MAX])}" if fleets else "it has none: write fleet = Fleet(…)"
    if hasattr(module, attribute):
        raise ConfigError(f"{spec}: {attribute} is a {type(fleet).__name__}, not a Fleet; {there}")
    raise ConfigError(f"{spec}: {name} has no {attribute!r}; {there}")


def module_folder(spec: str) -> Path:
    """The folder of the module that a fleet was loaded from."""
    file = getattr(sys.modules[spec.partition(":")[0]], "__file__", None)
    return Path.cwd() if file is None else Path(file).parent


def _import(name: str, folder: Path) -> object:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module {name!r} in {folder}; run this where its file is") from None
        raise _broken(name, error) from error
    except StigmergyError:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigError:
    """Names the user's own line, which is the last one that is not the import machinery."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if len(frames) > 1 else name
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    return ConfigError(f"the module {name!r} cannot be imported: {where}: {type(error).__name__}: {error}")


def _named_socket(arguments: argparse.Namespace) -> Path | None:
    """The socket that the command line or the configuration says, if they say one."""
    if arguments.socket is not None:
        return Path(arguments.socket)
    spec = getattr(arguments, "fleet", None)
    given = arguments.journal or config_of(arguments).fleet.journal
    if given is not None and journal_path(url_of(given)) is not None:
        return control_path(url_of(given), "")
    return None if spec is None else control_path("", load_fleet(spec, folder_of(arguments)).name)


def _which(what: str, found: list[Path], option: str) -> str:
    if not found:
        return f"there is no {what} in this folder; name it with {option}"
    names = ", ".join(str(path) for path in found[:_NAMES_SHOWN_MAX])
    return f"there is more than one {what} in this folder ({names}); choose with {option}"


# Sends requests to a running node through its socket, or to a fleet on several workers through NATS.

LOOK_S_MAX = 10.0
"""A node answers these at once. Fail fast when it hangs."""
LOOKS = (StatusRequest, SharedRequest, QuarantineRequest, ClaimsRequest, LettersRequest, RosterRequest)


def ask(place: NodePlace, request: Request[R], *, doubt: str = "") -> R:
    """The one answer to a request; raises what the node refuses with.

    `doubt` is said beside an answer that did not come: what was asked may have been done. Where nobody could be reached
    it was not.
    """
    with closing(_client(place, request)) as client:
        try:
            for reply in client.ask(request):
                if reply.ok is not None:
                    return reply.ok
            raise NotRunning("the node did not answer")
        except (NotRunning, Overloaded) as error:
            if not doubt:
                raise
            raise type(error)(f"{error}; {doubt}") from None


def ask_stream(place: NodePlace, request: Request[R]) -> Iterator[R]:
    """The items that answer a request, as they come. Raises NotRunning at the end if a part did not answer."""
    listing = Listing[R]()
    yield from _listed(place, request, listing)
    if listing.missing:
        raise NotRunning(listing.missing[0].why)


class Listing(Generic[R]):
    """The items that answered a request, and the parts of a fleet or a node that did not answer."""

    def __init__(self) -> None:
        self.items: list[R] = []
        self.missing: list[MissingPart] = []

    @property
    def is_empty(self) -> bool:
        """Whether all have answered, and there is nothing."""
        return not self.items and not self.missing

    def end(self, output: Output) -> int:
        """Says who did not answer, after all the others have said is shown; the exit code."""
        if not self.missing:
            return exits.OK
        output.document({"missing": self.missing})
        for one in self.missing:
            output.note(f"not shown: {one.why}", BAD)
        return exits.NOT_RUNNING


def ask_list(place: NodePlace, request: Request[R]) -> Listing[R]:
    """All items that answer a request, of as many parts as answer; end with the `end` of the listing."""
    listing = Listing[R]()
    listing.items.extend(_listed(place, request, listing))
    return listing


def _listed(place: NodePlace, request: Request[R], listing: Listing[R]) -> Iterator[R]:
    with closing(_client(place, request)) as client:
        for reply in client.ask(request):
            if reply.end is not None:
                listing.missing.extend(reply.end.missing or ())
                return
            if reply.item is not None:
                yield reply.item


def _client(place: NodePlace, request: Request[Any]) -> ControlClient | ClusterClient:
    if isinstance(place, ClusterPlace):
        return ClusterClient(place.url, place.fleet)
    return ControlClient(place, timeout_s=LOOK_S_MAX) if isinstance(request, LOOKS) else ControlClient(place)
