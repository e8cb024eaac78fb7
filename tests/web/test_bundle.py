"""The page as it is shipped: in the package, small, made from web/, and free of addresses of others."""

import gzip
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from tests.conftest import without

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "src" / "stigmergy" / "serve" / "web"
BYTES_MAX = 900 * 1024
"""Gzipped; a phone on a bad link loads it in a few seconds."""
ELSEWHERE = re.compile(rb"https?://(?!www\.w3\.org/)[a-z0-9.-]+")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_it_is_whole_and_small() -> None:
    found = files_of(BUNDLE)
    named = re.findall(r'(?:src|href)="/(assets/[^"]+)"', found["index.html"].decode())
    assert sorted(named) == sorted(name for name in found if name != "index.html")
    assert sum(len(gzip.compress(data, mtime=0)) for data in found.values()) < BYTES_MAX


def test_it_goes_into_the_wheel() -> None:
    """By the list of the builder: nothing is built."""
    shipped = {one.distribution_path for one in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"stigmergy/serve/web/{name}" for name in files_of(BUNDLE)} <= shipped


def test_it_loads_nothing_from_elsewhere() -> None:
    assert [found for data in files_of(BUNDLE).values() for found in ELSEWHERE.findall(data)] == []


def test_it_is_what_the_sources_say(tmp_path: Path) -> None:
    """Where Node and what the build needs are: built again, and compared byte for byte."""
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{ROOT / 'build' / 'node' / 'bin'}"
    if (npm := shutil.which("npm", path=path)) is None:
        without("there is no Node: .ci/node", "THE PAGE WAS NOT BUILT AGAIN")
    if not (ROOT / "web" / "node_modules").is_dir():
        without("there is no web/node_modules: make web", "THE PAGE WAS NOT BUILT AGAIN")
    built = tmp_path / "web"
    run = [npm, "exec", "--no", "--", "vite", "build", "--outDir", str(built)]
    done = subprocess.run(
        run, cwd=ROOT / "web", env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done
    assert files_of(built) == files_of(BUNDLE), "the bundle is not of these sources: run make web, and commit it"


def test_colours_of_other_names_differ_from_those_with_a_meaning() -> None:
    """In both themes, by their distance in CIELAB: 10 is seen when both are side by side, dots on a map are not."""
    style = (Path(__file__).resolve().parents[2] / "web" / "src" / "style.css").read_text()
    for meaning in ("ok", "warn", "bad", "idle"):
        themes = re.findall(rf"--map-{meaning}: (#\w+);", style)
        assert len(themes) == 2
        for theme, colour in enumerate(themes):
            for number in range(1, 7):
                other = re.findall(rf"--map-turn-{number}: (#\w+);", style)[theme]
                assert math.dist(lab(colour), lab(other)) > 30, (meaning, colour, other)


def lab(colour: str) -> tuple[float, float, float]:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    )
    x = math.cbrt((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047)
    y = math.cbrt(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    z = math.cbrt((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
