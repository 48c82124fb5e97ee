"""The simulated device: identity, declared latency and memory, and every fault that leaves the process alive."""

import math

import numpy as np
import pytest

from hybrid.config import ModelSettings, SimulatedSettings
from hybrid.engines import simulated_engine as sim
from hybrid.engines.base import EngineFailure, EngineSettings, MemoryFacts
from hybrid.errors import StartupError
from hybrid.messages import FailureKind


class Sleeps:
    """Stands in for `time` inside the engine: notes what was slept, and lets no time pass."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def thread_time(self) -> float:
        self.cpu += 0.001
        return self.cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    sleeps = Sleeps()
    monkeypatch.setattr(sim, "time", sleeps)
    return sleeps


def device(**settings: object) -> sim.SimulatedEngine:
    simulated = SimulatedSettings(**settings)  # type: ignore[arg-type]
    return sim.load(ModelSettings(name="s", simulated=simulated), EngineSettings())


def rows(*first: float, columns: int = 3) -> np.ndarray:
    x = np.ones((len(first), columns), np.float32)
    x[:, 0] = first
    return x


def test_null_returns_the_very_input(clock: Sleeps) -> None:
    x = rows(1, 2)
    assert device().run({"x": x}, 2)["y"] is x
    assert clock.seconds == []


def test_signature_has_the_declared_columns() -> None:
    assert device(columns=7).signature.inputs[0].shape == (-1, 7)
    assert device().signature.outputs[0].shape == (-1, -1)


def test_latency_is_fixed_plus_rows_plus_tokens_and_the_first_run_is_longer(clock: Sleeps) -> None:
    engine = device(fixed_ms=10, per_row_ms=2, per_token_ms=0.5, first_run_ms=100, start_s=3)
    engine.run({"x": rows(1, 2)}, 2)
    engine.run({"x": rows(1, 2)}, 2)
    assert clock.seconds == pytest.approx([3.0, 0.117, 0.017])


def test_noise_is_log_normal_and_the_same_for_the_same_seed(clock: Sleeps) -> None:
    for seed in (1, 1, 2):
        engine = device(fixed_ms=10, noise=0.5, seed=seed)
        for _ in range(200):
            engine.run({"x": rows(1)}, 1)
    first, again, other = np.array_split(np.log(np.array(clock.seconds) / 0.010), 3)
    assert first.tolist() == again.tolist() != other.tolist()
    assert 0.4 < first.std() < 0.6
    assert abs(first.mean()) < 0.15


def test_busy_spends_cpu_time_instead_of_sleeping(clock: Sleeps) -> None:
    device(fixed_ms=50, busy=True).run({"x": rows(1)}, 1)
    assert clock.seconds == []
    assert 0.05 <= clock.cpu < 0.06


def test_memory_model() -> None:
    engine = device(memory_total_bytes=1000, memory_weights_bytes=400, memory_per_row_bytes=200)
    assert engine.memory() == MemoryFacts(400, 400)
    engine.run({"x": rows(1, 2, 3)}, 3)
    with pytest.raises(EngineFailure, match="4 rows need 1200 bytes") as caught:
        engine.run({"x": rows(1, 2, 3, 4)}, 4)
    assert caught.value.kind is FailureKind.MEMORY
    assert engine.memory() == MemoryFacts(400, 1000)
    assert device().memory() == MemoryFacts()
    with pytest.raises(StartupError, match="do not fit"):
        device(memory_total_bytes=10, memory_weights_bytes=11)


def test_leaks_are_kept_until_closed() -> None:
    engine = device(leak_bytes_per_run=1000, faults=True)
    engine.run({"x": rows(1)}, 1)
    engine.run({"x": rows(sim.LEAK)}, 1)
    assert sum(map(len, engine._lost)) == 2000 + sim.LEAK_BYTES
    engine.close()
    assert engine._lost == []


def test_faults_are_off_unless_asked_for() -> None:
    x = rows(sim.POISON, sim.RAISE, sim.MEMORY)
    assert device().run({"x": x}, 3)["y"] is x


def test_faults_that_raise() -> None:
    engine = device(faults=True)
    for marker, kind in ((sim.POISON, EngineFailure), (sim.MEMORY, MemoryError), (sim.RAISE, RuntimeError)):
        with pytest.raises(kind):
            engine.run({"x": rows(1, marker, 2)}, 3)
    x = rows(1, 2)
    assert engine.run({"x": x}, 2)["y"] is x


def test_faults_in_the_output(clock: Sleeps) -> None:
    engine = device(faults=True)
    x = rows(1, sim.NAN, 3)
    y = engine.run({"x": x}, 3)["y"]
    assert math.isnan(y[1, 0])
    assert np.isinf(y[1, 1:]).all()
    np.testing.assert_array_equal(y[[0, 2]], x[[0, 2]])
    assert x[1, 0] == sim.NAN  # the input, which lies in shared memory, is left alone
    assert len(engine.run({"x": rows(1, sim.WRONG_ROWS)}, 2)["y"]) == 1
    assert engine.run({"x": rows(1, sim.MISSING)}, 2) == {}
    engine.run({"x": rows(sim.SLOW)}, 1)
    assert clock.seconds == [sim.SLOW_S]
    assert engine.run({"x": np.ones((2, 0), np.float32)}, 2)["y"].shape == (2, 0)


def test_the_docstring_names_every_marker() -> None:
    markers = {k: v for k, v in vars(sim).items() if k.isupper() and isinstance(v, float) and v < 0}
    assert len(markers) == 12
    for name, value in markers.items():
        assert any(line.split()[:2] == [name, f"{value:.0f}"] for line in (sim.__doc__ or "").splitlines()), name
