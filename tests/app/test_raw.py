"""What the configuration lets out is refused before anything has left: copies, archives, views, clusters."""

from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.app.config import Config
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import ConfigError
from stigmergy.node.settings import Retention


class PlateSeen(st.Event, raw=True):
    text: str


class Camera(st.Agent, kind="Camera"):
    seen: int = 0

    @st.evolve
    def see(self, event: PlateSeen) -> None:
        self.seen += 1


class Plate(st.View):
    text: st.Key[str]
    seen: int = 0

    @st.project
    def count(self, event: PlateSeen, origin: st.Origin) -> None:
        self.seen += 1


def cameras(*rules: str, **options: Any) -> st.Fleet:
    return st.Fleet("cameras", agents=[Camera], settings=st.Settings(raw_may_leave=rules, **options), views=[Plate])


@pytest.mark.parametrize(
    ("door", "options", "settings"),
    [
        ("copies", {"copies": ["memory:copies-of-cameras"]}, {}),
        ("copies", {}, {"retention": Retention(archive="s3://logs?region=x")}),
        ("views", {"views": "postgresql://nobody@127.0.0.1:1/none"}, {}),
    ],
)
async def test_a_way_out_that_the_configuration_shows_is_refused_at_the_start(
    tmp_path: Path, door: str, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    where = {"journal": f"sqlite:{tmp_path}/c.db", **options}
    with pytest.raises(ConfigError, match=f'raw_may_leave = \\["PlateSeen to {door}"\\]'):
        async with cameras(**settings).running(**where):
            pass
    assert not (tmp_path / "c.db").exists(), "before anything was made"


async def test_with_the_rule_copies_are_made_and_views_beside_the_journal_need_none(tmp_path: Path) -> None:
    async with cameras().running(journal=f"sqlite:{tmp_path}/v.db") as live:
        await live.observe("Camera/c", PlateSeen(text="B-GH 1"))
    rule = cameras("PlateSeen to copies")
    async with rule.running(journal=f"sqlite:{tmp_path}/c.db", copies=["memory:copies-of-cameras"]) as live:
        await live.observe("Camera/c", PlateSeen(text="B-GH 1"))


def test_a_worker_is_refused_without_a_rule() -> None:
    with pytest.raises(ConfigError, match="PlateSeen to cluster"):
        NatsWorker(cameras(), "nats://127.0.0.1:1", Config())
