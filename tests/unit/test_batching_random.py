"""Random events against the batching state, with `check()` after each and a ledger of answers at the end."""

import random
from collections.abc import Callable

import pytest
from batching_world import LANES, SECONDS, World
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.batching.cost import CostModel
from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import INFINITY, LaneKey, Outcome, Ticket
from hybrid.batching.types import Batch
from hybrid.errors import PoisonRefused, QueueFull, TooLarge
from hybrid.messages import FailureKind

SHARED = (*LANES[:2], LaneKey("ids"), LaneKey("other ids"))
EXAMPLES, STEPS = 60, 1000  # a step is an event or two: over 100,000 events in a default run
seeds = st.integers(0, 2**32 - 1)


class Chaos(World):
    """Picks events at random. `kind` and `pick` come from outside so that hypothesis can shrink a short story."""

    def __init__(self, rng: random.Random, *, honest: bool) -> None:
        self.rng = rng
        super().__init__(_policy(rng), workers=rng.randint(0, 2), slots=rng.randint(1, 3), fingerprint=_digest)
        self.honest = honest  # batches fail only for rows that are bad
        self.memory_rows = rng.choice([1, 3, 10**9])
        self.calm = rng.random() / 2
        self.rows_cost(rng.choice([0.0, SECONDS]))

    def rows_cost(self, per_row_s: float) -> None:
        """Above 0 rows are spread over workers that idle."""
        self.seconds_of = lambda batch: SECONDS + per_row_s * batch.rows
        self.state.lanes.unknown = CostModel()
        for rows in (1, 8):
            self.state.lanes.unknown.observe(rows, SECONDS + per_row_s * rows)

    def events_of(self) -> list[Callable[[], object]]:
        common: list[Callable[[], object]] = [
            self.try_submit, self.try_submit, self.try_submit, self.pump, self.pump, self.end_one, self.end_one,
            self.tick, self.cancel_one, self.swap_policy, self.more_workers,
        ]  # fmt: skip
        return common if self.honest else [*common, self.lose_one, self.retire_one, self.break_one]

    def step(self, kind: int) -> None:
        events = self.events_of()
        events[kind % len(events)]()

    def try_submit(self) -> None:
        rng = self.rng
        if rng.random() < self.calm:
            return
        rows = rng.choice([1, 1, 1, 2, 3, 5, 8, rng.randint(1, 40)])
        deadline = rng.choice([INFINITY, INFINITY, self.now + rng.random() / 5, self.now + 5, self.now + 60, self.now])
        bad = {rng.randrange(rows)} if rng.random() < 0.05 else ()
        crash = {rng.randrange(rows)} if rng.random() < 0.02 else ()
        payload = b"%d" % rng.randrange(30) if bad or crash else b"good %d" % rng.randrange(10**9)
        before = (self.state.lanes.rows, self.state.held_bytes, len(self.state.tickets))
        policy, nbytes, priority = self.state.policy, rng.randint(0, 300), rng.randint(1, 9)
        sizes = sorted(rng.choice([3, 8, 9, 30, 200]) for _ in range(rows)) if rng.random() < 0.5 else []
        size = sizes[-1] if sizes else rng.choice([0, 4, 40, 250])
        try:
            ticket = self.submit(
                rows, poison=bad, crash=crash, payload=payload, nbytes=nbytes, deadline=deadline, priority=priority,
                lane_key=rng.choice(SHARED), size=size, sizes=sizes,
            )  # fmt: skip
        except (QueueFull, TooLarge, PoisonRefused):
            assert before == (self.state.lanes.rows, self.state.held_bytes, len(self.state.tickets))
            self.after()
            return
        assert self.state.lanes.rows == before[0] + ticket.rows <= policy.queue_rows
        assert self.state.held_bytes == before[1] + ticket.nbytes <= policy.queue_bytes

    def end_one(self) -> None:
        running = self.running()
        if running:
            self.execute(self.rng.choice(running))

    def break_one(self) -> None:
        """Any failure for any batch that is in flight, also one that waits behind another."""
        if self.state.batches:
            self.fail(self.rng.choice(list(self.state.batches.values())), self.rng.choice(list(FailureKind)))

    def lose_one(self) -> None:
        if self.state.workers and self.rng.random() < 0.3:
            self.lose(self.rng.choice(list(self.state.workers)))

    def retire_one(self) -> None:
        if self.rng.random() < 0.3:
            self.state.worker_retired(self.rng.choice([*self.state.workers, 10**6]))
            self.after()

    def more_workers(self) -> None:
        if sum(not worker.retired for worker in self.state.workers.values()) < 4:
            self.up(self.rng.randint(1, 3))

    def cancel_one(self) -> None:
        if self.tickets:
            self.cancel(self.rng.choice(self.tickets[-30:]))

    def tick(self) -> None:
        """Move the clock, sometimes exactly to when the state asked to be woken."""
        wake_at = self.state.wake_at(self.now)
        assert wake_at >= self.now
        self.now = wake_at if wake_at < INFINITY and self.rng.random() < 0.5 else self.now + self.rng.random() / 100

    def swap_policy(self) -> None:
        if self.rng.random() < 0.2:
            self.state.set_policy(_policy(self.rng))
            self.after()

    def finish(self) -> None:
        """Drain with healthy workers and see that everybody was answered, once."""
        self.state.drain()
        self.after()
        self.up(2)
        self.settle()
        self.assert_at_rest()


class Calm(Chaos):
    """Few requests for many workers, so that several of them idle when a request comes."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, honest=False)
        self.rows_cost(SECONDS)
        self.cuts = 0
        while len(self.state.workers) < 4:
            self.up(rng.randint(1, 2))

    def events_of(self) -> list[Callable[[], object]]:
        return [*super().events_of(), *[self.end_one] * 12]

    def pump(self) -> list[Batch]:
        pieces = sum(len(ticket.pieces) for ticket in self.state.tickets.values())
        batches = super().pump()
        if sum(len(ticket.pieces) for ticket in self.state.tickets.values()) > pieces:
            self.cuts += 1
        return batches


def _policy(rng: random.Random) -> BatchPolicy:
    max_batch = rng.choice([1, 2, 4, 8, 8, 32])
    return BatchPolicy(
        max_batch=max_batch,
        max_wait_s=rng.choice([0.0, 0.0, 0.005, 0.0107]),
        early_trigger=rng.choice([max_batch, max(1, max_batch // 2), 64]),
        queue_rows=rng.choice([30, 100, 300]),
        queue_bytes=rng.choice([2_000, 20_000]),
        formation=rng.choice(["fifo", "classes", "sorted", "sorted"]),
        size_edges=rng.choice([(), (8,), (8, 32, 256)]),
    )


def _digest(payload: object) -> bytes:
    assert isinstance(payload, bytes)
    return payload


def _guilty(world: World, ticket: Ticket) -> bool:
    return bool(world.poison[ticket.id] or world.crash[ticket.id])


total_events = 0
total_cuts = 0


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=seeds)
def drive_anything(seed: int) -> None:
    global total_events
    rng = random.Random(seed)
    world = Chaos(rng, honest=False)
    for _ in range(STEPS):
        world.step(rng.randrange(10**6))
    world.finish()
    total_events += world.events


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=seeds)
def drive_honest(seed: int) -> None:
    global total_events
    rng = random.Random(seed)
    world = Chaos(rng, honest=True)
    for _ in range(STEPS):
        world.step(rng.randrange(10**6))
    world.finish()
    for ticket in world.tickets:
        if ticket.outcome is Outcome.FAILED:
            assert _guilty(world, ticket), f"an innocent request failed: {ticket.failure_text}"
        if ticket.outcome is Outcome.OK:
            assert not _guilty(world, ticket), "a bad request was answered"
    total_events += world.events


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=seeds)
def drive_calm(seed: int) -> None:
    global total_cuts
    rng = random.Random(seed)
    world = Calm(rng)
    for _ in range(STEPS // 2):
        world.step(rng.randrange(10**6))
    world.finish()
    total_cuts += world.cuts


@pytest.mark.slow
def test_random_events():
    """Whatever happens: invariants hold after each event and every request is answered exactly once."""
    drive_anything()
    drive_honest()
    assert total_events >= 100_000


@pytest.mark.slow
def test_random_events_where_workers_idle():
    """The same with requests that are cut over the workers that have nothing to do."""
    drive_calm()
    assert total_cuts >= 30


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(seed=seeds, kinds=st.lists(st.integers(0, 13), max_size=60))
def test_short_stories(seed, kinds):
    """The same on short runs, which hypothesis can shrink to the few events that matter."""
    world = Chaos(random.Random(seed), honest=False)
    for kind in kinds:
        world.step(kind)
    world.finish()
