"""A few hundred flipped bits in every test run; `make prove` does thousands. And the proof sees what it should see."""

from pathlib import Path

import pytest

from proofs.flips import (
    DATABASE,
    MARK,
    WAL,
    Copy,
    Subject,
    cut,
    flip_on,
    flipped,
    make_subject,
    outcome_of,
    start_against,
)

SAMPLES = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flips")


@pytest.fixture(scope="module")
def subject(folder: Path) -> Subject:
    return make_subject(folder)


def test_no_flipped_bit_leads_to_another_state() -> None:
    proof = flip_on("sqlite", SAMPLES, seed=11)
    assert proof.violations == []
    assert proof.figures["flipped.db-wal: refused"] > SAMPLES // 5
    assert proof.figures["older copy: DataLost"] > 5


def test_no_flipped_bit_in_a_journal_in_segments_leads_to_another_state() -> None:
    proof = flip_on("segments", SAMPLES, seed=11)
    assert proof.violations == []
    assert proof.figures["last segment: refused"] > SAMPLES // 20
    assert proof.figures["flipped/identity: refused"] > 0
    assert proof.figures["older copy: DataLost"] > 5


def test_undamaged_files_are_the_same(folder: Path, subject: Subject) -> None:
    assert outcome_of(folder, subject.copy, subject.digest) == "same"
    assert start_against(folder, subject.copy, subject.copy.actions) == "started"


def test_a_lost_database_is_refused(folder: Path, subject: Subject) -> None:
    files = {**subject.copy.files, DATABASE: b""}
    assert outcome_of(folder, Copy(files, 0), subject.digest) == "JournalCorrupt"


def test_a_cut_log_is_betrayed_by_the_mark_or_by_the_receiver(folder: Path, subject: Subject) -> None:
    half = len(subject.copy.files[WAL]) // 2
    assert outcome_of(folder, cut(subject.copy, half, with_mark=True), subject.digest) == "JournalCorrupt"
    assert start_against(folder, cut(subject.copy, half, with_mark=False), subject.copy.actions) == "DataLost"


def test_a_mark_that_cannot_be_read_is_refused(folder: Path, subject: Subject) -> None:
    assert outcome_of(folder, flipped(subject.copy, MARK, 0, 0), subject.digest) == "JournalCorrupt"


def test_another_state_would_be_noticed(folder: Path, subject: Subject) -> None:
    """The control: a whole older copy recovers without a complaint, and is not the state that was left."""
    assert outcome_of(folder, subject.older[-1], subject.digest).startswith("violation")
