"""The journal's file: whole lines or none, one writer, and a reader that takes what a killed process left."""

import errno
import json
import math
import os
import resource
import signal

import pytest

from selfplay.journal import Journal, JournalError, dumps, read

EVENTS = [{"event": "match", "step": 1, "teacher": "t0"}, {"event": "step", "step": 1, "valid": 0.5}]


@pytest.fixture
def book(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    yield journal
    journal.close()


def test_what_is_appended_is_read_back(book):
    book.append(EVENTS)
    book.append(EVENTS[:1])
    assert list(read(book.path)) == [*EVENTS, EVENTS[0]]
    assert book.size == book.path.stat().st_size


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_left_out(book, cut):
    book.append(EVENTS)
    os.truncate(book.path, book.size - cut)
    assert list(read(book.path)) == EVENTS[:1]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"event": 3}', "\udcff"])
def test_any_other_bad_line_is_named(book, line):
    book.append(EVENTS)
    with book.path.open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(JournalError, match=r"journal\.jsonl, line 3"):
        list(read(book.path))


def test_a_missing_journal(tmp_path):
    with pytest.raises(JournalError, match="cannot be read"):
        list(read(tmp_path / "journal.jsonl"))


def test_what_was_written_after_a_checkpoint_goes(book):
    book.append(EVENTS[:1])
    size = book.size
    book.append(EVENTS[1:])
    book.truncate(size)
    book.append(EVENTS[1:])
    assert list(read(book.path)) == EVENTS
    with pytest.raises(JournalError, match="damaged"):
        book.truncate(book.size + 1)


def test_one_process_at_a_time(book):
    with pytest.raises(JournalError, match="another process is playing this run"):
        Journal(book.path)


def test_numbers_that_are_none_become_null():
    line = json.loads(dumps([{"event": "x", "step": 1, "a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf}}]))
    assert line == {"event": "x", "step": 1, "a": None, "b": [None, 1.0], "c": {"d": None}}


def test_strange_texts_are_kept(book):
    event = {"event": "proposal", "step": 1, "text": "\x00\ud800\u2028é\n\"'"}
    book.append([event])
    assert list(read(book.path)) == [event]


def test_a_full_disk_leaves_the_journal_as_it_was(book):
    book.append(EVENTS)
    before = book.path.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match=r"journal\.jsonl") as error:
            book.append(EVENTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert error.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert book.path.read_bytes() == before
    book.append(EVENTS)
    assert len(list(read(book.path))) == 4
