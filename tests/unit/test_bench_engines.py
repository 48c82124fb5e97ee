"""What the benchmarks of the engines compute, and that every load of theirs runs."""

from pathlib import Path

import pytest
import torch

from bench import gpu, memory
from bench.memory import CASES, Sample


def test_a_line_is_found_where_there_is_one() -> None:
    start, slope = gpu.line((1, 2, 4, 8), [3 + 2 * b for b in (1, 2, 4, 8)])
    assert (start, slope) == (pytest.approx(3), pytest.approx(2))
    start, slope = gpu.line((1, 2, 4), [1, 2.5, 6])  # a fit would start below 0
    assert start == 0
    assert 1 < slope < 1.5


@pytest.mark.parametrize("limit", [1, 2, 99, 100, 101, 5000])
@pytest.mark.parametrize("guess", [-3, 1, 100, 4096])
def test_the_largest_batch_is_found_to_one_per_cent(limit: int, guess: int) -> None:
    tried = []

    def fits(rows: int) -> bool:
        tried.append(rows)
        return rows <= limit

    found = gpu.largest(fits, guess)
    assert 0.98 * limit <= found <= limit
    assert len(tried) < 30


def test_nothing_fits() -> None:
    assert gpu.largest(lambda rows: False, 64) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_script_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    out = capsys.readouterr().out
    assert out.startswith("no NVIDIA GPU: PyTorch ")
    assert out.count("\n") == 1


def samples(sizes: list[int]) -> list[Sample]:
    return [Sample(number * 100, size * 1_000_000, 10) for number, size in enumerate(sizes)]


def test_memory_that_stops_growing_has_settled() -> None:
    flat = memory._summary(samples([100, 150, 190] + [200] * 18))
    assert (flat["start_mb"], flat["at_10%"], flat["at_100%"], flat["peak_mb"]) == (100, 190, 200, 200)
    assert (flat["settled"], flat["slope_kb_per_1000"]) == (True, 0)
    leak = memory._summary(samples(list(range(100, 121))))
    assert (leak["settled"], leak["slope_kb_per_1000"]) == (False, pytest.approx(10_000))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_load_runs(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    file = case.write(tmp_path)
    for variant in case.variants:
        steps = case.steps(variant, file)
        for _ in range(3):
            next(steps)()
    assert Path(file).is_file()
