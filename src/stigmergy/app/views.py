"""The views of a fleet by the URL of their store: `sqlite:fleet.views` · `postgresql://…` · `memory:`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from stigmergy.agents.raw import VIEWS, RawGuard
from stigmergy.agents.view import View, plan_of
from stigmergy.app.parts import journal_path, shown_url
from stigmergy.base.errors import ConfigError
from stigmergy.node.declaration import Declaration
from stigmergy.views.memory import MemoryViewStore
from stigmergy.views.port import ViewStore
from stigmergy.views.sqlite import SqliteViewStore

GROUP = "stigmergy.views"
"""The entry point group of other view stores: the name is the scheme, the value is called with the URL."""
MEMORY = "memory:"
SQLITE = "sqlite:"
POSTGRES = ("postgresql:", "postgres:")
ENDING = ".views"


def views_url(given: str | None, journal: str) -> str:
    """Where views are kept: where it was said, else in a file beside the journal."""
    if given is not None:
        return given
    path = journal_path(journal)
    if path is not None:
        return f"{SQLITE}{path.with_suffix(ENDING)}"
    if journal.startswith(MEMORY):
        return MEMORY
    raise ConfigError(
        f"the fleet has views, and its journal {shown_url(journal)} is no file that theirs could be beside; write "
        'views = "sqlite:fleet.views" or "postgresql://…" under [fleet] in stigmergy.toml, or give running(views=…)'
    )


def check_raw_views(views: Sequence[type[View]], fleet: Declaration, rules: Sequence[str], url: str) -> None:
    """Refuses views of raw events whose rows would be on a server. Raises ConfigError."""
    if not url.startswith((MEMORY, SQLITE)):
        names = [tag.partition("@")[0] for view in views for tag in plan_of(view).projections]
        RawGuard(fleet.plans, rules).check(VIEWS, dict.fromkeys(names))


def open_view_store(url: str, schema: str = "") -> ViewStore:
    """Opens the store that a URL names. One on a server is connected to when it is first needed. `schema` is that of
    the tables in PostgreSQL; else the connection says which."""
    if url.startswith(MEMORY):
        return MemoryViewStore()
    if url.startswith(SQLITE):
        return SqliteViewStore(str(Path(url.removeprefix(SQLITE))))
    if url.startswith(POSTGRES):
        try:
            from stigmergy.views.postgres import PostgresViewStore
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"views {shown_url(url)!r}: the package {error.name!r} is not installed; "
                'pip install "stigmergy[postgres]"'
            ) from None
        return PostgresViewStore(url, schema)
    scheme = url.partition(":")[0]
    for entry in entry_points(group=GROUP):
        if entry.name == scheme:
            store: ViewStore = entry.load()(url)
            return store
    raise ConfigError(
        f"views {shown_url(url)!r}: no adapter for {scheme!r}; give one like sqlite:fleet.views or postgresql://db/fleet"
    )
