"""What a session measures, what it keeps however the time runs out, and what it asks again. On a clock of its own."""

from typing import Any

import pytest
from msgspec.structs import replace

from hybrid.config import ModelSettings, WorkerSettings
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner.measures import EngineProfile, MemoryLine, ModelProfile, Timing
from hybrid.planner.questions import question_for
from hybrid.probing import session as sessions
from hybrid.probing.budget import Budget
from hybrid.probing.cache import Cache
from hybrid.probing.crew import ProbeFailed
from hybrid.probing.facts import Facts
from hybrid.probing.runner import NO_TIME
from hybrid.probing.session import Session

GIB = 1 << 30
MACHINE = MachineFacts(CpuBudget(2, (0, 1), 2, None, None, 2, "all"), 8 * GIB, "host", "EPYC", "x86_64", ("avx2",))
MODEL = ModelSettings(name="m", file="m.onnx")


class World:
    """Engines that answer at once, or take `load_s`, or fail with `errors`; each time that is taken costs `probe_s`.

    A share `waited` of it goes to other processes; `calm` says whether the CPUs are free when somebody looks.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Any) -> None:
        self.now = 0.0
        self.load_s: dict[str, float] = {}
        self.errors: dict[str, Exception] = {}
        self.samples: dict[str, float] = {}
        self.versions = {"onnxruntime": "1", "openvino": "1"}
        self.probe_s = 0.1
        self.waited = 0.0
        self.calm = True
        self.looked_at: list[str] = []
        self.timed: list[str] = []
        self.memory_bytes = 0
        self.cache = Cache(folder)
        monkeypatch.setattr(sessions, "Budget", lambda total: Budget(total, lambda: self.now))
        monkeypatch.setattr(sessions, "FactsProbe", self._facts)
        monkeypatch.setattr(sessions, "ProcessMeasurer", self._measurer)
        monkeypatch.setattr(sessions, "is_calm", lambda machine: self.calm)
        monkeypatch.setattr(sessions, "engine_version", lambda name: self.versions.get(name, ""))

    def ask(
        self,
        budget_s: float = 20.0,
        *,
        model: ModelSettings = MODEL,
        machine: MachineFacts = MACHINE,
        may_measure: bool = True,
        cpus: int = 2,
    ) -> Any:
        """One start: returns the answer and why there is none."""
        self.looked_at, self.timed = [], []
        one = Session(model, machine, self.cache, budget_s, may_measure=may_measure)

        def asking(engines):
            return question_for(model, ModelProfile("m", "", "", 0, engines), cpus, machine.memory_limit_bytes)

        return one.answer(asking), one.failure

    def _facts(self, model, machine, length, memory, most, budget, progress):
        self.memory_bytes, world = memory, self

        class Probe:
            def find(self, name):
                world.looked_at.append(name)
                left = budget.left_s
                took = world.load_s.get(name, 0.0)
                world.now += min(took, left)
                if took > left:
                    raise ProbeFailed("it took too long", late=True)
                if name in world.errors:
                    raise world.errors[name]
                profile = EngineProfile(name, world.versions[name], memory=MemoryLine(GIB // 8, 1000))
                return Facts(profile, {"y": (world.samples.get(name, 1.0), float("nan"))}, 0)

        return Probe()

    def _measurer(self, model, machine, length, budget, progress):
        world = self

        class Measurer:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def time(self, probes):
                return tuple(map(self.one, probes))

            def one(self, probe):
                if not budget.left_s:
                    return Timing(probe, float("inf"), runs=0, failure=NO_TIME)
                world.now += world.probe_s
                world.timed.append(probe.engine)
                seconds = (0.002 + 0.001 * probe.rows) * (1.0 if probe.engine == "onnxruntime" else 1.5)
                return Timing(probe, seconds / min(probe.threads, 2) ** 0.8, waited=world.waited)

        return Measurer()


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path / "probes")


def test_engines_that_are_not_installed_are_told_of_whether_it_was_measured_now_or_before(world):
    assert world.ask()[0].profile.missing == ()
    del world.versions["openvino"]
    assert world.ask()[0].profile.missing == ("openvino",)
    assert world.ask(may_measure=False)[0].profile.missing == ("openvino",)
    on_a_gpu = replace(MODEL, workers=replace(MODEL.workers, device="cuda"))
    assert world.ask(model=on_a_gpu)[0].profile.missing == ()


def test_what_is_measured_once_is_known(world):
    answer, _ = world.ask()
    assert answer.complete
    assert set(world.timed) == {"onnxruntime", "openvino"}
    again, _ = world.ask()
    assert (world.looked_at, world.timed) == ([], [])
    assert again.profile.engines == answer.profile.engines


def test_every_time_that_was_taken_is_kept_and_one_that_failed_once_and_then_did_not_is_forgotten(world):
    answer, _ = world.ask(cpus=16)
    kept = [timing for engine in answer.profile.engines for timing in engine.timings]
    assert len(kept) == len(world.timed) > len({timing.probe for timing in kept}), "some were taken twice"
    probe = kept[0].probe
    engine = EngineProfile("onnxruntime", "1", timings=(Timing(probe, float("inf"), failure="no memory"), kept[1]))
    assert sessions.with_new(engine, [kept[0]]) == (kept[1], kept[0])
    assert sessions.with_new(replace(engine, timings=(kept[0],)), engine.timings[:1]) == (kept[0],)


def test_a_few_bytes_of_memory_more_or_less_are_no_other_question(world):
    world.ask()
    world.ask(machine=replace(MACHINE, memory_limit_bytes=8 * GIB + 4096))
    assert (world.looked_at, world.timed) == ([], [])


def test_finding_out_that_took_all_the_time_still_leads_to_times_of_the_first_engine(world):
    world.load_s = {"onnxruntime": 20.0}
    answer, failure = world.ask()
    assert failure == ""
    assert not answer.complete
    assert "openvino left out: the time for measuring" in " ".join(map(" ".join, answer.notes.items()))
    assert [engine.engine for engine in answer.profile.engines] == ["onnxruntime"]
    assert sum(not timing.failure for timing in answer.profile.engines[0].timings) >= 4
    assert world.now <= 30.0 + world.probe_s


def test_a_model_that_takes_too_long_to_load_is_not_tried_at_every_start(world):
    world.load_s = {"onnxruntime": 50.0, "openvino": 50.0}
    answer, failure = world.ask()
    assert answer is None
    assert "planner.probe_budget_s" in failure
    assert world.now == pytest.approx(20.0)
    answer, failure = world.ask()
    assert (answer, world.looked_at) == (None, [])
    assert "planner.probe_budget_s" in failure
    answer, failure = world.ask(200.0)
    assert answer.complete
    assert {engine.engine for engine in answer.profile.engines} == {"onnxruntime", "openvino"}


def test_what_was_found_out_is_kept_where_no_time_was_taken(world):
    world.load_s = {"onnxruntime": 5.0}
    world.probe_s = 1000.0
    world.errors = {"openvino": ProbeFailed("no such operator")}
    first, _ = world.ask(6.0)
    assert not first.complete
    world.probe_s = 0.1
    assert world.ask(6.0)[0].profile == first.profile
    assert world.timed == []
    more, _ = world.ask(60.0)
    assert world.looked_at == ["openvino"]
    assert more.complete
    assert set(first.profile.engines[0].timings) < set(more.profile.engines[0].timings)


def test_what_may_be_over_next_time_is_tried_again_and_what_is_final_is_not(world):
    world.errors = {"openvino": OSError(24, "Too many open files")}
    assert "Too many open files" in world.ask()[0].notes["openvino"]
    world.errors = {"openvino": ProbeFailed("no such operator")}
    assert "no such operator" in world.ask()[0].notes["openvino"]
    assert world.looked_at == ["openvino"]
    assert "no such operator" in world.ask()[0].notes["openvino"]
    assert world.looked_at == []


def test_an_engine_that_comes_later_is_compared_with_the_one_that_is_known(world):
    world.versions = {"onnxruntime": "1"}
    world.ask()
    world.versions["openvino"], world.samples = "1", {"openvino": 5.0}
    answer, _ = world.ask()
    assert world.looked_at == ["openvino"]
    assert "compared with onnxruntime, output `y` differs" in answer.notes["openvino"]
    world.samples = {"onnxruntime": 5.0, "openvino": 5.0}
    world.versions = {"onnxruntime": "2", "openvino": "2"}  # all are new: there is nothing to compare with
    answer, _ = world.ask()
    assert {engine.engine for engine in answer.profile.engines} == {"onnxruntime", "openvino"}


def test_a_model_that_no_engine_takes_says_why(world):
    world.errors = {name: ProbeFailed("no such operator") for name in world.versions}
    answer, failure = world.ask()
    assert answer is None
    assert failure == "onnxruntime left out: no such operator; openvino left out: no such operator"
    world.errors = {}
    assert world.ask()[0].complete  # mended, as by installing what was missing


def test_without_an_engine_it_is_not_the_time_that_is_missing(world):
    world.versions = {}
    assert world.ask() == (None, "no engine for it is installed (onnxruntime, openvino)")


def test_memory_of_the_models_own_device_is_what_may_be_filled(world):
    gpus = (
        GpuFacts(0, "A", 80 * GIB),
        GpuFacts(1, "B", 24 * GIB),
        GpuFacts(0, "C", 0, kind="amd"),
        GpuFacts(0, "D", 4 * GIB, kind="intel"),
    )
    found = {}
    for device in ("cuda", "cuda:1", "gpu.0", "cuda:7"):
        model = replace(MODEL, workers=WorkerSettings(device=device))
        world.ask(model=model, machine=replace(MACHINE, gpus=gpus))
        found[device] = world.memory_bytes / GIB
    assert found == {"cuda": 80, "cuda:1": 24, "gpu.0": 4, "cuda:7": 1 << 30}


def test_times_that_were_taken_in_a_crowd_are_taken_again_once_it_has_gone(world):
    world.waited = 0.4
    crowded, _ = world.ask()
    assert crowded.profile.crowded_share == pytest.approx(0.4)
    assert crowded.profile.took_s == pytest.approx(world.now, abs=0.01)
    world.calm = False
    still, _ = world.ask()
    assert (world.looked_at, world.timed, still.profile.crowded_share) == ([], [], pytest.approx(0.4))
    world.waited, world.calm = 0.03, True
    again, _ = world.ask()
    assert world.looked_at == []  # what the engines are like has not changed
    assert set(world.timed) == {"onnxruntime", "openvino"}
    assert again.profile.crowded_share == 0
    assert again.profile.took_s == pytest.approx(again.took_s)  # the time that what it knows has cost
    assert all(timing.waited == 0.03 for engine in again.profile.engines for timing in engine.timings)
    assert world.ask()[0].profile == again.profile
    assert world.timed == []


def test_times_of_an_engine_that_is_gone_are_no_reason_to_measure_the_others_again(world):
    world.waited = 0.9
    world.ask()
    world.waited, world.versions = 0.0, {"onnxruntime": "1"}
    world.ask()
    assert set(world.timed) == {"onnxruntime"}
    again, _ = world.ask()
    assert (world.timed, again.profile.crowded_share) == ([], 0.0)


def test_a_crowd_that_took_all_the_time_is_no_reason_to_leave_it_at_that(world):
    world.waited, world.probe_s = 0.9, 6.0
    assert not world.ask()[0].complete
    world.waited, world.probe_s = 0.0, 0.1
    assert world.ask()[0].complete


def test_who_may_not_measure_takes_what_is_known_of_a_crowd(world):
    world.waited = 0.4
    world.ask()
    world.waited = 0.0
    known, _ = world.ask(may_measure=False)
    assert (world.timed, known.profile.crowded_share) == ([], pytest.approx(0.4))
