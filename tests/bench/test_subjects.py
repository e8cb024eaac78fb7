"""A subject answers whatever its libraries print, and one that dies or hangs ends the run instead of holding it up."""

import os
import time
from pathlib import Path

import pytest
from msgspec import Struct

from bench.subjects import Subject

PROGRAM = """
import os, sys, time
from msgspec import Struct
from bench.subjects import serve

class Asked(Struct):
    do: str

class Answered(Struct):
    text: str

def handle(asked: Asked) -> Answered:
    print("a library is chatty")
    os.write(1, b"on the bare descriptor, too\\n")
    if asked.do == "die":
        os._exit(3)
    if asked.do == "hang":
        time.sleep(60)
    return Answered(asked.do * int(sys.argv[1]))

try:
    serve(Asked, handle)
finally:
    open(sys.argv[2], "w").close()
"""


class Asked(Struct):
    do: str


class Answered(Struct):
    text: str


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A subject `chatty` can be started; the file that it leaves behind when it ends by itself."""
    (tmp_path / "chatty.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    return tmp_path / "ended"


def test_it_answers_and_ends_by_itself(ended: Path) -> None:
    with Subject(Answered, "chatty", 3, ended) as subject:
        assert subject.ask(Asked("a")).text == "aaa"
        assert len(subject.ask(Asked("long" * 500_000)).text) == 6_000_000
        assert not ended.exists()
    assert ended.exists()


def test_one_that_dies_is_named(ended: Path) -> None:
    with Subject(Answered, "chatty", 1, ended) as subject:
        with pytest.raises(RuntimeError, match=r"chatty 1 .* ended with 3 and without an answer"):
            subject.ask(Asked("die"))
        with pytest.raises(RuntimeError, match="has ended before its time"):
            subject.ask(Asked("again"))


def test_one_that_hangs_is_given_up(ended: Path) -> None:
    begin_s = time.monotonic()
    with (
        Subject(Answered, "chatty", 1, ended) as subject,
        pytest.raises(RuntimeError, match=r"gave no answer within 0\.5 s"),
    ):
        subject.ask(Asked("hang"), within_s=0.5)
    assert time.monotonic() - begin_s < 30
    assert not ended.exists()
