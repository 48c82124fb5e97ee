"""A worker runs a large batch only when smaller ones have shown that it fits into memory."""

import pytest

from hybrid.errors import StartupError
from hybrid.workers.warming import Memory, warm_safely

MB = 1_000_000


class World:
    """A model that takes `per_row` bytes for each row of its largest batch, and a machine with `free` bytes."""

    def __init__(self, per_row, free):
        self.per_row, self.free = per_row, free
        self.ran = []

    def run(self, rows):
        self.ran.append(rows)

    def memory(self):
        taken = 100 * MB + self.per_row * max(self.ran, default=1)
        return Memory(taken, self.free - taken)


@pytest.mark.parametrize("top", [1, 8, 64])
def test_usual_batches_are_run_at_once(top):
    world = World(MB, 1 * MB)
    warm_safely(world.run, top, world.memory)
    assert world.ran == []


def test_large_batches_that_fit_are_reached_by_steps():
    world = World(MB, 10_000 * MB)
    warm_safely(world.run, 600, world.memory)
    assert world.ran == [8, 32, 128, 512]


def test_a_batch_that_will_not_fit_is_never_run():
    world = World(MB, 8_000 * MB)
    with pytest.raises(
        StartupError,
        match=r"max_batch 1000000: does not fit.*2048 rows took 2.1 GB, 8192 would take 6.1 GB more, and 5.9 GB",
    ):
        warm_safely(world.run, 1_000_000, world.memory)
    assert max(world.ran) * MB < world.free / 3


def test_a_model_that_takes_no_memory_runs_what_is_asked_for():
    world = World(0, 1000 * MB)
    warm_safely(world.run, 100_000, world.memory)
    assert world.ran == [8, 32, 128, 512, 2048, 8192, 32768]
