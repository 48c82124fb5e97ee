"""A world around `BatchState` for tests: a clock, workers that fail by rule, clients, and a ledger of every answer.

`check()` runs after every event. The world never looks into the state to decide what should happen; it knows which rows
are bad and what it told the state, and compares the answers with that.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import INFINITY, LaneKey, Outcome, PieceState, Ticket
from hybrid.batching.state import BatchState
from hybrid.batching.types import Batch
from hybrid.messages import FailureKind

LANES = tuple(LaneKey(None, f"class {index}") for index in range(4))
SECONDS = 0.01  # how long every batch takes


class World:
    def __init__(
        self,
        policy: BatchPolicy | None = None,
        *,
        workers: int = 1,
        slots: int = 1,
        fingerprint: Callable[[Any], bytes] | None = None,
    ) -> None:
        self.state = BatchState(policy or BatchPolicy(), fingerprint)
        self.now = 1000.0
        self.tickets: list[Ticket] = []  # all that were admitted
        self.answers: dict[int, list[Outcome]] = {}
        self.runs: list[Batch] = []  # all that were sent, in order
        self.ran_rows: dict[int, list[int]] = {}  # rows of a ticket that were computed, in order of completion
        self.poison: dict[int, set[int]] = {}  # rows that the engine refuses, by ticket
        self.crash: dict[int, set[int]] = {}  # rows that kill the worker
        self.memory_rows = 10**9  # larger batches run out of memory
        self.events = 0
        self.computed = 0  # tokens, padding included
        self.seconds_of: Callable[[Batch], float] = lambda _: SECONDS
        self._ids = count(1)
        for _ in range(workers):
            self.up(slots)

    # Events --------------------------------------------------------------------------------------------------------

    def up(self, slots: int = 1) -> int:
        worker = next(self._ids)
        self.state.worker_up(worker, slots)
        self.after()
        return worker

    def submit(self, rows: int = 1, *, poison: Iterable[int] = (), crash: Iterable[int] = (), **given: Any) -> Ticket:
        given.setdefault("lane_key", LANES[0])
        given.setdefault("payload", b"payload")
        sizes = given.pop("sizes", ())
        ticket = Ticket(rows=rows, **given)
        ticket.sizes = sizes
        self.state.submit(ticket, self.now)
        self.tickets.append(ticket)
        self.answers[ticket.id] = []
        self.ran_rows[ticket.id] = []
        self.poison[ticket.id] = set(poison)
        self.crash[ticket.id] = set(crash)
        self.after()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        was_open = ticket.outcome is None
        assert self.state.cancel(ticket, self.now) == was_open
        if was_open:
            self.record([ticket])
        self.after()

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def pump(self) -> list[Batch]:
        """What the driver does after every event: expire, then send."""
        self.record(self.state.expire(self.now))
        self.after()
        batches = self.state.pump(self.now)
        for batch in batches:
            self.runs.append(batch)
            for piece in batch.pieces:
                ticket = piece.ticket
                assert ticket.outcome is None, "an answered request was sent"
                assert ticket.deadline > self.now, "an expired request was sent"
        self.after()
        return batches

    def complete(self, batch: Batch) -> list[Ticket]:
        row = 0
        self.computed += batch.rows * max(piece.size for piece in batch.pieces)
        for piece in batch.pieces:
            row += piece.rows
            if piece.ticket.outcome is None:
                self.ran_rows[piece.ticket.id] += range(piece.start, piece.start + piece.rows)
        assert row == batch.rows
        return self.record(self.state.complete(batch.id, self.seconds_of(batch), self.now))

    def fail(self, batch: Batch, kind: FailureKind = FailureKind.INPUT) -> list[Ticket]:
        return self.record(self.state.fail(batch.id, kind, f"told to fail: {kind.value}", self.now))

    def lose(self, worker: int, *, own: bool = True) -> list[Ticket]:
        return self.record(self.state.worker_lost(worker, self.now, own=own))

    # What the workers do -------------------------------------------------------------------------------------------

    def running(self) -> list[Batch]:
        """The batch that each busy worker executes."""
        return [self.state.batches[worker.batches[0]] for worker in self.state.workers.values() if worker.batches]

    def execute(self, batch: Batch) -> None:
        """End a running batch as its rows deserve; a lost worker is replaced."""
        if self._holds(batch, self.crash):
            slots = self.state.workers[batch.worker].slots
            self.lose(batch.worker)
            self.up(slots)
        elif self._holds(batch, self.poison):
            self.fail(batch)
        elif batch.rows > self.memory_rows:
            self.fail(batch, FailureKind.MEMORY)
        else:
            self.complete(batch)

    def settle(self) -> None:
        """Let time pass until nothing is open and nothing runs."""
        for _ in range(100_000):
            self.pump()
            running = self.running()
            if running:
                self.advance(SECONDS)
                self.execute(running[0])
            elif self.state.tickets:
                wake_at = self.state.wake_at(self.now)
                assert self.now < wake_at < INFINITY, "nothing runs and nothing will happen"
                self.now = wake_at
            else:
                return
        raise AssertionError("the world does not come to rest")

    # The ledger ----------------------------------------------------------------------------------------------------

    def after(self) -> None:
        self.events += 1
        self.state.check()

    def record(self, tickets: list[Ticket]) -> list[Ticket]:
        """Note answers; rows of a good one are all there, once, in order of the pieces."""
        for ticket in tickets:
            assert ticket.outcome is not None
            self.answers[ticket.id].append(ticket.outcome)
            if ticket.outcome is Outcome.OK:
                assert sorted(self.ran_rows[ticket.id]) == list(range(ticket.rows)), self.state.story(ticket)
                assert [row for p in ticket.pieces for row in range(p.start, p.start + p.rows)] == list(
                    range(ticket.rows)
                )
                assert all(piece.state is PieceState.DONE for piece in ticket.pieces)
        self.after()
        return tickets

    def assert_at_rest(self) -> None:
        """Every request was answered exactly once and nothing is left anywhere."""
        state = self.state
        for ticket in self.tickets:
            assert self.answers[ticket.id] == [ticket.outcome], state.story(ticket)
        assert not state.tickets
        assert not state.batches
        assert state.held_bytes == state.lanes.rows == state._orphans == 0
        assert all(not worker.batches for worker in state.workers.values())
        assert sum(state.stats.outcomes.values()) == len(self.tickets)
        classes = state.lanes.classes.values()
        assert sum(counters.arrived_n for counters in classes) == len(self.tickets)
        assert sum(counters.real_n + counters.pad_n for counters in classes) == self.computed
        assert all(counters.pad_n >= 0 for counters in classes)
        assert sum(counters.batches_n for counters in classes) == state.stats.batches_n == len(self.runs)
        assert sum(counters.rows_n for counters in classes) == sum(batch.rows for batch in self.runs)
        assert sum(n for counters in classes for n in counters.released.values()) == len(self.runs)
        assert sum(n for counters in classes for n in counters.sizes_n.values()) == len(self.runs)

    @staticmethod
    def _holds(batch: Batch, bad: dict[int, set[int]]) -> bool:
        return any(bad[p.ticket.id] & set(range(p.start, p.start + p.rows)) for p in batch.pieces)
