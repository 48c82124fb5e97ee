"""What is found out before a search: which engines answer alike, how large a batch is made; and what is put back."""

import contextlib
import importlib
import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hybrid.cli.keys import without_secrets
from hybrid.cli.tune import _digest
from hybrid.config import BatchingSettings, ModelSettings
from hybrid.errors import ConfigError, StartupError
from hybrid.load.payloads import Payload, PayloadSettings
from hybrid.load.report import LoadResult
from hybrid.load.target import Refused
from hybrid.planner.measures import Setting
from hybrid.tune import run, trial
from hybrid.tune.run import alike, bounds_of, running_lab
from hybrid.tune.trial import Lab
from hybrid.tune.values import Ask, Load

cli_tune = importlib.import_module("hybrid.cli.tune")


class Answers:
    """A lab that only knows answers."""

    def __init__(self, **answers):
        self.answers = answers

    def sample(self, engine):
        if engine not in self.answers:
            raise StartupError("no such file")
        return {"y": self.answers[engine]}


def test_an_engine_with_other_answers_is_left_out():
    kept, notes = alike(Answers(a=[1.0, 2.0], b=[1.0, 2.001], c=[2.0, 1.0]), ("a", "b", "c"))
    assert kept == ("a", "b")
    assert len(notes) == 1
    assert notes[0].startswith("c was left out: compared with a, output `y` differs by")


def test_an_engine_that_cannot_run_is_left_out_and_the_next_one_is_compared_with():
    assert alike(Answers(b=[1.0], c=[3.0]), ("a", "b", "c"))[0] == ("b",)
    assert alike(Answers(b=[1.0]), ("a", "b"))[1] == ("a was left out: no such file",)
    assert alike(Answers(), ("a", "b"))[0] == ("a",)  # the search says what is wrong with it
    assert alike(Answers(), ("a",)) == (("a",), ())  # of one nothing is asked


class Fake:
    """A server on paper that makes batches of `cap` rows and cannot start a worker with more than `holds`."""

    base = "http://fake"

    def __init__(self, device="cpu", planned=8, cap=1 << 20, holds=1 << 20):
        self.cap, self.holds, self.asked = cap, holds, []
        self.plan = {"model": "m", "engine": "e", "device": device, "instances": 2, "threads_per_instance": 1}
        self.plan |= {"max_batch": min(planned, cap), "max_wait_ms": 0.0}

    def metadata(self, model):
        return None

    def infer_url(self, model):
        return f"{self.base}/{model}"

    def snapshot(self):
        return SimpleNamespace(models=(), host=SimpleNamespace(usable_cpus=2))

    def call(self, path, body=None, headers=None, timeout_s=0.0):
        if body is not None:
            wanted = json.loads(body)["plan"]["max_batch"]
            self.asked.append(wanted)
            if wanted > self.holds:
                raise Refused("400", 400, "no memory")
            self.plan["max_batch"] = min(wanted, self.cap)
        return json.dumps([self.plan]).encode()


@pytest.mark.parametrize(
    ("server", "largest", "asked"),
    [
        (Fake(), 32, [32]),
        (Fake(planned=64), 32, []),
        (Fake(cap=4), 4, [32]),  # found at load
        (Fake(cap=1), 1, [32]),
        (Fake("cuda:0"), 256, [256]),
        (Fake("cuda:0", holds=100), 64, [256, 128, 64]),
        (Fake("cuda:0", planned=96, holds=100), 96, [256, 128]),
        (Fake("cuda:0", cap=16), 16, [256]),
    ],
)
def test_the_largest_batch_is_what_a_server_makes_when_asked_for_more(server, largest, asked):
    lab = Lab(server, "m", PayloadSettings())
    assert bounds_of(lab, ("e",), 2, 32).largest == largest
    assert server.asked == asked


@pytest.mark.parametrize(
    ("load", "timeout_s"),
    [
        (Load(1.0, clients=4), 30.0),
        (Load(1.0, clients=4, slo_s=0.1), 30.0),
        (Load(1.0, rate_rps=9.0, slo_s=0.1), 1.4),
        (Load(1.0, clients=4, slo_s=60.0), 61.0),  # an answer after 40 s is in time
        (Load(1.0, rate_rps=9.0, slo_s=60.0), 61.0),
    ],
)
def test_no_request_is_given_up_that_may_be_in_time(monkeypatch, load, timeout_s):
    specs = []

    def ran(spec):
        specs.append(spec)
        return LoadResult(mode="closed", seconds=1.0)

    monkeypatch.setattr(trial, "run", ran)
    monkeypatch.setattr(trial, "for_model", lambda metadata, settings: (Payload(b"{}"),))
    monkeypatch.setattr(trial, "window", lambda *_: None)
    Lab(Fake(), "m", PayloadSettings()).measure(Ask(Setting("e", 2, 1, 8), load, "round"))
    assert (specs[0].timeout_s, specs[0].drain_s) == (timeout_s, timeout_s)


@pytest.mark.parametrize("key", ["early_trigger", "queue_rows"])
def test_answers_of_a_model_that_was_set_otherwise_are_not_taken_for_its_own(key):
    first, same, other = (ModelSettings(name="m", batching=BatchingSettings(**{key: n})) for n in (4, 4, 8))
    assert _digest(first) == _digest(same) != _digest(other)


def test_a_trigger_of_the_models_author_keeps_no_small_batch_from_being_tried():
    class Triggered(Fake):
        def call(self, path, body=None, headers=None, timeout_s=0.0):
            if body is not None:
                wanted = json.loads(body)["plan"]
                if wanted.get("early_trigger", 16) > wanted["max_batch"]:
                    raise Refused("400", 400, "`early_trigger` must not be above `max_batch`")
            return super().call(path, body, headers, timeout_s)

    assert Lab(Triggered(), "m", PayloadSettings()).plan(Setting("e", 2, 1, 4))["max_batch"] == 4


def test_an_upgraded_engine_begins_anew(monkeypatch):
    settings = ModelSettings(name="m", file="nowhere/m.onnx")
    before = _digest(settings)
    monkeypatch.setattr(cli_tune, "engine_version", lambda name: "next")
    assert _digest(settings) != before


def test_a_result_that_cannot_be_saved_is_shown_all_the_same(monkeypatch):
    def refused(*_):
        raise ConfigError("read-only")

    @contextlib.contextmanager
    def lab(wanted):
        yield None, ()

    monkeypatch.setattr(cli_tune, "_lab", lab)
    monkeypatch.setattr(cli_tune, "_tuned", lambda *_: "outcome")
    monkeypatch.setattr(cli_tune, "_write", refused)
    monkeypatch.setattr(cli_tune, "tune_json", lambda outcome: {"best": outcome})
    done = CliRunner().invoke(cli_tune.tune, ["m", "--json"])
    assert isinstance(done.exception, ConfigError)
    assert json.loads(done.stdout) == {"best": "outcome"}


def test_an_interrupted_way_back_is_begun_again(monkeypatch):
    calls = []

    class Hurried:
        def __init__(self, *_):
            pass

        def restore(self):
            calls.append("restore")
            if len(calls) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(run, "Lab", Hurried)
    with pytest.raises(KeyboardInterrupt), running_lab("http://fake", "m", ""):
        pass
    assert calls == ["restore", "restore"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("tune m --admin-token abc --json", "tune m --admin-token *** --json"),
        ("tune m --admin-token=abc", "tune m --admin-token=***"),
        ("tune m --api-key=a=b --api-key abc", "tune m --api-key=*** --api-key ***"),
        ("tune --admin-token --admin-token --json", "tune --admin-token *** --json"),
        ("tune m --report --x", "tune m --report --x"),
    ],
)
def test_a_report_does_not_show_the_token(given, shown):
    assert " ".join(without_secrets(given.split())) == shown
