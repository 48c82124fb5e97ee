"""The journal: what was written is there again, whatever happened to its end."""

import os

import pytest
from msgspec.structs import replace

from hybrid.errors import ConfigError
from hybrid.planner.measures import Setting
from hybrid.tune.journal import Journal, Subject, cache_folder
from hybrid.tune.seeds import Bounds
from hybrid.tune.values import Ask, Load, Seen, Terms

SUBJECT = Subject("a/model", "here", "1", "", Bounds(("one",), 2), Terms(slo_s=0.1), 10)
ASK = Ask(Setting("one", 2, 1, 8), Load(1.5, rate_rps=100.0 / 3.0, seed=1), "rate", "text that is no key")
OTHER = Ask(Setting("one", 2, 1, 4), Load(1.5, clients=8), "round", round=1)
SEEN = Seen(rps=99.1, offered_n=148, p99_s=0.1 / 3.0, mean_batch=2.5)


@pytest.fixture
def written(tmp_path):
    journal = Journal(tmp_path / "tune", SUBJECT, resume=False)
    journal.add(ASK, SEEN)
    journal.add(OTHER, Seen(failure="no memory"))
    journal.close()
    return journal.path


def again(path, subject=SUBJECT, resume=True):
    journal = Journal(path.parent, subject, resume)
    journal.close()
    return journal


def test_answers_come_back_exactly_and_once(written):
    journal = again(written)
    assert journal.resumed_n == 2
    assert journal.known(OTHER) == Seen(failure="no memory")
    assert journal.known(ASK) == SEEN
    assert journal.known(ASK) is None


def test_a_torn_line_is_dropped_and_written_over(written):
    whole = written.read_bytes()
    written.write_bytes(whole[:-20])
    journal = Journal(written.parent, SUBJECT, resume=True)
    assert journal.resumed_n == 1
    journal.add(OTHER, Seen(failure="no memory"))
    journal.close()
    assert written.read_bytes() == whole


@pytest.mark.parametrize("text", [b"", b"{}\n", b"\xff\xfe\n\n"])
def test_a_file_of_something_else_is_begun_anew(written, text):
    written.write_bytes(text)
    assert again(written).resumed_n == 0
    assert again(written).known(ASK) is None


def test_without_resume_it_begins_anew(written):
    assert again(written, resume=False).resumed_n == 0
    assert written.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    "other", [{"machine": "there"}, {"digest": "2"}, {"terms": Terms(slo_s=0.2)}, {"url": "http://h"}, {"most": 4}]
)
def test_answers_are_for_one_subject_only(written, other):
    journal = again(written, replace(SUBJECT, **other))
    assert journal.path != written
    assert journal.resumed_n == 0


@pytest.mark.parametrize("model", ["/" + "long" * 100 + "/model.onnx", "模型" * 100])
def test_a_long_name_makes_no_long_file_name(tmp_path, model):
    paths = [again(tmp_path / "x", replace(SUBJECT, model=name)).path for name in (model, model + "2")]
    assert all(len(path.name) < 100 and path.name.isascii() for path in paths)
    assert paths[0] != paths[1]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        Journal(tmp_path / "file" / "tune", SUBJECT, resume=False)


@pytest.mark.parametrize("resume", [False, True])
def test_two_at_once_do_not_write_into_one_file(written, resume):
    first = Journal(written.parent, SUBJECT, resume=True)
    before = written.read_bytes()
    with pytest.raises(ConfigError, match="another `hybrid tune` of the same is at work"):
        Journal(written.parent, SUBJECT, resume)
    first.close()
    assert written.read_bytes() == before
    assert again(written).resumed_n == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has it")
def test_a_full_disk_is_one_line(tmp_path):
    journal = Journal(tmp_path, SUBJECT, resume=False)
    os.dup2(os.open("/dev/full", os.O_WRONLY), journal._file.fileno())
    with pytest.raises(ConfigError, match="No space left"):
        journal.add(ASK, SEEN)
    journal.close()


def test_the_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "hybrid" / "tune"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # to be ignored, says the standard that names the variable
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "hybrid" / "tune"
